"""The pure judgements: hand-over, alignment, placement, producer ids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.errors import Refused
from controller.judge.alignment import ReplicaPosition, SourceEnd, judge_ends, judge_positions
from controller.judge.hand_over import (
    HandOverAnswer,
    Settlement,
    judge_answer,
    plan_hand_over,
    revoke_assignments,
    settle,
    undo_revoke,
)
from controller.plan import producer_ids
from controller.plan.placement import Load, ReplicaBroker, place
from controller.state import Attempt
from tests.controller import simulation
from tests.controller.simulation import Image, Partition, Topic
from wire.frames.types import TopicPartition

T0 = TopicPartition("t", 0)
ID = b"\x01" * 16
OPEN = Partition((1, 2, 900), (900,), (1, 2), (900,), 900, 5, 8)
BROKERS = {b: simulation.Broker(b, 10 + b) for b in (1, 2, 900, 901)}


def image(partition: Partition | None = OPEN, brokers: dict[int, simulation.Broker] | None = None) -> Image:
    partitions = {} if partition is None else {0: partition}
    return Image({"t": Topic(ID, "t", partitions)}, BROKERS if brokers is None else brokers)


def plan(img: Image, links: tuple[int, ...] = (900,)):  # type: ignore[no-untyped-def]
    return plan_hand_over(img, {T0: ID}, links, {T0: (1, 2)})


def test_the_new_isr_is_the_link_broker_and_every_target_replica() -> None:
    found = plan(image())
    assert not found.obstacles
    item = found.items[T0]
    assert item.new_isr == ((900, 910), (1, 11), (2, 12))
    assert (item.leader_epoch, item.partition_epoch) == (5, 8)
    assert found.replicas == {T0: {1: 11, 2: 12}}
    assert found.leader_epochs == {T0: 5}


def test_a_second_link_broker_stays_in_the_isr() -> None:
    two = Partition((1, 2, 900, 901), (901, 900), (1, 2), (900, 901), 900, 5, 8)
    item = plan(image(two), (900, 901)).items[T0]
    assert [m.broker_id for m in item.new_isr] == [900, 901, 1, 2]
    assert item.leader == (900, 910)
    # The leader is whoever leads, and asks first.
    other = plan(image(replace(two, leader=901)), (900, 901)).items[T0]
    assert [m.broker_id for m in other.new_isr] == [901, 900, 1, 2]
    assert other.leader == (901, 911)


def test_a_link_broker_in_the_isr_that_is_down_has_to_leave_it_first() -> None:
    two = Partition((1, 2, 900, 901), (900, 901), (1, 2), (900, 901), 900, 5, 8)
    down = {**BROKERS, 901: simulation.Broker(901, 911, fenced=True)}
    found = plan(image(two, down), (900, 901)).obstacles[T0]
    assert "broker 901 is down" in found.reason
    assert found.may_pass
    assert not plan(image(replace(two, isr=(900,)), down), (900, 901)).obstacles


def test_what_copies_but_is_not_open_is_told_with_its_targets() -> None:
    plain = Partition((900, 901, 1, 2), (900, 901), (), (), 900, 5, 8)
    found = plan(image(plain), (900, 901))
    assert found.closed == {T0: (1, 2)}
    assert not plan(image()).closed
    assert not plan(image(Partition((900,), (900,), (), (), 900, 6, 9))).closed, "nothing copies there"


@pytest.mark.parametrize(
    ("img", "words", "may_pass"),
    [
        (image(None), "deleted", False),
        (Image({}, BROKERS), "deleted", False),
        (Image({"t": Topic(b"\x02" * 16, "t", {0: OPEN})}, BROKERS), "re-created", False),
        (image(replace(OPEN, leader=-1)), "leader at the target is -1", True),
        (image(Partition((900,), (900,), (), (), 900, 6, 9)), "cancelled", False),
        (image(replace(OPEN, removing=())), "opened first", True),
        (image(Partition((900, 1, 2), (900,), (), (), 900, 6, 9)), "opened first", True),
        (image(replace(OPEN, adding=(901,))), "opened first", True),
        (image(replace(OPEN, replicas=(2, 1, 900))), "opened first", True),
        (image(brokers={b: BROKERS[b] for b in (1, 900)}), "broker 2 is not registered", False),
        (image(brokers={**BROKERS, 2: simulation.Broker(2, 12, fenced=True)}), "broker 2 is down", True),
        (
            image(brokers={**BROKERS, 1: simulation.Broker(1, 11, in_controlled_shutdown=True)}),
            "broker 1 is shutting down",
            True,
        ),
        (image(brokers={**BROKERS, 900: simulation.Broker(900, 1, fenced=True)}), "broker 900 is down", True),
    ],
)
def test_obstacles(img: Image, words: str, may_pass: bool) -> None:
    found = plan(img)
    assert not found.items
    assert words in found.obstacles[T0].reason
    assert found.obstacles[T0].may_pass is may_pass


SENT = Attempt(leader_epoch=5, partition_epoch=8)


@pytest.mark.parametrize(
    ("partition", "unknown", "verdict"),
    [
        (OPEN, None, Settlement.IMPOSSIBLE),
        (OPEN, SENT, Settlement.OPEN),
        (replace(OPEN, partition_epoch=9), SENT, Settlement.IMPOSSIBLE),
        (replace(OPEN, partition_epoch=7), SENT, Settlement.OPEN),  # the log is behind
        (replace(OPEN, leader=-1, leader_epoch=6), SENT, Settlement.OPEN),
        (Partition((1, 2), (1, 2), (), (), 1, 6, 9), SENT, Settlement.HANDED_OVER),
        (Partition((1, 2), (1, 2), (), (), 1, 6, 9), None, Settlement.HANDED_OVER),
        (Partition((1, 2), (1,), (), (), -1, 7, 10), SENT, Settlement.HANDED_OVER),
        (replace(OPEN, isr=(900, 1), partition_epoch=9), SENT, Settlement.PARTIAL),
        (replace(OPEN, isr=(1, 2), leader=1, partition_epoch=9), SENT, Settlement.HANDED_OVER),
        (None, SENT, Settlement.IMPOSSIBLE),
    ],
)
def test_what_the_log_proves(
    partition: Partition | None, unknown: Attempt | None, verdict: Settlement
) -> None:
    assert settle(image(partition), T0, ID, {900}, unknown) is verdict


def test_answers_that_prove_nothing_are_unknown() -> None:
    assert {judge_answer(code) for code in (41, 7, -1, 56, 9999, 13)} == {HandOverAnswer.UNKNOWN}
    assert judge_answer(108) is HandOverAnswer.ACCEPTED


def test_revoking_changes_the_order_only() -> None:
    assert revoke_assignments([900], [3, 1, 2]) == ([1, 2, 3], [3, 1, 2])
    assert revoke_assignments([901, 900], [2, 1]) == ([1, 2], [2, 1])


def test_revoking_one_target_names_the_link_broker_and_is_undone_after_a_hand_over() -> None:
    assert revoke_assignments([900], [2]) == ([900, 2], [2])
    assert revoke_assignments([901, 900], [2]) == ([901, 900, 2], [2])
    late = Partition((2, 900), (2,), (900,), (900,), 2, 6, 10)
    assert undo_revoke(late, (900,))
    assert not undo_revoke(OPEN, (900,))
    assert not undo_revoke(Partition((2,), (2,), (), (), 2, 6, 9), (900,))
    assert not undo_revoke(replace(late, leader=-1), (900,)), "nothing is known while nobody leads"
    assert not undo_revoke(replace(late, adding=(3,)), (900,)), "that is the operator's own"


# Alignment.


def test_ends_that_rest() -> None:
    first = judge_ends({}, {T0: SourceEnd(10, 10, 10)})
    assert not first.moved
    assert not first.unsettled
    assert not judge_ends(first.baseline, {T0: SourceEnd(10, 10, 10)}).moved
    for end in (11, 9):
        assert T0 in judge_ends(first.baseline, {T0: SourceEnd(end, end, end)}).moved


def test_a_high_watermark_that_follows_is_no_movement() -> None:
    first = judge_ends({}, {T0: SourceEnd(10, 8, 8)})
    assert "not committed its end" in first.unsettled[T0]
    second = judge_ends(first.baseline, {T0: SourceEnd(10, 10, 10)})
    assert not second.moved
    assert not second.unsettled
    assert judge_ends(first.baseline, {T0: SourceEnd(12, 12, 12)}).moved


def test_only_an_open_transaction_excuses_a_movement() -> None:
    first = judge_ends({}, {T0: SourceEnd(10, 10, 4)})
    assert "transaction" in first.unsettled[T0]
    second = judge_ends(first.baseline, {T0: SourceEnd(11, 11, 11)})
    assert not second.moved
    assert judge_ends(second.baseline, {T0: SourceEnd(12, 12, 12)}).moved


@pytest.mark.parametrize(
    ("position", "behind", "ahead"),
    [
        (None, True, False),
        (ReplicaPosition(9, 11), True, False),
        (ReplicaPosition(10, 11), False, False),
        (ReplicaPosition(10), False, False),
        (ReplicaPosition(10, 7), True, False),  # of an incarnation that is gone
        (ReplicaPosition(11, 11), False, True),
    ],
)
def test_positions(position: ReplicaPosition | None, behind: bool, ahead: bool) -> None:
    known = {} if position is None else {1: position}
    verdict = judge_positions({T0: 10}, {T0: {1: 11}}, {T0: known})
    assert (bool(verdict.behind), bool(verdict.ahead)) == (behind, ahead)
    assert verdict.all_there is not (behind or ahead)


def test_no_replicas_at_all_is_not_aligned() -> None:
    assert not judge_positions({T0: 10}, {T0: {}}, {}).all_there
    assert not judge_positions({T0: 10}, {}, {}).all_there


# Placement.


# One move is not enough: each partition of a full broker has a replica in the empty ones' rack.
@example(racks=[3, 3, 3, 3], partitions=4, replication_factor=3, with_racks=True)
@given(
    racks=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    partitions=st.integers(1, 40),
    replication_factor=st.integers(1, 5),
    with_racks=st.booleans(),
)
def test_placement(racks: list[int], partitions: int, replication_factor: int, with_racks: bool) -> None:
    brokers = [
        ReplicaBroker(rack * 10 + index, f"r{rack}" if with_racks else None)
        for rack, size in enumerate(racks)
        for index in range(size)
    ]
    if replication_factor > len(brokers):
        with pytest.raises(Refused, match="replication factor"):
            place(brokers, partitions, replication_factor)
        return
    placed = place(brokers, partitions, replication_factor)
    assert placed == place(list(reversed(brokers)), partitions, replication_factor)
    assert len(placed) == partitions
    rack_of = {broker.id: broker.rack for broker in brokers}
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == replication_factor
        assert set(replicas) <= set(rack_of)
        if with_racks:
            per_rack = Counter(rack_of[b] for b in replicas)
            assert len(per_rack) == min(replication_factor, len(racks))
    even = not with_racks or len(set(racks)) == 1
    if even:
        replicas_per_broker = Counter(b for replicas in placed for b in replicas)
        counts = [replicas_per_broker[b.id] for b in brokers]
        # Racks come before brokers: replicas left over after an equal share per rack may be one more apart.
        uneven = with_racks and replication_factor > len(racks) and replication_factor % len(racks) != 0
        assert max(counts) - min(counts) <= (2 if uneven else 1)
        leaders = Counter(replicas[0] for replicas in placed)
        counts = [leaders[b.id] for b in brokers]
        assert max(counts) - min(counts) <= 1


def test_placement_evens_out_what_is_there() -> None:
    brokers = [ReplicaBroker(1), ReplicaBroker(2), ReplicaBroker(3)]
    load = {1: Load(replicas=4, leaders=4), 2: Load(replicas=4, leaders=0)}
    placed = place(brokers, 4, 1, load)
    assert placed == ((3,),) * 4
    leaders = Counter(replicas[0] for replicas in place(brokers, 6, 3, load))
    assert leaders[1] == 0


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor"),
    [
        ([], 1, 1),
        ([ReplicaBroker(1)], 0, 1),
        ([ReplicaBroker(1)], 1, 0),
        ([ReplicaBroker(1), ReplicaBroker(1)], 1, 1),
    ],
)
def test_impossible_placement(brokers: list[ReplicaBroker], partitions: int, factor: int) -> None:
    with pytest.raises(Refused):
        place(brokers, partitions, factor)


# Producer ids.


@given(
    samples=st.dictionaries(st.integers(0, 5), st.integers(0, 10**7), min_size=1),
    target_next=st.integers(0, 10**4).map(lambda block: block * 1000),
    target=st.dictionaries(st.integers(0, 5), st.integers(0, 10**7), min_size=1),
)
def test_after_the_plan_forwarding_is_allowed(
    samples: dict[int, int], target_next: int, target: dict[int, int]
) -> None:
    margin = producer_ids.RESERVE
    source = producer_ids.source_end(samples)
    made = producer_ids.plan(source, target_next, target, margin=margin)
    moved = target_next + made.blocks * 1000
    assert moved >= made.floor > max(samples.values()) + margin
    assert made.blocks == 0 or moved - 1000 < made.floor
    # A broker whose block is used up gets the next one, which starts at or above the floor.
    drained = {b: sample + made.drain.get(b, 0) for b, sample in target.items()}
    after = {b: moved if sample < made.floor else sample for b, sample in drained.items()}
    for broker, sample in drained.items():
        assert sample >= made.floor or (sample + 1) % 1000 == 0, broker
    verdict = producer_ids.judge(source, moved, after, made.floor)
    assert verdict.allowed


@pytest.mark.parametrize(
    ("source", "target_next", "target", "words"),
    [
        (900_001, 2_000_000, {1: 2_000_000}, "too close"),
        (1000, 5000, {1: 2_000_000}, "would hand out producer ids from 5000"),
        (1000, 2_000_000, {}, "no broker of the target"),
        (900_000, 2_000_000, {1: 2_000_000, 2: 17}, "broker 2 of the target still hands out producer id 17"),
    ],
)
def test_forwarding_is_refused(source: int, target_next: int, target: dict[int, int], words: str) -> None:
    verdict = producer_ids.judge(source, target_next, target, 1_000_000)
    assert not verdict.allowed
    assert words in (verdict.reason or "")


@given(distance=st.integers(producer_ids.RESERVE, 10**9), rate=st.integers(0, producer_ids.IDS_PER_SECOND))
@example(distance=516_979, rate=1000)
def test_what_is_known_of_the_source_holds_until_it_is_looked_at_again(distance: int, rate: int) -> None:
    pause, lasts = producer_ids.pause(distance), producer_ids.lasts(distance)
    assert 30 <= pause <= 600
    assert pause + 30 <= lasts  # those that go by the word of another have time to hear it
    assert rate * lasts <= distance + 0.001  # a division rounds, by far less than an id


def test_producer_id_samples_are_needed_and_ids_end() -> None:
    with pytest.raises(Refused, match="every source broker"):
        producer_ids.source_end({})
    with pytest.raises(Refused, match="-1"):
        producer_ids.source_end({0: -1})
    with pytest.raises(Refused, match="used up"):
        producer_ids.plan(2**63 - 2, 0, {})
