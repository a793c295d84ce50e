"""The answer to a follower about one partition, by the rules of a leader whose log is the source's.

- Not ours, not loaded or a stale epoch: a retriable error; a partition that is just coming up is waited for a moment
  first, because a follower does not ask again before `replica.fetch.backoff.ms`. FENCED_LEADER_EPOCH and an empty log
  are never answered: the first would fail the partition on the follower for good, the second would make its high
  watermark jump back.
- logStartOffset <= min(high watermark, follower's log end after the append), else the follower fails the
partition.
- A follower whose tail is not ours is told where to truncate (DivergingEpoch), before anything else. Where its own cluster
led the partition before (`MirrorSpec.taken`), the epochs of that time decide, as with any leader of Kafka's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fetcher.budget import Charge
from fetcher.doubts import Doubts, judge_by_fetches
from fetcher.follower_sessions import SessionPartition
from fetcher.partition_copy import PartitionCopy
from fetcher.progress import UNKNOWN_OFFSET, Behind
from fetcher.source_log import MAX_OFFSET
from wire.frames.error_codes import (
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.fetch import FetchPartitionResult, TopicKey
from wire.metadata.image import ClusterImage, PartitionImage

log = logging.getLogger(__name__)

Switching = Callable[[TopicKey, int], bool]
# The level of metadata.version from which brokers fetch in version 15, with their epoch: 3.5-IV1.
_WITH_BROKER_EPOCH = 10


@dataclass(slots=True)
class FollowerAnswer:
    result: FetchPartitionResult
    tell: bool
    """Worth a place in an incremental answer."""
    now: bool
    """Worth an answer at once."""
    again: bool = False
    """There may be more to tell although the follower does not name the partition again."""
    passing: bool = False
    """An error that may be over in a moment: worth waiting for, as long as the follower waits anyway."""
    held: bool = False
    """That error is not told as long as the partition is being switched: its follower would pause for a second."""
    next_offset: int = -1
    """Where its batches end, if it has any."""
    charges: list[Charge] = field(default_factory=list)
    newest: int = -1
    """The timestamp of the last of them, if it is known."""


@dataclass(frozen=True, slots=True)
class FollowerRefusal:
    error: int
    leader: tuple[int, int] | None = None
    passing: bool = False
    """The metadata log has us as the leader, and the mirror partition is being added or asks the source where it ends."""


class FollowerAnswers:
    def __init__(
        self,
        directory: Callable[[TopicKey, int], PartitionCopy | None],
        image: Callable[[], ClusterImage],
        broker_id: int,
        doubts: Doubts | None = None,
        switching: Switching = lambda _topic, _index: False,
    ) -> None:
        self._switching = switching
        self._doubts = doubts
        self._directory = directory
        self._image = image
        self._broker_id = broker_id

    def knows(self, replica_id: int, replica_epoch: int) -> bool:
        """Whether the metadata log has this broker with this epoch. -1, which is no epoch, is what brokers send as long as
        metadata.version lets them fetch in versions that have none: afterwards nobody is known by an id that anybody
        could give (RemoteLeaderEndPoint.buildFetch, MetadataVersion.fetchRequestVersion).
        """
        image = self._image()
        broker = image.brokers.get(replica_id)
        if broker is None:
            return False
        if replica_epoch < 0:
            return image.features.get("metadata.version", 0) < _WITH_BROKER_EPOCH
        return replica_epoch == broker.epoch

    def mirror_for(
        self, key: TopicKey, index: int, current_leader_epoch: int, replica_id: int
    ) -> PartitionCopy | FollowerRefusal:
        """The loaded mirror partition a replica may ask us for, or the error it gets."""
        image = self._image()
        if isinstance(key, str):
            topic = image.topics_by_name.get(key)
        else:
            topic = image.topics_by_id.get(key)
        if topic is None:
            return FollowerRefusal(UNKNOWN_TOPIC_OR_PARTITION if isinstance(key, str) else UNKNOWN_TOPIC_ID)
        partition = topic.partitions.get(index)
        if partition is None:
            return FollowerRefusal(UNKNOWN_TOPIC_OR_PARTITION)
        refusal = self._refusal(partition, current_leader_epoch, replica_id)
        if refusal is not None:
            return refusal
        mirror = self._directory(topic.id, index)
        if mirror is None or mirror.closed or not mirror.loaded:
            return FollowerRefusal(NOT_LEADER_OR_FOLLOWER, passing=True)
        return mirror

    def _refusal(self, partition: PartitionImage, epoch: int, replica_id: int) -> FollowerRefusal | None:
        if partition.leader != self._broker_id:
            return FollowerRefusal(NOT_LEADER_OR_FOLLOWER, (partition.leader, partition.leader_epoch))
        if 0 <= epoch < partition.leader_epoch:
            return FollowerRefusal(NOT_LEADER_OR_FOLLOWER, (partition.leader, partition.leader_epoch))
        if epoch > partition.leader_epoch:
            return FollowerRefusal(UNKNOWN_LEADER_EPOCH)
        if replica_id not in partition.replicas:
            return FollowerRefusal(NOT_LEADER_OR_FOLLOWER, (partition.leader, partition.leader_epoch))
        return None

    # --- fetch

    def note_fetch(self, partition: SessionPartition, now: float) -> None:
        """The follower named the partition: bind it to its mirror and take note of its fetch offset."""
        request = partition.request
        found = self.mirror_for(
            partition.key, request.index, request.current_leader_epoch, partition.session.replica_id
        )
        if isinstance(found, FollowerRefusal):
            # Bound all the same where there is a mirror: it tells when it is loaded.
            partition.bind(self._directory(partition.key, request.index))
            partition.progress = None
            return
        partition.bind(found)
        self._note_progress(partition, found, now)

    def _note_progress(self, partition: SessionPartition, mirror: PartitionCopy, now: float) -> None:
        request = partition.request
        progress = mirror.follower_fetched(
            partition.session.replica_id, request.fetch_offset, request.log_start_offset, now
        )
        progress.session = partition.session
        progress.broker_epoch = partition.session.replica_epoch
        partition.progress = progress
        ours = self._diverging(partition, mirror) is None
        progress.copied_to = request.fetch_offset if ours else UNKNOWN_OFFSET
        if mirror.feed is not None:
            mirror.feed.replica_moved(mirror)

    def answer(self, partition: SessionPartition, room: int, now: float, *, first: bool) -> FollowerAnswer:
        """The answer as of now. Changes nothing that the follower could notice: note_told does."""
        request = partition.request
        index: int = request.index
        found = self.mirror_for(
            partition.key, index, request.current_leader_epoch, partition.session.replica_id
        )
        if isinstance(found, FollowerRefusal):
            result = FetchPartitionResult(index, found.error, current_leader=found.leader)
            held = found.passing and now < partition.hold_until and self._switching(partition.key, index)
            passing = held or (found.passing and now < partition.patient_until)
            return FollowerAnswer(result, tell=True, now=True, again=True, passing=passing, held=held)
        mirror = found
        if partition.mirror is not mirror:
            partition.bind(mirror)
        progress = partition.progress
        if progress is None or progress.cursor is None or progress.fetch_offset != request.fetch_offset:
            self._note_progress(partition, mirror, now)
            progress = partition.progress
        offset = request.fetch_offset
        # Without a feed all of a follower's data were below the source's high watermark when they were copied, but for what
        # it was fed before. A source leader that does not know that yet must not make the follower's go back; if the data
        # is lost, DivergingEpoch says so.
        committed = mirror.feed is None and mirror.high_watermark >= mirror.fed_to
        result = FetchPartitionResult(
            index,
            0,
            max(mirror.high_watermark, offset if committed else 0),
            mirror.last_stable_offset,
            min(mirror.log_start_offset, offset),
        )
        result.log_start_offset = max(min(result.log_start_offset, mirror.high_watermark), 0)
        if mirror.spec.held:
            # A switch may be given back, so its own brokers keep the records that they have from before it.
            result.log_start_offset = min(result.log_start_offset, max(request.log_start_offset, 0))
        if mirror.failed is not None or progress is None:
            return self._kept(partition, result)
        diverging = self._diverging(partition, mirror)
        if diverging is not None:
            result.diverging = diverging
            return FollowerAnswer(result, tell=True, now=True, again=True)
        if mirror.spec.held and offset > mirror.high_watermark:
            # The follower did not tell its last epoch (before Fetch v12), and our log ends before its position: the
            # error makes it ask where.
            refused = FetchPartitionResult(index, OFFSET_OUT_OF_RANGE)
            return FollowerAnswer(refused, tell=True, now=True, again=True)
        if mirror.spec.held and offset < mirror.log_start_offset:
            return self._kept(partition, result)  # the switch may be given back: the log goes on there then
        if progress.cursor is None and offset < mirror.log_start_offset:
            return self._behind(partition, mirror, result, now)
        reading = mirror.read_for(progress, min(request.max_bytes, room), at_least_one=first)
        if reading is None:
            answer = self._quiet(partition, result)
            # There may be batches that only did not fit into this answer: its turn comes.
            answer.again = progress.has_more()
            return answer
        result.records = reading.views
        result.size = reading.size
        usable = min(reading.next_offset, mirror.high_watermark)
        result.log_start_offset = max(min(mirror.log_start_offset, usable), 0)
        return FollowerAnswer(
            result,
            tell=True,
            now=True,
            again=True,
            next_offset=reading.next_offset,
            charges=reading.charges,
            newest=reading.newest,
        )

    def _kept(self, partition: SessionPartition, result: FetchPartitionResult) -> FollowerAnswer:
        """The answer for a log that does not change any more: the follower keeps what it has. A log start at the end
        would make it delete everything."""
        result.log_start_offset = min(result.log_start_offset, max(partition.request.log_start_offset, 0))
        return self._quiet(partition, result)

    @staticmethod
    def _quiet(partition: SessionPartition, result: FetchPartitionResult) -> FollowerAnswer:
        """No records. Only a high watermark that the follower can use at once is worth waking it."""
        usable = min(result.high_watermark, partition.request.fetch_offset)
        news = (
            result.high_watermark != partition.high_watermark_sent
            or result.log_start_offset != partition.log_start_sent
        )
        mirror = partition.mirror
        # Of a log that is fed each record brings a high watermark after it: as a broker's followers, ours hear of it with
        # the next record. Not of one that ends there: no record comes, and a switch waits until all have heard.
        fed = (
            mirror is not None
            and mirror.feed is not None
            and mirror.fetch_until == MAX_OFFSET
            and mirror.fed_cursor is not None
        )
        return FollowerAnswer(result, tell=news, now=not fed and partition.high_watermark_sent < usable)

    @staticmethod
    def _diverging(partition: SessionPartition, mirror: PartitionCopy) -> tuple[int, int] | None:
        request = partition.request
        offset = request.fetch_offset
        session_epoch = mirror.spec.session_epoch
        border = mirror.may_copy_from(partition.session.replica_id, offset)
        if border is not None:
            return session_epoch, border
        last, taken = request.last_fetched_epoch, mirror.spec.taken
        if last < 0 and taken is not None and partition.session.tells_epochs:
            # It has records of a leader epoch that nobody knows: behind the take-over those are not ours.
            bare = offset > max(taken.end, request.log_start_offset)
            return (taken.at(max(taken.end - 1, 0)), taken.end) if bare else None
        if last < 0 or last == session_epoch:
            return None
        if last > session_epoch:
            # Batches of a later epoch than any of ours: nothing of them is the source's.
            return session_epoch, min(mirror.high_watermark, offset)
        if taken is not None:
            found = taken.end_of(last, mirror.high_watermark)
            # As Partition.readRecords: an epoch that we do not have diverges wherever its log ends.
            diverges = found is not None and (found[0] < last or found[1] < offset)
            return found if diverges else None
        if offset > mirror.spec.start_offset:
            # Data from before this mirror session: ours begins at the start offset.
            return last, mirror.spec.start_offset
        return None

    def _behind(
        self, partition: SessionPartition, mirror: PartitionCopy, result: FetchPartitionResult, now: float
    ) -> FollowerAnswer:
        """The follower's log ends before the source's log begins."""
        verdict, reason = judge_by_fetches(mirror, now)
        if verdict is Behind.FAIL and self._doubts is not None:
            verdict = self._doubts.verdict(mirror, now)
        if verdict is Behind.FAIL:
            mirror.fail(reason)
            return self._kept(partition, result)
        if verdict is Behind.MOVE and partition.request.fetch_offset > max(
            partition.request.log_start_offset, 0
        ):
            log.warning(
                "%s: broker %d begins again at offset %d, where the source's log begins now; it had copied up to %d",
                mirror.tp,
                partition.session.replica_id,
                mirror.log_start_offset,
                partition.request.fetch_offset,
            )
        error = OFFSET_OUT_OF_RANGE if verdict is Behind.MOVE else NOT_LEADER_OR_FOLLOWER
        refused = FetchPartitionResult(partition.index, error)
        return FollowerAnswer(refused, tell=True, now=True, again=True)

    @staticmethod
    def note_told(partition: SessionPartition, answer: FollowerAnswer) -> None:
        result = answer.result
        if answer.next_offset >= 0 and partition.progress is not None:
            partition.progress.told_to = answer.next_offset
            partition.progress.told_newest = answer.newest
        if result.error or result.diverging is not None:
            # When the error is over the partition is to be told again.
            partition.high_watermark_sent = partition.log_start_sent = -1
            return
        partition.high_watermark_sent = result.high_watermark
        partition.log_start_sent = result.log_start_offset
        if partition.mirror is not None:
            partition.mirror.bytes_served += result.size
