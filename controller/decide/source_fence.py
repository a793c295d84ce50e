"""`--fence-source`: a source that refuses writes to a topic while it is promoted.

The routers' fence holds writes that come through the sidecars. A producer that still writes to the source directly
would only be noticed afterwards and abandon the promote; with this option the source refuses it. Rules:
- The source is closed after the fence, once no forwarded write is in flight: it would be refused too.
- The intent to close a topic is durable before the source is asked. To go back, now or after a restart, is to open
the source first and to unfence then: held writes would be refused otherwise, and refusals reach applications.
- A source that cannot be reached accepts no forwarded write either, so going back does not wait for it forever. The closed
  topic stays a debt of the job (`debts`), which is settled as soon as the source can be reached.
- A close without an answer, or one from before a restart, may still be carried out after the source was opened: a broker
  repeats requests that it could not pass to its controller. So the topic stays a debt, and is opened again, for longer than
  that.
- A topic that has ended stays closed: no writes belong there any more. The job says so, also after its mirror is deleted
(`leave_closed`). - A mirror or a link is not deleted without force if that would forget a debt. The debt of a deleted
mirror is settled as long as its link exists; with the link the last record of it is gone.
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
    """Job id -> topics that the ended job left closed although they have not ended.

    Their writes are still forwarded, or their mirror was deleted and their producers are at the source again.
    """
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
    """The debts of a link, or of one of its topics: topic -> the job that left it closed."""
    return {
        one: job_id
        for job_id, found in debts(image, link).items()
        for one in found
        if topic is None or one == topic
    }


def refuse_while_owed(image: ControllerImage, link: str, topic: str | None = None) -> None:
    """SourceClosed if there are debts."""
    owed = owed_topics(image, link, topic)
    if owed:
        raise SourceClosed(owed)


def leave_closed(image: ControllerImage, link: str, topic: str) -> list[Record]:
    """The records to write when a mirror is deleted: that its topic had ended, which only its partitions show."""
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
    """(topics of which only these partitions are forwarded, topics with other forwarded partitions).

    The source can close whole topics only: closing one of the second kind would refuse forwarded writes.
    """
    whole: list[str] = []
    parts: list[str] = []
    tps = set(tps)
    for topic in sorted({tp.topic for tp in tps}):
        others = [
            state
            for state in image.topic_partitions(link, topic)
            if state.tp not in tps and state.phase not in LED_ELSEWHERE
        ]
        (parts if others else whole).append(topic)
    return whole, parts
