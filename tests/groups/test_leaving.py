"""A consumer gate that opens does not leave over the heads of classic members that have not heard of the last one yet."""

from __future__ import annotations

from itertools import islice

import pytest

from controller.groups import GateKind, GateStage
from tests.fakes.groups.consumer import Member
from tests.groups.gates_kit import GROUP, QUICK, TOPIC, Target, at, offsets, target

CONSUMERS = [GateKind.CONSUMER, GateKind.CONSUMER_AND_TRANSACTION]
HEARTBEAT = 3.0


def joined(held: Target, member_id: str, *, classic: bool = True) -> Member:
    """Another client came into the group: the members before it are an epoch behind."""
    group = held.groups.consumer_group(GROUP)
    group.epoch += 1
    for member in group.members.values():
        if not member.classic:  # the gate's: it beats, and is not what is waited for
            member.previous_epoch, member.epoch = member.epoch, group.epoch
    made = Member(member_id, "app", (TOPIC,), group.epoch, deadline=float("inf"), classic=classic)
    group.members[member_id] = made
    return made


def left_behind(held: Target) -> list[dict[str, int]]:
    """Of each time somebody leaves: who was at which epoch less than the group's."""
    group = held.groups.consumer_group(GROUP)
    leave, seen = group.leave, list[dict[str, int]]()

    def watched(member_id: str) -> int:
        behind = {
            one.member_id: group.epoch - one.epoch
            for one in group.members.values()
            if one.member_id != member_id
        }
        seen.append(behind)
        return leave(member_id)

    group.leave = watched  # type: ignore[method-assign]
    return seen


def beating(held: Target, member: Member, after: float) -> None:
    """From `after` seconds on it hears of an epoch that has an assignment, and joins once more. As in Kafka 4.3 that is
    made upon a heartbeat of the consumer protocol."""
    begin, sleep, requests = held.groups.now, held.sleep, held.fake.requests
    done = len(requests)

    def assigned() -> bool:
        return any(getattr(request.entity, "member_epoch", 0) > 0 for request in islice(requests, done, None))

    async def sleeping(seconds: float) -> None:
        await sleep(seconds)
        if held.groups.now >= begin + after and assigned():
            member.epoch = held.groups.consumer_group(GROUP).epoch

    held.sleep = sleeping  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_it_waits_for_whoever_has_not_heard_of_the_last_member(kind: GateKind) -> None:
    async with target() as held:
        await held.gate(kind).close(at(100))
        early = joined(held, "early")
        joined(held, "late")
        beating(held, early, HEARTBEAT)
        gate = held.gate()
        assert early.epoch < held.groups.consumer_group(GROUP).epoch
        seen, began = left_behind(held), held.groups.now
        await gate.open(offsets(300))
        assert seen == [{"early": 0, "late": 0}]
        assert HEARTBEAT <= held.groups.now - began < HEARTBEAT + 2 * QUICK.rejoin_poll
        assert gate.record.stage is GateStage.OPEN


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_it_does_not_wait_for_ever(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        joined(held, "early")
        joined(held, "late")
        seen, began = left_behind(held), held.groups.now
        await gate.open(offsets(300))
        assert seen == [{"early": 1, "late": 0}]
        waited = held.groups.now - began
        assert QUICK.rejoin_time <= waited < QUICK.rejoin_time + 2 * QUICK.rejoin_poll


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_nobody_is_waited_for_when_all_know(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        joined(held, "only")
        await gate.open(offsets(300))
        assert held.slept == []


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_a_group_that_stays_of_the_consumer_protocol_is_left_at_once(kind: GateKind) -> None:
    """With a member of that protocol left there is no conversion, and classic members are asked to join again."""
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        joined(held, "early")
        joined(held, "late", classic=False)
        await gate.open(offsets(300))
        assert held.slept == []


async def test_who_has_left_already_waits_for_nobody() -> None:
    """As when a sidecar died between leaving and writing it down."""
    async with target() as held:
        gate = held.gate(GateKind.CONSUMER)
        await gate.close(at(100))
        joined(held, "early")
        joined(held, "late")
        assert gate.record.consumer is not None
        held.groups.consumer_group(GROUP).members.pop(gate.record.consumer.member_id)
        await gate.ledger.update(stage=GateStage.LEAVING)  # type: ignore[attr-defined]
        await held.gate().open(offsets(300))
        assert held.slept == []
        assert held.stored is not None
        assert held.stored.stage is GateStage.OPEN
