"""A source that comes back after a failover is restored: it follows the target from where that took over. So is one whose
topic was promoted while nobody could take it over.

Both logs may have gone on beyond that offset (`end_of`). The source's records beyond are written to files, its brokers
truncate them, and the topic is then what it would be after a switch: owned by the target.
The steps are those of a take-over (`decide/take_overs`), with that offset as the end of the log.

Invariants:
- `Taken` is written only when all of a partition that lies beyond is durable in files, and nothing is truncated before it.
- A restore of which nothing was written down so is given back: the source's own brokers lead again, with what they have.
- A topic that was promoted looks like one whose switch is about to end: only one that is marked, here or with the mirror in
  the source (`given_back`), is restored or given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controller.decide.failovers import describe_loss
from controller.decide.mirrors import mirror_of, partition_of, refuse_while_running
from controller.decide.take_overs import epochs_of_copies, link_against
from controller.errors import NotFound, Refused
from controller.image import ControllerImage
from controller.phases import ENDED, SWITCHING, Phase
from controller.state import Exported, MirrorPartition, Record
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import TopicPartition

_LATER = 2**31 - 1  # than any epoch of what was copied


def obstacle(image: ControllerImage, link: str, topic: str) -> str | None:
    """Why the source of a topic cannot be restored, as far as the state says."""
    mirror = image.mirrors.get((link, topic))
    if mirror is None:
        return f"topic {topic!r} is no mirror of link {link!r}: nothing says where the target took over"
    states = image.topic_partitions(link, topic)
    other = [s for s in states if s.phase not in ENDED]
    if other:
        return f"{other[0].tp} is {other[0].phase}: only a topic that was promoted or failed over as a whole is restored"
    if any(_end(state) is None for state in states):
        return f"topic {topic!r}: where the target took over was not written down"
    if mirror.start != "earliest":
        return f"topic {topic!r} is not mirrored from its first record on: its source would lose what lies before"
    return None


def begin(image: ControllerImage, link: str, topics: Iterable[str]) -> list[Record]:
    """Asked for already: no change."""
    records: list[Record] = []
    for topic in topics:
        why = obstacle(image, link, topic)
        if why is not None:
            raise Refused(why)
        refuse_while_running(image, link, topic)
        mirror = mirror_of(image, link, topic)
        if not mirror.restoring:
            records.append(replace(mirror, restoring=True))
    return records


def end(image: ControllerImage, link: str, topics: Iterable[str], why: str) -> list[Record]:
    """Give up the restore, and give a take-over back. The reason is shown with the failover's."""
    records: list[Record] = []
    for topic in topics:
        mirror = image.mirrors.get((link, topic))
        if mirror is None or not mirror.restoring:
            continue
        if for_good(image, link, topic):
            raise Refused(
                f"topic {topic!r}: brokers of its source have truncated by now: it is restored to the end"
            )
        records.append(replace(mirror, restoring=False))
        against = link_against(image, link).name
        if (back := image.mirrors.get((against, topic))) is not None and under_way(image, link, topic):
            records.append(replace(back, given_back=True))
        records += [
            replace(state, reason=f"{_taken_over(state)}the source is not restored: {why}")
            for state in image.topic_partitions(link, topic)
        ]
    return records


def _taken_over(state: MirrorPartition) -> str:
    return "" if state.failover is None else f"{describe_loss(state.failover)}; "


def led_again(image: ControllerImage, link: str, tps: Iterable[TopicPartition]) -> list[Record]:
    """A broker of the source leads these again, before link brokers were alone in the ISR: it may take more records."""
    back = link_against(image, link).name
    return [
        replace(state, taken=None, session_epoch=-1)
        for tp in tps
        if (state := partition_of(image, back, tp)).phase is Phase.TAKING
    ]


def exported(image: ControllerImage, link: str, tp: TopicPartition) -> Exported | None:
    """The export that is written down; from then on the source's brokers may truncate."""
    found = [state.taken for state in back_states(image, link, tp.topic) if state.tp == tp]
    return found[0].exported if found and found[0] is not None else None


def back_states(image: ControllerImage, link: str, topic: str) -> list[MirrorPartition]:
    """Of the mirror in the source, from the beginning of the take-over on."""
    try:
        back = link_against(image, link).name
    except NotFound:
        return []
    return list(image.topic_partitions(back, topic)) if (back, topic) in image.mirrors else []


def for_good(image: ControllerImage, link: str, topic: str) -> bool:
    """Whether the source's brokers may have truncated something: there is no way but forward."""
    return any(state.taken is not None for state in back_states(image, link, topic))


def under_way(image: ControllerImage, link: str, topic: str) -> bool:
    """Whether it is being taken over, or given back."""
    return any(state.phase in SWITCHING for state in back_states(image, link, topic))


def to_do(image: ControllerImage, link: str, topic: str) -> bool:
    """Whether its source is to be taken over, or given back, by a restore."""
    states, back = image.topic_partitions(link, topic), back_states(image, link, topic)
    if not states or not back:
        return image.mirrors[link, topic].restoring
    if not under_way(image, link, topic) or any(state.phase not in ENDED for state in states):
        return False
    marked = image.mirrors[link, topic].restoring or image.mirrors[back[0].link, topic].given_back
    return marked or any(state.phase is Phase.FAILED_OVER for state in states)


def end_of(state: MirrorPartition) -> int:
    """Where the target took over."""
    end = _end(state)
    if end is None:
        raise Refused(f"{state.tp} is {state.phase}: the target has not taken it over")
    return end


def _end(state: MirrorPartition) -> int | None:
    if state.phase is Phase.PROMOTED:
        return state.aligned_end
    return None if state.failover is None else state.failover.end


def source_history(state: MirrorPartition) -> LeaderEpochs:
    """Of the source's log up to there."""
    return LeaderEpochs.of(_LATER, end_of(state), state.source_epochs)


def target_history(state: MirrorPartition) -> LeaderEpochs:
    """Of the target's log up to there."""
    copied = epochs_of_copies(state, state.start_offset or 0)
    return LeaderEpochs.of(_LATER, end_of(state), copied)
