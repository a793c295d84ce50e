"""One task that reads all sides of its ranges at the same time and settles those in which all sides are alike.

While one side's answer is looked at, those of the others are on their way. A side that is ahead waits for the slowest, so
what a task holds is two answers per side and a bounded number of headers, however large its ranges.

Runs in executors; knows sockets by way of reader.py, and no Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

from validator.compare.matching import RangeMatch, rows_of
from validator.compare.verdict import RangeVerdict
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import JointTask
from validator.read.reader import FETCH_BYTES, SpanReader
from validator.read.spans import SOURCE
from wire.client.cluster import Cluster
from wire.task_group import TaskGroup

AHEAD = 65_536
"""Batches that a side may be ahead of the others; about 100 bytes each."""
LEAST_FETCH_BYTES = 2 << 20
_SIDES = 2  # with so many each gets FETCH_BYTES


def read_side_by_side(
    clusters: Mapping[str, ClusterEndpoint], task: JointTask
) -> list[tuple[int, RangeVerdict | None]]:
    """A verdict per range id; None for one in which the sides are not simply alike. Raises SideFailed."""
    return asyncio.run(_Work(clusters, task).run())


class _Work:
    def __init__(self, clusters: Mapping[str, ClusterEndpoint], task: JointTask) -> None:
        self._clusters = clusters
        self._matches = {one.spec.range_id: RangeMatch(one.spec) for one in task.ranges}
        spans = [span for one in task.ranges for span in one.spans()]
        slots = sorted({span.slot for span in spans})
        fetch_bytes = max(LEAST_FETCH_BYTES, FETCH_BYTES * _SIDES // max(len(slots), _SIDES))
        self._readers = {
            slot: SpanReader(
                clusters[_side(slot)],
                [span for span in spans if span.slot == slot],
                fetch_bytes=fetch_bytes,
            )
            for slot in slots
        }
        self._ahead = dict.fromkeys(slots, 0)  # batches shown by a side
        self._reading = set(slots)
        self._moved = asyncio.Condition()

    async def run(self) -> list[tuple[int, RangeVerdict | None]]:
        async with self._clusters["source"].cluster() as source, self._clusters["target"].cluster() as target:
            try:
                async with TaskGroup() as group:
                    for slot in self._readers:
                        group.create_task(self._read(slot, source if slot == SOURCE else target))
            except ExceptionGroup as errors:
                raise _first(errors) from None  # the others are what followed
        return [(range_id, match.finish()) for range_id, match in self._matches.items()]

    async def _read(self, slot: int, cluster: Cluster) -> None:
        reader = self._readers[slot]
        async with aclosing(reader.pieces(cluster)) as pieces:
            async for piece in pieces:
                for marker in piece.markers:
                    self._odd(marker.span.range_id)
                while piece.blocks:
                    block = piece.blocks.pop(0)
                    range_id = block.span.range_id
                    match = self._matches[range_id]
                    if match.odd:
                        continue
                    self._ahead[slot] += block.rows
                    if not match.add(slot, rows_of(block)):
                        self._odd(range_id)
                    del block
                await self._wait_for_the_others(slot)
        async with self._moved:
            self._reading.discard(slot)
            self._moved.notify_all()

    def _odd(self, range_id: int) -> None:
        self._matches[range_id].give_up()
        for reader in self._readers.values():
            reader.skip(range_id)

    async def _wait_for_the_others(self, slot: int) -> None:
        """The side that is furthest behind never waits."""
        async with self._moved:
            self._moved.notify_all()
            while self._ahead[slot] - min(self._ahead[one] for one in self._reading) > AHEAD:
                await self._moved.wait()


def _side(slot: int) -> str:
    return "source" if slot == SOURCE else "target"


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
