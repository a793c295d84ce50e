"""The lanes of one mirror partition: which follower reads from which window. No I/O and no clock.

Followers that are close together share a lane, so that the source is read once for all of them. One that holds the others
back gets a lane of its own, and joins the leading one again when it has caught up. Nothing is read before a follower asks:
its fetch offset starts a lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from fetcher.cursor import Cursor, ReadPartition
from fetcher.progress import FollowerProgress
from fetcher.spec import MirrorSpec


class LanesPartition(ReadPartition, Protocol):
    """The mirror partition whose lanes these are."""

    @property
    def spec(self) -> MirrorSpec: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def largest_batch(self) -> int: ...

    @property
    def followers(self) -> Mapping[int, FollowerProgress]: ...


MirrorT = TypeVar("MirrorT", bound=LanesPartition)


class LaneHost(Protocol[MirrorT]):
    """Whoever fetches for lanes (the manager; a recorder in tests). Calls must not re-enter the partition."""

    def lane_opened(self, lane: Cursor[MirrorT]) -> None: ...

    def lane_changed(self, lane: Cursor[MirrorT]) -> None:
        """Its position, room or right to fetch changed."""

    def lane_closed(self, lane: Cursor[MirrorT]) -> None: ...

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
        host: LaneHost[MirrorT],
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
        """Whether the follower goes on in the window it reads from; what nobody needs any more is let go then."""
        lane = progress.lane
        if lane is None or not lane.window.start <= offset <= lane.window.next_offset:
            return False
        lane.followers[replica] = offset
        if len(self.open) > 1:
            self._join_leading(replica, progress, offset)
        self._release(progress.lane or lane)
        return True

    def place(self, replica: int, progress: FollowerProgress, offset: int, now: float) -> None:
        """Where a follower reads from now on that asked for something outside of its window."""
        self.leave(replica, progress, close=False)
        if offset < self._mirror.log_start_offset:
            self.close_empty()
            return  # the follower must move to the log start first
        best: Cursor[MirrorT] | None = None
        for lane in self.open:
            if lane.window.covers(offset) and (best is None or lane.position > best.position):
                best = lane
        if best is None:
            # A lane nobody reads any more moves; otherwise this follower gets one of its own.
            best = next((lane for lane in self.open if not lane.followers), None)
            if best is not None:
                best.restart(offset)
                self._host.lane_changed(best)
            else:
                best = self.begin(offset, now)
        self._attach(best, replica, progress, offset)
        self.close_empty()

    def leave(self, replica: int, progress: FollowerProgress, *, close: bool = True) -> None:
        """The follower reads from no lane; `close`: nor is one kept that has lost its last."""
        lane = progress.lane
        if lane is None:
            return
        progress.lane = None
        lane.followers.pop(replica, None)
        self._release(lane)
        if close:
            self.close_empty()

    def _attach(self, lane: Cursor[MirrorT], replica: int, progress: FollowerProgress, offset: int) -> None:
        had_none = not lane.followers
        lane.followers[replica] = offset
        lane.expected.discard(replica)
        progress.lane = lane
        self._release(lane)
        if had_none:
            self._host.lane_changed(lane)

    def _join_leading(self, replica: int, progress: FollowerProgress, offset: int) -> None:
        current = progress.lane
        for lane in self.open:
            if (
                lane is not current
                and lane.window.covers(offset)
                and (current is None or lane.position >= current.position)
            ):
                self.leave(replica, progress, close=False)
                self._attach(lane, replica, progress, offset)
                self.close_empty()
                return

    # --- lanes

    def begin(self, offset: int, now: float) -> Cursor[MirrorT]:
        """A lane that reads from `offset` on."""
        mirror = self._mirror
        lane = Cursor(mirror, offset, self.window_limit())
        if not self.open:
            # All replicas of a new mirror begin together: give them a moment, so the source is read once.
            lane.expected = {r for r in mirror.spec.target_replicas if r not in mirror.followers}
            lane.expected_until = now + self._attach_grace
            if lane.expected:
                self._host.watch(mirror)
        self.open.append(lane)
        self._host.lane_opened(lane)
        return lane

    def window_limit(self) -> int:
        """Where a lane is full. The room is for followers that are not equally fast, and a single replica waits for nobody:
        while it takes one answer of the source the next one comes, more would only take memory.
        """
        mirror = self._mirror
        if len(mirror.spec.target_replicas) != 1 or mirror.largest_batch > self._answer_bytes:
            return self._window_bytes
        return min(self._window_bytes, self._answer_bytes * 3 // 2)

    def truncate(self, offset: int) -> None:
        for lane in list(self.open):
            lane.truncate(offset)
            self._host.lane_changed(lane)

    def truncate_others(self, lane: Cursor[MirrorT], offset: int) -> None:
        """Those that have read beyond what `lane` has found to be the end of what they read."""
        for other in list(self.open):
            if other is not lane and other.position > offset:
                other.truncate(offset)
                self._host.lane_changed(other)

    def changed(self) -> None:
        """The right to fetch changed, for all of them."""
        for lane in self.open:
            self._host.lane_changed(lane)

    def close_empty(self) -> None:
        for lane in [lane for lane in self.open if not lane.followers]:
            self.open.remove(lane)
            lane.restart(lane.position)
            self._host.lane_closed(lane)

    def drop(self) -> None:
        """Nobody is served any more."""
        for progress in self._mirror.followers.values():
            progress.lane = None
        for lane in self.open:
            lane.followers.clear()
        self.close_empty()

    def leave_below(self, offset: int) -> None:
        """There is nothing to read before `offset`."""
        for lane in list(self.open):
            if lane.position < offset:
                self._detach_all(lane)
        self.close_empty()

    def _detach_all(self, lane: Cursor[MirrorT]) -> None:
        for replica in list(lane.followers):
            self.leave(replica, self._mirror.followers[replica], close=False)

    def _release(self, lane: Cursor[MirrorT], *, with_tail: bool = False) -> int:
        """Drop what is not needed any more; a window that was full has room again and says so."""
        was_full = lane.full
        # With several lanes the leading ones keep a tail that laggards can join.
        keep = lane.limit // 2 if len(self.open) > 1 and not with_tail else 0
        freed = lane.release(keep)
        if was_full and not lane.full:
            self._host.lane_changed(lane)
        return freed

    # --- time and memory

    def tick(self, now: float) -> tuple[bool, bool]:
        """Let go of followers that hold others back: (whether there is something to watch, whether one was let go)."""
        watch = let_go = False
        for lane in list(self.open):
            if lane.expected:
                if now < lane.expected_until:
                    watch = True
                else:
                    lane.expected.clear()
                    self._release(lane)
                    self._host.lane_changed(lane)
            if lane.window.bytes * 4 < lane.limit * 3:
                lane.starved_since = None
                continue
            watch = True
            slowest = lane.slowest()
            if not slowest:
                lane.starved_since = None
            elif lane.starved_since is None:
                lane.starved_since, lane.starved_from = now, lane.appended
            elif now - lane.starved_since < self._detach_after:
                continue
            elif lane.appended - lane.starved_from >= lane.limit:
                # Slow, but at work: to wait for it costs less than to read the source again for it alone.
                lane.starved_since, lane.starved_from = now, lane.appended
            else:
                lane.starved_since = None
                for replica in slowest:
                    self.leave(replica, self._mirror.followers[replica])
                let_go = True
        return watch, let_go

    def reclaim(self, idle_before: float) -> int:
        """Drop what no follower has read from since `idle_before`; returns the bytes."""
        followers = self._mirror.followers
        freed = sum(self._release(lane, with_tail=True) for lane in self.open)
        for lane in list(self.open):
            if lane.window.bytes and all(
                followers[replica].last_fetch < idle_before for replica in lane.followers
            ):
                freed += lane.window.bytes
                self._detach_all(lane)
        self.close_empty()
        return freed
