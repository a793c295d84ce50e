"""Writes the reports of a link's fetchers to the controller's state, in order.

The fetcher's callbacks must not block, so they only queue; one task per link writes. A write that fails is tried again:
a broken mirror must not look healthy because the store was busy for a moment, or because the link controller has not
heard yet of the partition's new leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from controller.errors import NotFound, NotTheLeader, Refused
from fetcher.partition_copy import PartitionCopy
from fleet.link_controller import LinkController
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_RETRY = 0.5
_SWEEP = 5.0


class _Write(NamedTuple):
    tp: TopicPartition
    mirror: PartitionCopy | None  # which the change is about
    change: Callable[[], Awaitable[None]]


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
        self._write(tp, lambda: self._controller.fail_partition(self._link, tp, reason))

    def source_damaged(self, tp: TopicPartition, reason: str) -> None:
        self.damaged_reads += 1
        log.error("link %s: %s", self._link, reason)

    def source_epoch(self, tp: TopicPartition, epoch: int, start_offset: int) -> None:
        self._write(tp, lambda: self._save_copies(tp))

    def source_truncated(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        log.warning(
            "the source of %s (link %s) lost everything from offset %d on; replicas %s truncate",
            tp,
            self._link,
            offset,
            list(replicas),
        )
        self._write(tp, lambda: self._save_copies(tp))

    def truncation_seen(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        self._write(tp, lambda: self._save_copies(tp))

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

    def _write(self, tp: TopicPartition, change: Callable[[], Awaitable[None]]) -> None:
        self._writes.put_nowait(_Write(tp, self._partition(tp), change))

    async def _save_copies(self, tp: TopicPartition) -> None:
        """Replicas that have to truncate first, then the epochs: a history that is newer than the truncation it came
        after would, after a crash, let a replica keep what the source replaced."""
        mirror = self._partition(tp)
        if mirror is not None:
            untruncated, epochs = sorted(mirror.untruncated.items()), mirror.source_epochs
            await self._controller.set_untruncated(self._link, tp, untruncated)
            await self._controller.set_source_epochs(self._link, tp, epochs)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_SWEEP):
                    write = await self._writes.get()
            except TimeoutError:
                await self._forget_done_truncations()
                continue
            tp = write.tp
            while True:
                try:
                    await write.change()
                    break
                except NotFound:
                    break  # the mirror was deleted meanwhile
                except Refused:
                    # No repetition helps, and others wait behind it.
                    log.exception("link %s: the state of %s was not written", self._link, tp)
                    break
                except NotTheLeader as error:
                    self._put_off(write, error)
                    break
                except LinkerError as error:
                    log.warning(
                        "link %s: the state of %s could not be written: %s (again)", self._link, tp, error
                    )
                    await asyncio.sleep(_RETRY)

    def _put_off(self, write: _Write, error: NotTheLeader) -> None:
        """Until the link controller knows of the new leader as well, for as long as we take ourselves for it: a copy
        that is not here any more has another leader, who finds out by itself. Nobody waits behind it.
        """
        if write.mirror is None or self._partition(write.tp) is not write.mirror:
            log.info("link %s: the state of %s was not written: %s", self._link, write.tp, error)
            return
        log.debug("link %s: the state of %s is not written yet: %s", self._link, write.tp, error)
        asyncio.get_running_loop().call_later(_RETRY, self._writes.put_nowait, write)

    async def _forget_done_truncations(self) -> None:
        """A truncation that every replica has made need not be asked for after the next restart."""
        for state in self._controller.image.link_partitions(self._link):
            mirror = self._partition(state.tp) if state.untruncated else None
            if mirror is not None and len(mirror.untruncated) < len(state.untruncated):
                self._write(state.tp, lambda tp=state.tp: self._save_copies(tp))  # type: ignore[misc]
