"""Which replicas are due, and from which offset on: pure functions of the link state and of the target's metadata.

A replica is named by the broker that holds it; link brokers hold nothing. A broker that is down cannot be read and is
left out with the reason, as is a partition that has no copies to compare yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from controller.image import ControllerImage
from controller.judge.hand_over import listed_targets
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from linker.links.copies import CopyView
from validator import messages as m
from validator.compare.facts import Missing
from validator.mode import Mode
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage

_COPIED = frozenset({Phase.ACTIVE, Phase.PAUSED, Phase.CATCHING_UP})
_HANDED_OVER = frozenset({Phase.HANDED_OVER, Phase.PROMOTED})
_TIME_INDEX_ENTRY = 12  # bytes
_SMALLEST_BATCH = 61  # its header
# Findings about these stay, whatever becomes of the copies.
_KEPT = _HANDED_OVER | {Phase.FAILED, Phase.FAILED_OVER}


class Position(NamedTuple):
    """Where a follower asked at a time: all below was in its log, nothing from there on. `at`: wall clock, ms."""

    offset: int
    at: int


@dataclass(frozen=True, slots=True)
class TopicRules:
    """Changes that the target may make to a log by itself; retention only to name a reason. None: no limit."""

    compacted: bool = False
    min_compaction_lag_ms: int = 0
    delete_retention_ms: int | None = None
    segment_bytes: int | None = None  # that fill a segment, or its indexes
    segment_ms: int | None = None  # after which a segment is closed at the soonest
    retention_ms: int | None = None
    retention_bytes: int | None = None

    @staticmethod
    def of(effective: Mapping[str, str]) -> TopicRules:
        """Out of a topic's effective configs."""
        policies = {policy.strip() for policy in effective.get("cleanup.policy", "delete").split(",")}
        deletes = "delete" in policies
        return TopicRules(
            compacted="compact" in policies,
            min_compaction_lag_ms=_limit(effective.get("min.compaction.lag.ms")) or 0,
            delete_retention_ms=_limit(effective.get("delete.retention.ms")),
            segment_bytes=_segment_full(effective),
            segment_ms=_segment_age(effective),
            retention_ms=_limit(effective.get("retention.ms")) if deletes else None,
            retention_bytes=_limit(effective.get("retention.bytes")) if deletes else None,
        )


@dataclass(frozen=True, slots=True)
class ValidationPlan:
    """The ranges that a run is to check. `bases`: the watermark that each replica's range begins with; `epochs`: the
    mirror sessions it is planned for. `left_out`: partition -> why (part of) it cannot be checked now."""

    partitions: tuple[m.PartitionPlan, ...] = ()
    bases: Mapping[tuple[TopicPartition, int], int | None] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    left_out: Mapping[TopicPartition, str] = field(default_factory=dict)
    at: int = 0  # wall clock, ms: what was lost before is not in `bases` any more

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(partition.topic for partition in self.partitions))


def replicas_of(
    target: ClusterImage, mirror: MirrorTopic, tp: TopicPartition, link_brokers: Collection[int]
) -> tuple[int, ...]:
    """The real brokers that hold or copy a partition, as the target's metadata says."""
    partition = target.partition(mirror.topic_id, tp.partition)
    return () if partition is None else listed_targets(partition, link_brokers)


def plan(
    image: ControllerImage,
    target: ClusterImage,
    link: str,
    tps: Collection[TopicPartition],
    link_brokers: Collection[int],
    rules: Mapping[str, TopicRules],
    *,
    mode: Mode = Mode.BATCHES,
    source_ends: Mapping[TopicPartition, int] | None = None,
    log_starts: Mapping[TopicPartition, Mapping[int, int]] | None = None,
) -> ValidationPlan:
    """With `source_ends` only what is not proved up to there is due, and replicas whose log starts (`log_starts`, of those
    that start later than the source; a partition of which nothing is known is not there) are not what was counted last.
    Records are always compared from the start: no watermark is kept for them."""
    found: list[m.PartitionPlan] = []
    bases: dict[tuple[TopicPartition, int], int | None] = {}
    epochs: dict[TopicPartition, int] = {}
    left_out: dict[TopicPartition, str] = {}
    for tp in sorted(tps):
        state = image.partitions.get((link, tp))
        mirror = image.mirrors.get((link, tp.topic))
        if state is None or mirror is None:
            left_out[tp] = "is no mirror of this link"
            continue
        reason = _unfit(state)
        if reason is not None:
            left_out[tp] = reason
            continue
        wanted = replicas_of(target, mirror, tp, link_brokers)
        alive = [b for b in wanted if b in target.brokers and not target.brokers[b].fenced]
        down = sorted(set(wanted) - set(alive))
        if down:
            left_out[tp] = f"broker {down[0]} is down, its replica cannot be read"
        elif not wanted:
            left_out[tp] = "no broker copies it yet"
        end = state.aligned_end if state.phase in _HANDED_OVER else None
        replicas = []
        for broker_id in sorted(alive):
            replica = _replica(image, link, tp, broker_id, mode)
            known_end = end if end is not None else (source_ends or {}).get(tp)
            proved = replica.through is not None and known_end is not None and replica.through >= known_end
            counted = None if replica.missing is None else replica.missing.end
            starts = (log_starts or {}).get(tp)
            start = counted if starts is None else starts.get(broker_id)
            if source_ends is not None and proved and start == counted:
                continue
            bases[tp, broker_id] = replica.through
            replicas.append(replica)
        if not replicas:
            continue
        epochs[tp] = state.session_epoch
        found.append(
            m.PartitionPlan(
                topic=tp.topic,
                partition=tp.partition,
                source_topic_id=None if mirror.source_topic_id is None else mirror.source_topic_id.hex(),
                target_topic_id=mirror.topic_id.hex(),
                source_partitions=mirror.partitions,
                start=state.start_offset or 0,
                end=end,
                **asdict(rules.get(tp.topic, TopicRules())),
                replicas=tuple(replicas),
            )
        )
    return ValidationPlan(tuple(found), bases, epochs, left_out)


def _unfit(state: MirrorPartition) -> str | None:
    if state.phase in _HANDED_OVER:
        return None if state.aligned_end is not None else "its end at the hand-over is not known"
    if state.phase in _COPIED and state.session_epoch >= 0:
        return None
    return f"is {state.phase}" + (f" ({state.reason})" if state.reason else "")


def _replica(
    image: ControllerImage, link: str, tp: TopicPartition, broker_id: int, mode: Mode
) -> m.ReplicaPlan:
    known = image.validations.get((link, tp))
    proved = None if known is None or mode is Mode.RECORDS else known.of(broker_id)
    if proved is None:
        return m.ReplicaPlan(broker_id=broker_id)
    return m.ReplicaPlan(
        broker_id=broker_id,
        through=proved.through,
        start=proved.start,
        digest=proved.digest,
        source_digest=proved.source_digest,
        batches=proved.batches,
        records=proved.records,
        bytes=proved.bytes,
        missing=None if proved.missing is None else Missing(**asdict(proved.missing)),
    )


def other_copies(
    image: ControllerImage,
    target: ClusterImage,
    link: str,
    link_brokers: Collection[int],
    positions: Mapping[TopicPartition, Mapping[int, Sequence[Position]]],
) -> dict[TopicPartition, set[int]]:
    """Watermarks of copies that are gone: the broker is none of the partition's any more, or has asked for offsets below
    what was proved of it, after that was proved: so it had lost them, even if it has copied them again since. Of the
    partitions in `positions`: where each broker asked last, began, and went back to."""
    gone: dict[TopicPartition, set[int]] = {}
    for tp, asked in positions.items():
        known = image.validations.get((link, tp))
        mirror = image.mirrors.get((link, tp.topic))
        state = image.partitions.get((link, tp))
        if known is None or mirror is None or state is None or state.phase in _KEPT:
            continue
        there = set(replicas_of(target, mirror, tp, link_brokers))
        brokers = {
            replica.broker_id
            for replica in known.replicas
            if replica.broker_id not in there
            or lost(asked.get(replica.broker_id, ()), replica.through, replica.at)
        }
        if brokers:
            gone[tp] = brokers
    return gone


def positions_of(copy: CopyView, now: int, monotonic: float) -> dict[int, tuple[Position, ...]]:
    """The position of each follower, with times of the wall clock (ms), as watermarks have them. `monotonic`: seconds,
    the same moment."""
    return {
        broker: tuple(
            Position(offset, now - int((monotonic - at) * 1000))
            for offset, at in (*follower.restarts, (follower.fetch_offset, follower.last_fetch_monotonic))
        )
        for broker, follower in copy.followers.items()
        if follower.last_fetch_monotonic > 0
    }


def lost(asked: Iterable[Position], through: int, since: int) -> bool:
    """Whether somebody who had everything below `through` at a time has asked for some of it afterwards."""
    return any(one.at > since and 0 <= one.offset < through for one in asked)


def _segment_full(effective: Mapping[str, str]) -> int | None:
    """A segment is closed as well when its time index is full, whose entries are larger than those of the offset index
    (LogSegment.shouldRoll): there is at most one for each index.interval.bytes, or for each batch."""
    full, index = _limit(effective.get("segment.bytes")), _limit(effective.get("segment.index.bytes"))
    if full is None or index is None:
        return full
    entries = max(0, index // _TIME_INDEX_ENTRY - 1)
    return min(full, entries * max(_limit(effective.get("index.interval.bytes")) or 0, _SMALLEST_BATCH))


def _segment_age(effective: Mapping[str, str]) -> int | None:
    """Each segment is closed sooner by a random part of segment.jitter.ms (LogConfig.randomSegmentJitter)."""
    limits = (_limit(effective.get(name)) for name in ("segment.ms", "max.compaction.lag.ms"))
    oldest = min((limit for limit in limits if limit is not None), default=None)
    jitter = _limit(effective.get("segment.jitter.ms")) or 0
    return None if oldest is None else max(0, oldest - jitter)


def _limit(text: str | None) -> int | None:
    """Kafka's -1 is no limit."""
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        return None
    return value if value >= 0 else None
