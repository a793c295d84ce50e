"""A failover: the source is dead, and the target takes over at the end of its replicas.

The replica with the most records takes the place of the source. A promote aligns every replica with the source's end,
a failover aligns them with the end of that replica, so the hand-over is the same: all replicas equal, all in the new
ISR. Rules: - Once a partition is fenced for a failover (`Failover` in its state), nothing of the source is copied any
more: a source that returns meanwhile changes nothing.
- The end is chosen only after every replica was seen at rest, and it is durable before anything is served up to it.
- A replica that has yet to truncate records that the source lost (`untruncated`) is not considered: its tail belongs
to no log.
- Records of the source beyond that end are lost, and reported per partition. Their producers were told success, or nothing.
- Forwarded writes without an answer end as unknown. Idempotent producers send them again to the new leader, which
drops those that were copied and appends the others.

There is no fork afterwards: from HANDED_OVER on no sidecar forwards for the partition, even after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from controller.decide.links import link_of
from controller.decide.mirrors import change, mirror_of, partition_of
from controller.decide.promotes import next_job
from controller.errors import Refused
from controller.image import ControllerImage
from controller.phases import ENDED, Phase
from controller.state import AbortedTransaction, Failover, MirrorPartition, PromoteJob, Record
from wire.frames.types import TopicPartition
from wire.shown_id import listed

_FROM = frozenset({Phase.ACTIVE, Phase.PAUSED, Phase.FAILED})


class KnownEnds(NamedTuple):
    """The known ends of a source partition that is given up. None: not known."""

    source_end: int | None = None
    acked_end: int | None = None
    unasked: tuple[
        int, ...
    ] = ()  # sidecars that are away, whose last answers from the source neither end includes


class Chosen(NamedTuple):
    """The offset at which the target takes over, and a replica that has everything below."""

    end: int
    replica: int
    acked_end: int | None = None  # as known when no further success could be told to any client
    unasked: tuple[int, ...] = ()  # sidecars that could not be asked for it


@dataclass(frozen=True, slots=True)
class ChoiceVerdict:
    """`chosen`: partitions whose replicas have all reported; `waiting`: the reason for each of the others."""

    chosen: Mapping[TopicPartition, Chosen]
    waiting: Mapping[TopicPartition, str]


def choose_ends(
    targets: Mapping[TopicPartition, Sequence[int]],
    log_ends: Mapping[TopicPartition, Mapping[int, int]],
    untruncated: Mapping[TopicPartition, Collection[int]],
) -> ChoiceVerdict:
    """The longest log of each partition. Among equal ones the first target's, which will lead."""
    chosen: dict[TopicPartition, Chosen] = {}
    waiting: dict[TopicPartition, str] = {}
    for tp, brokers in targets.items():
        ends = log_ends.get(tp, {})
        silent = [broker for broker in brokers if broker not in ends]
        if silent:
            waiting[tp] = f"broker {', '.join(map(str, silent))} does not say where its log ends"
            continue
        clean = [broker for broker in brokers if broker not in untruncated.get(tp, ())]
        if not clean:
            waiting[tp] = "no replica has truncated what the source lost: none of them is the source's log"
            continue
        longest = max(clean, key=lambda broker: ends[broker])
        chosen[tp] = Chosen(ends[longest], longest)
    return ChoiceVerdict(chosen, waiting)


def missing(failover: Failover) -> int | None:
    """How many offsets the source had beyond the failover's end, as far as its end was seen.

    None if that is not known: the end was never seen, or a sidecar that may know a later end could not be asked.
    """
    if failover.unasked:
        return None
    return _known_missing(failover)


def _known_missing(failover: Failover) -> int | None:
    known = [end for end in (failover.source_end, failover.acked_end) if end is not None]
    return None if failover.end is None or not known else max(0, max(known) - failover.end)


def describe_loss(failover: Failover) -> str:
    """One line for people: the reason that a failed-over partition shows."""
    if failover.end is None:
        return "the source is given up"
    return _known_loss(failover, failover.end) + _unasked(failover)


def _unasked(failover: Failover) -> str:
    if not failover.unasked:
        return ""
    who = ", ".join(map(str, failover.unasked))
    return f"; sidecar {who} was away and may have acknowledged more"


def _known_loss(failover: Failover, end: int) -> str:
    lost = _known_missing(failover)
    start = f"took over at offset {end}"
    if lost is None:
        return f"{start}; where the source ended is not known"
    if not lost:
        return f"{start}, the last known end of the source"
    return f"{start}; the source had {lost} more offsets, {end} to {end + lost - 1}, which were not copied"


def open_at_failover(
    image: ControllerImage, link: str, open_: Mapping[TopicPartition, Sequence[AbortedTransaction]]
) -> dict[TopicPartition, list[AbortedTransaction]]:
    """The open transactions of the new leaders that were copied: they begin below the failover's end.

    The target's own transactions get no abort marker: it would drop records of a producer that goes on to commit.
    """
    found: dict[TopicPartition, list[AbortedTransaction]] = {}
    for tp, seen in open_.items():
        _, failover = _failing_over(image, link, tp)
        mine = [one for one in seen if failover.end is not None and one.start_offset < failover.end]
        if mine:
            found[tp] = mine
    return found


# Decisions.


def begin(
    image: ControllerImage, link: str, topics: Sequence[str] | None, now: int
) -> tuple[list[Record], PromoteJob]:
    """A job over whole topics (None: all of the link that have not ended)."""
    link_of(image, link)
    names = [m.topic for m in image.link_mirrors(link)] if topics is None else list(dict.fromkeys(topics))
    tps: list[TopicPartition] = []
    wrong: list[str] = []
    for topic in names:
        mirror_of(image, link, topic)
        for state in image.topic_partitions(link, topic):
            if state.session_epoch < 0 and image.mirrors[link, topic].added(state.partition):
                continue  # the source has just added it: that is no reason to give up the others
            if state.phase in _FROM and state.session_epoch >= 0:
                tps.append(state.tp)
            elif state.phase in _FROM or state.phase is Phase.LINKING:
                wrong.append(f"{state.tp} is {state.phase}, nothing of it was copied")
            elif state.phase not in ENDED:
                wrong.append(f"{state.tp} is {state.phase}")
    if wrong:
        raise Refused(f"cannot fail over: {listed(wrong)}")
    if not tps:
        what = f"link {link!r}" if topics is None else listed(names)
        raise Refused(f"nothing to fail over: {what} has no mirror that has not ended")
    busy = {tp for job in image.running_jobs(link) for tp in job.partitions}.intersection(tps)
    if busy:
        raise Refused(f"a promote or failover of {min(busy)} is running already")
    number = next_job(image, link)
    job = PromoteJob(id=number, link=link, partitions=tuple(tps), failover=True, started_at=now)
    return [job], job


def give_up(
    image: ControllerImage, link: str, ends: Mapping[TopicPartition, KnownEnds], now: int
) -> list[Record]:
    """Fence the partitions and stop copying: the source is not asked for them any more."""
    records: list[Record] = []
    for tp, known in ends.items():
        state = partition_of(image, link, tp)
        if state.phase not in _FROM:
            raise Refused(f"{tp} is {state.phase} and cannot be failed over")
        fields = {
            "failover": Failover(before=state.phase, source_end=known.source_end, acked_end=known.acked_end)
        }
        if state.phase is Phase.FAILED:
            records += change(
                image, link, [tp], Phase.FENCED, now, failure=state.reason, reason=None, **fields
            )
        else:
            records += change(image, link, [tp], Phase.FENCED, now, reason=None, **fields)
    return records


def choose(image: ControllerImage, link: str, chosen: Mapping[TopicPartition, Chosen]) -> list[Record]:
    """Set the offset at which the target takes over. It is chosen once: sidecars may serve up to it from now on."""
    records: list[Record] = []
    for tp, (end, replica, acked_end, unasked) in chosen.items():
        state, failover = _failing_over(image, link, tp)
        if state.phase is not Phase.FENCED or failover.end is not None:
            raise Refused(f"{tp} is {state.phase}, its end was chosen already")
        known = [one for one in (failover.acked_end, acked_end) if one is not None]
        failover = replace(
            failover, end=end, replica=replica, acked_end=max(known, default=None), unasked=unasked
        )
        records.append(replace(state, failover=failover))
    return records


def note_aborted(
    image: ControllerImage, link: str, aborted: Mapping[TopicPartition, Sequence[AbortedTransaction]]
) -> list[Record]:
    """Note the transactions before their markers are written: after a crash they could not be found again."""
    records: list[Record] = []
    for tp, found in aborted.items():
        state, failover = _failing_over(image, link, tp)
        fresh = tuple(one for one in found if one not in failover.aborted)
        if fresh:
            records.append(replace(state, failover=replace(failover, aborted=(*failover.aborted, *fresh))))
    return records


def _failing_over(image: ControllerImage, link: str, tp: TopicPartition) -> tuple[MirrorPartition, Failover]:
    state = partition_of(image, link, tp)
    if state.failover is None:
        raise Refused(f"{tp} is {state.phase}, and not failed over")
    return state, state.failover
