"""Answers to a consumer's fetch of a partition that need no data: refusals, and the replica to read from.

Also the source's answer put into ours. Not here: looking for data (``session.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from router.authorize import Authorizer
from router.fence import LED_ELSEWHERE
from router.leadership import current_leader
from router.ports import LocalLog, Mirror, MirroredPartition
from router.produce.admission import not_mirrored
from router.produce.forwarding import ForwardingHub
from wire.frames.batch import patch_batches
from wire.frames.error_codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.fetch import FetchedPartition, FetchPartition, FetchPartitionResult, FetchRequest, TopicKey
from wire.frames.types import AclRight, TopicPartition

# Of the source's errors, what the consumer has to know itself.
PASSED_ON: Final = frozenset({OFFSET_OUT_OF_RANGE, OFFSET_NOT_AVAILABLE})
# Results that tell something of the log: what is or is not in it, and where it is.
_OF_THE_LOG: Final = PASSED_ON | {0}
# A replica that was at the end this recently takes over consumers of its rack.
_CLOSE_FOLLOWER: Final = 10.0
# A consumer whose client.rack is this and a broker id reads that replica and no other log.
REPLICA_RACK: Final = "linker.replica="


class Part:
    """One partition of a consumer's fetch."""

    __slots__ = ("asked", "awaits_replica", "from_source", "held", "key", "log", "mirror", "result", "tp")

    def __init__(self, key: TopicKey, asked: FetchPartition) -> None:
        self.key = key
        self.asked = asked
        self.tp: TopicPartition | None = None
        self.mirror: Mirror | None = None
        self.log: LocalLog | None = None
        self.result: FetchPartitionResult | None = None
        self.from_source = False
        self.awaits_replica = False  # nobody but the replica that the consumer named may give it records

        self.held = False  # the consumer may not read it yet: no records, at the end of its wait

    def empty(self, error: int) -> FetchPartitionResult:
        """No records, with the offsets as far as they are known."""
        log = self.log
        if log is None or not log.loaded:
            return FetchPartitionResult(self.asked.index, error)
        return FetchPartitionResult(
            self.asked.index, error, log.high_watermark, log.last_stable_offset, log.log_start_offset
        )


def decide(
    hub: ForwardingHub,
    authorizer: Authorizer,
    part: Part,
    request: FetchRequest,
    client_id: str | None,
) -> FetchPartitionResult | None:
    """The result that is clear without looking for data; None if data is to be looked for.

    A consumer that no gate of its group holds is held here (``RouterPorts.holds_reads``): it gets no records, whatever
    offset it asks for, until the target leads the partition. One that names the replica it reads says that it knows
    what it reads.
    """
    asked = part.asked
    mirror = part.mirror = (
        hub.ports.mirrors.by_name(part.key)
        if isinstance(part.key, str)
        else hub.ports.mirrors.by_id(part.key)
    )
    image = hub.ports.image()
    if mirror is None:
        if isinstance(part.key, bytes):
            topic = image.topics_by_id.get(part.key)
            if topic is None:
                return FetchPartitionResult(asked.index, UNKNOWN_TOPIC_ID)
            part.tp = TopicPartition(topic.name, asked.index)
        else:
            part.tp = TopicPartition(part.key, asked.index)
            error = not_mirrored(hub, authorizer, part.key, AclRight.READ)
            if error != NOT_LEADER_OR_FOLLOWER or authorizer.may_hear_of(part.key, AclRight.READ) is None:
                return FetchPartitionResult(asked.index, error)
        known = current_leader(image, part.tp) is not None
        return FetchPartitionResult(
            asked.index, NOT_LEADER_OR_FOLLOWER if known else UNKNOWN_TOPIC_OR_PARTITION
        )
    part.tp = TopicPartition(mirror.topic, asked.index)
    if not authorizer.allowed(mirror.topic, AclRight.READ):
        return FetchPartitionResult(asked.index, TOPIC_AUTHORIZATION_FAILED)
    partition = mirror.partition(asked.index)
    if partition is None:
        return FetchPartitionResult(asked.index, UNKNOWN_TOPIC_OR_PARTITION)
    if not may_answer(partition) or hub.fences.state(part.tp) in LED_ELSEWHERE:
        return FetchPartitionResult(asked.index, NOT_LEADER_OR_FOLLOWER)
    leader = current_leader(image, part.tp)
    if asked.current_leader_epoch >= 0 and leader is not None and asked.current_leader_epoch != leader[1]:
        older = asked.current_leader_epoch < leader[1]
        return FetchPartitionResult(asked.index, FENCED_LEADER_EPOCH if older else UNKNOWN_LEADER_EPOCH)
    part.log = hub.ports.local_log(part.tp)
    named = named_replica(request.rack_id)
    if named is not None and not _copies(hub, part.tp, named):
        named = None
    if named is None and hub.ports.holds_reads(mirror.link, client_id, mirror.topic):
        part.held = True
        return part.empty(0)
    if partition.switching:
        return None  # it waits (`awaits_switch`)
    if asked.fetch_offset < partition.start_offset:
        return part.empty(OFFSET_OUT_OF_RANGE)
    if named is not None:
        return _from_named(hub, part, named)
    if request.rack_id and (replica := _replica_in_rack(hub, part, request.rack_id)) is not None:
        return _redirected(part, replica)
    return None


def may_answer(partition: MirroredPartition) -> bool:
    """Whether it is ours, and its log or the end of its switch will be known."""
    return partition.serving or (partition.switching and partition.leading)


def awaits_switch(part: Part) -> bool:
    """Whether a switch has the partition: only its end is known then, and nobody may be asked for more before the
    switch is over."""
    partition = None if part.mirror is None else part.mirror.partition(part.asked.index)
    return partition is not None and partition.switching


def _redirected(part: Part, replica: int) -> FetchPartitionResult:
    result = part.empty(0)
    result.preferred_read_replica = replica
    return result


def without_lease(parts: Iterable[Part]) -> bool:
    """Make results of what may not be told without the lease: no records, no error, no offsets. Whether there are
    any.

    The partition may have been handed over: what the source and our memory say of it then is of another log, and an
    end below a consumer's position would make it reset. After an empty answer every client just asks again, while
    they treat each error code differently (Java's FetchCollector, librdkafka and aiokafka: a metadata refresh, a
    warning per fetch, a back-off), and NOT_LEADER_OR_FOLLOWER would only name us again. Refusals say nothing about
    the log and stay.
    """
    gated = [part for part in parts if part.result is None or part.result.error in _OF_THE_LOG]
    for part in gated:
        part.result = FetchPartitionResult(part.asked.index, 0)
    return bool(gated)


def led_elsewhere(hub: ForwardingHub, parts: Iterable[Part]) -> None:
    """Replace the results for partitions that were handed over while the fetch waited. They are of the source's log,
    which is not the partition's any more and may have gone its own way since."""
    for part in parts:
        if part.result is not None and part.result.error in _OF_THE_LOG and is_led_elsewhere(hub, part):
            part.result = FetchPartitionResult(part.asked.index, NOT_LEADER_OR_FOLLOWER)


def is_led_elsewhere(hub: ForwardingHub, part: Part) -> bool:
    """Whether a mirror's partition is not ours to answer for any more."""
    if part.tp is None or part.mirror is None:
        return False
    partition = part.mirror.partition(part.tp.partition)
    return partition is None or not may_answer(partition) or hub.fences.state(part.tp) in LED_ELSEWHERE


def named_replica(rack: str) -> int | None:
    """The broker that a consumer's `client.rack` names: 2 in `linker.replica=2`; None in any other rack."""
    if not rack.startswith(REPLICA_RACK):
        return None
    number = rack[len(REPLICA_RACK) :]
    # A broker id is an int32; isascii because isdecimal knows other digits too.
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= 10 else None


def _copies(hub: ForwardingHub, tp: TopicPartition, broker_id: int) -> bool:
    """Whether it is a real broker among the partition's replicas."""
    topic = hub.ports.image().topics_by_name.get(tp.topic)
    partition = topic.partitions.get(tp.partition) if topic is not None else None
    ours = hub.ports.link_brokers() | {hub.ports.broker_id}
    return partition is not None and broker_id in partition.replicas and broker_id not in ours


def _from_named(hub: ForwardingHub, part: Part, replica: int) -> FetchPartitionResult | None:
    """The redirection to the named replica, or why there is none; None: the replica cannot answer yet.

    A consumer that names a replica wants to know what is on that one, so no other records are given instead. While it is
    away or has not copied that far, the consumer waits: redirected, it would be told OFFSET_OUT_OF_RANGE, come
    back to the leader (Java's FetchCollector), and be redirected again without a pause.
    """
    broker = hub.ports.image().brokers.get(replica)
    progress = part.log.followers.get(replica) if part.log is not None else None
    if progress is not None and part.asked.fetch_offset < progress.log_start_offset:
        return part.empty(OFFSET_OUT_OF_RANGE)  # the replica's own retention took it
    if broker is None or broker.fenced or progress is None or progress.fetch_offset < part.asked.fetch_offset:
        part.awaits_replica = True
        return None
    return _redirected(part, replica)


def _replica_in_rack(hub: ForwardingHub, part: Part, rack: str) -> int | None:
    """A real replica in the consumer's rack that has the wanted offset and follows closely. Without it, at either end of its
    log, it would answer OFFSET_OUT_OF_RANGE, and the consumer would be sent there again for ever: a replica's own retention
    may have taken what the source has (ReplicaManager.findPreferredReadReplica asks the same)."""
    if part.log is None or part.tp is None:
        return None
    image = hub.ports.image()
    now = hub.loop.time()
    best: tuple[int, int] | None = None
    for replica, progress in part.log.followers.items():
        broker = image.brokers.get(replica)
        if broker is None or broker.fenced or broker.rack != rack:
            continue
        if (
            not progress.log_start_offset <= part.asked.fetch_offset <= progress.fetch_offset
            or now - progress.caught_up_monotonic > _CLOSE_FOLLOWER
        ):
            continue
        if best is None or progress.fetch_offset > best[0]:
            best = (progress.fetch_offset, replica)
    return best[1] if best is not None else None


def from_source(part: Part, fetched: FetchedPartition, frame: memoryview) -> tuple[FetchPartitionResult, int]:
    """The source's answer for the partition, its batches under the leader epochs of the mirror (written in place), and the
    offset after them; -1 if there are none.
    """
    partition = part.mirror.partition(part.asked.index) if part.mirror is not None else None
    if partition is None:
        return FetchPartitionResult(part.asked.index, NOT_LEADER_OR_FOLLOWER), -1
    result = FetchPartitionResult(
        part.asked.index,
        fetched.error,
        fetched.high_watermark,
        fetched.last_stable_offset,
        max(fetched.log_start_offset, partition.start_offset),
        aborted=fetched.aborted,
    )
    next_offset = -1
    start, end = fetched.records_start, fetched.records_end
    if end > start:
        epochs = partition.epochs
        if epochs is None:
            walk = patch_batches(frame, start, end, partition.session_epoch, end - start, -1)
        else:
            walk = epochs.stamp(frame, start, end, end - start, -1)
        result.records = [frame[chunk.start : chunk.end] for chunk in walk.chunks]
        result.size = sum(chunk.end - chunk.start for chunk in walk.chunks)
        next_offset = walk.next_offset
    return result, next_offset
