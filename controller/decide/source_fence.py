"""A source that refuses writes while a topic is promoted (`--fence-source`): when, and how that is undone. What makes it
refuse is the port's, and the step of a promote is `promote_source_fence`.

The routers' fence holds what comes through the sidecars; a producer that was not moved is only found afterwards, and
keeps the promote from happening. With this it is refused instead. Rules:
- The source is closed behind the fence, once nothing forwarded is in flight: it would be refused too.
- That a topic may be closed is durable before the source is asked. Whoever goes back, in this life or a later one, opens
  it first, and unfences then (`BatchContext.go_back`): held writes would be refused, and refusals reach applications.
- A source that cannot be reached accepts no forwarded write either: going back does not wait for it forever. What is
  left is a debt of the job (`debts`), which is settled as soon as the source is there again.
- A close without an answer, or of an earlier life, may still be carried out after the source was opened: a broker repeats
  what it could not hand on to its controller. So the topic stays a debt, and is opened again, for longer than that.
- A topic that has ended stays closed: nothing belongs there any more. The job says so, also when the mirror is gone
  (`leave_closed`).
- A mirror, or a link, whose end would make somebody forget a debt is not deleted unless that is insisted on. The debt of
  a mirror that is gone is settled as long as there is a link; with the link goes the last who knows of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from controller.errors import SourceClosed
from controller.image import ControllerImage
from controller.phases import LED_ELSEWHERE
from controller.state import JobStatus, PromoteJob, Record
from wire.frames.types import TopicPartition


def debts(image: ControllerImage, link: str) -> dict[int, list[str]]:
    """By job, topics that a job which is over has left closed although they did not end: they go on being forwarded, or
    their mirror was deleted and their producers are at the source again."""
    found: dict[int, list[str]] = {}
    for (name, job_id), job in image.jobs.items():
        if name != link or job.status is JobStatus.RUNNING:
            continue
        owed = [topic for topic in job.source_fenced if _is_owed(image, job, topic)]
        if owed:
            found[job_id] = owed
    return found


def _is_owed(image: ControllerImage, job: PromoteJob, topic: str) -> bool:
    if (job.link, topic) in image.mirrors:
        return any(state.phase not in LED_ELSEWHERE for state in image.topic_partitions(job.link, topic))
    # A job that is DONE has promoted all of its topics.
    return job.status is not JobStatus.DONE and topic not in job.closed_for_good


def owed_topics(image: ControllerImage, link: str, topic: str | None = None) -> dict[str, int]:
    """The debts of a link, or those of one topic of it: each topic with a job that left it closed."""
    return {
        one: job_id
        for job_id, found in debts(image, link).items()
        for one in found
        if topic is None or one == topic
    }


def refuse_while_owed(image: ControllerImage, link: str, topic: str | None = None) -> None:
    """SourceClosed if there are any."""
    owed = owed_topics(image, link, topic)
    if owed:
        raise SourceClosed(owed)


def leave_closed(image: ControllerImage, link: str, topic: str) -> list[Record]:
    """What has to be kept when a mirror is deleted: that its topic had ended, which only its partitions tell."""
    states = image.topic_partitions(link, topic)
    if any(state.phase not in LED_ELSEWHERE for state in states):
        return []
    return [
        replace(job, closed_for_good=tuple(sorted({*job.closed_for_good, topic})))
        for (name, _), job in sorted(image.jobs.items())
        if name == link and topic in job.source_fenced and topic not in job.closed_for_good
    ]


def whole_topics(
    image: ControllerImage, link: str, tps: Collection[TopicPartition]
) -> tuple[list[str], list[str]]:
    """(topics of which nothing but these partitions is forwarded, those of which other partitions are). The source knows
    topics only: closing one of the second kind would refuse forwarded writes."""
    whole: list[str] = []
    parts: list[str] = []
    for topic in sorted({tp.topic for tp in tps}):
        others = [
            state
            for state in image.topic_partitions(link, topic)
            if state.tp not in tps and state.phase not in LED_ELSEWHERE
        ]
        (parts if others else whole).append(topic)
    return whole, parts
