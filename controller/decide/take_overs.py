"""Take-overs: link brokers become the leaders of a topic in the cluster whose brokers led it until then, and give it back.

A switch of a topic has two links: the one whose mirror is promoted (*forward*), and the one against it (*back*), whose
mirror lies in the cluster that is left, and is made here. The same rules hold in both directions.

Invariants:
- TAKING is written before the first request to that cluster, the epochs of each AlterPartition (`attempt`) before it leaves.
  Both writes need the newest controller epoch, so that a deposed link controller shrinks or widens no ISR.
- The mirror that is promoted may be handed over only while the one against it is TAKEN (`refuse_unless_taken`). Giving back
  is written first, too (`given_back`, TAKING), and nothing leads from there to TAKEN again.
- TAKEN becomes ACTIVE only when the other cluster's metadata log has shown its own brokers as leaders, which is what
  HANDED_OVER says of the forward mirror.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from controller.decide.links import link_of
from controller.decide.mirrors import Leadership, change, create_mirror, mirror_of, partition_of
from controller.decide.reverse import reverse_of
from controller.decide.source_fence import debts, leave_closed
from controller.errors import NotFound, Refused, listed
from controller.image import ControllerImage
from controller.phases import ENDED, LED_ELSEWHERE, SWITCHING, Phase
from controller.plan.taken_configs import TAKEN_CONFIGS, before_take_over
from controller.state import (
    Attempt,
    ConfigsPutBack,
    Exported,
    Link,
    MirrorPartition,
    MirrorTopic,
    Record,
    RemoveMirror,
    SwitchEnd,
    Taken,
)
from wire.frames.types import TopicId, TopicPartition


class OwnerTopic(NamedTuple):
    """A topic in the cluster that is to be left, as its metadata log shows it."""

    topic_id: TopicId
    replicas: tuple[tuple[int, ...], ...]  # its own brokers by partition, preferred leader first
    overrides: Mapping[str, str]
    leadership: tuple[Leadership, ...]


class Shrink(NamedTuple):
    """An AlterPartition that is about to take the real brokers out of the ISR; the log ends at `end`."""

    end: int
    attempt: Attempt
    leadership: Leadership
    exported: Exported | None = None  # what lies behind, of a source that is restored


def link_against(image: ControllerImage, link: str) -> Link:
    """The link that runs the other way."""
    known = link_of(image, link)
    if known.reverse_of is not None:
        return link_of(image, known.reverse_of)
    found = reverse_of(image, link)
    if found is None:
        raise NotFound(f"no link runs against {link!r}")
    return found


def begin(
    image: ControllerImage, link: str, topics: Mapping[str, OwnerTopic], now: int, given_back: bool = False
) -> list[Record]:
    """TAKING, for topics that `link` mirrors; one that is TAKING or TAKEN is left as it is. `given_back`: a link broker
    leads because all others died, and nothing is to be taken."""
    back = link_against(image, link)
    if link_of(image, link).prefix or back.prefix:
        raise Refused(f"link {link!r} gives its mirrors another name: their topics cannot be switched")
    records: list[Record] = []
    for topic, owner in topics.items():
        forward = mirror_of(image, link, topic)
        if (back.name, topic) in image.mirrors:
            states = image.topic_partitions(back.name, topic)
            if image.mirrors[back.name, topic].given_back and not given_back:
                raise Refused(f"topic {topic!r} is being given back to the brokers that led it")
            if any(state.phase not in SWITCHING for state in states):
                raise Refused(
                    f"link {back.name!r} has a mirror of topic {topic!r}, which is {states[0].phase}"
                )
            continue
        if len(owner.replicas) != forward.partitions:
            raise Refused(
                f"topic {topic!r} has {len(owner.replicas)} partitions, its mirror {forward.partitions}"
            )
        mirror = MirrorTopic(
            link=back.name,
            topic=topic,
            topic_id=owner.topic_id,
            source_topic_id=forward.topic_id,
            partitions=forward.partitions,
            target_replicas=owner.replicas,
            copied_configs={**owner.overrides, **TAKEN_CONFIGS},
            restore_configs=before_take_over(forward, owner.overrides, now),
            configs_from_target=forward.configs_from_target,
            created_at=now,
            given_back=given_back,
        )
        states = [
            _taking(image, back.name, partition_of(image, link, tp), owner.leadership[tp.partition], now)
            for tp in mirror.topic_partitions()
        ]
        records += create_mirror(image, mirror, states)
    return records


def _taking(
    image: ControllerImage, back: str, forward: MirrorPartition, leadership: Leadership, now: int
) -> MirrorPartition:
    start = forward.start_offset or 0
    return MirrorPartition(
        link=back,
        topic=forward.topic,
        partition=forward.partition,
        phase=Phase.TAKING,
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        isr=leadership.isr,
        start_offset=start,
        source_epochs=epochs_of_copies(forward, start),
        since=now,
    )


def epochs_of_copies(forward: MirrorPartition, start: int) -> tuple[tuple[int, int], ...]:
    """Of the log that it will read from: all batches have the forward mirror's session epoch, but for those of a time when
    that cluster's own brokers led."""
    if forward.taken is None:
        return ((forward.session_epoch, start),)
    end = forward.taken.end
    before = [(epoch, at) for epoch, at in forward.taken.epochs if at < end]
    return (*before, (forward.session_epoch, end))


def note_shrinks(image: ControllerImage, link: str, shrinks: Mapping[TopicPartition, Shrink]) -> list[Record]:
    """Before the real brokers are taken out of the ISR: where the log ends, and under which epochs. `link`: the one back."""
    return [
        replace(_led(image, link, tp, shrink.end, shrink.leadership, shrink.exported), attempt=shrink.attempt)
        for tp, shrink in shrinks.items()
        if _going_forward(image, link, tp)
    ]


def note_ends(
    image: ControllerImage, link: str, ends: Mapping[TopicPartition, tuple[int, Leadership]]
) -> list[Record]:
    """Link brokers lead, and give back: where the log ends, for the brokers that follow them until they lead again."""
    return [
        _led(image, link, tp, end, leadership)
        for tp, (end, leadership) in ends.items()
        if _only(image, link, tp, Phase.TAKING).taken is None
    ]


def _led(
    image: ControllerImage,
    link: str,
    tp: TopicPartition,
    end: int,
    leadership: Leadership,
    exported: Exported | None = None,
) -> MirrorPartition:
    history = partition_of(image, link_against(image, link).name, tp).source_epochs
    return replace(
        _only(image, link, tp, Phase.TAKING),
        taken=Taken(
            end=end,
            epochs=tuple((epoch, start) for epoch, start in history if start < end),
            exported=exported,
        ),
        leader=leadership.leader,
        leader_epoch=leadership.leader_epoch,
        isr=leadership.isr,
        session_epoch=leadership.leader_epoch,
    )


def take(
    image: ControllerImage, link: str, leaderships: Mapping[TopicPartition, Leadership], now: int
) -> list[Record]:
    """TAKING -> TAKEN: the metadata log shows link brokers alone."""
    records: list[Record] = []
    for tp, leadership in leaderships.items():
        if _going_forward(image, link, tp).taken is None:
            raise Refused(f"{tp} was not about to be taken over")
        records += change(
            image,
            link,
            [tp],
            Phase.TAKEN,
            now,
            leader=leadership.leader,
            leader_epoch=leadership.leader_epoch,
            isr=leadership.isr,
        )
    return records


def give_back(image: ControllerImage, link: str, topics: Collection[str], now: int) -> list[Record]:
    """TAKEN -> TAKING, before anything is sent that gives a partition back."""
    mirrors = [mirror for topic in topics if (mirror := image.mirrors.get((link, topic))) is not None]
    taken = [
        state.tp
        for topic in topics
        for state in image.topic_partitions(link, topic)
        if state.phase is Phase.TAKEN
    ]
    forward = link_against(image, link).name
    over = [
        str(tp)
        for tp in taken
        if (topic := image.topic_partitions(forward, tp.topic))
        and any(s.phase in (Phase.HANDED_OVER, Phase.PROMOTED) for s in topic)
    ]
    if over:
        raise Refused(
            f"{listed(over)}: the other cluster owns a part of the topic, so all of it is handed over"
        )
    marked = [replace(mirror, given_back=True) for mirror in mirrors if not mirror.given_back]
    return [*marked, *change(image, link, taken, Phase.TAKING, now)]


def begin_finish(image: ControllerImage, link: str, topics: Iterable[str], ending: SwitchEnd) -> list[Record]:
    """The operator's word that the switch of these topics is final. Said already: no change."""
    records: list[Record] = []
    for topic in topics:
        mirror = mirror_of(image, link, topic)
        if mirror.ending is ending:
            continue
        for state in image.topic_partitions(link, topic):
            if state.phase is not Phase.ACTIVE or state.taken is None:
                raise Refused(f"{state.tp} is {state.phase}: only a topic that was switched can be finished")
        records.append(replace(mirror, ending=ending, sync=False))
    return records


def finish(image: ControllerImage, link: str, topics: Iterable[str], now: int) -> list[Record]:
    """ACTIVE -> TAKING: the switch of these topics is final, and the brokers of the cluster that was left lead them again.
    They are closed there before, or this would be a fork. Begun already: no change."""
    records: list[Record] = []
    for topic in topics:
        mirror = mirror_of(image, link, topic)
        states = image.topic_partitions(link, topic)
        if mirror.given_back:
            continue
        for state in states:
            if state.phase is not Phase.ACTIVE or state.taken is None:
                raise Refused(f"{state.tp} is {state.phase}: only a topic that was switched can be finished")
        records.append(replace(mirror, given_back=True, finished=True, sync=False))
        records += change(image, link, [state.tp for state in states], Phase.TAKING, now)
    return records


def note_widening(
    image: ControllerImage, link: str, attempts: Mapping[TopicPartition, Attempt]
) -> list[Record]:
    """Before an AlterPartition that takes real brokers into the ISR."""
    return [
        replace(_only(image, link, tp, Phase.TAKING), attempt=attempt) for tp, attempt in attempts.items()
    ]


def given_back(image: ControllerImage, link: str, topics: Iterable[str], now: int) -> list[Record]:
    """Real brokers lead all of these topics again, and no AlterPartition that was sent can be carried out any more."""
    records: list[Record] = []
    for topic in topics:
        for state in image.topic_partitions(link, topic):
            _only(image, link, state.tp, Phase.TAKING)
        if (mirror := image.mirrors.get((link, topic))) is not None:
            records += [*_configs_put_back(image, mirror, now), RemoveMirror(link, topic)]
    return records


def _configs_put_back(image: ControllerImage, mirror: MirrorTopic, now: int) -> list[Record]:
    """Link brokers led the topic, and its own brokers do again. Noted with the mirror that follows them now, if any. The
    mirror may have followed its owner's configs meanwhile: then those of them are noted that a late request would undo."""
    follows = image.mirrors.get((link_against(image, mirror.link).name, mirror.topic))
    if follows is None:
        return []
    before = {
        name: mirror.restore_configs.get(name, mirror.copied_configs.get(name)) for name in TAKEN_CONFIGS
    }
    return [replace(follows, put_back=ConfigsPutBack(at=now, configs=before))]


def left_taken(image: ControllerImage, link: str) -> list[str]:
    """Topics of `link` that are TAKING or TAKEN, and that nobody is about to go on with: no promote and no debt of one, no
    restore, and no finish. Link brokers led them because all others had died, and whoever gave them back has ended."""
    try:
        back = link_against(image, link).name
    except NotFound:
        return []
    busy = {topic for job in image.running_jobs(link) for topic in job.topics}
    for job_id, owed in debts(image, link).items():
        busy.update(owed if image.jobs[link, job_id].switch else ())
    found = []
    for mirror in image.link_mirrors(back):
        forward = image.mirrors.get((link, mirror.topic))
        states = image.topic_partitions(back, mirror.topic)
        if (
            mirror.topic not in busy
            and mirror.ending is None
            and not (forward is not None and forward.restoring)
            and any(state.phase in SWITCHING for state in states)
            and not any(state.phase in LED_ELSEWHERE for state in image.topic_partitions(link, mirror.topic))
        ):
            found.append(mirror.topic)
    return found


def forget_ends(image: ControllerImage, link: str, tps: Iterable[TopicPartition]) -> list[Record]:
    """Brokers of the cluster lead these again and take records, while the rest of their topic is being given back. If link
    brokers come to lead them once more, their log ends elsewhere. `link`: the one back."""
    return [
        replace(state, taken=None, session_epoch=-1)
        for tp in tps
        if (state := partition_of(image, link, tp)).phase is Phase.TAKING and state.taken is not None
    ]


def reverse(
    image: ControllerImage,
    link: str,
    topics: Iterable[str],
    now: int,
    led: Collection[TopicPartition] = (),
) -> list[Record]:
    """TAKEN -> ACTIVE for the partitions of `link`'s mirrors that the other cluster's own brokers lead now. `led`: those of
    which its metadata log says so, and the state may not yet."""
    back = link_against(image, link).name
    tps = [
        state.tp
        for topic in topics
        for state in image.topic_partitions(back, topic)
        if state.phase is Phase.TAKEN
        and (forward := image.partitions.get((link, state.tp))) is not None
        and (forward.phase in LED_ELSEWHERE or (state.tp in led and forward.phase is Phase.VALIDATED))
    ]
    return change(image, back, tps, Phase.ACTIVE, now, reason=None)


def end_forward(image: ControllerImage, link: str, topics: Sequence[str], now: int) -> list[Record]:
    """Remove `link`'s mirrors of topics that are reversed as a whole. The jobs' notes that their source is closed end too:
    the topic may be switched back, and a new mirror of its name owes nothing."""
    back = link_against(image, link).name
    records: list[Record] = []
    for topic in topics:
        if (link, topic) not in image.mirrors:
            continue
        rest = [s for s in image.topic_partitions(link, topic) if s.phase not in ENDED]
        rest += [s for s in image.topic_partitions(back, topic) if s.phase in SWITCHING]
        if rest or (back, topic) not in image.mirrors:
            raise Refused(
                f"topic {topic!r} is not reversed yet ({', '.join(s.phase for s in rest[:1]) or 'not taken over'})"
            )
        mirror = image.mirrors[link, topic]
        if any(state.taken is not None for state in image.topic_partitions(link, topic)):
            records += _configs_put_back(image, mirror, now)
        records += [*leave_closed(image, link, topic), RemoveMirror(link, topic)]
    jobs = [
        replace(job, source_fenced=tuple(t for t in job.source_fenced if t not in topics))
        for (name, _), job in sorted(image.jobs.items())
        if name == link and job.switch and set(job.source_fenced).intersection(topics)
    ]
    return [*records, *jobs]


def refuse_unless_taken(image: ControllerImage, link: str, tps: Collection[TopicPartition]) -> None:
    """A hand-over of these partitions is about to be sent. In a switch their source must be held by link brokers alone, and
    nobody must have begun to give it back."""
    chosen = set(tps)
    switched = [tp for job in image.running_jobs(link) if job.switch for tp in job.partitions if tp in chosen]
    if not switched:
        return
    back = link_against(image, link).name
    loose = [
        str(tp)
        for tp in switched
        if (state := image.partitions.get((back, tp))) is None or state.phase is not Phase.TAKEN
    ]
    if loose:
        raise Refused(f"the source of {listed(loose)} is not taken over: its own brokers may lead")


def _going_forward(image: ControllerImage, link: str, tp: TopicPartition) -> MirrorPartition:
    if mirror_of(image, link, tp.topic).given_back:
        raise Refused(f"{tp} is being given back to the brokers that led it")
    return _only(image, link, tp, Phase.TAKING)


def _only(image: ControllerImage, link: str, tp: TopicPartition, phase: Phase) -> MirrorPartition:
    state = partition_of(image, link, tp)
    if state.phase is not phase:
        raise Refused(f"{tp} of link {link!r} is {state.phase}, not {phase}")
    return state
