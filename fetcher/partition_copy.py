"""One mirror partition: windows and followers, on top of the source's log (source_log.py). No I/O and no clock.

Invariants:
- After a restart every follower resumes at its own log end: where it asks is where it is read for (cursors.py).
- High watermark and log start come from the source's own answers, and until they are known (`loaded`) followers get a
  retriable error, never an empty log.
- After the source lost data each replica must be seen at or below the truncation point before it gets anything else
  (`untruncated`), since afterwards its stale tail would be invisible by offset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fetcher.cursor import Cursor
from fetcher.cursors import CursorHost, Cursors
from fetcher.epochs import EpochNoted
from fetcher.latency import ReplicationLatency
from fetcher.progress import UNKNOWN_OFFSET, FollowerLogs, FollowerProgress, TruncationDebts
from fetcher.source_log import MAX_OFFSET, PartitionSource
from fetcher.spec import FetcherEvents, MirrorSpec
from fetcher.window import WindowChunk, WindowRead


class PartitionCopy(PartitionSource):
    def __init__(
        self,
        spec: MirrorSpec,
        events: FetcherEvents,
        host: CursorHost[PartitionCopy],
        *,
        window_bytes: int = 4 << 20,
        answer_bytes: int = 1 << 20,
        detach_after: float = 1.0,
        attach_grace: float = 2.0,
        latency: ReplicationLatency | None = None,
    ) -> None:
        super().__init__(spec, events)
        self.followers: dict[int, FollowerProgress] = {}
        self.follower_logs = FollowerLogs()
        self.untruncated = TruncationDebts(spec.untruncated)
        self.listeners: set[Callable[[PartitionCopy], None]] = set()
        #: The source is asked for nothing from this offset on.
        self.fetch_until = MAX_OFFSET
        self.bytes_fetched = 0
        #: Fetched for the first time: bytes_fetched / bytes_mirrored is the price of cursors and re-reads.
        self.bytes_mirrored = 0
        #: The same as offsets; those that compaction has taken out are among them.
        self.offsets_mirrored = 0
        self.bytes_served = 0
        self.largest_batch = 0
        self._mirrored_to = UNKNOWN_OFFSET
        self._latency = latency or ReplicationLatency()
        self._host = host
        self._attach_grace = attach_grace
        self._cursors: Cursors[PartitionCopy] = Cursors(
            self,
            host,
            window_bytes=window_bytes,
            answer_bytes=answer_bytes,
            detach_after=detach_after,
            attach_grace=attach_grace,
        )
        #: The target's leader epoch under which followers were seen; None before it was told.
        self._led_under: int | None = None

    def __repr__(self) -> str:
        return f"<PartitionCopy {self.tp} hw={self.high_watermark} cursors={len(self.cursors)}>"

    # --- what the source said

    @property
    def cursors(self) -> Sequence[PartitionCursor]:
        """Those that are open."""
        return self._cursors.open

    @property
    def fed_cursor(self) -> PartitionCursor | None:
        """The one that is read as a replica of the source reads."""
        return next((cursor for cursor in self.cursors if cursor.fed), None)

    @property
    def log_end_offset(self) -> int:
        """Where the log ends for replicas: beyond the source's high watermark if records came that are not committed yet."""
        if self.fetch_until != MAX_OFFSET:
            return max(self.high_watermark, self.fetch_until)
        fed = self.fed_cursor
        return self.high_watermark if fed is None else max(self.high_watermark, fed.position)

    def held_by(self, replicas: Collection[int], offset: int) -> bool:
        """Whether each of the replicas has all before `offset`, and nothing that it has to truncate first. Not if there are
        none: then nobody has it."""
        return bool(replicas) and all(
            replica not in self.untruncated
            and (progress := self.followers.get(replica)) is not None
            and progress.copied_to >= offset
            for replica in replicas
        )

    def replicas_may_come(self, now: float) -> bool:
        """Some replica was not heard of yet, and followers have not been served for long."""
        silent = any(replica not in self.followers for replica in self.spec.target_replicas)
        return silent and now - self._loaded_at < 5 * self._attach_grace

    def load(self, high_watermark: int, last_stable_offset: int, log_start_offset: int, now: float) -> None:
        """First knowledge of the source's offsets; from here on followers are served."""
        self.note_answer(high_watermark, last_stable_offset, log_start_offset)
        if not self.loaded:
            self.loaded = True
            self._loaded_at = now
            if self.spec.fetch_offset is not None and not self.cursors:
                self._cursors.begin(max(self.spec.fetch_offset, self.log_start_offset), now)
            self.notify()

    def add_chunks(
        self,
        cursor: PartitionCursor,
        chunks: list[WindowChunk],
        epochs: list[tuple[int, int]],
        high_watermark: int,
    ) -> None:
        """Batches that follow the cursor's position, with the source epochs seen in them."""
        for epoch, offset in epochs:
            self._note_epoch(cursor, epoch, offset, high_watermark)
        cursor.limit = self._cursors.window_limit()
        for chunk in chunks:
            self.bytes_fetched += chunk.size
            if chunk.next_offset > self._mirrored_to:
                self.bytes_mirrored += chunk.size
                self.offsets_mirrored += chunk.next_offset - max(chunk.base_offset, self._mirrored_to)
                self._mirrored_to = chunk.next_offset
            cursor.append(chunk)
        if cursor.full:
            self._host.watch(self)

    def _note_epoch(self, cursor: PartitionCursor, epoch: int, offset: int, high_watermark: int) -> None:
        """A batch of `epoch` begins at `offset` at the source.

        Where our history has another epoch at that offset, and copies go beyond it, the source replaced what they hold:
        a truncation that no fetch of theirs could have shown.
        """
        if epoch < 0:
            return
        noted = self._epochs.note(epoch, offset)
        if noted is EpochNoted.KNOWN:
            return
        self.epochs_unwritten = True
        self.unwritten_from = min(self.unwritten_from, offset)
        if noted is EpochNoted.REPLACED:
            # Most logs have many epochs: one that begins where nothing was copied yet has replaced nothing.
            known = self._mirrored_to > offset
            if known and self._lost_what_was_taken(offset):
                return
            if known:
                # Nobody told us of the truncation but this batch: the answer it came in knows the new end.
                self._mirrored_to = offset
                self.high_watermark = min(self.high_watermark, max(high_watermark, offset))
                self.last_stable_offset = min(self.last_stable_offset, self.high_watermark)
            known = any(one.may_pass(offset) for one in self.followers.values()) or known
            news = self.untruncated.owe(offset, self.spec.target_replicas, self.followers)
            self._cursors.truncate_others(cursor, offset)
            if news and known:
                self._events.source_truncated(self.tp, offset, tuple(sorted(self.untruncated)))
        if not self._events.source_epoch(self.tp, epoch, offset):
            self.serve_all()

    def truncate(self, offset: int) -> None:
        """The source no longer has anything from `offset` on: nor may the followers."""
        if self._lost_what_was_taken(offset):
            return
        self._epochs.truncate(offset)
        self.epochs_unwritten = True
        self.high_watermark = min(self.high_watermark, offset)
        self.last_stable_offset = min(self.last_stable_offset, offset)
        self._mirrored_to = min(self._mirrored_to, offset)
        self.untruncated.owe(offset, self.spec.target_replicas, self.followers)
        self._cursors.truncate(offset)
        self._events.source_truncated(self.tp, offset, tuple(sorted(self.untruncated)))
        self.notify()

    def _lost_what_was_taken(self, offset: int) -> bool:
        """Fail the mirror if the loss reaches below the take-over: the target's own brokers led the partition up to
        there and have those records, and whatever the source brings in their place is something else. Whether it
        failed."""
        taken = self.spec.taken
        if taken is None or offset >= taken.end:
            return False
        self.fail(
            f"the source lost records of {self.tp} from offset {offset} on, below {taken.end}, where the partition was "
            "taken over from the brokers of this cluster: they have them"
        )
        return True

    def serve_all(self) -> None:
        waited, self.unwritten_from = self.unwritten_from, MAX_OFFSET
        if waited != MAX_OFFSET:
            self.notify()

    # --- followers

    def gather(self, cursor: PartitionCursor) -> None:
        """Tell followers that wait at another cursor for records that only this one has."""
        if self._cursors.gather(cursor):
            self.notify()

    def follower_fetched(
        self, replica: int, offset: int, log_start_offset: int, now: float
    ) -> FollowerProgress:
        """A follower asked for `offset`: everything below it is safe with that follower."""
        progress = self.followers.get(replica)
        if progress is None:
            log = self.follower_logs.first_fetch(replica, offset, log_start_offset, now)
            progress = self.followers[replica] = FollowerProgress(log)
        elif offset < progress.fetch_offset:
            progress.log.restarted(offset, now)
            progress.newest = -1
        elif offset == progress.fetch_offset and progress.told_to > offset:
            self._not_taken(replica, progress, now)
        elif offset > progress.fetch_offset:
            progress.refused = 0
            if offset == progress.told_to and progress.told_newest >= 0:
                progress.newest = progress.told_newest
                # A first copy is as old as the topic.
                if replica not in self.follower_logs.copying_anew:
                    self._latency.arrived(progress.newest)
        if self._damaged_at is not None and offset > self._damaged_at:
            self._damaged_at = None
            self.source_fine()
        progress.fetch_offset = progress.told_to = offset
        progress.told_newest = -1
        progress.log_start_offset = log_start_offset
        progress.last_fetch = now
        if offset >= self.high_watermark:
            progress.caught_up_monotonic = now
            if self.loaded:
                self.follower_logs.copying_anew.discard(replica)
        if (
            not self._cursors.fetched(replica, progress, offset)
            and self.loaded
            and self.failed is None
            and not self.closed
        ):
            self._cursors.place(replica, progress, offset, now)
        return progress

    def _not_taken(self, replica: int, progress: FollowerProgress, now: float) -> None:
        """A follower asks again for what it was answered: its connection was lost, or it found the records damaged. A
        window is read once and served again and again, so damage on the way from the source would stay."""
        progress.refused += 1
        cursor, offset = progress.cursor, progress.fetch_offset
        found = None if cursor is None else cursor.window.damaged(offset, progress.told_to)
        if cursor is None or found is None:
            return
        self._damaged_at = found[0]
        text = (
            f"the records of {self.tp} from offset {found[0]} to {found[1]} came damaged from the source (their checksum "
            f"is another): broker {replica} refused them, and they are read again"
        )
        cursor.restart(min(cursor.followers.values(), default=offset))
        self._host.cursor_changed(cursor)
        self._events.source_damaged(self.tp, text)
        self.source_trouble(text, now)

    def may_copy_from(self, replica: int, offset: int) -> int | None:
        """None if the follower may go on at `offset`, else the offset it has to truncate to first."""
        border = self.untruncated.get(replica)
        if border is None:
            return None
        if offset > border:
            return border
        del self.untruncated[replica]
        self._events.truncation_seen(self.tp, border, tuple(sorted(self.untruncated)))
        return None

    def follower_gone(self, replica: int) -> None:
        """Its connection or session ended: nothing is kept for it until it comes back."""
        progress = self.followers.get(replica)
        if progress is not None:
            self._cursors.leave(replica, progress)

    def forget_followers(self) -> None:
        """Positions hold for one leader epoch. Under a new one a follower counts as having nothing until it asks, and
        the source's end as unknown, since another leader may have seen the log go on."""
        self.end_known = self.heard = False
        for replica, progress in list(self.followers.items()):
            progress.log.asked = progress.fetch_offset
            self._cursors.leave(replica, progress, close=False)
        self.followers.clear()
        self._cursors.close_empty()
        self.notify()

    def led_under(self, epoch: int) -> None:
        """The target's leader epoch is this one."""
        if self._led_under is not None and epoch != self._led_under:
            self.forget_followers()
        self._led_under = epoch

    def leave_behind_log_start(self) -> None:
        """Readers below the source's log start have nothing to read there; their next fetch decides."""
        self._cursors.leave_below(self.log_start_offset)
        self.notify()

    # --- reading

    def read(self, offset: int, max_bytes: int) -> tuple[list[memoryview], int] | None:
        """Batches from `offset` if some window has them, for consumers. ([], 0) at the source's end, if a cursor is
        there and will tell its listeners of what comes; None when `offset` has to be looked for at the source.

        The caller must use the views at once (write them out): nothing keeps them in the budget.
        """
        at_end = False
        for cursor in self.cursors:
            reading = cursor.window.read(
                offset, min(max_bytes, self.spec.segment_bytes), until=self.high_watermark
            )
            if reading is not None:
                return reading.views, reading.size
            # A window that is fed goes on beyond the high watermark, where this reader finds nothing.
            here = offset == cursor.position or (
                cursor.fed and self.high_watermark <= offset < cursor.position
            )
            at_end = at_end or (here and cursor.position >= self.high_watermark and cursor.followed)
        return ([], 0) if at_end else None

    def read_for(
        self, progress: FollowerProgress, max_bytes: int, *, at_least_one: bool
    ) -> WindowRead | None:
        cursor = progress.cursor
        if cursor is None:
            return None
        limit = min(max_bytes, self.spec.segment_bytes)
        return cursor.window.read(
            progress.fetch_offset, limit, at_least_one=at_least_one, until=self.unwritten_from
        )

    # --- time

    def tick(self, now: float) -> bool:
        """Let go of followers that hold others back. False when there is nothing to watch."""
        watch, let_go = self._cursors.tick(now)
        if let_go:
            self.notify()
        return watch

    def reclaim(self, idle_before: float) -> int:
        """Memory is short: drop windows that no follower has read from since `idle_before`; the bytes. Safe at any time,
        the source still has it all."""
        freed = self._cursors.reclaim(idle_before)
        if freed:
            self.notify()
        return freed

    # --- states

    def fail(self, reason: str) -> None:
        if self.failed is not None or self.closed:
            return
        self.failed = reason
        self._cursors.drop()
        self._events.failed(self.tp, reason)
        self.notify()

    def release(self) -> None:
        """The source goes on from here: it is read from now on."""
        self.spec = replace(self.spec, held=False)
        self.end_known = self.heard = False
        self._cursors.changed()
        self.notify()

    def pause(self) -> None:
        self.paused = True
        self.end_known = False
        self._cursors.changed()

    def resume(self) -> None:
        self.paused = False
        self._cursors.changed()

    def close(self) -> None:
        """Removed from this process; whoever still holds it sees `closed`."""
        self.closed = True
        self._cursors.drop()
        self._no_longer_missed()
        self.notify()
        self.listeners.clear()

    def notify(self) -> None:
        """Tell everybody who waits for this partition; they must only take note."""
        for listener in tuple(self.listeners):
            listener(self)


PartitionCursor = Cursor[PartitionCopy]
