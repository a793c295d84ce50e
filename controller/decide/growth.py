"""Partitions that the source has added to a mirrored topic become part of its mirror.

A promote that is under way takes them along, unless its writes are held: what is behind a fence is neither more nor less
than what was compared. A topic of which a part is handed over can only go forward, with what was added, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.decide.mirrors import mirror_of
from controller.errors import Refused
from controller.image import ControllerImage
from controller.phases import HELD, LED_ELSEWHERE, Phase
from controller.state import MirrorPartition, MirrorTopic, Record


def grow_mirror(
    image: ControllerImage,
    link: str,
    topic: str,
    partitions: int,
    replicas: Sequence[Sequence[int]],
    now: int,
    controller_epoch: int,
) -> list[Record]:
    """`replicas`: the real brokers that are to hold each of the added ones; none, if the mirror does not say of others."""
    mirror = mirror_of(image, link, topic)
    if partitions <= mirror.partitions:
        return []
    why = not_now(image, mirror)
    if why is not None:
        raise Refused(f"topic {topic!r}: {why}")
    added = range(mirror.partitions, partitions)
    if len(replicas) != (len(added) if mirror.target_replicas else 0):
        raise Refused(f"topic {topic!r}: {len(replicas)} replica lists do not fit {len(added)} partitions")
    grown = replace(
        mirror,
        partitions=partitions,
        target_replicas=(*mirror.target_replicas, *(tuple(one) for one in replicas)),
        grown_from=mirror.partitions if mirror.grown_from is None else mirror.grown_from,
    )
    states = [
        MirrorPartition(
            link=link,
            topic=topic,
            partition=index,
            phase=Phase.PAUSED if mirror.paused else Phase.LINKING,
            since=now,
            controller_epoch=controller_epoch,
        )
        for index in added
    ]
    jobs = [
        replace(job, partitions=(*job.partitions, *(state.tp for state in states)))
        for job in image.running_jobs(link)
        if topic in job.topics
    ]
    return [grown, *states, *jobs]


def not_now(image: ControllerImage, mirror: MirrorTopic) -> str | None:
    """Why the mirror cannot take partitions that were added at the source; None if it can."""
    states = image.topic_partitions(mirror.link, mirror.topic)
    handed_over = [state for state in states if state.phase in LED_ELSEWHERE]
    if len(handed_over) == len(states):
        return "it was handed over to the target"
    if any(job.failover and mirror.topic in job.topics for job in image.running_jobs(mirror.link)):
        return "its source is given up by a failover"
    if not handed_over and any(state.phase in HELD for state in states):
        return "its writes are held by a promote"
    if all(state.phase is Phase.FAILED for state in states if state not in handed_over):
        return "the mirror has failed"
    return None
