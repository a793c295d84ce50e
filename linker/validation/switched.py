"""The proof of a switch: of the replicas in the cluster that was left, which follow the other one from the hand-over on.

The mirrors that were promoted are none any more, and the source that they were compared with is read through the target. So
the last run of a switch is one of the mirrors that run back: each replica in the cluster that was left is read itself, and
compared with the leader in the cluster that owns the topic now, to the end of the hand-over at the least.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from controller.phases import LED_ELSEWHERE, SWITCHING, Phase
from controller.state import MirrorPartition, PromoteJob
from linker.promote.ports import FenceProof
from linker.validation.evidence import GIVE_UP, EvidenceWriter
from linker.validation.promoted import PromotedPartitions
from linker.validation.runner import LinkValidator
from wire.frames.types import TopicPartition

_ELSEWHERE = SWITCHING | LED_ELSEWHERE
_REVERSED_PAUSE = 0.25


#: The validation of the link that runs the other way. Its target is the cluster that was left.
Against = Callable[[], LinkValidator | None]


def close_switch_evidence(
    forward: LinkValidator, job: PromoteJob, against: Against
) -> Coroutine[Any, Any, None]:
    """Returns when the job says how it ended. `forward`: of the mirrors that it has promoted, soon none any more."""
    before = proved_before(dict(forward.book.tails), job)
    return _close_switched(forward, job, against, before)


async def _close_switched(
    forward: LinkValidator, job: PromoteJob, against: Against, before: Sequence[str]
) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + GIVE_UP
    while (found := against()) is None or not SwitchedPartitions(found, job).begun():
        if loop.time() > deadline:
            break
        await asyncio.sleep(_REVERSED_PAUSE)
    if found is None:
        found = forward  # no partition is found there, and the evidence says so
    promoted = SwitchedPartitions(found, job)
    await EvidenceWriter(
        found,
        job,
        promoted=promoted,
        before=before,
        runs=tuple(forward.runs),
    ).close()


class SwitchedPartitions(PromotedPartitions):
    """Of one switch, as the mirrors that run back show them."""

    def owed(self) -> list[TopicPartition]:
        return list(self._job.partitions)

    def there(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [tp for tp in tps if (state := self._back(tp)) is not None and state.phase not in _ELSEWHERE]

    def gone(self, tps: Sequence[TopicPartition]) -> str | None:
        lost = [tp for tp in tps if tp not in set(self.there(tps))]
        if not lost:
            return None
        return f"{lost[0]}: it was switched again, or its switch was finished, before it was proved" + (
            f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        )

    def end(self, tp: TopicPartition) -> int | None:
        state = self._back(tp)
        return None if state is None or state.taken is None else state.taken.end

    def begun(self) -> bool:
        """Whether what was handed over follows the other way by now, or never will."""
        states = [self._back(tp) for tp in self._job.partitions]
        return all(one is None or one.phase is not Phase.TAKEN for one in states)

    def _back(self, tp: TopicPartition) -> MirrorPartition | None:
        return self._controller.image.partitions.get((self._validation.link, tp))


def proved_before(proofs: Mapping[tuple[TopicPartition, int], FenceProof], job: PromoteJob) -> list[str]:
    """A line for each way in which the replicas that took over were compared."""
    mine = {key: one for key, one in proofs.items() if key[0] in set(job.partitions)}
    if not mine:
        return [
            "before the hand-over: the replicas were compared by a sidecar that has ended, or held nothing"
        ]
    spark = [one for one in mine.values() if one.through is not None]
    lines = []
    if spark:
        most = max(one.end - min(one.through or 0, one.end) for one in spark)
        lines.append(
            f"before the fence, by Spark: {len(spark)} of {len(mine)} replicas that took over, to within {most} offsets of "
            "their end"
        )
    else:
        lines.append(f"before the fence, by Spark: none of {len(mine)} replicas that took over")
    rest = sum(one.rest for one in mine.values())
    lines.append(
        f"behind the fence, by checksums: from there to the end, batch by batch, {rest} of these replicas; "
        f"the last batch of all {len(mine)}"
    )
    return lines
