"""Mirror topics and the phases of their partitions.

Functions of the image that return records and change nothing; a refusal is an exception. `fleet.link_controller` commits and
replays the records. Time and ids are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from controller import keys
from controller.decide.links import link_of
from controller.decide.reverse import reverse_of
from controller.decide.source_fence import leave_closed, refuse_while_owed
from controller.decide.validations import forget, forget_truncated
from controller.errors import AlreadyExists, IllegalTransition, NotFound, Refused
from controller.image import ControllerImage
from controller.phases import BEFORE_HAND_OVER, ENDED, PROMOTING, SWITCHING, Phase, check_transition
from controller.plan.reassign import MOVABLE
from controller.state import (
    UNBOUND,
    MirrorPartition,
    MirrorTopic,
    Record,
    RemoveMirror,
)
from wire.frames.types import TopicId, TopicPartition
from wire.shown_id import listed


class Leadership(NamedTuple):
    """The leadership of a mirror partition in KRaft."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


def mirror_of(image: ControllerImage, link: str, topic: str) -> MirrorTopic:
    link_of(image, link)
    mirror = image.mirrors.get((link, topic))
    if mirror is None:
        raise NotFound(f"link {link!r} has no mirror of topic {topic!r}")
    return mirror


def partition_of(image: ControllerImage, link: str, tp: TopicPartition) -> MirrorPartition:
    state = image.partitions.get((link, tp))
    if state is None:
        raise NotFound(f"link {link!r} has no mirror of partition {tp}")
    return state


def partition_in(image: ControllerImage, link: str, tp: TopicPartition, phase: Phase) -> MirrorPartition:
    state = partition_of(image, link, tp)
    if state.phase is not phase:
        raise Refused(f"{tp} of link {link!r} is {state.phase}, not {phase}")
    return state


def create_mirror(
    image: ControllerImage, mirror: MirrorTopic, states: Sequence[MirrorPartition]
) -> list[Record]:
    link = link_of(image, mirror.link)
    keys.check_topic_name(mirror.topic)
    if mirror.topic != link.prefix + mirror.source_topic:
        raise Refused(
            f"topic {mirror.topic!r}: link {link.name!r} mirrors {mirror.source_topic!r} by another name"
        )
    existing = image.mirror_of_topic(mirror.topic, link.at)
    if existing is not None:
        raise AlreadyExists(f"topic {mirror.topic!r} is a mirror of link {existing.link!r} already")
    if mirror.partitions < 1:
        raise Refused(f"topic {mirror.topic!r} has no partitions")
    if mirror.target_replicas and len(mirror.target_replicas) != mirror.partitions:
        raise Refused(f"topic {mirror.topic!r}: {len(mirror.target_replicas)} replica lists do not fit")
    if [s.tp for s in states] != list(mirror.topic_partitions()) or any(
        s.link != mirror.link for s in states
    ):
        raise Refused(f"topic {mirror.topic!r}: the partition states do not match its {mirror.partitions}")
    return [mirror, *states]


def create_mirrors(
    image: ControllerImage, wanted: Sequence[tuple[MirrorTopic, Sequence[MirrorPartition]]]
) -> list[Record]:
    """All of them or none."""
    names = [mirror.topic for mirror, _ in wanted]
    if len(set(names)) != len(names):
        raise AlreadyExists("a topic is named twice")
    return [record for mirror, states in wanted for record in create_mirror(image, mirror, states)]


def delete_mirror(image: ControllerImage, link: str, topic: str, force: bool = False) -> list[Record]:
    """`force`: also if the topic was left closed at the source, which is still undone later while the link exists."""
    mirror_of(image, link, topic)
    promoting = [s for s in image.topic_partitions(link, topic) if s.phase in PROMOTING]
    if promoting:
        raise Refused(f"topic {topic!r} is being promoted ({promoting[0].tp} is {promoting[0].phase})")
    refuse_while_switched(image, link, topic)
    refuse_while_running(image, link, topic)
    if not force:
        states = image.topic_partitions(link, topic)
        refuse_to_drop(image, link, [state.tp for state in states if state.phase not in ENDED])
        refuse_while_owed(image, link, topic)
    return [*leave_closed(image, link, topic), RemoveMirror(link, topic)]


def refuse_while_switched(image: ControllerImage, link: str, topic: str) -> None:
    """Refused while a switch has a partition, on either side: it undoes what it has begun, or ends it."""
    reverse = reverse_of(image, link)
    against = image.links[link].reverse_of if reverse is None else reverse.name
    for name in (link, against) if against is not None else (link,):
        for state in image.topic_partitions(name, topic):
            if state.phase in SWITCHING:
                raise Refused(f"topic {topic!r} is being switched ({state.tp} is {state.phase})")


def refuse_to_drop(image: ControllerImage, link: str, tps: Iterable[TopicPartition]) -> None:
    """Refused for partitions that were taken over: the brokers of their cluster hold its own log, as far as it went, and
    nobody copies it anew."""
    taken = [state.tp for tp in tps if (state := partition_of(image, link, tp)).taken is not None]
    if taken:
        raise Refused(
            f"{listed([str(tp) for tp in taken])}: the brokers there led it before the switch and hold its log of that "
            "time, which is not copied from the other cluster again: switch back instead, or finish the switch"
        )


def refuse_while_running(image: ControllerImage, link: str, topic: str) -> None:
    """Refused while a job has the topic: it must find the partitions unchanged when it comes to them."""
    for job in image.running_jobs(link):
        if topic in job.topics:
            what = "failover" if job.failover else "promote"
            raise Refused(f"topic {topic!r} is part of {what} {job.id}, which is running")


def bind_mirror(image: ControllerImage, link: str, topic: str, topic_id: TopicId) -> list[Record]:
    """Note the id of the topic that was created at the target. The intent to create it was durable before."""
    mirror = mirror_of(image, link, topic)
    if mirror.topic_id == topic_id:
        return []
    if mirror.topic_id != UNBOUND:
        raise Refused(f"mirror {topic!r} of link {link!r} is bound to another topic id already")
    return [replace(mirror, topic_id=topic_id)]


def bind_mirrors(image: ControllerImage, link: str, ids: Mapping[str, TopicId]) -> list[Record]:
    return [record for topic, topic_id in ids.items() for record in bind_mirror(image, link, topic, topic_id)]


def note_upstream(
    image: ControllerImage, link: str, found: Mapping[str, tuple[str, ...]]
) -> list[MirrorTopic]:
    """Note the clusters that mirrors came through, those that have changed; one that is gone meanwhile has none."""
    mirrors = ((image.mirrors.get((link, topic)), upstream) for topic, upstream in found.items())
    return [
        replace(mirror, upstream=upstream)
        for mirror, upstream in mirrors
        if mirror is not None and mirror.upstream != upstream
    ]


def plan_mirror_configs(
    image: ControllerImage,
    link: str,
    topic: str,
    create: Mapping[str, str],
    restore: Mapping[str, str | None],
) -> list[Record]:
    """Note changed configs of the source topic, or changed defaults of the target. A promote that is under way uses
    them too: it sets the planned configs when it ends."""
    mirror = mirror_of(image, link, topic)
    planned = replace(mirror, copied_configs=dict(create), restore_configs=dict(restore))
    return [] if planned == mirror else [planned]


class CopyNote(NamedTuple):
    """News of a copy from its leader; None: it says nothing of that."""

    #: Replicas that still have to truncate after the source lost data: (broker id, offset).
    untruncated: tuple[tuple[int, int], ...] | None = None
    #: The source's leader epochs as the copied batches show them: (epoch, start offset). Offsets strictly ascend, and so
    #: do epochs, except in a log whose cluster once lost its metadata.
    source_epochs: tuple[tuple[int, int], ...] | None = None


def note_copy(image: ControllerImage, link: str, tp: TopicPartition, note: CopyNote) -> list[Record]:
    """Both at once: a history that is newer than the truncation it came after would, after a crash, let a replica keep
    what the source replaced."""
    state = partition_of(image, link, tp)
    untruncated = state.untruncated if note.untruncated is None else tuple(sorted(note.untruncated))
    history = state.source_epochs if note.source_epochs is None else note.source_epochs
    for earlier, later in pairwise(history):
        if earlier[0] == later[0] or earlier[1] >= later[1]:
            raise Refused(f"{tp}: source leader epochs {earlier} and {later} do not ascend")
    changed = replace(state, untruncated=untruncated, source_epochs=history)
    if changed == state:
        return []
    truncates = untruncated != state.untruncated
    return [changed, *(forget_truncated(image, link, tp, dict(untruncated)) if truncates else ())]


def change(
    image: ControllerImage,
    link: str,
    tps: Iterable[TopicPartition],
    phase: Phase,
    now: int,
    **fields: Any,
) -> list[Record]:
    """Move partitions to a phase, all or none. Entering ACTIVE drops what only a promote needs."""
    records: list[Record] = []
    for tp in tps:
        state = partition_of(image, link, tp)
        if state.phase in PROMOTING and state.phase not in BEFORE_HAND_OVER and phase is Phase.FAILED:
            raise Refused(f"{tp} is {state.phase}: it cannot fail any more")
        subject = f"partition {tp} of link {link!r}"
        check_transition(subject, state.phase, phase)
        if phase is Phase.FENCED and state.phase is not Phase.CATCHING_UP and "failover" not in fields:
            raise IllegalTransition(subject, state.phase, phase)
        changed = replace(state, phase=phase, since=now, **fields)
        if phase is Phase.ACTIVE:
            before = Phase.ACTIVE if state.failover is None else state.failover.before
            changed = replace(changed, aligned_end=None, attempt=None, failover=None)
            if before is Phase.PAUSED:
                changed = replace(changed, phase=before)
            if changed.failure is not None:
                changed = replace(changed, phase=Phase.FAILED, reason=changed.failure, failure=None)
        elif phase is Phase.VALIDATED and (changed.attempt is None or changed.aligned_end is None):
            raise Refused(f"{tp}: {phase} needs the hand-over that may be sent and the end it is aligned at")
        elif phase is Phase.HANDED_OVER:
            # An earlier failure of the copying does not matter: the target's replicas have everything.
            changed = replace(changed, failure=None, reason=None)
        records.append(changed)
    return records


def establish(
    image: ControllerImage,
    link: str,
    tp: TopicPartition,
    leadership: Leadership,
    session_epoch: int,
    start_offset: int,
    now: int,
) -> list[Record]:
    """The link broker leads the partition and the start offset is known: copying may begin."""
    return change(
        image,
        link,
        [tp],
        Phase.ACTIVE,
        now,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        isr=leadership.isr,
        session_epoch=session_epoch,
        start_offset=start_offset,
        reason=None,
    )


class Establishment(NamedTuple):
    """All that `establish` notes of one partition."""

    leadership: Leadership
    session_epoch: int
    start_offset: int


def establish_all(
    image: ControllerImage, link: str, ready: Mapping[TopicPartition, Establishment], now: int
) -> list[Record]:
    """`establish` for many. One that somebody paused or deleted meanwhile is left out: it holds up no other."""
    return [
        record
        for tp, one in ready.items()
        if (state := image.partitions.get((link, tp))) is not None and state.phase is Phase.LINKING
        for record in establish(image, link, tp, *one, now)
    ]


def adopt_leadership(
    image: ControllerImage, link: str, changes: Mapping[TopicPartition, Leadership], controller_epoch: int
) -> list[Record]:
    """Adopt the leadership in KRaft. Epochs older than the known one change nothing."""
    records: list[Record] = []
    for tp, leadership in changes.items():
        state = partition_of(image, link, tp)
        known = Leadership(state.leader, state.leader_epoch, state.isr)
        if leadership.leader_epoch < state.leader_epoch or leadership == known:
            continue
        records.append(
            replace(
                state,
                leader=leadership.leader,
                leader_epoch=leadership.leader_epoch,
                isr=leadership.isr,
                controller_epoch=controller_epoch,
            )
        )
    return records


def follow_replicas(
    image: ControllerImage, link: str, moved: Mapping[TopicPartition, Sequence[int]]
) -> list[Record]:
    """The real brokers that partitions have been reassigned to at the target. A partition that is over, or whose writes a
    promote holds, is left as it is: others may have been compared by then."""
    records: list[Record] = []
    for topic in dict.fromkeys(tp.topic for tp in moved):
        mirror = mirror_of(image, link, topic)
        replicas = list(mirror.target_replicas)
        for tp, wanted in moved.items():
            if (
                tp.topic == topic
                and partition_of(image, link, tp).phase in MOVABLE
                and tp.partition < len(replicas)
            ):
                replicas[tp.partition] = tuple(wanted)
        changed = replace(mirror, target_replicas=tuple(replicas))
        records += [] if changed == mirror else [changed]
    return records


def set_paused(image: ControllerImage, link: str, topic: str, paused: bool, now: int) -> list[Record]:
    mirror = mirror_of(image, link, topic)
    refuse_while_switched(image, link, topic)
    records: list[Record] = []
    if mirror.paused != paused:
        records.append(replace(mirror, paused=paused))
    for state in image.topic_partitions(link, topic):
        if state.phase in PROMOTING:
            raise Refused(f"topic {topic!r} is being promoted ({state.tp} is {state.phase})")
        if paused and state.phase in (Phase.LINKING, Phase.ACTIVE):
            records += change(image, link, [state.tp], Phase.PAUSED, now)
        elif not paused and state.phase is Phase.PAUSED:
            phase = Phase.ACTIVE if state.session_epoch >= 0 else Phase.LINKING
            records += change(image, link, [state.tp], phase, now)
    refuse_while_running(image, link, topic)
    return records


def fail_partition(
    image: ControllerImage, link: str, tp: TopicPartition, reason: str, now: int
) -> list[Record]:
    """A mirror failed. While a promote or a switch owns the partition only `failure` is set: it sees that and gives up."""
    state = partition_of(image, link, tp)
    if state.phase in ENDED or state.phase is Phase.HANDED_OVER or state.phase is Phase.FAILED:
        return []
    if state.phase in PROMOTING | SWITCHING:
        return [] if state.failure is not None else [replace(state, failure=reason)]
    return change(image, link, [tp], Phase.FAILED, now, reason=reason)


def restart_partition(image: ControllerImage, link: str, tp: TopicPartition, now: int) -> list[Record]:
    """The operator's way out of FAILED: link the partition again from the beginning, with a new session epoch."""
    refuse_to_drop(image, link, [tp])
    restarted = change(
        image,
        link,
        [tp],
        Phase.LINKING,
        now,
        reason=None,
        failure=None,
        session_epoch=-1,
        start_offset=None,
        source_epochs=(),
    )
    return [*restarted, *forget(image, link, [tp])]
