"""Give-backs: link brokers lead a topic of the cluster that was left, and that cluster's own brokers come to lead it again.

There are three occasions: a switch is abandoned, a switch is finished, or link brokers led only because all others had died.

Invariants:
- Giving back is written first (`given_back`, TAKING), before anything is sent that gives a partition back, and nothing leads
  from there to TAKEN again.
- The epochs of each AlterPartition (`attempt`) are written before it leaves, so that the mirror is removed only when none of
  them can be carried out any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from controller.decide.mirrors import change, mirror_of
from controller.decide.source_fence import debts
from controller.decide.take_overs import going_back, link_against
from controller.errors import NotFound, Refused
from controller.image import ControllerImage
from controller.phases import LED_ELSEWHERE, PROMOTING, SWITCHING, Phase
from controller.plan.taken_configs import TAKEN_CONFIGS
from controller.state import (
    Attempt,
    ConfigsPutBack,
    MirrorPartition,
    MirrorTopic,
    Record,
    RemoveMirror,
    SwitchEnd,
)
from wire.frames.types import TopicPartition
from wire.shown_id import listed

#: Milliseconds in which a request may come that was on its way when a switch was given up.
_STRAYS: Final = 120_000


def give_back(image: ControllerImage, link: str, topics: Collection[str], now: int) -> list[Record]:
    """TAKEN -> TAKING. Written before the first request that gives a partition back."""
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
            f"{listed(over)} cannot be given back: the other cluster owns a part of the topic, so the rest is handed over"
        )
    marked = [replace(mirror, given_back=True) for mirror in mirrors if not mirror.given_back]
    return [*marked, *change(image, link, taken, Phase.TAKING, now)]


def note_widening(
    image: ControllerImage, link: str, attempts: Mapping[TopicPartition, Attempt]
) -> list[Record]:
    """Note the epochs of AlterPartitions that take real brokers into the ISR, before they are sent."""
    return [replace(going_back(image, link, tp), attempt=attempt) for tp, attempt in attempts.items()]


def given_back(
    image: ControllerImage,
    link: str,
    topics: Iterable[str],
    judged: Mapping[TopicPartition, Attempt | None],
    now: int,
) -> list[Record]:
    """Remove the mirrors: real brokers lead these topics again, and no AlterPartition that was sent can be carried out any
    more. `judged`: the attempts that this was said of; several may give a topic back at once."""
    records: list[Record] = []
    for topic in topics:
        if (mirror := image.mirrors.get((link, topic))) is None:
            continue
        for tp in mirror.topic_partitions():
            if going_back(image, link, tp).attempt != judged.get(tp):
                raise Refused(f"{tp}: another AlterPartition was sent meanwhile")
        records += [*configs_put_back(image, mirror, now, given_up=True), RemoveMirror(link, topic)]
    return records


def configs_put_back(
    image: ControllerImage, mirror: MirrorTopic, now: int, *, given_up: bool = False
) -> list[Record]:
    """Note the configs that the topic got back, since its own brokers lead it again, with the mirror that follows them
    now, if there is one: a late request could set the configs of the take-over once more. If `mirror` has followed its
    owner's configs meanwhile, those values are noted. `given_up`: the take-over was."""
    follows = image.mirrors.get((link_against(image, mirror.link).name, mirror.topic))
    if follows is None:
        return []
    before = {
        name: mirror.restore_configs.get(name, mirror.copied_configs.get(name)) for name in TAKEN_CONFIGS
    }
    return [replace(follows, put_back=ConfigsPutBack(at=now, configs=before, given_up=given_up))]


def begin_finish(
    image: ControllerImage, link: str, topics: Iterable[str], ending: SwitchEnd, now: int
) -> list[Record]:
    """Note the operator's word that the switch of these topics is final. No change if it is noted already. Right after a
    switch back that was given up a request of that may still come and change the owner's configs; with the mirror the note
    would go by which they are put back once more."""
    records: list[Record] = []
    for topic in topics:
        mirror = mirror_of(image, link, topic)
        if mirror.ending is ending:
            continue
        noted = mirror.put_back
        if noted is not None and noted.given_up and (left := noted.at + _STRAYS - now) > 0:
            raise Refused(
                f"a switch back of topic {topic!r} was given up a moment ago, and a request of it may still come: finish in "
                f"{left // 1000 + 1} s"
            )
        for state in image.topic_partitions(link, topic):
            _refuse_to_finish(mirror, state)
        records.append(replace(mirror, ending=ending, sync=False))
    return records


def _refuse_to_finish(mirror: MirrorTopic, state: MirrorPartition) -> None:
    """A partition that the owner added meanwhile was never taken over. One whose copying has FAILED is the owner's all the
    same, and nothing but this ends its mirror."""
    switched = state.taken is not None or mirror.added(state.partition)
    if state.phase not in (Phase.ACTIVE, Phase.FAILED) or not switched:
        raise Refused(f"{state.tp} is {state.phase}: only a topic that was switched can be finished")


def finish(image: ControllerImage, link: str, topics: Iterable[str], now: int) -> list[Record]:
    """ACTIVE or FAILED -> TAKING: the switch of these topics is final, and the brokers of the cluster that was left come to
    lead them again. The topics must be closed there before, or clients would write to two logs. No change if this has
    begun."""
    records: list[Record] = []
    for topic in topics:
        mirror = mirror_of(image, link, topic)
        states = image.topic_partitions(link, topic)
        if mirror.given_back:
            continue
        for state in states:
            _refuse_to_finish(mirror, state)
        records.append(replace(mirror, given_back=True, finished=True, sync=False))
        records += change(image, link, [state.tp for state in states], Phase.TAKING, now)
    return records


def forget_ends(image: ControllerImage, link: str, tps: Iterable[TopicPartition]) -> list[Record]:
    """Forget the noted ends of partitions that brokers of the cluster lead again, while the rest of their topic is
    being given back. Those brokers take records: if link brokers come to lead once more, the log ends elsewhere.
    `link`: the one back."""
    return [
        replace(state, taken=None, session_epoch=-1)
        for tp in tps
        if (state := going_back(image, link, tp)).taken is not None
    ]


def in_hand(image: ControllerImage, link: str) -> set[str]:
    """Topics that a running job is at work on. Those of its later waves wait for their turn, for long maybe, and lose their
    brokers as any topic does."""
    return {
        tp.topic
        for job in image.running_jobs(link)
        for tp in job.partitions
        if (state := image.partitions.get((link, tp))) is not None and state.phase in PROMOTING
    }


def left_taken(image: ControllerImage, link: str) -> list[str]:
    """Topics of `link` that are TAKING or TAKEN without anything that goes on with them: no promote, no debt of one, no
    restore, no finish. Link brokers led them because all others had died, and the task that gave them back has ended."""
    try:
        back = link_against(image, link).name
    except NotFound:
        return []
    busy = in_hand(image, link)
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
