"""Brokers that advertise what is no address, or whose connections fail in ways that nobody has thought of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from router.ports import RouterLimits
from tests.router.rig import Producer, Rig, eventually
from wire.errors import ConnectionLost
from wire.metadata.image import Endpoint

BAD_NAME = "broker-2..example"
LIMITS = RouterLimits(settle_grace=0.3, backoff_min=0.01, connect_timeout=2.0)


async def test_writes_go_on_beside_a_leader_with_a_bad_name_and_to_it_when_it_is_put_right() -> None:
    async with Rig(limits=LIMITS) as rig:
        rig.source.move_leader("orders", 0, 1)
        rig.source.move_leader("orders", 1, 2)
        bad = rig.source.brokers[2]
        good_name, bad.host = bad.host, BAD_NAME
        await rig.cluster.refresh(["orders"], timeout=5)
        late = Producer(await rig.client(), rig).send(1, timeout_ms=30_000)
        (answer,) = await asyncio.wait_for(Producer(await rig.client(), rig).send(0, timeout_ms=1000), 25)
        assert answer.error == 0
        assert not late.done()
        bad.host = good_name
        (answer,) = await asyncio.wait_for(late, 25)
        assert answer.error == 0


async def test_a_client_whose_broker_has_a_bad_name_is_let_go() -> None:
    async with Rig(limits=LIMITS) as rig:
        _rename(rig, 1, 2)
        with pytest.raises(ConnectionLost):
            await rig.client()
        await eventually(lambda: not rig.listener.connections)


async def test_one_broker_with_a_bad_name_is_no_obstacle() -> None:
    async with Rig(limits=LIMITS) as rig:
        _rename(rig, 1)
        for _ in range(5):
            await rig.client()


async def test_a_bug_in_opening_an_upstream_ends_the_client_and_is_seen() -> None:
    async def breaks(*args: object) -> Any:
        raise KeyError("a bug")

    async with Rig(limits=LIMITS) as rig:
        rig.router.ports.open_upstream = breaks
        with pytest.raises(ConnectionLost):
            await rig.client()
        await eventually(lambda: not rig.listener.connections)
        assert [type(seen["exception"]) for seen in rig.loop_errors] == [KeyError]
        rig.loop_errors.clear()


async def test_a_bug_in_opening_a_route_is_seen_and_the_next_attempt_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig(limits=LIMITS) as rig:
        producer = Producer(await rig.client(), rig)
        opens = rig.cluster.open_connection
        attempts = 0

        async def breaks_once(node: Any) -> Any:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise KeyError("a bug")
            return await opens(node)

        monkeypatch.setattr(rig.cluster, "open_connection", breaks_once)
        (answer,) = await asyncio.wait_for(producer.send(0), 25)
        assert answer.error == 0
        assert [type(seen["exception"]) for seen in rig.loop_errors] == [KeyError]
        rig.loop_errors.clear()


def _rename(rig: Rig, *brokers: int) -> None:
    for broker_id in brokers:
        endpoints: dict[str, Endpoint] = rig.image.brokers[broker_id].endpoints
        endpoints["CLIENTS"] = Endpoint(BAD_NAME, endpoints["CLIENTS"].port, 0)
