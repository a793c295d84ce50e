"""One controller that turns the sidecar away keeps it from no other."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from linker.membership import TargetCluster
from linker.membership.controller_channel import ControllerChannel
from linker.membership.discovery import ActiveController, QuorumFinder
from tests.fakes.controller import FakeQuorum
from wire.client.security import ClientSecurity
from wire.errors import AuthenticationFailed, WireError

NO = "users of this controller do not have ours"


def finder_of(answers: dict[int, Any]) -> QuorumFinder:
    """`answers`: by the port of each controller that is known."""
    finder = QuorumFinder(
        SimpleNamespace(name="target", nodes={}),  # type: ignore[arg-type]
        security=ClientSecurity.plaintext(),
        bootstrap=[],
        client_id="me",
        own_broker_id=None,
    )
    finder.known = {port: ("127.0.0.1", port) for port in answers}

    async def ask(host: str, port: int, deadline: float) -> ActiveController | None:
        if isinstance(answers[port], Exception):
            raise answers[port]
        return answers[port]  # type: ignore[no-any-return]

    finder._ask_controller = ask  # type: ignore[method-assign]
    return finder


async def asked(finder: QuorumFinder) -> ActiveController | None:
    return await finder.ask_controllers({}, time.monotonic() + 5, 0)


async def test_one_that_refuses_hides_none_that_does_not_lead_yet() -> None:
    finder = finder_of({1: AuthenticationFailed(NO), 2: WireError("is not the active controller")})
    assert await asked(finder) is None and finder.refused is None
    finder = finder_of({1: AuthenticationFailed(NO), 2: ActiveController(2, "127.0.0.1", 2, 5)})
    found = await asked(finder)
    assert found is not None and found.id == 2


async def test_where_all_refuse_it_is_said_unless_brokers_know_another() -> None:
    finder = finder_of({1: AuthenticationFailed(NO), 2: AuthenticationFailed(NO)})
    assert await asked(finder) is None and str(finder.refused) == NO
    channel = ControllerChannel(
        SimpleNamespace(name="target", nodes={}),  # type: ignore[arg-type]
        security=ClientSecurity.plaintext(),
        bootstrap=[("127.0.0.1", 1)],
        client_id="me",
        finder=finder,
    )
    told: list[ActiveController | None] = [None, ActiveController(3, "127.0.0.1", 3, 5)]

    async def ask_brokers(tried: dict[str, str], deadline: float) -> ActiveController | None:
        return told.pop(0)

    finder.ask_brokers = ask_brokers  # type: ignore[method-assign]
    with pytest.raises(AuthenticationFailed, match=NO):
        await channel.discover(5)
    found = await channel.discover(5)
    assert found.id == 3
    await channel.close()


async def test_one_that_was_named_and_refuses_is_not_kept(
    member: TargetCluster, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that has led before names its successor, which may be set up otherwise."""
    channel = member.channel
    first = await channel.discover(5)
    kept = channel._kept_connection

    async def connection(active: ActiveController, purpose: str, timeout: float) -> Any:
        if active.id == 77:
            raise AuthenticationFailed(NO, peer=active.address)
        return await kept(active, purpose, timeout)

    monkeypatch.setattr(channel, "_kept_connection", connection)
    channel._finder.known[77] = ("127.0.0.1", 1)
    channel.moved(first, leader_id=77, epoch=first.epoch + 1)
    with pytest.raises(AuthenticationFailed, match=NO):
        await channel.connection("admin", timeout=2)
    quorum.epoch = first.epoch + 2
    active, _ = await channel.connection("admin", timeout=5)
    assert active.id == first.id


def test_all_listeners_of_a_controller_are_tried_and_the_one_that_answered_stays() -> None:
    """They are told in the order of a hash map (`Endpoints`)."""
    finder = finder_of({})

    def told(*ports: int) -> Any:
        listeners = [SimpleNamespace(host="127.0.0.1", port=port) for port in ports]
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=1, listeners=listeners)])

    finder._learn_nodes(told(9093, 9094))
    assert finder.known == {1: ("127.0.0.1", 9093)}
    assert finder._listeners == {1: [("127.0.0.1", 9093), ("127.0.0.1", 9094)]}
    finder.known[1] = ("127.0.0.1", 9094)
    finder._learn_nodes(told(9093, 9094))
    assert finder.known == {1: ("127.0.0.1", 9094)}
    finder._learn_nodes(told(9193))
    assert finder.known == {1: ("127.0.0.1", 9193)}
