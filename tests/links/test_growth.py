"""Partitions that the source adds: made at the target by link brokers alone, from their first record, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.decide.failovers import KnownEnds
from controller.phases import Phase
from linker.links import added_partitions
from linker.links.source_watch import SourceWatch
from linker.membership.errors import MissingRight
from tests.fakes import FakeCluster
from tests.fakes.cluster import FakePartition
from tests.fakes.controller import DROP
from tests.fakes.mirror_topic import create_mirror_topic
from tests.links.conftest import OWN
from tests.links.link_context import context
from tests.links.test_bring_up_steps import T0, T1, Rig
from tests.links.test_bring_up_steps import rig as rig  # the fixture
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

T2, T3 = TopicPartition("orders", 2), TopicPartition("orders", 3)
NEW = ((3, 1, 2), (1, 2, 3))


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Where the brokers' logs of added partitions end; a broker that is not in it does not tell."""
    told = {1: 0, 2: 0, 3: 0}

    class Told:
        def __init__(self, _cluster: Any) -> None:
            pass

        async def log_ends(self, targets: Any, *, timeout: float) -> Any:
            return {tp: {b: told[b] for b in brokers if b in told} for tp, brokers in targets.items()}

    monkeypatch.setattr(added_partitions, "BrokersLogEnds", Told)
    return told


def at_source(source: FakeCluster, total: int) -> None:
    """The source's topic has so many partitions, the added ones with seven records each."""
    topic = source.topics["orders"]
    for index in range(len(topic.partitions), total):
        node = next(iter(source.brokers))
        topic.partitions[index] = FakePartition("orders", index, node, [node], [node], 0)
        for _ in range(7):
            source.add("orders", index)
    source.notify()


def watch(rig: Rig, place: Callable[..., Any] | None = None, *, head: bool = True) -> SourceWatch:
    return SourceWatch(
        context("east", rig.source, None, rig.controller, head=head),
        place or (lambda _mirror, count: NEW[:count]),
        lambda topic: rig.asked.append(topic),  # type: ignore[attr-defined]
        lambda: 15.0,
    )


@pytest.fixture
def growing(rig: Rig, source: FakeCluster) -> Rig:
    rig.asked = []  # type: ignore[attr-defined]
    at_source(source, 4)
    return rig


async def set_up(rig: Rig) -> None:
    """Four partitions at the source, two copied from where the source was, two made known."""
    await rig.complete()
    await watch(rig).look()


def begins(rig: Rig, tp: TopicPartition) -> int | None:
    return rig.controller.image.partitions["east", tp].start_offset


async def test_added_partitions_begin_as_new_ones_do_and_with_their_first_record(growing: Rig) -> None:
    rig = growing
    # A mirror that began at the end of what was there: the others begin at their beginning all the same.
    mirror = rig.controller.image.mirrors["east", "orders"]
    rig.controller.image.mirrors["east", "orders"] = replace(mirror, start="latest")
    await set_up(rig)
    assert rig.asked == ["orders"]  # type: ignore[attr-defined]
    mirror = rig.controller.image.mirrors["east", "orders"]
    assert (mirror.partitions, mirror.grown_from) == (4, 2)
    assert mirror.target_replicas[2:] == NEW
    await rig.complete()
    assert [rig.phase(tp) for tp in (T0, T1, T2, T3)] == [Phase.ACTIVE] * 4
    assert [begins(rig, tp) for tp in (T0, T2, T3)] == [5, 0, 0]
    assert set(rig.fetcher.partitions) == {T0, T1, T2, T3}
    for index, wanted in ((2, NEW[0]), (3, NEW[1])):
        partition = rig.partition(index)
        assert set(partition.adding) == set(wanted)
        assert partition.isr == (OWN,)
        assert partition.leader == OWN
    asked = len(rig.node.requests)
    await rig.complete()
    changes = {name for name, _, _ in rig.node.requests[asked:]}
    assert not changes & {"create_partitions", "alter_partition_reassignments", "alter_partition"}


@pytest.mark.parametrize("api", ["create_partitions", "alter_partition_reassignments", "describe_configs"])
async def test_it_goes_on_where_it_broke_off(growing: Rig, api: str) -> None:
    """The process dies at a step, after the controller did it and before anybody heard; twice."""
    rig = growing
    await set_up(rig)
    usual = rig.node.hooks.get(api)
    for _ in range(2):
        rig.node.hooks[api] = lambda request: DROP
        work = asyncio.ensure_future(rig.complete())
        await asyncio.sleep(0.3)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        rig.again()
    rig.node.hooks.pop(api)
    if usual is not None:
        rig.node.hooks[api] = usual
    await rig.complete()
    assert [rig.phase(tp) for tp in (T2, T3)] == [Phase.ACTIVE] * 2
    assert rig.partition(2).isr == (OWN,)


async def test_killed_between_making_them_and_taking_the_brokers_out(growing: Rig) -> None:
    """They are there, with real brokers in the ISR, and nothing else was done."""
    rig = growing
    await set_up(rig)
    for _ in range(2):
        rig.quorum.add_partition("orders", [OWN, 1, 2, 3])
    rig.again()
    await rig.complete()
    assert [rig.phase(tp) for tp in (T2, T3)] == [Phase.ACTIVE] * 2
    assert rig.partition(3).isr == (OWN,)
    assert [begins(rig, tp) for tp in (T2, T3)] == [0, 0]


async def test_empty_ones_that_somebody_made_at_the_target_are_taken_over(growing: Rig) -> None:
    """kafka-topics --alter at the target before it was at the source: real brokers lead them."""
    rig = growing
    await rig.complete()
    rig.quorum.add_partition("orders", [1, 2, 3])
    rig.quorum.add_partition("orders", [2, 3, OWN])
    await rig.replayed()
    with pytest.raises(LinkerError, match=r"it has 4, the source topic 2.*--alter"):
        await rig.complete()
    await watch(rig).look()
    await rig.complete()
    assert [rig.phase(tp) for tp in (T2, T3)] == [Phase.ACTIVE] * 2
    for index in (2, 3):
        assert rig.partition(index).leader == OWN
        assert rig.partition(index).isr == (OWN,)
        assert set(rig.partition(index).adding) == {1, 2, 3}


async def test_those_with_records_are_left_alone_and_named(growing: Rig, ends: dict[int, int]) -> None:
    rig = growing
    await rig.complete()
    for members in ([1, 2, 3], [2, 3, 1]):
        rig.quorum.add_partition("orders", members)
    await watch(rig).look()
    ends[2] = 40
    with pytest.raises(LinkerError, match=r"orders-2 .*40 records on broker 2 .*docs/following.md"):
        await rig.complete()
    await rig.replayed()
    assert [rig.phase(tp) for tp in (T0, T1, T2, T3)] == [
        Phase.ACTIVE,
        Phase.ACTIVE,
        Phase.LINKING,
        Phase.LINKING,
    ]
    assert rig.partition(2).replicas == (1, 2, 3)
    assert set(rig.fetcher.partitions) == {T0, T1}, "the others go on"
    assert "elect_leaders" not in {name for name, _, _ in rig.node.requests}, "its broker leads all the time"


async def test_a_write_that_comes_while_a_link_broker_is_made_the_leader_is_kept(
    growing: Rig, ends: dict[int, int]
) -> None:
    """It was acknowledged by the broker that led until then: leadership goes back, with the record."""
    rig = growing
    await rig.complete()
    for members in ([1, 2, 3], [2, 3, 1]):
        rig.quorum.add_partition("orders", members)
    await watch(rig).look()
    change = rig.quorum.change

    def written(name: str, index: int, **fields: Any) -> None:
        change(name, index, **fields)
        ends[1] = int(index == 2 and fields.get("leader") == OWN)

    rig.quorum.change = written  # type: ignore[method-assign]
    with pytest.raises(LinkerError, match=r"orders-2 .*1 records on broker 1"):
        await rig.complete()
    await rig.replayed()
    assert rig.partition(2).leader in (1, 2, 3)
    assert OWN not in rig.partition(2).replicas
    assert rig.phase(T2) is Phase.LINKING


async def test_a_broker_that_does_not_tell_is_waited_for(growing: Rig, ends: dict[int, int]) -> None:
    rig = growing
    await rig.complete()
    for members in ([1, 2, 3], [2, 3, 1]):
        rig.quorum.add_partition("orders", members)
    await watch(rig).look()
    del ends[3]
    with pytest.raises(LinkerError, match="broker 3 does not say whether it is empty"):
        await rig.complete()
    ends[3] = 0
    await rig.complete()
    assert rig.phase(T2) is Phase.ACTIVE


async def test_a_missing_right_is_named_and_the_others_go_on(growing: Rig) -> None:
    rig = growing
    await set_up(rig)
    refused = {"results": [{"name": "orders", "error_code": 29, "error_message": None}]}
    rig.node.hooks["create_partitions"] = lambda request: refused
    with pytest.raises(MissingRight, match="ALTER on Topic"):
        await rig.complete()
    assert set(rig.fetcher.partitions) == {T0, T1}
    assert rig.phase(T2) is Phase.LINKING


async def test_a_mirror_that_is_not_made_yet_is_made_with_all_of_them(growing: Rig) -> None:
    rig = growing
    await watch(rig).look()
    await rig.complete()
    assert [rig.phase(tp) for tp in (T0, T1, T2, T3)] == [Phase.ACTIVE] * 4
    assert "create_partitions" not in {name for name, _, _ in rig.node.requests}


async def test_one_that_was_made_before_and_not_noted_gets_the_rest(growing: Rig) -> None:
    rig = growing
    await create_mirror_topic(rig.target.operations, "orders", {0: [OWN], 1: [OWN]}, {})
    await watch(rig).look()
    await rig.complete()
    assert [rig.phase(tp) for tp in (T0, T1, T2, T3)] == [Phase.ACTIVE] * 4


async def test_twice_within_an_interval_is_one_growth_and_later_another(
    growing: Rig, source: FakeCluster
) -> None:
    rig = growing
    await set_up(rig)
    await rig.complete()
    at_source(source, 6)
    await watch(rig).look()
    await rig.complete()
    mirror = rig.controller.image.mirrors["east", "orders"]
    assert (mirror.partitions, mirror.grown_from) == (6, 2)
    assert begins(rig, TopicPartition("orders", 5)) == 0


async def test_a_paused_mirror_grows_and_copies_once_it_goes_on(growing: Rig) -> None:
    rig = growing
    await rig.complete()
    await rig.controller.pause("east", "orders")
    await watch(rig).look()
    await rig.complete()
    assert rig.phase(T2) is Phase.PAUSED
    assert rig.partition(3).leader == OWN
    assert begins(rig, T2) is None
    await rig.controller.resume("east", "orders")
    await rig.complete()
    assert (rig.phase(T2), begins(rig, T2)) == (Phase.ACTIVE, 0)


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        ((Phase.CATCHING_UP,), None),
        ((Phase.CATCHING_UP, Phase.FENCED), "its writes are held by a promote"),
    ],
)
async def test_before_the_fence_they_become_part_of_the_promote(
    growing: Rig, phases: tuple[Phase, ...], why: str | None
) -> None:
    rig = growing
    await rig.complete()
    job = await rig.controller.begin_promote("east", ["orders"])
    for phase in phases:
        await rig.controller.advance("east", [T0, T1], phase)
    looking = watch(rig)
    await looking.look()
    [now] = rig.controller.image.running_jobs("east")
    assert now.id == job.id
    if why is None:
        assert now.partitions == (T0, T1, T2, T3)
        assert looking.grown == {}
    else:
        assert now.partitions == (T0, T1)
        assert why in looking.grown["orders"]
        for tp in (T0, T1):
            await rig.controller.advance("east", [tp], Phase.ACTIVE)
        await looking.look()
        assert looking.grown == {}


async def test_a_promoted_mirror_takes_none(growing: Rig) -> None:
    rig = growing
    await rig.complete()
    await rig.promoted()
    looking = watch(rig)
    await looking.look()
    assert looking.grown == {}
    assert rig.controller.image.mirrors["east", "orders"].partitions == 2


async def test_a_failed_mirror_takes_them_when_it_begins_again(growing: Rig) -> None:
    rig = growing
    await rig.complete()
    for tp in (T0, T1):
        await rig.controller.fail_partition("east", tp, "gone")
    looking = watch(rig)
    await looking.look()
    assert "the mirror has failed" in looking.grown["orders"]
    await rig.controller.restart_partition("east", T0)
    await looking.look()
    assert rig.phase(T2) is Phase.LINKING


async def test_a_failover_leaves_out_what_was_never_copied(growing: Rig) -> None:
    rig = growing
    await set_up(rig)
    job = await rig.controller.begin_failover("east", ["orders"])
    assert job.partitions == (T0, T1)
    looking = watch(rig)
    await looking.look()
    assert rig.controller.image.mirrors["east", "orders"].partitions == 4
    await rig.controller.give_up_source("east", dict.fromkeys([T0, T1], KnownEnds()))
    await rig.complete()
    assert len(rig.target.image.topics_by_name["orders"].partitions) == 2
    assert rig.phase(T2) is Phase.LINKING


async def test_another_topic_of_the_name_has_added_nothing(growing: Rig, source: FakeCluster) -> None:
    rig = growing
    await rig.complete()
    source.recreate_topic("orders")
    await watch(rig).look()
    assert rig.controller.image.mirrors["east", "orders"].partitions == 2


async def test_too_few_brokers_are_told_and_tried_again(growing: Rig) -> None:
    rig = growing
    await rig.complete()

    def none(*_: Any) -> Any:
        raise LinkerError("2 are alive")

    looking = watch(rig, none)
    await looking.look()
    assert (
        "has 4 partitions now, the mirror 2; it does not take the others yet: 2 are alive"
        in looking.grown["orders"]
    )
    await watch(rig, head=False).look()
    assert rig.controller.image.mirrors["east", "orders"].partitions == 2, "only the link controller decides"
