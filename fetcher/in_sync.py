"""Follows partitions at the source as a replica in its ISR does, so that the source acknowledges only what the target has.

One cursor of a partition's copy is *fed*: it is read with our broker id in the source's cluster, beyond the high watermark,
from the partition's leader, and its position is told to that leader only once every replica at the target that must have
the records has asked for what comes after them. Until then the partition is not asked for at all; a leader that hears
nothing of a follower for replica.lag.time.max.ms takes it out of the ISR and goes on, which is right for such a slow one.

Invariants:
- No fetch offset of ours is above what each replica of `must_hold` has shown to have (`PartitionCopy.held_by`) when the
  request is sent.
- Nor is it above a batch whose leader epoch is not written down (`_safe`).
- Nothing that was read is dropped before they have it: they could not get it anywhere else.
- Each leader checks the position (LastFetchedEpoch). The replicas truncate as it says, before more is told.

A partition begins to be fed where its slowest replica is, as soon as all are near the end. Replicas that fall behind later
read below the high watermark as before. `stop` ends the reading at an exact offset; whoever takes the partition over goes
on there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from fetcher.error_table import ErrorAction, classify
from fetcher.followed import Followed, InSyncPorts, InSyncState, SourceLeader, replicas_end
from fetcher.link_fetcher import LinkFetcher
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.resolve_queue import pause_after
from fetcher.source_fetcher import SourceFetcher
from fetcher.source_ports import FetchLimits
from fetcher.sources import Fetchers
from wire.errors import LocalProtocolError, MalformedFrame, WireError
from wire.frames.types import Node, TopicPartition
from wire.task_group import TaskGroup

_TICK = 0.1
_IDLE = 5.0
#: Offsets between the slowest replica and the end from which on it is fed. The source's acknowledgements wait for us from
#: our first fetch at the end on, so the rest should be a matter of a moment.
_NEAR = 10_000
#: Seconds that replicas may hold a partition up that is out of the ISR, until it is read as before; and until the next try.
_HELD_UP = 5.0
_NEXT_TRY = 5.0
_AFTER_DOUBT = 2.0


class InSyncFollower:
    """Follows the partitions of one link. It owns their fetchers (FetcherOwner), one for each node that leads some."""

    def __init__(
        self, link: LinkFetcher, ports: InSyncPorts, *, client_id: str, limits: FetchLimits | None = None
    ) -> None:
        self._link = link
        self._ports = ports
        self._client_id = client_id
        # Each record waits for the next request: none is put off so that more come together.
        self._limits = replace(
            limits or FetchLimits(), small_answer_interval=0.0, short_poll_ms=1, busy_partitions=1 << 31
        )
        self._followed: dict[TopicPartition, Followed] = {}
        self._fetchers = Fetchers(self._make, lambda mirror: self.wake())
        self._woken = asyncio.Event()

    # --- for the composing process

    async def run(self) -> None:
        """Until cancelled. Then all partitions are read as before."""
        try:
            async with TaskGroup() as group:
                self._fetchers.group = group
                try:
                    await self._look_after()
                finally:
                    self._fetchers.group = None
        finally:
            for followed in self._followed.values():
                self._let_go(followed, "it has ended")
            self._fetchers.stop_all()

    def wake(self) -> None:
        """Something changed that the ports tell: look now."""
        self._woken.set()

    def follow(self, tps: Iterable[TopicPartition]) -> None:
        """Follow these partitions of the link, by their names at the target."""
        for tp in tps:
            self._followed.setdefault(tp, Followed())
        self.wake()

    @property
    def followed(self) -> Collection[TopicPartition]:
        return self._followed.keys()

    def begin(self, tps: Iterable[TopicPartition]) -> None:
        """Go on with these after `stop`."""
        for tp in tps:
            if tp in self._followed:
                self._followed[tp].stopped = False
        self.wake()

    def stop(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Read nothing more, and say where the log ends of each one: exactly, and for good until `begin` or `end`. One that
        is not fed is an error, and none is stopped then. The replicas may not have it all yet: `state` says when they do
        (`told`)."""
        missing = [str(tp) for tp in tps if not self._can_stop(tp)]
        if missing:
            raise LocalProtocolError(f"not followed at the source now: {', '.join(missing)}")
        for tp in tps:
            self._followed[tp].stopped = True
        return {tp: self._followed[tp].freeze("it was stopped") for tp in tps}

    def end(self, tps: Iterable[TopicPartition]) -> None:
        """Follow these no longer; they are read as before, as consumers read."""
        for tp in tps:
            if (followed := self._followed.pop(tp, None)) is not None:
                if (copy := followed.copy) is not None and copy.feed is not None:
                    copy.fed_to = copy.log_end_offset
                self._let_go(followed, "it has ended")
                followed.thaw()
                if copy is not None:
                    copy.feed = None

    def state(self, tp: TopicPartition) -> InSyncState:
        followed = self._followed.get(tp)
        if followed is None or followed.copy is None:
            return InSyncState(
                False, False, -1, -1, "it is not followed" if followed is None else followed.reason
            )
        cursor, leader = followed.cursor, self._ports.leader_of(_source_tp(followed.copy))
        in_sync = leader is not None and leader.in_sync
        end = followed.copy.log_end_offset
        reason = followed.reason
        if not reason and not in_sync:
            reason = "it is not in the ISR yet"
            if followed.copy.epochs_unwritten:
                reason = "leader epochs of the source are not in the store yet"
        return InSyncState(cursor is not None, in_sync, followed.told, end, reason)

    def _can_stop(self, tp: TopicPartition) -> bool:
        followed = self._followed.get(tp)
        if followed is None or followed.end is not None:
            return followed is not None
        cursor = followed.cursor
        return cursor is not None and cursor in cursor.mirror.cursors

    def find_end(self, tp: TopicPartition) -> None:
        """Another link broker leads it at the source, and its sidecar has no copy: this one has, and can tell the end."""
        if (copy := self._link.partitions.get(tp)) is not None:
            followed = self._followed.setdefault(tp, Followed())
            if followed.end is None and followed.cursor is None:
                followed.copy, copy.feed = copy, self
                self._find_end(followed, copy)

    def _find_end(self, followed: Followed, copy: PartitionCopy) -> None:
        end = replicas_end(copy, self._ports.must_tell(copy))
        followed.reason = "this broker leads it at the source"
        if end is None:
            followed.reason += "; not all replicas at the target have asked yet"
            return
        followed.end = copy.fetch_until = end
        self.replica_moved(copy)

    # --- Feed

    def replica_moved(self, mirror: PartitionCopy) -> None:
        followed = self._followed.get(mirror.tp)
        if followed is None or followed.copy is not mirror:
            return
        if followed.end is not None:
            if self._safe(mirror, followed.end):
                followed.told = followed.end
        elif followed.cursor is not None:
            self._judge(followed, followed.cursor)

    def _judge(self, followed: Followed, cursor: PartitionCursor) -> None:
        """Whether the position may be told."""
        if self._safe(cursor.mirror, cursor.position):
            followed.told = cursor.position
            if cursor.held:
                cursor.release_hold()
                if cursor.fetcher is not None:
                    cursor.fetcher.release(cursor)
        elif not cursor.held:
            # A replica was reset, or is new. The offset was true when it was told, and is not told again before it is.
            cursor.held = True
            if cursor.fetcher is not None:
                cursor.fetcher.touch(cursor)

    def _about_to_tell(self, cursor: PartitionCursor) -> None:
        """Replicas may have to have it that did not when it was judged: a connection to a new leader takes its time."""
        if cursor.fed and not cursor.held and not self._safe(cursor.mirror, cursor.position):
            cursor.held = True

    def _safe(self, copy: PartitionCopy, offset: int) -> bool:
        """Whether the target has everything before the offset, and the state has its leader epochs. A link broker may lead
        at the source from one moment to the next, and tells followers by these epochs where their logs part from it: one
        that is missing would have them truncate what they have from it on, committed or not."""
        return not copy.epochs_unwritten and copy.held_by(self._ports.must_hold(copy), offset)

    # --- looking after

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        pause = _TICK
        while True:
            try:
                async with asyncio.timeout(pause if self._followed else _IDLE):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            now = loop.time()
            for tp, followed in list(self._followed.items()):
                self._tend(tp, followed, now)
            self._fetchers.look_after(now)
            # Thousands of partitions are looked at less often: never more than a twentieth of the time.
            pause = max(_TICK, 20 * (loop.time() - now))

    def _tend(self, tp: TopicPartition, followed: Followed, now: float) -> None:
        copy = self._link.partitions.get(tp)
        if copy is not followed.copy:
            if followed.copy is not None and followed.end is not None and followed.told < followed.end:
                # Nobody was told of it, and what the replicas lack of it went with the copy.
                followed.end = None
            followed.copy, followed.cursor, followed.told = copy, None, -1
            if copy is not None and followed.end is not None:
                copy.fetch_until = followed.end
        if copy is None:
            followed.reason = "another sidecar leads it at the target, or it is not mirrored now"
            return
        copy.feed = self
        if self._ports.led_by_us(_source_tp(copy)):
            if followed.cursor is not None:
                followed.freeze("this broker leads it at the source")
            elif followed.end is None:
                self._find_end(followed, copy)
            return
        if followed.stopped:
            return
        followed.thaw()
        if followed.cursor is not None and followed.cursor not in copy.cursors:
            followed.cursor = None  # its replicas are gone, or memory was short
        if not copy.may_fetch:
            followed.reason = copy.failed or (
                "it is paused" if copy.paused else "its source is not known yet"
            )
            return
        leader = self._ports.leader_of(_source_tp(copy))
        if leader is None or self._ports.identity() is None:
            followed.reason = "nobody leads it at the source, or this broker is no replica of it there"
            self._let_go(followed, followed.reason)
            return
        if followed.cursor is None:
            followed.reason = self._try_to_begin(followed, copy, now)
        if followed.cursor is not None:
            self._follow(followed, followed.cursor, leader, now)

    def _try_to_begin(self, followed: Followed, copy: PartitionCopy, now: float) -> str:
        """Why not, or nothing."""
        if now < followed.not_before:
            return followed.reason
        replicas = self._ports.must_hold(copy)
        if not replicas:
            return "no replica at the target has to have it"
        silent = [replica for replica in replicas if replica not in copy.followers]
        if silent:
            return f"broker {silent[0]} of the target has not fetched it yet"
        slowest = min((copy.followers[replica] for replica in replicas), key=lambda one: one.copied_to)
        cursor = slowest.cursor
        if slowest.copied_to < copy.high_watermark - _NEAR or cursor is None:
            return f"its replicas at the target are at offset {slowest.copied_to} of {copy.high_watermark}"
        elsewhere = [replica for replica in replicas if replica not in cursor.followers]
        if elsewhere and not copy.held_by(elsewhere, cursor.position):
            return "its replicas at the target are too far from each other"
        if cursor.fetcher is not None:
            cursor.fetcher.remove(cursor)
        cursor.suspended = False
        cursor.feed()
        followed.cursor, followed.held_since = cursor, now
        return ""

    def _follow(self, followed: Followed, cursor: PartitionCursor, leader: SourceLeader, now: float) -> None:
        copy = cursor.mirror
        self._judge(followed, cursor)
        if not cursor.held:
            followed.held_since = now
            followed.reason = ""
        else:
            copy.gather(cursor)
            if now - followed.held_since > _HELD_UP:
                followed.reason = f"its replicas at the target do not have offset {cursor.position} yet"
                if not leader.in_sync:
                    # The other followers may go on with what is committed without us, each by itself.
                    self._put_off(cursor, _NEXT_TRY, followed.reason)
                    return
        fetcher = cursor.fetcher
        if fetcher is not None and fetcher.node != leader.node:
            fetcher.remove(cursor)
            fetcher = None
        moved = cursor.leader_epoch != leader.leader_epoch
        cursor.leader_epoch = leader.leader_epoch
        if moved:
            cursor.suspended = False
        if fetcher is None:
            self._fetchers.at(leader.node, 0).add(cursor)
        elif moved or not fetcher.follows(cursor):
            fetcher.touch(cursor)

    def _let_go(self, followed: Followed, reason: str) -> None:
        """Stop following the partition as a replica; it is read as a consumer again."""
        cursor, followed.cursor = followed.cursor, None
        followed.reason = reason
        if cursor is None:
            return
        if cursor.fetcher is not None:
            cursor.fetcher.remove(cursor)
        cursor.feed_no_more()
        cursor.suspended = False
        if cursor in cursor.mirror.cursors:
            self._link.cursor_opened(cursor)

    # --- FetcherOwner

    def partition_error(self, cursor: PartitionCursor, fetcher: SourceFetcher, code: int) -> None:
        action, reason = classify(code)
        if action is ErrorAction.FAIL:
            cursor.mirror.fail(f"{cursor.mirror.tp} at offset {cursor.position}: {reason}")
        elif action is ErrorAction.RERESOLVE:
            self._put_off(cursor, _AFTER_DOUBT, "its place in the source's log is looked up")
            self._link.errors.answered(cursor, fetcher, code)
        elif action is ErrorAction.AS_CONSUMER:
            self._put_off(cursor, _NEXT_TRY, reason)
        else:
            # A new leader is in the metadata log in a moment, and this broker among the replicas.
            text = f"{reason}, node {fetcher.node.id} ({fetcher.node.address})"
            cursor.mirror.source_trouble(text, time.monotonic())
            self._suspend(cursor)

    def partition_malformed(
        self, cursor: PartitionCursor, fetcher: SourceFetcher, error: MalformedFrame
    ) -> None:
        self._link.errors.malformed(cursor, fetcher, error)

    def diverged(self, cursor: PartitionCursor, fetcher: SourceFetcher, epoch: int, end_offset: int) -> None:
        self._link.errors.leader_diverged(cursor, fetcher, epoch, end_offset)
        if cursor.fetcher is None and cursor.fed:
            self._put_off(cursor, _AFTER_DOUBT, "its place in the source's log is looked up")
        followed = self._followed.get(cursor.mirror.tp)
        if followed is not None and followed.cursor is cursor:
            self._judge(followed, cursor)

    def preferred_replica(self, cursor: PartitionCursor, fetcher: SourceFetcher, node_id: int) -> None:
        """Not used: only consumers are sent to another replica (KIP-392)."""

    def connection_failed(self, fetcher: SourceFetcher, error: WireError) -> None:
        now = time.monotonic()
        for cursor in list(fetcher.cursors.values()):
            cursor.mirror.source_trouble(f"source node {fetcher.node.id}: {error}", now)

    def request_bytes(self) -> int:
        return self._link.request_bytes()

    def memory_short(self, size: int) -> bool:
        return self._link.memory_short(size)

    def sibling(self, fetcher: SourceFetcher) -> SourceFetcher | None:
        return None

    def _put_off(self, cursor: PartitionCursor, pause: float, reason: str) -> None:
        """Read it as a consumer for `pause` seconds, then try again to follow it."""
        followed = self._followed.get(cursor.mirror.tp)
        if followed is not None and followed.cursor is cursor:
            followed.not_before = asyncio.get_running_loop().time() + pause
            self._let_go(followed, reason)

    def _suspend(self, cursor: PartitionCursor) -> None:
        cursor.failures += 1
        cursor.suspended = True
        if cursor.fetcher is not None:
            cursor.fetcher.touch(cursor)
        # The first time at once: a broker that is the leader already may hear of it a moment after us.
        pause = _TICK / 4 if cursor.failures == 1 else pause_after(cursor.failures - 1)
        asyncio.get_running_loop().call_later(pause, self._awake, cursor)

    def _awake(self, cursor: PartitionCursor) -> None:
        cursor.suspended = False
        if cursor.fetcher is not None:
            cursor.fetcher.touch(cursor)

    def _make(self, node: Node, slot: int) -> SourceFetcher:
        return SourceFetcher(
            node,
            slot,
            self,
            self._link.budget,
            self._limits,
            open_connection=self._ports.open_connection,
            client_id=f"{self._client_id}-replica",
            rack="",
            replica=self._ports.identity,
            about_to_tell=self._about_to_tell,
        )


def _source_tp(copy: PartitionCopy) -> TopicPartition:
    return TopicPartition(copy.spec.source_name or copy.spec.topic, copy.spec.partition)
