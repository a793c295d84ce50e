"""Results per replica, for the evidence. In memory only: they end with the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from fleet.link_controller import LinkController, wall_clock_ms
from linker.links.copies import CopyView
from linker.promote.ports import FenceProof
from linker.validation.runs import differences
from linker.validation.samples import SampleBook
from validator import messages as m
from validator.compare.facts import Finding
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)


class ResultBook:
    """Of one link."""

    def __init__(
        self, link: str, controller: LinkController, copy: Callable[[TopicPartition], CopyView | None]
    ) -> None:
        self.samples = SampleBook()
        #: The first findings of each replica that has any, of this process's runs, and how many there are.
        self.findings: dict[tuple[TopicPartition, int], tuple[tuple[Finding, ...], int]] = {}
        #: Where each replica ended when it was read last.
        self.replica_ends: dict[tuple[TopicPartition, int], int] = {}
        #: Where it started then; and the source.
        self.replica_starts: dict[tuple[TopicPartition, int], int] = {}
        self.source_starts: dict[TopicPartition, int] = {}
        #: Replicas that were compared inside a fence, with the result.
        self.tails: dict[tuple[TopicPartition, int], FenceProof] = {}
        self._link = link
        self._controller = controller
        self._copy = copy

    def note(self, results: Sequence[m.ReplicaResult]) -> None:
        """Take note of a run's findings."""
        now = wall_clock_ms()
        for result in results:
            tp = TopicPartition(result.topic, result.partition)
            key = (tp, result.broker_id)
            if result.replica_end is not None:
                self.replica_ends[key] = result.replica_end
            if result.replica_start is not None:
                self.replica_starts[key] = result.replica_start
                self.source_starts[tp] = result.source_start
            differing = differences(result)
            if not differing:
                self.findings.pop(key, None)
            else:
                self.findings[key] = differing, result.findings_count - len(result.findings) + len(differing)
                log.error(
                    "link %s: broker %d's replica of %s differs from the source: %d findings, the first at offset %d: "
                    "%s, %s",
                    self._link,
                    result.broker_id,
                    tp,
                    result.findings_count,
                    differing[0].offset,
                    differing[0].kind,
                    differing[0].detail,
                )
            known = self._controller.image.validations.get((self._link, tp))
            copy = self._copy(tp)
            self.samples.note(
                tp,
                now,
                source_end=result.source_end,
                lag=None if result.replica_end is None else max(0, result.source_end - result.replica_end),
                mirrored_bytes=None if copy is None else copy.bytes_fetched,
                validated={} if known is None else {one.broker_id: one.through for one in known.replicas},
            )

    def look(self, tps: Collection[TopicPartition]) -> None:
        """Before they are read: what was mirrored between this look and the next is a rate, however short the run."""
        now = wall_clock_ms()
        for tp in tps:
            copy = self._copy(tp)
            if copy is None or not copy.loaded:
                continue
            known = self._controller.image.validations.get((self._link, tp))
            offsets = [one.fetch_offset for one in copy.followers.values() if one.fetch_offset >= 0]
            self.samples.note(
                tp,
                now,
                source_end=copy.high_watermark,
                lag=max(0, copy.high_watermark - min(offsets)) if offsets else None,
                mirrored_bytes=copy.bytes_fetched,
                validated={} if known is None else {one.broker_id: one.through for one in known.replicas},
            )

    def note_tail(self, tp: TopicPartition, broker_id: int, proof: FenceProof) -> None:
        """A replica's last batches were compared inside a fence."""
        self.tails[tp, broker_id] = proof

    def keep_only(self, topics: set[str]) -> None:
        """Forget what is no mirror any more."""
        self.samples.forget(topics)
        for tp in [tp for tp in self.source_starts if tp.topic not in topics]:
            del self.source_starts[tp]
        for book in (self.findings, self.replica_ends, self.replica_starts, self.tails):
            for key in [key for key in book if key[0].topic not in topics]:
                del book[key]
