"""The ports of a promote: what they read is what the clusters say, and making a hand-over stale never undoes one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from controller.errors import PromoteAbandoned
from controller.judge.alignment import SourceEnd
from controller.judge.hand_over import plan_hand_over
from controller.judge.late_starts import LateStart
from controller.phases import Phase
from controller.proof import MissingRecords, PartitionValidation, ReplicaValidation
from fleet.progress import copy_lag
from linker.links.replica_starts import ReplicaStarts
from linker.membership import TargetCluster
from linker.membership.errors import MetadataLogFailed
from linker.promote import tail_batches
from linker.promote.context import full_reason
from linker.promote.fleet_ports import FleetConfigs, ListedSourceEnds, TargetHandOver
from linker.promote.ports import FenceProof
from linker.promote.tail_batches import TailBatches
from tests.fakes import FakeCluster
from tests.fakes.controller import SILENCE
from tests.fakes.mirror_topic import create_mirror_topic
from tests.fakes.quorum import FakeQuorum
from tests.links.conftest import OWN, client, replayed
from tests.links.link_context import context
from tests.validator.logs import copy_log
from validator.compare.tail_range import Rest, compare_rests, read_rests
from validator.read.fetching import fetch_once, fetch_request
from wire.errors import BrokerError, ConnectionLost, LinkerError, MalformedFrame
from wire.frames.types import TOPIC_RESOURCE, TopicPartition

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


# --- progress


def copy(
    offsets: dict[int, int], *, end: int, start: int = 0, loaded: bool = True, end_known: bool = True
) -> Any:
    followers = {
        broker: SimpleNamespace(fetch_offset=at, broker_epoch=10 + broker) for broker, at in offsets.items()
    }
    return SimpleNamespace(
        followers=followers,
        high_watermark=end,
        log_start_offset=start,
        loaded=loaded,
        end_known=end_known,
    )


def test_the_slowest_replica_is_the_lag() -> None:
    assert copy_lag(copy({1: 10, 2: 7}, end=12), (1, 2)) == 5


@pytest.mark.parametrize(
    ("unknown", "targets"),
    [
        (copy({1: 10}, end=12), (1, 2)),  # broker 2 was not heard of
        (copy({1: 10, 2: -1}, end=12), (1, 2)),  # it came, but has not said where it is
        (copy({1: 12, 2: 12}, end=12, loaded=False), (1, 2)),  # the source was not read yet
        (copy({1: 12, 2: 12}, end=12, end_known=False), (1, 2)),  # paused, or not heard of since
        (copy({}, end=12), ()),
        (None, (1,)),
    ],
)
def test_a_lag_that_is_not_known_is_none_and_not_zero(unknown: Any, targets: tuple[int, ...]) -> None:
    assert copy_lag(unknown, targets) is None


def test_what_retention_took_is_not_missing() -> None:
    assert copy_lag(copy({1: 0}, end=100, start=100), (1,)) == 0


# --- the source's ends


async def test_the_three_ends_are_told_apart(source: FakeCluster) -> None:
    for _ in range(5):
        source.add("orders", 0)
    source.partition("orders", 0).log.high_watermark = 4
    cluster = client(source, "source")
    try:
        await cluster.connect()
        ends = await ListedSourceEnds(cluster).ends([T0, T1], timeout=5)
    finally:
        await cluster.close()
    assert ends == {T0: SourceEnd(5, 4, 4), T1: SourceEnd(0, 0, 0)}


async def test_an_end_that_is_refused_names_the_partition(source: FakeCluster) -> None:
    cluster = client(source, "source")
    try:
        await cluster.connect()
        source.inject("list_offsets", error=29, times=3)  # TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(LinkerError, match="orders-0"):
            await ListedSourceEnds(cluster).ends([T0], timeout=5)
    finally:
        await cluster.close()


# --- tails


async def test_an_answer_to_what_was_not_asked_is_refused(
    source: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.add("orders", 0)
    cluster = client(source, "source")
    try:
        await cluster.connect()
        request = fetch_request({T0: 0}, 1 << 20, 1 << 20)
        _, answers = await fetch_once(cluster, 1, request, timeout=5)
        assert [(tp, data.high_watermark) for tp, data in answers] == [(T0, 1)]
        whole = cluster.fetch

        async def other(*given: Any, **more: Any) -> Any:
            frame, response = await whole(*given, **more)
            return frame, response._replace(partitions=[p._replace(index=7) for p in response.partitions])

        monkeypatch.setattr(cluster, "fetch", other)
        with pytest.raises(MalformedFrame, match="not asked"):
            await fetch_once(cluster, 1, request, timeout=5)

        async def refused(*given: Any, **more: Any) -> Any:
            frame, response = await whole(*given, **more)
            return frame, response._replace(error=70)

        monkeypatch.setattr(cluster, "fetch", refused)
        with pytest.raises(BrokerError):
            await fetch_once(cluster, 1, request, timeout=5)
    finally:
        await cluster.close()


@pytest_asyncio.fixture
async def replicas() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as fake:
        fake.add_topic("orders", partitions=2)
        yield fake


async def compare(
    source: FakeCluster, target: FakeCluster, ends: dict[TopicPartition, int], start: int = 0
) -> Any:
    """The check of a mirror whose replicas are on nodes 1 and 2 of the target."""
    ours, theirs = client(source, "source"), client(target, "target")
    cluster: Any = SimpleNamespace(cluster=theirs)
    try:
        await ours.connect()
        await theirs.connect()
        await ours.refresh(["orders"])
        return await TailBatches(ours, cluster, lambda _: start, lambda _: tuple(target.brokers)).check(
            ends, timeout=2
        )
    finally:
        await ours.close()
        await theirs.close()


def names_its_partition_once(differing: dict[TopicPartition, str]) -> bool:
    """In the line that an operator sees."""
    return full_reason(PromoteAbandoned("a replica's tail differs", differing)).count("orders-0") == 1


async def test_equal_tails(source: FakeCluster, replicas: FakeCluster) -> None:
    for fake in (source, replicas):
        fake.add("orders", 0, [b"one", b"two"])
    assert await compare(source, replicas, {T0: 2, T1: 0}) == {}


async def test_another_last_batch_is_named(source: FakeCluster, replicas: FakeCluster) -> None:
    source.add("orders", 0, [b"one", b"two"])
    replicas.add("orders", 0, [b"one", b"six"])
    differing = await compare(source, replicas, {T0: 2})
    assert set(differing) == {T0}
    assert "the source ends with the batch of offsets 0 to 1 (" in differing[T0]
    assert names_its_partition_once(differing)


async def test_nothing_is_compared_where_everything_was_deleted(
    source: FakeCluster, replicas: FakeCluster
) -> None:
    assert await compare(source, replicas, {T0: 7}, start=7) == {}


async def test_a_replica_that_was_emptied_is_not_waited_for_and_not_called_equal(
    source: FakeCluster, replicas: FakeCluster
) -> None:
    for fake in (source, replicas):
        fake.add("orders", 0, [b"one"])
        fake.add("orders", 0, [b"two"])
    replicas.partition("orders").log.delete_until(2)
    began = time.monotonic()
    found, told = await compare_from(source, replicas, {T0: 2}, {1: None, 2: None}, timeout=20)
    assert (found, told) == ({}, {})  # of it controller.judge.late_starts judges
    assert time.monotonic() - began < 15  # not the whole timeout


# --- where replicas start


async def late(
    source: FakeCluster,
    target: FakeCluster,
    *,
    start: int = 0,
    counted: MissingRecords | None = None,
    tp: TopicPartition = T0,
) -> dict[TopicPartition, list[LateStart]]:
    ours, theirs = client(source, "source"), client(target, "target")
    known = PartitionValidation(
        link="east",
        topic="orders",
        partition=0,
        replicas=(
            ReplicaValidation(
                broker_id=2,
                start=0,
                through=5,
                batches=0,
                records=0,
                bytes=0,
                digest="0" * 32,
                source_digest="0" * 32,
                missing=counted,
                at=0,
            ),
        ),
    )
    image: Any = SimpleNamespace(
        partitions={("east", T0): SimpleNamespace(start_offset=start)}, validations={("east", T0): known}
    )
    controller: Any = SimpleNamespace(image=image)
    starts = ReplicaStarts(
        context("east", ours, SimpleNamespace(cluster=theirs), controller), lambda _: tuple(target.brokers)
    )
    try:
        await ours.connect()
        await theirs.connect()
        await ours.refresh(["orders"])
        return await starts.late([tp], timeout=2)
    finally:
        await ours.close()
        await theirs.close()


async def test_each_replica_is_asked_where_it_starts(source: FakeCluster, replicas: FakeCluster) -> None:
    five_batches(source, replicas)
    assert await late(source, replicas) == {}
    partition = replicas.partition("orders")
    own = partition.replica_logs[2] = copy_log(partition.log)
    own.delete_until(3)
    assert await late(source, replicas) == {T0: [LateStart(2, 0, 3)]}
    counted = MissingRecords(start=0, end=3, batches=3, records=3, why="retention")
    assert (await late(source, replicas, counted=counted))[T0][0].counted == counted
    assert await late(source, replicas, start=3) == {}  # where the mirror began
    source.partition("orders").log.delete_until(2)
    assert await late(source, replicas) == {T0: [LateStart(2, 2, 3)]}
    source.partition("orders").log.delete_until(4)
    assert await late(source, replicas) == {}  # the source has it no more than the replica


async def test_a_replica_that_is_late_no_more_is_known_not_to_be(
    source: FakeCluster, replicas: FakeCluster
) -> None:
    five_batches(source, replicas)
    own = replicas.partition("orders").replica_logs[2] = copy_log(replicas.partition("orders").log)
    own.delete_until(3)
    ours, theirs = client(source, "source"), client(replicas, "target")
    state = SimpleNamespace(tp=T0, phase=Phase.ACTIVE, session_epoch=1, start_offset=0)
    image: Any = SimpleNamespace(
        partitions={("east", T0): state}, validations={}, link_partitions=lambda _: [state]
    )
    controller: Any = SimpleNamespace(image=image)
    starts = ReplicaStarts(
        context("east", ours, SimpleNamespace(cluster=theirs), controller), lambda _: tuple(replicas.brokers)
    )
    try:
        await ours.connect()
        await theirs.connect()
        await ours.refresh(["orders"])
        assert starts.log_starts() == {}
        await starts.look()
        assert starts.log_starts() == {T0: {2: 3}}
        source.partition("orders").log.delete_until(4)
        await starts.look()
        assert starts.log_starts() == {T0: {}}
    finally:
        await ours.close()
        await theirs.close()


async def test_a_replica_that_does_not_tell_where_it_starts_is_not_taken_for_a_good_one(
    source: FakeCluster, replicas: FakeCluster
) -> None:
    five_batches(source, replicas)
    with pytest.raises(BrokerError, match="does not tell where its log of lost-0 starts"):
        await late(source, replicas, tp=TopicPartition("lost", 0))


async def compare_from(
    source: FakeCluster,
    target: FakeCluster,
    ends: dict[TopicPartition, int],
    marks: dict[int, int | None],
    *,
    compacted: bool = False,
    timeout: float = 2,
) -> tuple[Any, dict[int, FenceProof]]:
    """With replicas that are proved up to these offsets; also what was told of each."""
    ours, theirs = client(source, "source"), client(target, "target")
    cluster: Any = SimpleNamespace(cluster=theirs)
    told: dict[int, FenceProof] = {}
    try:
        await ours.connect()
        await theirs.connect()
        await ours.refresh(["orders"])
        check = TailBatches(
            ours,
            cluster,
            lambda _: 0,
            lambda _: tuple(target.brokers),
            lambda _, broker: marks.get(broker),
            lambda _: compacted,
            lambda _, broker, proof: told.__setitem__(broker, proof),
        )
        return await check.check(ends, timeout=timeout), told
    finally:
        await ours.close()
        await theirs.close()


def five_batches(*clusters: FakeCluster, second: bytes = b"two") -> None:
    for fake in clusters:
        for value in (b"one", second, b"three", b"four", b"five"):
            fake.add("orders", 0, [value])


async def test_what_lies_behind_the_watermarks_is_compared(
    monkeypatch: pytest.MonkeyPatch, source: FakeCluster, replicas: FakeCluster
) -> None:
    monkeypatch.setattr(tail_batches, "_RESTS_TIMEOUT", 5.0)
    five_batches(source)
    five_batches(replicas, second=b"TWO")
    assert await compare(source, replicas, {T0: 5}) == {}  # the last batch alone does not show it
    differing, told = await compare_from(source, replicas, {T0: 5}, {1: 1, 2: 3})
    assert differing[T0].startswith("the source has the batch of offsets 1 to 1 ("), differing
    assert names_its_partition_once(differing)
    assert told == {
        1: FenceProof(1, 5, rest=True, equal=False),
        2: FenceProof(3, 5, rest=True, equal=False),
    }
    differing, told = await compare_from(source, replicas, {T0: 5}, {1: 2, 2: 5})
    assert differing == {}
    assert told == {1: FenceProof(2, 5, rest=True, equal=True), 2: FenceProof(5, 5, rest=True, equal=True)}
    for unknown in ({1: 1, 2: None}, {}):  # nothing to begin at: as it was before there was a validator
        differing, _ = await compare_from(source, replicas, {T0: 5}, unknown)
        assert differing == {}
    differing, told = await compare_from(source, replicas, {T0: 5}, {1: 1, 2: 1}, compacted=True)
    assert differing == {}
    assert told[1] == FenceProof(1, 5, rest=False, equal=True)  # the last batch alone


async def test_only_the_replica_that_differs_is_told_of(
    monkeypatch: pytest.MonkeyPatch, source: FakeCluster, replicas: FakeCluster
) -> None:
    """The evidence names the replica: the other one is as good as the source."""
    five_batches(source, replicas)
    read_tails = tail_batches.read_tails

    async def other_at_two(cluster: Any, node: int, ends: Any, **more: Any) -> Any:
        found = await read_tails(cluster, node, ends, **more)
        if cluster.name == "target" and node == 2:
            found = {tp: replace(tail, crc=tail.crc ^ 1) for tp, tail in found.items() if tail is not None}
        return found

    monkeypatch.setattr(tail_batches, "read_tails", other_at_two)
    differing, told = await compare_from(source, replicas, {T0: 5}, {})
    assert "broker 2" in differing[T0]
    assert {broker: one.equal for broker, one in told.items()} == {1: True, 2: False}
    assert not told[1].rest


async def test_more_than_a_few_bytes_are_left_to_the_run_after_the_hand_over(
    monkeypatch: pytest.MonkeyPatch, source: FakeCluster, replicas: FakeCluster
) -> None:
    monkeypatch.setattr(tail_batches, "_RESTS_TIMEOUT", 5.0)
    monkeypatch.setattr(tail_batches, "_RESTS_BYTES", 150)
    five_batches(source)
    five_batches(replicas, second=b"TWO")
    differing, _ = await compare_from(source, replicas, {T0: 5}, {1: 0, 2: 0})
    assert differing == {}


async def test_bytes_that_do_not_match_their_crc_are_named(replicas: FakeCluster) -> None:
    five_batches(replicas)
    good = client(replicas, "target")
    try:
        await good.connect()
        rest = await read_rests(good, 1, {T0: (1, 5)}, max_bytes=1 << 20, timeout=5)
        assert [batch.base_offset for batch in rest[T0].batches] == [1, 2, 3, 4]
        assert rest[T0].corrupt == ()
        wrong = Rest(rest[T0].batches, rest[T0].batches[1:2])
        found = compare_rests(rest, {T0: wrong}, 7)
        assert "broker 7's batch at offset 2 does not match its CRC" in found[T0]
        assert names_its_partition_once(found)
        assert compare_rests(rest, {}, 7) == {}
    finally:
        await good.close()


# --- the hand-over


async def open_mirror(quorum: FakeQuorum, target: TargetCluster, replicas: list[int]) -> TargetHandOver:
    """orders-0, led by the link broker, on its way to the replicas."""
    await create_mirror_topic(
        target.operations, "orders", {0: [OWN]}, {"unclean.leader.election.enable": "false"}
    )
    await target.operations.reassign({T0: replicas})
    await replayed(quorum, target)
    return TargetHandOver(target, lambda: frozenset({OWN}))


def items(port: TargetHandOver, target: TargetCluster) -> list[Any]:
    topic = target.image.topics_by_name["orders"]
    return list(plan_hand_over(port.image(), {T0: topic.id}, port.link_brokers()).items.values())


def state(target: TargetCluster) -> Any:
    return target.image.topics_by_name["orders"].partitions[0]


@pytest.mark.parametrize("replicas", [[1, 2, 3], [3, 1], [2]])
async def test_a_revoke_makes_a_sent_hand_over_stale_and_changes_nothing_else(
    quorum: FakeQuorum, target: TargetCluster, replicas: list[int]
) -> None:
    port = await open_mirror(quorum, target, replicas)
    sent = items(port, target)
    before = state(target)
    await port.revoke([T0], timeout=5)
    await replayed(quorum, target)
    after = state(target)
    assert after.partition_epoch > before.partition_epoch
    assert (after.replicas, after.isr, after.leader, after.leader_epoch) == (
        before.replicas,
        before.isr,
        before.leader,
        before.leader_epoch,
    )
    assert (set(after.adding), after.removing) == (set(before.adding), before.removing)
    assert await port.alter_partition(sent, timeout=5) == {T0: 95}
    assert await port.alter_partition(items(port, target), timeout=5) == {T0: 108}, "the next one is as good"


@pytest.mark.parametrize("replicas", [[1, 2, 3], [3, 1], [2]])
async def test_a_revoke_that_comes_after_the_hand_over_leaves_it_alone(
    quorum: FakeQuorum, target: TargetCluster, replicas: list[int]
) -> None:
    port = await open_mirror(quorum, target, replicas)
    controller = quorum.nodes[0]

    def land(request: Any) -> None:
        """The AlterPartition, read only now: all that was sent before the reassignment is carried out before it."""
        del controller.hooks["alter_partition_reassignments"]
        quorum.change(
            "orders",
            0,
            replicas=replicas,
            isr=replicas,
            adding_replicas=[],
            removing_replicas=[],
            leader=replicas[0],
        )

    controller.hooks["alter_partition_reassignments"] = land
    await port.revoke([T0], timeout=5)
    await replayed(quorum, target)
    after = state(target)
    assert after.leader == replicas[0]
    assert list(after.replicas) == replicas
    assert not after.adding


async def test_revoking_what_is_gone_asks_nobody(quorum: FakeQuorum, target: TargetCluster) -> None:
    port = TargetHandOver(target, lambda: frozenset({OWN}))
    await port.revoke([T0], timeout=5)
    assert quorum.nodes[0].seen["alter_partition_reassignments"] == 0


async def test_no_answer_to_an_alter_partition_is_an_unknown_outcome_and_it_is_sent_once(
    quorum: FakeQuorum, target: TargetCluster
) -> None:
    port = await open_mirror(quorum, target, [1, 2])
    quorum.nodes[0].hooks["alter_partition"] = lambda request: SILENCE
    with pytest.raises(ConnectionLost) as lost:
        await port.alter_partition(items(port, target), timeout=0.2)
    assert lost.value.sent
    assert quorum.nodes[0].seen["alter_partition"] == 1


async def test_waiting_for_the_image_says_false_when_the_time_is_over(target: TargetCluster) -> None:
    port = TargetHandOver(target, lambda: frozenset({OWN}))
    assert not await port.wait_until(lambda image: False, timeout=0.05)
    assert await port.wait_until(lambda image: OWN in image.brokers, timeout=0.05)


async def test_a_log_that_has_ended_keeps_nobody_from_anything(target: TargetCluster) -> None:
    """It says so at once, and a promote asks again and again: its sidecar could not even be ended."""
    target.metadata._failure = MetadataLogFailed("the fetch loop has ended")
    port = TargetHandOver(target, lambda: frozenset({OWN}))

    async def promote() -> None:
        async with asyncio.timeout(7.0):  # which nobody would end
            while not await port.wait_until(lambda image: False, timeout=5.0):
                if loop.time() - began > 8.0:
                    raise AssertionError("nobody else came to anything")

    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = asyncio.create_task(promote())
    await asyncio.sleep(0.01)
    assert loop.time() - began < 5
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_configs_are_set_and_taken_away(quorum: FakeQuorum, target: TargetCluster) -> None:
    await open_mirror(quorum, target, [1])
    port = FleetConfigs(target)
    for _ in range(2):  # after a crash it is done once more
        await port.restore(
            "orders", {"unclean.leader.election.enable": None, "retention.ms": "1000"}, timeout=5
        )
    assert target.image.configs[TOPIC_RESOURCE, "orders"] == {"retention.ms": "1000"}


async def test_a_config_that_is_refused_is_an_error(quorum: FakeQuorum, target: TargetCluster) -> None:
    await open_mirror(quorum, target, [1])
    quorum.nodes[0].hooks["incremental_alter_configs"] = lambda request: {
        "responses": [
            {"resource_type": 2, "resource_name": "orders", "error_code": 29, "error_message": None}
        ]
    }
    with pytest.raises(LinkerError, match="ALTER_CONFIGS") as refused:
        await FleetConfigs(target).restore("orders", {"retention.ms": "1"}, timeout=5)
    assert not isinstance(refused.value, BrokerError) or not refused.value.retriable
