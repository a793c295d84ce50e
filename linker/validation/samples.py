"""Looks at the partitions while they are validated, for the charts of the evidence. In memory, of bounded number: a
partition that has too many keeps every other one. A restart of the sidecar forgets a chart, not a proof."""

from __future__ import annotations

from collections.abc import Mapping

from validator.evidence.model import MAX_SAMPLES, Sample
from validator.evidence.samples import budget, thin
from wire.frames.types import TopicPartition

#: Results of a partition's replicas come together: they are one look, and say nothing of a rate between them.
_MOMENT_MS = 500


class SampleBook:
    """Of one link."""

    def __init__(self) -> None:
        self._samples: dict[TopicPartition, list[Sample]] = {}
        self._mirrored: dict[TopicPartition, tuple[int, int]] = {}  # ms, bytes fetched by then

    def note(
        self,
        tp: TopicPartition,
        at_ms: int,
        *,
        source_end: int | None,
        lag: int | None,
        mirrored_bytes: int | None,
        validated: Mapping[int, int],
    ) -> None:
        """One look; `mirrored_bytes` counts since the copy began."""
        before = self._mirrored.get(tp)
        rate: float | None = None
        if mirrored_bytes is not None and (before is None or at_ms - before[0] >= _MOMENT_MS):
            if before is not None and mirrored_bytes >= before[1]:
                rate = (mirrored_bytes - before[1]) * 1000 / (at_ms - before[0])
            self._mirrored[tp] = (at_ms, mirrored_bytes)
        kept = self._samples.setdefault(tp, [])
        if kept and at_ms - kept[-1].at_ms < _MOMENT_MS:
            rate = kept.pop().bytes_per_second if rate is None else rate
        kept.append(
            Sample(
                at_ms=at_ms, source_end=source_end, lag=lag, bytes_per_second=rate, validated=dict(validated)
            )
        )
        if len(kept) >= 2 * MAX_SAMPLES:
            self._samples[tp] = list(thin(kept))

    def of(self, tp: TopicPartition, partitions: int) -> tuple[Sample, ...]:
        """The samples of one of so many partitions for the evidence."""
        return thin(self._samples.get(tp, ()), budget(partitions))

    def forget(self, topics: set[str]) -> None:
        """All but these topics are no mirrors any more."""
        for tp in [tp for tp in self._samples if tp.topic not in topics]:
            del self._samples[tp]
            self._mirrored.pop(tp, None)
