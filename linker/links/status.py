"""Links, mirrors and partitions for status: the controller's state joined with the running tasks.

Read only. A number that is not known is None, never 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from admin.models import (
    Direction,
    Forwarding,
    MirrorState,
    MirrorSummary,
    PartitionLag,
    PartitionStatus,
    RemainingCopy,
    ReplicaStatus,
    SyncState,
    worst_state,
)
from controller.codec import path_of
from controller.judge.late_starts import LateStart, worst
from controller.phases import ENDED, PROMOTING, SWITCHING, Phase
from controller.state import MirrorPartition, MirrorTopic
from fetcher.partition_copy import PartitionCopy
from fleet.progress import copy_lag
from linker.checks.other_tools import throttle_of
from linker.links import proved
from linker.links.copies import CopyView
from linker.links.moving import leaving_replicas, moving
from linker.links.runtime import LinkRuntime
from linker.links.times import moment as moment

#: A follower asks every half second; one that does not for so long is down, or the partition has failed there.
_SILENT = 30.0
_REFUSALS = 5
#: Milliseconds; a follower that is behind for less just has not asked yet.
_BEHIND = 5000


def shown_state(phase: Phase, *, source_available: bool = True) -> MirrorState:
    """A partition's state as it is shown. `source_available` is known at run time only and never stored."""
    if phase in PROMOTING:
        return MirrorState.PROMOTING
    if phase in SWITCHING:
        return MirrorState.SWITCHING
    if not source_available and phase in (Phase.LINKING, Phase.ACTIVE):
        return MirrorState.SOURCE_UNAVAILABLE
    return MirrorState(phase.value)


def partition_state(runtime: LinkRuntime, state: MirrorPartition) -> MirrorState:
    """As shown. A partition that is bound but that not every replica has begun to copy is LINKING."""
    return _state(runtime, state, runtime.copies.get(state.tp), runtime.targets(state.tp))


def _state(
    runtime: LinkRuntime, state: MirrorPartition, copy: CopyView | None, targets: Sequence[int]
) -> MirrorState:
    available = runtime.source_available and state.tp not in runtime.events.unavailable
    shown = shown_state(state.phase, source_available=available)
    if shown is MirrorState.ACTIVE:
        if copy is not None and copy.failed is not None:
            return MirrorState.FAILED  # and on its way to the store
        if copy is None or any(replica not in copy.followers for replica in targets):
            return MirrorState.LINKING
    return shown


def partition_reason(runtime: LinkRuntime, state: MirrorPartition) -> str | None:
    return _reason(runtime, state, runtime.copies.get(state.tp), runtime.targets(state.tp))


def _reason(
    runtime: LinkRuntime, state: MirrorPartition, copy: CopyView | None, targets: Sequence[int]
) -> str | None:
    if state.failure or state.reason:
        return state.failure or state.reason
    if copy is not None and (copy.failed or copy.trouble) is not None:
        return copy.failed or copy.trouble
    return (
        runtime.trouble
        or (runtime.copies.silent(state.tp) if copy is None and state.session_epoch >= 0 else None)
        or runtime.bring_up.trouble.get(state.topic)
        or runtime.watch.grown.get(state.topic)
        or runtime.configs.trouble.get(state.topic)
        or (None if copy is None else _silent_replica(copy, targets))
        or _late_replica(runtime, state)
    )


def _silent_replica(copy: CopyView, targets: Sequence[int]) -> str | None:
    now = time.monotonic()
    for replica in targets:
        follower = copy.followers.get(replica)
        since = copy.loaded_since if follower is None else follower.last_fetch_monotonic
        silent = 0.0 if since is None else now - since
        if follower is not None and follower.refused >= _REFUSALS and silent <= _SILENT:
            return (
                f"broker {replica} has asked {follower.refused + 1} times in a row for offset {follower.fetch_offset}: it "
                "does not take what it is sent (see that broker's log)"
            )
        if silent > _SILENT:
            return (
                f"broker {replica} has not asked for it for {silent:.0f} s: it is down, or the partition has failed "
                "there (see that broker's log)"
            )
    return None


def _why_late(late: LateStart) -> str | None:
    return None if late.counted is None else late.counted.why


def _late_replica(runtime: LinkRuntime, state: MirrorPartition) -> str | None:
    """Records that a promote would lose: shown like any other trouble."""
    late = runtime.starts.of(state.tp) if state.phase not in ENDED else []
    return str(worst(late)) if late and worst(late).records else None


def partition_lag(runtime: LinkRuntime, state: MirrorPartition) -> PartitionLag:
    return PartitionLag(**_lag_fields(runtime, state))


def _lag_fields(runtime: LinkRuntime, state: MirrorPartition) -> dict[str, Any]:
    copy = runtime.copies.get(state.tp)
    known = copy is not None and copy.loaded
    lag = runtime.lag(state.tp)
    return {
        "topic": state.topic,
        "partition": state.partition,
        "state": partition_state(runtime, state),
        "reason": partition_reason(runtime, state),
        "source_start_offset": copy.log_start_offset if copy is not None and known else None,
        "source_end_offset": copy.high_watermark if copy is not None and known else None,
        "target_end_offset": _target_end(copy, runtime.targets(state.tp)),
        "lag": lag,
        "lag_ms": _lag_ms(copy, lag, runtime.targets(state.tp)),
    }


def _target_end(copy: CopyView | None, targets: Sequence[int]) -> int | None:
    if copy is None:
        return None
    offsets = [
        follower.fetch_offset if (follower := copy.followers.get(replica)) is not None else -1
        for replica in targets
    ]
    return min(offsets) if offsets and min(offsets) >= 0 else None


def _lag_ms(copy: CopyView | None, lag: int | None, targets: Sequence[int]) -> int | None:
    if copy is None or lag is None:
        return None
    if lag == 0:
        return 0
    now = time.monotonic()
    since = [copy.followers[r].caught_up_monotonic for r in targets if r in copy.followers]
    return int((now - min(since)) * 1000) if since and min(since) > 0 else None


def _read_from(copy: PartitionCopy | None) -> list[int]:
    cursors = () if copy is None else copy.cursors
    return sorted({cursor.fetcher.node.id for cursor in cursors if cursor.fetcher is not None})


def partition_status(runtime: LinkRuntime, state: MirrorPartition) -> PartitionStatus:
    copy = runtime.copies.get(state.tp)
    end = copy.high_watermark if copy is not None and copy.loaded else None
    leader = runtime.source.leader(state.tp)
    replicas = []
    mirror = runtime.controller.image.mirrors[state.link, state.topic]
    late = {one.broker_id: one for one in runtime.starts.of(state.tp)} if state.phase not in ENDED else {}
    for broker in mirror.replicas_of(state.partition):
        starts = late.get(broker)
        follower = None if copy is None else copy.followers.get(broker)
        offset = None if follower is None or follower.fetch_offset < 0 else follower.fetch_offset
        validated, age = proved.watermark(runtime.controller.image, state, broker, end)
        replicas.append(
            ReplicaStatus(
                broker=broker,
                end_offset=offset,
                lag=None if offset is None or end is None else max(0, end - offset),
                validated_from=None if validated is None else proved.proved_from(runtime, state, broker),
                validated_offset=validated,
                validated_age_ms=age,
                start_offset=None if starts is None else starts.log_start,
                missing_records=None if starts is None else starts.records,
                missing_counted=starts is not None and starts.counted is not None,
                missing_reason=None if starts is None else _why_late(starts),
            )
        )
    replicas += leaving_replicas(runtime, mirror, state)
    return PartitionStatus(
        **_lag_fields(runtime, state),
        leader=state.leader if state.leader >= 0 else None,
        leader_epoch=state.leader_epoch if state.leader_epoch >= 0 else None,
        session_epoch=state.session_epoch if state.session_epoch >= 0 else None,
        isr=list(state.isr),
        controller_epoch=state.controller_epoch or None,
        version=runtime.controller.image.versions.get(path_of(state)),
        source_leader=None if leader is None else leader.id,
        read_from=_read_from(runtime.served().get(state.tp)),
        replicas=replicas,
        mismatch=proved.mismatch(runtime.controller.image, state),
    )


def mirror_summary(runtime: LinkRuntime, mirror: MirrorTopic) -> MirrorSummary:
    states = runtime.controller.image.topic_partitions(mirror.link, mirror.topic)
    # Asked for again and again of links with thousands of partitions, in the loop that serves them: only what is shown,
    # and each look-up once.
    seen = [(state, runtime.copies.get(state.tp), runtime.targets(state.tp)) for state in states]
    shown = [_state(runtime, *one) for one in seen]
    worst = worst_state(shown, default=MirrorState.LINKING)
    lags: list[int | None] = []
    times: list[int] = []
    far = worst is MirrorState.LINKING
    for state, copy, targets in seen:
        if state.phase not in ENDED:
            lag = copy_lag(copy, targets)
            lags.append(lag)
            behind = _lag_ms(copy, lag, targets)
            if behind is not None:
                times.append(behind)
            far = far or bool(lag and (behind is None or behind >= _BEHIND))
    known = [lag for lag in lags if lag is not None]
    total = sum(known) if lags and len(known) == len(lags) else None
    reason = next(
        (
            r
            for one, state in zip(seen, shown, strict=True)
            if state is worst and (r := _reason(runtime, *one))
        ),
        None,
    )
    cancelled = runtime.bring_up.cancelled.get(mirror.topic)
    if reason is None and cancelled:
        reason = f"its reassignment was cancelled by somebody {cancelled} times and asked for again"
    if reason is None:
        reason = moving(runtime, mirror, seen)
    throttled = throttle_of(runtime.target.image, mirror.topic)
    if reason is None and throttled is not None:
        reason = f"its copies are held back by {throttled}"
    return MirrorSummary(
        link=mirror.link,
        topic=mirror.topic,
        source_topic=mirror.source_name,
        direction=Direction.FORWARD if runtime.controller.image.at(mirror.link) == "" else Direction.REVERSED,
        sync=_sync_state(runtime, mirror),
        state=worst,
        reason=reason,
        partitions=mirror.partitions,
        lag=total,
        max_lag=max(known) if known else None,
        lag_ms=max(times) if times else None,
        copying=copy_progress(total, runtime.rates.rate(state.tp for state in states))
        if far and worst in (MirrorState.LINKING, MirrorState.ACTIVE)
        else None,
    )


def _sync_state(runtime: LinkRuntime, mirror: MirrorTopic) -> SyncState | None:
    if not mirror.sync:
        return None
    found = runtime.switch.replicas.state(mirror.topic)
    return SyncState.WAITING if found is None else SyncState(found[0].value)


def copy_progress(lag: int | None, rate: float | None) -> RemainingCopy:
    return RemainingCopy(
        offsets_per_second=rate,
        eta_ms=None if lag is None or rate is None else round(1000 * lag / rate),
    )


def link_progress(mirrors: Iterable[MirrorSummary]) -> RemainingCopy | None:
    """The remaining copy of all mirrors together; None if none copies."""
    copying = [(mirror.lag, mirror.copying) for mirror in mirrors if mirror.copying is not None]
    if not copying:
        return None
    lags = [lag for lag, _ in copying if lag is not None]
    rate = sum(one.offsets_per_second or 0.0 for _, one in copying)
    return copy_progress(sum(lags) if len(lags) == len(copying) else None, rate or None)


def link_state(runtime: LinkRuntime, mirrors: Iterable[MirrorSummary]) -> MirrorState:
    if not runtime.source_available:
        return MirrorState.SOURCE_UNAVAILABLE
    return worst_state((mirror.state for mirror in mirrors), default=MirrorState.ACTIVE)


def forwarding(runtime: LinkRuntime) -> Forwarding:
    guard = runtime.producer_ids
    return Forwarding(
        enabled=guard.allowed and runtime.read_only is None,
        reason=guard.reason
        if runtime.read_only is None
        else f"read-only, as its option {runtime.read_only} says",
        target_next_producer_id=guard.target_next or None,
        source_highest_producer_id=None if guard.source.end is None else guard.source.end - 1,
    )
