"""Counts what would be gone if a mirror's copies were dropped, and how much of it is nowhere else.

A copy that a link broker leads holds what the source has. There is more in it where the source lost data or its topic, where
a real broker was elected and clients wrote to it, and in partitions that somebody added at the target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from admin.models import Action
from controller.state import MirrorTopic, same_source_topic
from linker.checks import preflight
from linker.checks.replica_logs import Extent, replica_extents, source_extents
from linker.links import forks
from linker.links.runtime import LinkRuntime
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import TopicImage

_TIMEOUT = 5.0
_MOST = 20  # partitions that are named one by one


class Held(NamedTuple):
    """One partition of the mirror's topic at the target."""

    tp: TopicPartition
    copies: Mapping[int, Extent]  # by broker, those that answered
    silent: tuple[int, ...]  # brokers that have a copy and did not answer
    source: Extent | None  # None: the partition is not there any more
    source_known: bool = True
    fork: int | None = None  # the first offset that was written at the target alone, if a real broker leads
    leader: int | None = None  # that broker
    added: bool = False  # by somebody, at the target


class Only(NamedTuple):
    """Records that are at the target and nowhere else: `records` of them at most, from `first` on."""

    first: int
    records: int


def only_at_target(held: Held) -> Only | None:
    """None: nothing, as far as is known."""
    ends = [one.end for one in held.copies.values() if one.offsets]
    if not ends:
        return None
    first, end = min(one.start for one in held.copies.values() if one.offsets), max(ends)
    if held.added:
        pass
    elif held.fork is not None:
        first = max(first, held.fork)
    elif held.leader is not None or not held.source_known:
        return None  # not known
    elif held.source is not None:
        first = max(first, held.source.end)
    return Only(first, end - first) if end > first else None


def described(held: Held) -> str:
    extents = sorted({(one.start, one.end) for one in held.copies.values()})
    brokers = ", ".join(map(str, sorted(held.copies)))
    if not extents:
        text = "no copy answers"
    elif len(extents) == 1:
        start, end = extents[0]
        text = (
            f"{end - start} offsets ({start} to {end}) in each copy, on {brokers}" if end > start else "empty"
        )
    else:
        text = "; ".join(
            f"broker {broker}: {one.offsets} offsets ({one.start} to {one.end})"
            for broker, one in sorted(held.copies.items())
        )
    if held.silent:
        text += f"; not told: broker {', '.join(map(str, held.silent))}"
    return text


def warning(held: Held) -> str | None:
    """The records that are lost with it, or may be."""
    only = only_at_target(held)
    if only is not None:
        if held.added:
            why = "somebody added the partition there"
        elif held.fork is not None:
            why = f"broker {held.leader} of the target was its leader and took writes"
        else:
            why = (
                "the source has lost them" if held.source is not None else "the source has the topic no more"
            )
        return (
            f"{held.tp}: up to {only.records} acknowledged records, from offset {only.first} on, exist at the target alone "
            f"({why})"
        )
    if held.leader is not None and held.fork is None:
        return (
            f"{held.tp}: broker {held.leader} of the target leads it; what clients wrote there is not known"
        )
    if not held.source_known and any(one.offsets for one in held.copies.values()):
        return f"{held.tp}: whether the source has all of it is not known: it does not answer"
    return None


def drop_actions(found: list[Held]) -> list[Action]:
    """A line per partition, the first ones if there are many; then how much it is in all."""
    actions = [
        Action(action="drop copies of", resource=str(held.tp), detail=described(held))
        for held in found[:_MOST]
    ]
    if len(found) > _MOST:
        offsets = sum(max((one.offsets for one in held.copies.values()), default=0) for held in found)
        actions.append(
            Action(
                action="drop copies of",
                resource=f"{len(found) - _MOST} more partitions",
                detail=f"{offsets} offsets in all {len(found)} partitions, counted once each",
            )
        )
    return actions


def lost_records(found: list[Held]) -> int:
    """The most acknowledged records that would be nowhere any more."""
    return sum(only.records for held in found if (only := only_at_target(held)) is not None)


def warnings(found: list[Held]) -> list[str]:
    lines = [line for held in found if (line := warning(held)) is not None]
    lost = lost_records(found)
    if lost:
        lines.append(
            f"{lost} acknowledged records exist at the target alone, and would be lost: save them first"
        )
    return lines


async def holdings(
    runtime: LinkRuntime,
    mirror: MirrorTopic,
    topic: TopicImage,
    link_brokers: Collection[int],
    *,
    wanted: Iterable[int],
) -> list[Held]:
    """The records that would be gone with these partitions of the mirror's topic. A broker that does not answer is named
    as unknown."""
    chosen = {
        TopicPartition(topic.name, index): topic.partitions[index]
        for index in sorted(wanted)
        if index in topic.partitions
    }
    states = {
        state.tp: state for state in runtime.controller.image.topic_partitions(mirror.link, mirror.topic)
    }
    real = {tp: [b for b in one.replicas if b not in link_brokers] for tp, one in chosen.items()}
    copies = await replica_extents(runtime.target.cluster, real, timeout=_TIMEOUT)
    leaders = {
        tp: one.leader for tp, one in chosen.items() if one.leader >= 0 and one.leader not in link_brokers
    }
    led = [states[tp] for tp in leaders if tp in states and states[tp].session_epoch >= 0]
    told = await forks.look(runtime.target.cluster, runtime.target.image, led)
    begun = {fork.tp: fork.begin for fork in told if fork.begin is not None}
    at_source = await _at_source(runtime, mirror, [tp for tp in chosen if tp in states])
    return [
        Held(
            tp,
            copies.get(tp, {}),
            tuple(broker for broker in real[tp] if broker not in copies.get(tp, {})),
            at_source.get(tp),
            source_known=tp in at_source,
            fork=begun.get(tp),
            leader=leaders.get(tp),
            # No records of the source were copied here: all that is there is the target's own.
            added=tp not in states or (states[tp].session_epoch < 0 and mirror.added(tp.partition)),
        )
        for tp in chosen
    ]


async def _at_source(
    runtime: LinkRuntime, mirror: MirrorTopic, tps: list[TopicPartition]
) -> dict[TopicPartition, Extent | None]:
    """Of the mirror's topic: None where it is certain that it is gone; a part that is not told is left out. Another
    topic of the same name is not it."""
    if not tps:
        return {}
    try:
        seen = await preflight.seen_source_topics(runtime.source, [mirror.topic])
        there = seen.get(mirror.topic)
        if there is None or not same_source_topic(mirror.source_topic_id, there.topic_id):
            return dict.fromkeys(tps)
        kept = [tp for tp in tps if tp.partition < there.partitions]
        found = await source_extents(runtime.source, kept, timeout=_TIMEOUT)
    except LinkerError:
        return {}
    return {tp: found.get(tp) for tp in tps if tp in found or tp not in kept}
