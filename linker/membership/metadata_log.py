"""Follows the target's metadata log as an observer, and replays it into a ClusterImage.

Rules (`KafkaRaftClient`, KIP-595, KIP-630):
- The leader sends an observer records up to its log end, uncommitted ones included (`Isolation.UNCOMMITTED` in
  `tryCompleteFetchRequest`). Only records below its high watermark are replayed; the rest waits here, and a
  DivergingEpoch cuts it off.
- A Fetch names the quorum's epoch and the epoch of the last record we hold. FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH
  and NOT_LEADER_OR_FOLLOWER name the current leader and epoch; an older epoch is never adopted.
- A SnapshotId in the answer means that our offset is below the log's start, or that we have nothing yet. The snapshot
  is decoded aside and taken over as a whole, so no reader ever sees a part of it.
- Fetch v18 (KIP-1166) tells the leader our high watermark, so it answers as soon as the high watermark moves. Below
  that version the wait is kept short while something uncommitted waits here.
"""

from __future__ import annotations

import asyncio
import logging
import time

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import ClusterIdChanged, MetadataLogFailed, MissingRight, TargetUnsupported
from linker.membership.quorum import Quorum, QuorumVerdict
from linker.membership.raft_requests import fetch_request
from linker.membership.snapshots import SnapshotGone, SnapshotReader
from linker.membership.uncommitted import OffsetGap, UncommittedTail
from linker.membership.watched_image import WatchedImage
from wire.backoff import Backoff
from wire.errors import (
    AuthenticationFailed,
    LinkerError,
    MalformedFrame,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)
from wire.frames.types import TopicId
from wire.metadata.image import ClusterImage
from wire.metadata.replay import load_snapshot, replay_batches

log = logging.getLogger(__name__)

# Decoding blocks the event loop, so one answer is kept small; snapshots are decoded in a thread.
_MAX_BYTES = 1 << 20
_MIN_VERSION, _MAX_VERSION = 12, 18
_HIGH_WATERMARK_VERSION = 18
_MAX_WAIT_MS = 500
_SHORT_WAIT_MS = 20
_REQUEST_TIMEOUT = 3.0
_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0


class MetadataLog(WatchedImage):
    """Follows the metadata log; `image` (always the same object) is the state up to the high watermark."""

    def __init__(self, channel: ControllerChannel) -> None:
        super().__init__(channel.cluster_name)
        self._channel = channel
        self._tail = UncommittedTail()  # continues the image, or its replacement
        self._replacement: ClusterImage | None = None
        self.quorum = Quorum(channel)
        self._snapshots = SnapshotReader(channel, self.quorum)
        self.high_watermark = -1
        self.snapshots_loaded = 0
        self._rounds = 0  # answers that named a high watermark
        self._in_a_hurry = 0  # callers of caught_up

    # --- reading --------------------------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """Offset of the last record replayed, -1 for none; what heartbeats report."""
        return self._tail.committed_offset - 1

    async def caught_up(self, timeout: float) -> None:
        """Return once everything committed before this call is replayed.

        The proof is a Fetch that was *sent* after the call, and whose answer names a high watermark that we have reached.
        """
        deadline = time.monotonic() + timeout
        start = self._rounds
        self._in_a_hurry += 1
        try:
            # The first answer may have been on its way already when this was called.
            while not (self._rounds >= start + 2 and 0 <= self.high_watermark <= self._tail.committed_offset):
                await self._next_change(deadline, f"offset {self.high_watermark}")
        finally:
            self._in_a_hurry -= 1

    def _timed_out(self, what: str) -> RequestTimedOut:
        active = self._channel.active
        return RequestTimedOut(
            f"{self._name}: the metadata log did not reach {what} in time",
            sent=False,
            api="fetch",
            offset=self._tail.committed_offset,
            peer=active.address if active else self._name,
        )

    def expect_cluster(self, cluster_id: str) -> None:
        """From now on every request names the cluster, so that a controller of another cluster refuses it."""
        self.quorum.cluster_id = cluster_id

    # --- the fetch loop -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the log until cancelled. Raises an error only if trying again cannot help."""
        backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_MAX)
        try:
            while True:
                try:
                    progressed = await self._round()
                except LinkerError as error:
                    if self._is_fatal(error):
                        raise
                    log.warning("%s: metadata log: %s", self._name, error)
                    progressed = False
                if progressed:
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next())
        except BaseException as error:
            self._failure = error
            self._wake()
            raise

    def _is_fatal(self, error: LinkerError) -> bool:
        """Whether an error ends the loop.

        A refusal (credentials, rights, versions) ends a loop that has just started. It does not end one that has followed
        the log already: credentials are rotated, rights are taken and given back, and a link must outlive that.
        """
        if isinstance(error, ClusterIdChanged | MetadataLogFailed):
            return True
        never = self._rounds == 0 and self.snapshots_loaded == 0
        return never and isinstance(
            error, AuthenticationFailed | MissingRight | TargetUnsupported | UnsupportedApi
        )

    async def _round(self) -> bool:
        """One Fetch, and the replay of its answer. False: pause before the next one."""
        active, connection = await self._channel.connection("metadata", timeout=_REQUEST_TIMEOUT)
        version = connection.pick_version("fetch", max_version=_MAX_VERSION)
        if version < _MIN_VERSION:
            raise UnsupportedApi(
                "the controller is too old", api="fetch", version=version, peer=active.address
            )
        self.quorum.heard(active.epoch)
        try:
            response = await connection.call(
                "fetch", self._fetch_request(version), timeout=_REQUEST_TIMEOUT, version=version
            )
        except LinkerError:
            self._channel.moved(active)
            raise
        self.quorum.check_top_level(int(response.error_code), "fetch", active)
        if not response.responses or not response.responses[0].partitions:
            raise MalformedFrame("no metadata partition in the answer", api="fetch", peer=active.address)
        partition = response.responses[0].partitions[0]
        verdict = self.quorum.check_partition(partition, "fetch", active)
        if verdict is not QuorumVerdict.TAKE:
            return verdict is QuorumVerdict.ASK_AGAIN
        if partition.diverging_epoch.epoch >= 0:
            self._truncate(partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset)
            return True
        if partition.snapshot_id.end_offset >= 0 or partition.snapshot_id.epoch >= 0:
            await self._load_snapshot(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
            return True
        try:
            self._tail.append(partition.records or b"")
        except OffsetGap as gap:
            raise MetadataLogFailed(f"{self._name}: a gap in the metadata log: {gap}") from gap
        # -1: a new leader has not committed anything in its epoch yet, so the answer proves nothing.
        if partition.high_watermark >= 0:
            self.high_watermark = max(self.high_watermark, partition.high_watermark)
            self._rounds += 1
        self._replay_committed()
        self._wake()
        return True

    def _fetch_request(self, version: int) -> dict[str, object]:
        waits_for_commit = bool(self._tail) and version < _HIGH_WATERMARK_VERSION
        wait_ms = _SHORT_WAIT_MS if self._in_a_hurry or waits_for_commit else _MAX_WAIT_MS
        return fetch_request(
            cluster_id=self.quorum.cluster_id,
            quorum_epoch=self.quorum.epoch,
            offset=self._tail.end_offset,
            last_epoch=self._tail.last_epoch,
            high_watermark=self.high_watermark,
            max_wait_ms=wait_ms,
            max_bytes=_MAX_BYTES,
        )

    # --- records --------------------------------------------------------------------------------------------

    def _replay_committed(self) -> None:
        """Replay the fetched records that are below the high watermark."""
        ready = self._tail.take_committed(self.high_watermark)
        image = self.image if self._replacement is None else self._replacement
        touched: frozenset[TopicId] = frozenset()
        if ready:
            try:
                touched = replay_batches(image, ready)
            except WireError as error:
                # Final: to skip a committed record is to miss a change of the cluster.
                raise MetadataLogFailed(f"{self._name}: the metadata log cannot be read: {error}") from error
        if self._replacement is not None:
            if not 0 <= self.high_watermark <= self._tail.committed_offset:
                return
            touched = frozenset(self.image.topics_by_id) | frozenset(self._replacement.topics_by_id)
            self.image.adopt(self._replacement)
            self._replacement = None
        elif not ready:
            return
        self._publish(touched)

    def _truncate(self, epoch: int, end_offset: int) -> None:
        """Drop what the leader does not have (`RaftLog.truncateToEndOffset`)."""
        if dropped := self._tail.truncate(epoch, end_offset):
            log.info("%s: metadata log: %d uncommitted batches dropped", self._name, dropped)
            return
        # The quorum lost records that it had committed. The brokers go by the log as it is now, and so do we.
        log.error(
            "%s: metadata log: the quorum lost committed records (we are at %d, it diverges at %d of epoch %d): "
            "replaying from the start",
            self._name,
            self._tail.committed_offset,
            end_offset,
            epoch,
        )
        # Into a replacement, not into the image: a half replayed image lacks topics, which would count as deleted.
        self._replacement = ClusterImage()
        self._tail.reset(0, 0)
        self.high_watermark = -1

    # --- snapshots ------------------------------------------------------------------------------------------

    async def _load_snapshot(self, end_offset: int, epoch: int) -> None:
        started = time.monotonic()
        try:
            data = await self._snapshots.fetch(end_offset, epoch)
        except SnapshotGone as gone:
            log.info("%s: metadata log: %s", self._name, gone)
            return
        fresh = ClusterImage()
        try:
            # In a thread, because heartbeats must go out while a large snapshot is decoded.
            await asyncio.to_thread(load_snapshot, fresh, data, end_offset, epoch)
        except WireError as error:
            raise MetadataLogFailed(
                f"{self._name}: the metadata snapshot {end_offset}-{epoch} cannot be read: {error}"
            ) from error
        replacing = self._replacement is not None
        touched = frozenset(self.image.topics_by_id) | frozenset(fresh.topics_by_id)
        if replacing:
            self._replacement = fresh  # the log continues it
        else:
            self.image.adopt(fresh)
        self._tail.reset(end_offset, epoch)
        self.high_watermark = max(self.high_watermark, end_offset)
        self.snapshots_loaded += 1
        log.info(
            "%s: metadata snapshot %d-%d loaded, %d bytes in %.0f ms",
            self._name,
            end_offset,
            epoch,
            len(data),
            (time.monotonic() - started) * 1000,
        )
        if not replacing:
            self._publish(touched)
            self._wake()
