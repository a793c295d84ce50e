"""The source's log of one partition, as its answers tell of it: offsets, leader epochs, and whether it can be read.

No I/O and no clock. `PartitionCopy` adds the followers that copy the log and the windows that they read from; it is a
subclass, so that an answer of the source is noted without one more call.
"""

from __future__ import annotations

from typing import Any, Protocol

from fetcher.epochs import EpochHistory
from fetcher.progress import UNKNOWN_OFFSET
from fetcher.spec import FetcherEvents, MirrorSpec
from wire.frames.types import TopicPartition

MAX_OFFSET = (1 << 63) - 1


class Feed(Protocol):
    """The follower at the source that reads for a partition (in_sync.py)."""

    def replica_moved(self, mirror: Any) -> None:
        """A replica of the `PartitionCopy` has shown where it is, or the source's leader epochs were written down."""


class PartitionSource:
    def __init__(self, spec: MirrorSpec, events: FetcherEvents) -> None:
        self.spec = spec
        self.tp: TopicPartition = spec.topic_partition
        self.high_watermark = UNKNOWN_OFFSET
        self.last_stable_offset = UNKNOWN_OFFSET
        #: The source's log start offset, lifted to the mirror's start offset.
        self.log_start_offset = UNKNOWN_OFFSET
        self.source_leader_epoch = -1
        #: Source epochs that the source's present leader does not know although its log has them, as was looked up.
        self.forgotten_epochs: set[int] = set()
        self.loaded = False
        self._loaded_at = 0.0
        #: Whether the source has said where it ends since it was last asked to; not so while paused.
        self.end_known = False
        #: Whether the source has answered since this leader epoch of the target began. If not, the leader before us may
        #: have been told more of it than we were.
        self.heard = False
        self.failed: str | None = None
        self.paused = False
        self.closed = False
        #: Why the source gives nothing just now; None when it does.
        self.trouble: str | None = None
        self.unavailable_since: float | None = None
        #: Where a follower found records damaged, until one has got past that.
        self._damaged_at: int | None = None
        #: Set once records beyond the source's high watermark may come. Followers are then told the source's high
        #: watermark, however far they are.
        self.feed: Feed | None = None
        #: Replicas may have records up to here that the source had not committed when they were fed.
        self.fed_to = -1
        self._epochs = EpochHistory(spec.source_epochs)
        #: The history differs from the one that was written down last.
        self.epochs_unwritten = False
        #: Where the first batch begins whose leader epoch is not written down: replicas get nothing from there on. The next
        #: sidecar that leads the partition knows only what is written; to a source it would name an epoch that ended
        #: before, be told of a divergence that is none, and have replicas truncate what is committed.
        self.unwritten_from = MAX_OFFSET
        self._events = events

    # --- epochs

    @property
    def source_epochs(self) -> tuple[tuple[int, int], ...]:
        return self._epochs.entries

    def source_epoch_before(self, offset: int) -> int:
        """The source's leader epoch of the batch before `offset`, -1 if it was not seen."""
        return self._epochs.before(offset)

    def end_of_source_epoch(self, epoch: int) -> int | None:
        """Where our copy of a source epoch ends, None if it is the last one (or unknown)."""
        return self._epochs.end_of(epoch)

    def epochs_written(self, entries: tuple[tuple[int, int], ...]) -> None:
        """This history is in the controller's state."""
        if self.epochs_unwritten and entries == self._epochs.entries:
            self.epochs_unwritten = False
            self.serve_all()
            if self.feed is not None:
                self.feed.replica_moved(self)

    def serve_all(self) -> None:
        """Replicas get what is there, whether its leader epochs are written down or not."""
        self.unwritten_from = MAX_OFFSET

    # --- answers

    def note_answer(self, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> bool:
        """`note_offsets` of what the source says of itself just now."""
        self.end_known, self.heard = not self.paused, True
        return self.note_offsets(high_watermark, last_stable_offset, log_start_offset)

    def note_silence(self) -> None:
        """The source was asked just now, and its offsets are what they were."""
        self.end_known, self.heard = not self.paused, True

    def note_offsets(self, high_watermark: int, last_stable_offset: int, log_start_offset: int) -> bool:
        """Take over what a source answer tells; True if any of it is news.

        The high watermark of a new source leader (or of another replica) may lag for a moment; it goes back only when a
        truncation was established, so followers never see it jump.
        """
        changed = False
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            changed = True
        if last_stable_offset > self.last_stable_offset:
            self.last_stable_offset = last_stable_offset
            changed = True
        start = max(log_start_offset, self.spec.start_offset)
        if start > self.log_start_offset:
            self.log_start_offset = start
            changed = True
        return changed

    # --- whether it can be read

    @property
    def may_fetch(self) -> bool:
        return (
            self.loaded and self.failed is None and not self.paused and not self.closed and not self.spec.held
        )

    @property
    def loaded_since(self) -> float | None:
        """Monotonic: since when followers are served."""
        return self._loaded_at if self.loaded else None

    def source_trouble(self, reason: str, now: float) -> None:
        self.trouble = reason
        if self.unavailable_since is None and self.failed is None and not self.closed:
            self.unavailable_since = now
            self._events.source_unavailable(self.tp, now)

    def source_fine(self) -> None:
        if self._damaged_at is not None:
            return  # until a follower has taken what is read in its place
        self.trouble = None
        self._no_longer_missed()

    def _no_longer_missed(self) -> None:
        """Nobody counts the partition as unavailable any more: the source gives records again, or the copy is closed."""
        if self.unavailable_since is not None:
            self.unavailable_since = None
            self._events.source_available(self.tp)
