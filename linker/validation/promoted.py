"""The partitions that a promote has handed over, as the link state and the target show them now."""

from __future__ import annotations

from collections.abc import Sequence

from controller.decide import validations
from controller.phases import Phase
from controller.state import JobStatus, MirrorPartition, PromoteJob
from linker.validation.planner import replicas_of
from linker.validation.runner import LinkValidator
from wire.frames.types import TopicPartition


class PromotedPartitions:
    """Of one promote. Only lookups, nothing is kept."""

    def __init__(self, validation: LinkValidator, job: PromoteJob) -> None:
        self._validation = validation
        self._controller = validation.controller
        self._job = job

    def owed(self) -> list[TopicPartition]:
        """The partitions that the job has promoted, mirrors that were deleted since included: nobody knows which
        were promoted of an abandoned job whose mirror is gone, so they count. A mirror that begins again is not the
        one that was promoted."""
        image, link, job = self._controller.image, self._validation.link, self._job
        return [
            tp
            for tp in job.partitions
            if (state := image.partitions.get((link, tp))) is None
            or state.phase is Phase.PROMOTED
            or (job.status is JobStatus.DONE and state.phase is not Phase.FAILED_OVER)
        ]

    def there(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """The partitions whose mirror was not deleted meanwhile; nothing can be looked up about the others."""
        image, link = self._controller.image, self._validation.link
        return [
            tp
            for tp in tps
            if (link, tp.topic) in image.mirrors
            and (state := image.partitions.get((link, tp))) is not None
            and state.phase is Phase.PROMOTED
        ]

    def end(self, tp: TopicPartition) -> int | None:
        """Where its source ended at the hand-over."""
        return self.state(tp).aligned_end

    def gone(self, tps: Sequence[TopicPartition]) -> str | None:
        """Why nothing can be proved of some partitions any more; None if all are there."""
        there = set(self.there(tps))
        gone = [tp for tp in tps if tp not in there]
        if not gone:
            return None
        more = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
        return f"{gone[0]}: its mirror was deleted before it was proved{more}"

    def state(self, tp: TopicPartition) -> MirrorPartition:
        return self._controller.image.partitions[self._validation.link, tp]

    def replicas(self, tp: TopicPartition) -> tuple[int, ...]:
        mirror = self._controller.image.mirrors[self._validation.link, tp.topic]
        link_brokers = self._validation.link_brokers()
        return tuple(sorted(replicas_of(self._validation.target.image, mirror, tp, link_brokers)))

    def mismatches(self, tps: Sequence[TopicPartition]) -> int:
        """Replicas that differ: those found by this process, and those that the link state names. A broker that does not
        hold the partition any more has none."""
        differing: set[tuple[TopicPartition, int]] = set()
        for tp in self.there(tps):
            known = self._controller.image.validations.get((self._validation.link, tp))
            named = None if known is None or known.mismatch is None else known.mismatch.broker_id
            differing |= {
                (tp, broker)
                for broker in self.replicas(tp)
                if broker == named or (tp, broker) in self._validation.book.findings
            }
        return len(differing)

    def missing(self, tps: Sequence[TopicPartition]) -> int:
        """Records that the source has and replicas lack before their start: of each partition the worst replica's."""
        total = 0
        for tp in self.there(tps):
            known = self._controller.image.validations.get((self._validation.link, tp))
            there = self.replicas(tp)
            total += max(
                (
                    one.missing.records
                    for one in (known.replicas if known is not None else ())
                    if one.missing is not None and one.broker_id in there
                ),
                default=0,
            )
        return total

    def first_mismatch(self, tps: Sequence[TopicPartition]) -> str:
        for tp in tps:
            known = self._controller.image.validations.get((self._validation.link, tp))
            if known is not None and known.mismatch is not None:
                return f"{tp}: {validations.mismatch_text(known.mismatch)}"
        return "see the evidence"
