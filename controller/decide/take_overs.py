"""Take-overs: link brokers become the leaders of a topic in the cluster whose brokers led it until then.

A switch of a topic has two links: the one whose mirror is promoted (*forward*), and the one against it (*back*), whose
mirror lies in the cluster that is left, and is made here. The same rules hold in both directions.

Invariants:
- TAKING is written before the first request to that cluster, the epochs of each AlterPartition (`attempt`) before it leaves.
  Both writes need the newest controller epoch, so that a deposed link controller shrinks or widens no ISR.
- The mirror that is promoted may be handed over only while the one against it is TAKEN (`refuse_unless_taken`). A topic
  that is being given back (`give_backs`) is taken over no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from controller.decide.links import link_of
from controller.decide.mirrors import Leadership, change, create_mirror, mirror_of, partition_in, partition_of
from controller.decide.reverse import reverse_of
from controller.errors import NotFound, Refused
from controller.image import ControllerImage
from controller.phases import SWITCHING, Phase
from controller.plan.taken_configs import TAKEN_CONFIGS, before_take_over
from controller.state import (
    Attempt,
    Exported,
    Link,
    MirrorPartition,
    MirrorTopic,
    Record,
    Taken,
)
from wire.frames.types import TopicId, TopicPartition
from wire.shown_id import listed


class OwnerTopic(NamedTuple):
    """A topic as the metadata log of the cluster that is to be left shows it."""

    topic_id: TopicId
    replicas: tuple[tuple[int, ...], ...]  # its own brokers by partition, preferred leader first
    overrides: Mapping[str, str]
    leadership: tuple[Leadership, ...]


class Shrink(NamedTuple):
    """An AlterPartition that is about to take the real brokers out of the ISR; the log ends at `end`."""

    end: int
    attempt: Attempt
    leadership: Leadership
    exported: Exported | None = None  # the exported records beyond `end`, of a source that is restored


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
    """TAKING, for topics that `link` mirrors. A topic that is TAKING or TAKEN stays as it is. `given_back`: the topic
    is only to be given back, because a link broker came to lead it when all others died."""
    back = link_against(image, link)
    if link_of(image, link).prefix or back.prefix:
        raise Refused(
            f"link {link!r} has a prefix, so its mirrors have other names than their topics: they cannot be switched"
        )
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
            _taking(back.name, partition_of(image, link, tp), owner.leadership[tp.partition], now)
            for tp in mirror.topic_partitions()
        ]
        records += create_mirror(image, mirror, states)
    return records


def _taking(back: str, forward: MirrorPartition, leadership: Leadership, now: int) -> MirrorPartition:
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
    """The leader epochs of the copies at the other cluster, which the mirror back will read: its link brokers stamped all
    batches with the forward mirror's session epoch, except those of a time when the cluster's own brokers led."""
    if forward.taken is None:
        return ((forward.session_epoch, start),)
    end = forward.taken.end
    before = [(epoch, at) for epoch, at in forward.taken.epochs if at < end]
    return (*before, (forward.session_epoch, end))


def note_shrinks(image: ControllerImage, link: str, shrinks: Mapping[TopicPartition, Shrink]) -> list[Record]:
    """Note the end and the leader epochs of each log, before the real brokers are taken out of the ISR. `link`: the
    one back."""
    return [
        replace(_led(image, link, tp, shrink.end, shrink.leadership, shrink.exported), attempt=shrink.attempt)
        for tp, shrink in shrinks.items()
        if _going_forward(image, link, tp)
    ]


def note_ends(
    image: ControllerImage, link: str, ends: Mapping[TopicPartition, tuple[int, Leadership]]
) -> list[Record]:
    """Note the end of each log that link brokers lead and give back: the real brokers follow up to it before they lead
    again."""
    return [
        _led(image, link, tp, end, leadership)
        for tp, (end, leadership) in ends.items()
        if going_back(image, link, tp).taken is None
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
        partition_in(image, link, tp, Phase.TAKING),
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
    """TAKING -> TAKEN: the metadata log shows that only link brokers lead, are in the ISR and may be elected."""
    records: list[Record] = []
    for tp, leadership in leaderships.items():
        if _going_forward(image, link, tp).taken is None:
            raise Refused(f"{tp} cannot be TAKEN: the end of its log was not noted before")
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


def refuse_unless_taken(image: ControllerImage, link: str, tps: Collection[TopicPartition]) -> None:
    """Called when a hand-over of these partitions is about to be sent. In a switch, link brokers alone must hold their
    source, and giving it back must not have begun."""
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
        raise Refused(
            f"the source of {listed(loose)} is not taken over, so its own brokers may lead there and take writes"
        )


def _going_forward(image: ControllerImage, link: str, tp: TopicPartition) -> MirrorPartition:
    if mirror_of(image, link, tp.topic).given_back:
        raise Refused(f"{tp} is being given back to the brokers that led it")
    return partition_in(image, link, tp, Phase.TAKING)


def going_back(image: ControllerImage, link: str, tp: TopicPartition) -> MirrorPartition:
    """The state of a partition that is being given back. Refused where it is not, or no more: somebody else may have given
    the topic back, and the next switch may have taken it over again."""
    if not mirror_of(image, link, tp.topic).given_back:
        raise Refused(f"{tp} is not being given back")
    return partition_in(image, link, tp, Phase.TAKING)
