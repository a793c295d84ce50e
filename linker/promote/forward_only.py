"""The comparison after which a batch can no longer be undone: a real broker is in the ISR already, and
the link broker still leads.

Such a batch may not be unfenced, yet it may not be handed over without a comparison either: a replica that restarted
since, or lost its copy, would join the ISR with less than the log has. The link broker still leads, so it feeds the
followers until all have one end. Until then the fence stays, past its deadline.

This end is the durable one or a later one: records that a producer writes to the source past the fence cannot be
answered by going back any more, so they are taken along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.judge.alignment import CommonEnds, SourceEnd, judge_common_ends, judge_ends
from controller.judge.hand_over import HandOverPlan
from linker.promote.checks import Checks, Verified
from linker.promote.context import PromoteBatch, full_reason
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

# For the positions. It is asked again and again, and what is handed over meanwhile must not wait for it.
_SLICE = 0.25
_LEAST = 0.001


@dataclass(frozen=True, slots=True)
class Comparison:
    """`verified`: the partitions that are equal everywhere. For the others, the reason against them."""

    verified: Verified
    waiting: Mapping[TopicPartition, str]


def agree_with_source(
    ends: Mapping[TopicPartition, int], source: Mapping[TopicPartition, SourceEnd]
) -> dict[TopicPartition, str]:
    """Where the source says something else than the replicas; one that says nothing is not asked for more."""
    unsettled = judge_ends({}, source).unsettled
    apart: dict[TopicPartition, str] = {}
    for tp, end in ends.items():
        if tp in unsettled:
            apart[tp] = unsettled[tp]
        elif tp in source and source[tp].log_end_offset != end:
            apart[tp] = f"the replicas are at {end}, the source ends at {source[tp].log_end_offset}"
    return apart


async def compare_anew(
    context: PromoteBatch,
    checks: Checks,
    plan: HandOverPlan,
    least: Mapping[TopicPartition, int],
    *,
    timeout: float,
) -> Comparison:
    """Compare once, within `timeout` seconds, whether the very copies that the plan names are equal to the source, up
    to `least` or beyond. The source's end is read last: nothing that it shows can be undone by what comes after it."""
    deadline = context.now() + timeout
    progress = context.ports.progress

    def left() -> float:
        return max(deadline - context.now(), _LEAST)

    def judge() -> CommonEnds:
        return judge_common_ends(least, plan.replicas, progress.positions(list(least)))

    await context.within(
        progress.wait_until(list(least), lambda: not judge().apart, timeout=min(left(), _SLICE)),
        timeout,
        "waiting for replicas",
    )
    found = judge()
    ends, waiting = dict(found.ends), dict(found.apart)
    if ends:
        unequal = await _tails(context, ends, left())
        ends = {tp: end for tp, end in ends.items() if tp not in unequal}
        waiting |= unequal
    if ends:
        apart = agree_with_source(ends, await checks.source_now(list(ends), left()))
        ends = {tp: end for tp, end in ends.items() if tp not in apart}
        waiting |= apart
    verified = Verified(
        ends, {tp: plan.replicas[tp] for tp in ends}, {tp: plan.leader_epochs[tp] for tp in ends}
    )
    return Comparison(verified, waiting)


async def _tails(
    context: PromoteBatch, ends: Mapping[TopicPartition, int], timeout: float
) -> Mapping[TopicPartition, str]:
    try:
        return await context.within(
            context.ports.tail_check.check(ends, timeout=timeout), timeout, "comparing the tails"
        )
    except LinkerError as error:
        return dict.fromkeys(ends, f"its tails cannot be compared: {full_reason(error)}")
