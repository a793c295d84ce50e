"""The cursors of one mirror partition: which follower reads from which window. No I/O and no clock.

Followers that are close together share a cursor, so that the source is read once for all of them. One that holds the others
back gets a cursor of its own, and joins the leading one again when it has caught up. Nothing is read before a follower asks:
its fetch offset starts a cursor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from fetcher.cursor import Cursor, ReadPartition
from fetcher.progress import FollowerProgress
from fetcher.spec import MirrorSpec


class CursorsPartition(ReadPartition, Protocol):
    """The mirror partition whose cursors these are."""

    @property
    def spec(self) -> MirrorSpec: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def largest_batch(self) -> int: ...

    @property
    def followers(self) -> Mapping[int, FollowerProgress]: ...


MirrorT = TypeVar("MirrorT", bound=CursorsPartition)


class CursorHost(Protocol[MirrorT]):
    """The owner of the fetchers of cursors (link_fetcher.py; a recorder in tests). Calls must not re-enter the
    partition."""

    def cursor_opened(self, cursor: Cursor[MirrorT]) -> None: ...

    def cursor_changed(self, cursor: Cursor[MirrorT]) -> None:
        """Its position, room or right to fetch changed."""

    def cursor_closed(self, cursor: Cursor[MirrorT]) -> None: ...

    def watch(self, mirror: MirrorT) -> None:
        """Call mirror.tick() now and then until it returns False."""


class Cursors(Generic[MirrorT]):
    """Sizes in bytes, times in seconds of the caller's monotonic clock."""

    __slots__ = (
        "_answer_bytes",
        "_attach_grace",
        "_detach_after",
        "_host",
        "_mirror",
        "_window_bytes",
        "open",
    )

    def __init__(
        self,
        mirror: MirrorT,
        host: CursorHost[MirrorT],
        *,
        window_bytes: int,
        answer_bytes: int,
        detach_after: float,
        attach_grace: float,
    ) -> None:
        self.open: list[Cursor[MirrorT]] = []
        self._mirror = mirror
        self._host = host
        self._window_bytes = window_bytes
        self._answer_bytes = answer_bytes
        self._detach_after = detach_after
        self._attach_grace = attach_grace

    # --- one follower

    def fetched(self, replica: int, progress: FollowerProgress, offset: int) -> bool:
        """Whether the follower goes on in the window that it reads from. If so, chunks that no follower needs any more
        are dropped."""
        cursor = progress.cursor
        if cursor is None or not cursor.window.start <= offset <= cursor.window.next_offset:
            return False
        cursor.followers[replica] = offset
        if len(self.open) > 1:
            self._join_leading(replica, progress, offset)
        self._release(progress.cursor or cursor)
        return True

    def place(self, replica: int, progress: FollowerProgress, offset: int, now: float) -> None:
        """Choose the window for a follower that asked for an offset outside of its own."""
        self.leave(replica, progress, close=False)
        if offset < self._mirror.log_start_offset:
            self.close_empty()
            return  # the follower must move to the log start first
        best: Cursor[MirrorT] | None = None
        for cursor in self.open:
            if cursor.window.covers(offset) and (best is None or cursor.position > best.position):
                best = cursor
        if best is None:
            # A cursor nobody reads any more moves; otherwise this follower gets one of its own.
            best = next((cursor for cursor in self.open if not cursor.followers), None)
            if best is not None:
                best.restart(offset)
                self._host.cursor_changed(best)
            else:
                best = self.begin(offset, now)
        self._attach(best, replica, progress, offset)
        self.close_empty()

    def leave(self, replica: int, progress: FollowerProgress, *, close: bool = True) -> None:
        """The follower reads from no cursor any more. `close`: a cursor that has lost its last follower is closed."""
        cursor = progress.cursor
        if cursor is None:
            return
        progress.cursor = None
        cursor.followers.pop(replica, None)
        self._release(cursor)
        if close:
            self.close_empty()

    def _attach(self, cursor: Cursor[MirrorT], replica: int, progress: FollowerProgress, offset: int) -> None:
        had_none = not cursor.followers
        cursor.followers[replica] = offset
        cursor.expected.discard(replica)
        progress.cursor = cursor
        self._release(cursor)
        if had_none:
            self._host.cursor_changed(cursor)

    def _join_leading(self, replica: int, progress: FollowerProgress, offset: int) -> None:
        current = progress.cursor
        for cursor in self.open:
            if (
                cursor is not current
                and cursor.window.covers(offset)
                and (current is None or cursor.position >= current.position)
            ):
                self.leave(replica, progress, close=False)
                self._attach(cursor, replica, progress, offset)
                self.close_empty()
                return

    def gather(self, cursor: Cursor[MirrorT]) -> bool:
        """Move followers that read elsewhere to this cursor if it has the offset that they need next; whether there
        were some."""
        found = False
        for replica, progress in self._mirror.followers.items():
            elsewhere = progress.cursor is not None and progress.cursor is not cursor
            if elsewhere and cursor.window.start <= progress.fetch_offset < cursor.window.next_offset:
                self.leave(replica, progress, close=False)
                self._attach(cursor, replica, progress, progress.fetch_offset)
                found = True
        self.close_empty()
        return found

    # --- cursors

    def begin(self, offset: int, now: float) -> Cursor[MirrorT]:
        """A cursor that reads from `offset` on."""
        mirror = self._mirror
        cursor = Cursor(mirror, offset, self.window_limit())
        if not self.open:
            # All replicas of a new mirror begin together: give them a moment, so the source is read once.
            cursor.expected = {r for r in mirror.spec.target_replicas if r not in mirror.followers}
            cursor.expected_until = now + self._attach_grace
            if cursor.expected:
                self._host.watch(mirror)
        self.open.append(cursor)
        self._host.cursor_opened(cursor)
        return cursor

    def window_limit(self) -> int:
        """The size at which a window counts as full. The room serves followers that are not equally fast. A single
        replica waits for nobody: while it takes one answer of the source the next one comes, so more room would only
        cost memory."""
        mirror = self._mirror
        if len(mirror.spec.target_replicas) != 1 or mirror.largest_batch > self._answer_bytes:
            return self._window_bytes
        return min(self._window_bytes, self._answer_bytes * 3 // 2)

    def truncate(self, offset: int) -> None:
        for cursor in list(self.open):
            cursor.truncate(offset)
            self._host.cursor_changed(cursor)

    def truncate_others(self, cursor: Cursor[MirrorT], offset: int) -> None:
        """Truncate the other cursors to `offset`: by the batches that `cursor` got, the source has other records from
        there on."""
        for other in list(self.open):
            if other is not cursor and other.position > offset:
                other.truncate(offset)
                self._host.cursor_changed(other)

    def changed(self) -> None:
        """The right to fetch changed, for all of them."""
        for cursor in self.open:
            self._host.cursor_changed(cursor)

    def close_empty(self) -> None:
        for cursor in [cursor for cursor in self.open if not cursor.followers]:
            self.open.remove(cursor)
            cursor.restart(cursor.position)
            self._host.cursor_closed(cursor)

    def drop(self) -> None:
        """Detach all followers and close the cursors."""
        for progress in self._mirror.followers.values():
            progress.cursor = None
        for cursor in self.open:
            cursor.followers.clear()
        self.close_empty()

    def leave_below(self, offset: int) -> None:
        """There is nothing to read before `offset`."""
        for cursor in list(self.open):
            if cursor.position < offset:
                self._detach_all(cursor)
        self.close_empty()

    def _detach_all(self, cursor: Cursor[MirrorT]) -> None:
        for replica in list(cursor.followers):
            self.leave(replica, self._mirror.followers[replica], close=False)

    def _release(self, cursor: Cursor[MirrorT], *, with_tail: bool = False) -> int:
        """Drop what is not needed any more; a window that was full has room again and says so."""
        was_full = cursor.full
        # With several cursors the leading ones keep a tail that laggards can join.
        keep = cursor.limit // 2 if len(self.open) > 1 and not with_tail else 0
        freed = cursor.release(keep)
        if was_full and not cursor.full:
            self._host.cursor_changed(cursor)
        return freed

    # --- time and memory

    def tick(self, now: float) -> tuple[bool, bool]:
        """Let go of followers that hold others back: (whether there is something to watch, whether one was let go)."""
        watch = let_go = False
        for cursor in list(self.open):
            if cursor.expected:
                if now < cursor.expected_until:
                    watch = True
                else:
                    cursor.expected.clear()
                    self._release(cursor)
                    self._host.cursor_changed(cursor)
            if cursor.window.bytes * 4 < cursor.limit * 3:
                cursor.starved_since = None
                continue
            watch = True
            slowest = cursor.slowest()
            if not slowest:
                cursor.starved_since = None
            elif cursor.starved_since is None:
                cursor.starved_since, cursor.starved_from = now, cursor.appended
            elif now - cursor.starved_since < self._detach_after:
                continue
            elif cursor.appended - cursor.starved_from >= cursor.limit:
                # Slow, but at work: to wait for it costs less than to read the source again for it alone.
                cursor.starved_since, cursor.starved_from = now, cursor.appended
            else:
                cursor.starved_since = None
                for replica in slowest:
                    self.leave(replica, self._mirror.followers[replica])
                let_go = True
        return watch, let_go

    def reclaim(self, idle_before: float) -> int:
        """Drop what no follower has read from since `idle_before`; returns the bytes."""
        followers = self._mirror.followers
        freed = sum(self._release(cursor, with_tail=True) for cursor in self.open)
        for cursor in list(self.open):
            if cursor.window.bytes and all(
                followers[replica].last_fetch < idle_before for replica in cursor.followers
            ):
                freed += cursor.window.bytes
                self._detach_all(cursor)
        self.close_empty()
        return freed
