"""Writes the reports of a link's fetchers to the controller's state, in order.

The fetcher's callbacks must not block, so they only queue; one task per link writes. A write that fails is tried again:
a broken mirror must not look healthy because the store was busy for a moment, or because the link controller has not
heard yet of the partition's new leader. Notes about many copies are one write: a source broker that restarts begins a
leader epoch in each of its partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from controller.decide.mirrors import CopyNote
from controller.errors import NotFound, NotTheLeader, Refused
from fetcher.partition_copy import PartitionCopy
from fleet.link_controller import LinkController
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_RETRY = 0.5
_SWEEP = 5.0
_AT_ONCE = 500  # copies that are noted with one write
#: Seconds that replicas wait for records of a leader epoch that cannot be written down. A store that is away for longer is
#: no reason for a mirror to stand still, unless it is in sync: the end of its log, told to the source by the next leader,
#: must not count records that the source was never told of.
_SERVED_ANYWAY = 10.0


class _Write(NamedTuple):
    tp: TopicPartition
    mirror: PartitionCopy | None  # which the change is about
    failure: str | None  # None: its truncations and its epochs, as they are by then


class SourceEvents:
    """Implements fetcher.FetcherEvents for one link."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        partition: Callable[[TopicPartition], PartitionCopy | None],
    ) -> None:
        self._link = link
        self._controller = controller
        self._partition = partition
        self._writes: asyncio.Queue[_Write] = asyncio.Queue()
        #: Partitions whose source cannot be read, with the monotonic time since when.
        self.unavailable: dict[TopicPartition, float] = {}
        #: How often records came damaged.
        self.damaged_reads = 0

    # --- FetcherEvents: called synchronously -------------------------------------------------------------------------

    def failed(self, tp: TopicPartition, reason: str) -> None:
        log.error("mirror %s of link %s failed: %s", tp, self._link, reason)
        self.unavailable.pop(tp, None)
        self._write(tp, reason)

    def source_damaged(self, tp: TopicPartition, reason: str) -> None:
        self.damaged_reads += 1
        log.error("link %s: %s", self._link, reason)

    def source_epoch(self, tp: TopicPartition, epoch: int, start_offset: int) -> bool:
        self._write(tp)
        return True

    def source_truncated(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        log.warning(
            "the source of %s (link %s) lost everything from offset %d on; replicas %s truncate",
            tp,
            self._link,
            offset,
            list(replicas),
        )
        self._write(tp)

    def truncation_seen(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        self._write(tp)

    def source_unavailable(self, tp: TopicPartition, since: float) -> None:
        if not self.unavailable:
            mirror = self._partition(tp)
            trouble = None if mirror is None else mirror.trouble
            log.warning("link %s: the source of %s cannot be read: %s", self._link, tp, trouble)
        self.unavailable[tp] = since

    def source_available(self, tp: TopicPartition) -> None:
        since = self.unavailable.pop(tp, None)
        if since is not None and not self.unavailable and self._partition(tp) is not None:
            log.info(
                "link %s: the source can be read again after %.1f s", self._link, time.monotonic() - since
            )

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write(self, tp: TopicPartition, failure: str | None = None) -> None:
        self._writes.put_nowait(_Write(tp, self._partition(tp), failure))

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_SWEEP):
                    writes = [await self._writes.get()]
            except TimeoutError:
                self._forget_done_truncations()
                continue
            while not self._writes.empty():
                writes.append(self._writes.get_nowait())
            for failures, some in groupby(writes, key=lambda write: write.failure is not None):
                alike, most = list(some), 1 if failures else _AT_ONCE
                for first in range(0, len(alike), most):
                    await self._carry_out(alike[first : first + most])

    async def _carry_out(self, writes: Sequence[_Write]) -> None:
        """Until each one is written, refused for good or put off."""
        began = time.monotonic()
        while writes:
            try:
                refused = await self._commit(writes)
            except LinkerError as error:
                refused = dict.fromkeys((write.tp for write in writes), error)
            again: list[_Write] = []
            for write in writes:
                match refused.get(write.tp):
                    case None | NotFound():
                        pass  # written; or the mirror was deleted meanwhile
                    case Refused() as why:  # no repetition helps, and others wait behind it
                        log.error("link %s: the state of %s was not written: %s", self._link, write.tp, why)
                        self._serve_all([write])
                    case NotTheLeader() as early:
                        self._put_off(write, early)
                    case _:
                        again.append(write)
            writes = again
            if again:
                log.warning(
                    "link %s: the state of %s and %d more partitions could not be written: %s; tried again in %g s",
                    self._link,
                    again[0].tp,
                    len(again) - 1,
                    refused[again[0].tp],
                    _RETRY,
                )
                if time.monotonic() - began > _SERVED_ANYWAY:
                    self._serve_all([write for write in again if not self._in_sync(write.tp)])
                await asyncio.sleep(_RETRY)

    def _in_sync(self, tp: TopicPartition) -> bool:
        copy = self._partition(tp)
        return copy is not None and copy.feed is not None

    def _serve_all(self, writes: Sequence[_Write]) -> None:
        for write in writes:
            if (copy := self._partition(write.tp)) is not None:
                copy.serve_all()

    async def _commit(self, writes: Sequence[_Write]) -> Mapping[TopicPartition, LinkerError]:
        """Returns the partitions of which nothing was written, with the reason."""
        first = writes[0]
        if first.failure is not None:
            await self._controller.fail_partition(self._link, first.tp, first.failure)
            return {}
        copies = {write.tp: copy for write in writes if (copy := self._partition(write.tp)) is not None}
        notes = {
            tp: CopyNote(tuple(sorted(copy.untruncated.items())), copy.source_epochs)
            for tp, copy in copies.items()
        }
        refused = await self._controller.note_copies(self._link, notes) if notes else {}
        for tp, copy in copies.items():
            if tp not in refused:
                copy.epochs_written(notes[tp].source_epochs or ())
        return refused

    def _put_off(self, write: _Write, error: NotTheLeader) -> None:
        """Until the link controller knows of the new leader as well, for as long as we take ourselves for it: a copy
        that is not here any more has another leader, who finds out by itself. Nobody waits behind it.
        """
        if write.mirror is None or self._partition(write.tp) is not write.mirror:
            log.info("link %s: the state of %s was not written: %s", self._link, write.tp, error)
            return
        log.debug("link %s: the state of %s is not written yet: %s", self._link, write.tp, error)
        asyncio.get_running_loop().call_later(_RETRY, self._writes.put_nowait, write)

    def _forget_done_truncations(self) -> None:
        """A truncation that every replica has made need not be asked for after the next restart."""
        for state in self._controller.image.link_partitions(self._link):
            mirror = self._partition(state.tp) if state.untruncated else None
            if mirror is not None and len(mirror.untruncated) < len(state.untruncated):
                self._write(state.tp)
