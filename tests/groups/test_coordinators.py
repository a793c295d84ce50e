"""Finding coordinators for many groups, sharing one connection, and not waiting behind those who wait."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from controller.groups import GateKind
from groups.gates.coordinators import Coordinators, KeyType
from groups.gates.factory import make_gate, plan_gate
from groups.gates.requests import assigned_partitions, describe
from tests.fakes.groups.clients import encode_assignment
from tests.groups.gates_kit import GROUP, QUICK, at, target
from wire.errors import BrokerError, LinkerError, WireError
from wire.frames.types import TopicPartition


async def test_lookups_of_many_groups_are_one_request() -> None:
    async with target(nodes=3) as held:
        names = [f"g{number}" for number in range(400)]
        for number, name in enumerate(names):
            held.groups.placed[0, name] = 1 + number % 3
        found = await asyncio.gather(*(held.coordinators.find(KeyType.GROUP, name) for name in names))
        assert found == [1 + number % 3 for number in range(400)]
        assert held.fake.counts["find_coordinator"] == 1
        await held.coordinators.find(KeyType.GROUP, "g1")
        assert held.fake.counts["find_coordinator"] == 1


async def test_brokers_before_3_0_are_asked_one_by_one() -> None:
    async with target(api_versions={"find_coordinator": (0, 3)}) as held:
        names = ["a", "b"]
        assert await asyncio.gather(*(held.coordinators.find(KeyType.GROUP, name) for name in names)) == [
            1,
            1,
        ]
        assert held.fake.counts["find_coordinator"] == 2


async def test_an_error_without_a_name_is_no_node() -> None:
    """UNKNOWN_SERVER_ERROR is -1: taken for a sign it would be node 1."""
    async with target() as held:
        held.fake.inject("find_coordinator", error=-1)
        with pytest.raises(BrokerError, match="UNKNOWN_SERVER_ERROR"):
            await held.coordinators.find(KeyType.GROUP, "a")


async def test_one_connection_per_coordinator_for_all_groups() -> None:
    async with target(nodes=2) as held:
        names = [f"g{number}" for number in range(200)]
        for number, name in enumerate(names):
            held.groups.placed[0, name] = 1 + number % 2
        before = [broker.connections for broker in held.fake.brokers.values()]
        await asyncio.gather(*(describe(held.coordinators, name, timeout=5.0) for name in names))
        after = [broker.connections for broker in held.fake.brokers.values()]
        # one for groups on each node, one more for lookups on either
        assert sum(after) - sum(before) == 3


async def test_describes_of_many_groups_are_one_request_per_coordinator() -> None:
    async with target(nodes=2) as held:
        names = [f"g{number}" for number in range(100)]
        for number, name in enumerate(names):
            held.groups.placed[0, name] = 1 + number % 2
        await asyncio.gather(*(held.coordinators.find(KeyType.GROUP, name) for name in names))
        held.groups.move(0, "g7", 1)  # it was the second node's
        found = await asyncio.gather(
            *(held.coordinators.describe(name, "describe_groups", timeout=5.0) for name in names)
        )
        assert [one.group_id for one in found] == names
        assert held.fake.counts["describe_groups"] == 3  # of each node, and g7 where it has gone


async def test_a_describe_that_fails_fails_for_everybody_in_it() -> None:
    async with target() as held:
        held.fake.inject("consumer_group_describe", drop=True)
        names = ["a", "b"]
        found = await asyncio.gather(
            *(held.coordinators.describe(name, "consumer_group_describe", timeout=0.3) for name in names),
            return_exceptions=True,
        )
        assert [isinstance(one, WireError) for one in found] == [True, True]


async def test_many_gates_share_their_connections_and_spread_their_heartbeats() -> None:
    async with target(nodes=2) as held:
        gates = []

        async def save(record: object) -> None:
            pass

        for number in range(300):
            name = f"g{number}"
            held.groups.placed[0, name] = 1 + number % 2
            gates.append(
                make_gate(
                    plan_gate("link", name, GateKind.CONSUMER),
                    held.coordinators,
                    save,
                    stored=False,
                    settings=QUICK,
                    clock=lambda: held.groups.now,
                )
            )
        await asyncio.gather(*(gate.close(at(0)) for gate in gates))
        due = sorted(gate.due() - held.groups.now for gate in gates)
        assert 3.9 < due[0] < 4.2
        assert 4.8 < due[-1] <= 5.0
        assert all(later - sooner < 0.1 for sooner, later in itertools.pairwise(due))
        assert sum(broker.connections for broker in held.fake.brokers.values()) <= 6


async def test_a_group_that_is_joined_slowly_does_not_hold_up_the_others() -> None:
    async with target() as held:
        slow = held.fake.inject("join_group", delay=8)
        joining = asyncio.get_running_loop().create_task(held.gate(GateKind.CLASSIC).close(at(0)))
        while not slow.hits:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await describe(held.coordinators, "another", timeout=30.0)
        assert time.monotonic() - began < 7.9
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)


async def test_a_cancelled_join_leaves_no_answer_in_the_way() -> None:
    async with target() as held:
        held.coordinators = Coordinators(held.cluster, waiting_connections=1)
        slow = held.fake.inject("join_group", delay=4)
        joining = asyncio.get_running_loop().create_task(held.gate(GateKind.CLASSIC).close(at(0)))
        while not slow.hits:
            await asyncio.sleep(0.01)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        started = time.monotonic()
        await held.gate(GateKind.CLASSIC).close(at(0))
        assert time.monotonic() - started < 3.9


async def test_the_last_word_of_a_coordinator_is_told_when_time_is_over() -> None:
    async with target() as held:
        held.groups.loading.add(1)
        with pytest.raises(BrokerError, match=r"COORDINATOR_LOAD_IN_PROGRESS.*readers"):
            await describe(held.coordinators, GROUP, timeout=0.3)
        held.groups.missing = 10**6
        with pytest.raises(WireError, match="no coordinator of other"):
            await describe(held.coordinators, "other", timeout=0.3)


async def test_a_deadline_holds_while_too_many_wait() -> None:
    async with target() as held:
        coordinators = Coordinators(held.cluster, in_flight=1, call_timeout=8.0)
        held.fake.inject("consumer_group_describe", drop=True)
        first = asyncio.get_running_loop().create_task(describe(coordinators, "first", timeout=9.0))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        with pytest.raises(WireError):
            await describe(coordinators, "second", timeout=0.3)
        assert time.monotonic() - started < 7.9
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await coordinators.close()


async def test_closing_ends_lookups_that_somebody_waits_for() -> None:
    async with target() as held:
        held.coordinators = Coordinators(held.cluster, call_timeout=60.0)
        asked = held.fake.inject("find_coordinator", drop=True, times=None)
        waiting = asyncio.get_running_loop().create_task(held.coordinators.find(KeyType.GROUP, GROUP))
        async with asyncio.timeout(25):
            while not asked.hits:
                await asyncio.sleep(0.001)
        await held.coordinators.close()
        with pytest.raises(LinkerError, match="closed"):
            await asyncio.wait_for(waiting, 25)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0\0\0\0\1\0",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff\0\0\0\1\0\0\0\0",
        b"\0" * 4 + b"\xff\xff",
    ],
)
def test_an_assignment_of_hostile_bytes_is_nothing(data: bytes) -> None:
    assert assigned_partitions(data) == ()


def test_an_assignment_is_read() -> None:
    data = encode_assignment([("a", [0, 2]), ("b", [])])
    assert assigned_partitions(data) == (TopicPartition("a", 0), TopicPartition("a", 2))
