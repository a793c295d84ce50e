"""Replicas that were reassigned, for status: those that are left, and how far the new ones are."""

from __future__ import annotations

from collections.abc import Iterable

from admin.models import ReplicaStatus
from controller.phases import ENDED
from controller.state import MirrorPartition, MirrorTopic
from fleet.progress import copy_lag
from linker.links.copies import CopyView
from linker.links.runtime import LinkRuntime

Seen = tuple[MirrorPartition, CopyView | None, tuple[int, ...]]
"""A partition, its copy, and the real brokers that are to hold it."""


def _leaving(runtime: LinkRuntime, mirror: MirrorTopic, state: MirrorPartition) -> list[int]:
    """Real brokers that hold a copy, and will be no replicas any more when it is promoted."""
    partition = runtime.target.image.partition(mirror.topic_id, state.partition)
    if partition is None or state.phase in ENDED:
        return []
    stay = {*runtime.validation.link_brokers(), *mirror.replicas_of(state.partition)}
    return [broker for broker in partition.replicas if broker not in stay]


def leaving_replicas(
    runtime: LinkRuntime, mirror: MirrorTopic, state: MirrorPartition
) -> list[ReplicaStatus]:
    """With the position of each, as long as it copies."""
    copy = runtime.copies.get(state.tp)
    found = []
    for broker in _leaving(runtime, mirror, state):
        follower = None if copy is None else copy.followers.get(broker)
        offset = None if follower is None or follower.fetch_offset < 0 else follower.fetch_offset
        found.append(ReplicaStatus(broker=broker, leaving=True, end_offset=offset))
    return found


def moving(runtime: LinkRuntime, mirror: MirrorTopic, seen: Iterable[Seen]) -> str | None:
    """Which brokers a mirror leaves, and how far the slowest of its new replicas is; None: it leaves none."""
    left: set[int] = set()
    lags: list[int | None] = []
    for state, copy, targets in seen:
        leaving = _leaving(runtime, mirror, state)
        if leaving:
            left.update(leaving)
            lags.append(copy_lag(copy, targets))
    if not left:
        return None
    known = [lag for lag in lags if lag is not None]
    far = f"at most {max(known)} offsets behind" if len(known) == len(lags) else "not all of them have begun"
    return f"leaves broker {', '.join(map(str, sorted(left)))} with the promote; its new replicas: {far}"
