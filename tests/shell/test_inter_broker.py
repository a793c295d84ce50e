"""On which listeners the target's brokers talk to each other."""

from __future__ import annotations

import asyncio
import logging

import pytest

from linker.membership.inter_broker import InterBrokerListeners
from wire.errors import BrokerError


class Brokers:
    def __init__(self, configs: dict[int, dict[str, str]]) -> None:
        self.configs = configs
        self.silent: set[int] = set()
        self.asked = 0

    async def ask(self, broker: int, name: str, timeout: float) -> str | None:
        self.asked += 1
        if broker in self.silent:
            raise BrokerError(31, message="not allowed")
        return self.configs[broker].get(name)


async def test_each_broker_is_asked_and_keeps_its_word() -> None:
    brokers = Brokers(
        {
            1: {"inter.broker.listener.name": "REPLICATION"},
            2: {"security.inter.broker.protocol": "SASL_SSL"},
            3: {},
        }
    )
    listeners = InterBrokerListeners(brokers.ask, lambda: [1, 2, 3], ["REPLICATION", "PUBLIC"])
    assert listeners() == frozenset()
    await listeners.look()
    assert listeners() == {"REPLICATION", "SASL_SSL", "PLAINTEXT"}
    brokers.silent = {1}
    brokers.configs[2] = brokers.configs[3] = {"inter.broker.listener.name": "NEW"}
    await listeners.look()
    assert listeners() == {"REPLICATION", "NEW"}


async def test_whoever_is_not_told_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers({1: {}})
    brokers.silent = {1}
    listeners = InterBrokerListeners(brokers.ask, lambda: [1], ["A", "B"])
    with caplog.at_level(logging.WARNING):
        await listeners.look()
        await listeners.look()
    assert caplog.text.count("no broker of the target tells") == 1
    assert listeners() == frozenset()


async def test_with_one_listener_nobody_is_asked() -> None:
    brokers = Brokers({1: {}})
    await asyncio.wait_for(InterBrokerListeners(brokers.ask, lambda: [1], ["A"]).run(), 30)
    assert brokers.asked == 0


async def test_a_controller_of_before_kraft_comes_in_on_a_listener_of_its_own() -> None:
    """`control.plane.listener.name`, which is never the one between brokers (KIP-291)."""
    configs = {"inter.broker.listener.name": "REPLICATION", "control.plane.listener.name": "CONTROLLER"}
    brokers = Brokers({1: configs, 2: {"inter.broker.listener.name": "REPLICATION"}})
    names = ["CONTROLLER", "REPLICATION", "PUBLIC"]
    listeners = InterBrokerListeners(brokers.ask, lambda: [1], names, controlled=True)
    assert listeners.control() == frozenset()
    await listeners.look()
    assert (listeners(), listeners.control()) == ({"REPLICATION"}, {"CONTROLLER"})
    listeners = InterBrokerListeners(brokers.ask, lambda: [2], names, controlled=True)
    await listeners.look()
    assert listeners.control() == {"REPLICATION"}
