"""Reversals: the cluster that a topic was switched to leads it, and the mirror in the cluster that was left follows it.

Invariant: TAKEN becomes ACTIVE only when the metadata log of the new owner has shown its own brokers as leaders, which is
what HANDED_OVER says of the forward mirror.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from controller.decide.give_backs import configs_put_back
from controller.decide.mirrors import change
from controller.decide.source_fence import leave_closed
from controller.decide.take_overs import link_against
from controller.errors import Refused
from controller.image import ControllerImage
from controller.phases import ENDED, LED_ELSEWHERE, SWITCHING, Phase
from controller.state import Record, RemoveMirror
from wire.frames.types import TopicPartition


def reverse(
    image: ControllerImage,
    link: str,
    topics: Iterable[str],
    now: int,
    led: Collection[TopicPartition] = (),
) -> list[Record]:
    """TAKEN -> ACTIVE for the partitions of `link`'s mirrors that the other cluster's own brokers lead now. `led`:
    partitions that they lead by that cluster's metadata log, although the state may not say so yet."""
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
    """Remove `link`'s mirrors of topics that are reversed as a whole, and the notes of jobs that their source is closed: the
    topic may be switched back, and a new mirror of that name must not begin with such a debt."""
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
            records += configs_put_back(image, mirror, now)
        records += [*leave_closed(image, link, topic), RemoveMirror(link, topic)]
    jobs = [
        replace(job, source_fenced=tuple(t for t in job.source_fenced if t not in topics))
        for (name, _), job in sorted(image.jobs.items())
        if name == link and job.switch and set(job.source_fenced).intersection(topics)
    ]
    return [*records, *jobs]
