"""A source that link brokers hold while a switch has it: where it ends, asked of those who know.

Its leader is one of ours, which keeps no log and may ask nobody. Where the log ends was written down when it was taken
over (`controller.state.Taken`). Its own brokers follow to there: they show the batches before, and where the oldest
transaction is that was open then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Final

from controller.decide.take_overs import link_against
from controller.errors import NotFound
from controller.image import ControllerImage
from controller.judge.alignment import SourceEnd
from controller.phases import Phase
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError, RequestTimedOut
from wire.frames.fetch import FetchPartition, FetchRequest
from wire.frames.types import TopicPartition
from wire.together import together

_VERSION: Final = 12  # the newest that names topics; a follower answers consumers from 11 on (KIP-392)
_READ_COMMITTED: Final = 1
_PAUSE: Final = 0.01
_ASK: Final = 2.0


class TakenSource:
    """Of one link."""

    def __init__(self, link: str, image: Callable[[], ControllerImage], source: Cluster) -> None:
        self._link = link
        self._image = image
        self._source = source

    def ends(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Of those that are taken over, where they end."""
        image = self._image()
        try:
            back = link_against(image, self._link).name
        except NotFound:
            return {}
        return {
            tp: state.taken.end
            for tp in tps
            if (state := image.partitions.get((back, tp))) is not None
            and state.phase is Phase.TAKEN
            and state.taken is not None
        }

    def reader(self, tp: TopicPartition) -> int | None:
        """A broker that has the log of a partition that is taken over. None: it is not taken, or nobody is there."""
        return next(iter(self._readers(tp)), None) if self.ends([tp]) else None

    def _readers(self, tp: TopicPartition) -> list[int]:
        image = self._image()
        mirror = image.mirrors[link_against(image, self._link).name, tp.topic]
        known = self._source.nodes
        return [broker for broker in mirror.replicas_of(tp.partition) if broker in known]

    async def source_ends(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> dict[TopicPartition, SourceEnd]:
        """The ends as their leader would tell them. LinkerError if for a partition no broker that has all of it answers
        in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        found: dict[TopicPartition, SourceEnd] = {}
        why: dict[TopicPartition, str] = {}
        for attempt in count():
            asked: dict[int, dict[TopicPartition, int]] = {}
            for tp, end in ends.items():
                if tp not in found and (readers := self._readers(tp)):
                    asked.setdefault(readers[attempt % len(readers)], {})[tp] = end
            left = min(max(deadline - loop.time(), 0.001), _ASK)
            told = await together(self._last_stable(broker, of, left, why) for broker, of in asked.items())
            found |= {tp: SourceEnd(ends[tp], ends[tp], stable) for one in told for tp, stable in one.items()}
            if len(found) == len(ends):
                break
            if loop.time() >= deadline:
                tp = next(tp for tp in ends if tp not in found)
                reason = why.get(tp, "none of its own brokers is there")
                raise LinkerError(f"where transactions are open in {tp} is not known: {reason}")
            await asyncio.sleep(_PAUSE)
        return found

    async def _last_stable(
        self, broker: int, ends: Mapping[TopicPartition, int], timeout: float, why: dict[TopicPartition, str]
    ) -> dict[TopicPartition, int]:
        """The last stable offsets of the partitions of which the broker has all records. Of others it may not know yet
        that a transaction is open, or that one has ended; `why` gets the reasons."""
        topics: dict[str, list[FetchPartition]] = {}
        for tp, end in ends.items():
            topics.setdefault(tp.topic, []).append(FetchPartition(tp.partition, -1, end, -1, -1, 1))
        request = FetchRequest(
            version=_VERSION,
            max_bytes=1,
            isolation_level=_READ_COMMITTED,
            session_epoch=-1,
            topics=list(topics.items()),
        )
        try:
            _, answer = await self._source.fetch(broker, request, timeout=timeout, purpose="taken")
            if answer.error:
                raise BrokerError(answer.error, f"broker {broker} refused a fetch", api="fetch")
        except RequestTimedOut as error:
            # It says less than an answer before did: the last try may have had no time.
            why.update({tp: str(error) for tp in ends if tp not in why})
            return {}
        except LinkerError as error:
            why.update(dict.fromkeys(ends, str(error)))
            return {}
        stable: dict[TopicPartition, int] = {}
        for part in answer.partitions:
            tp = TopicPartition(str(part.key), part.index)
            end = ends[tp]
            if not part.error and part.high_watermark >= end and part.last_stable_offset >= 0:
                stable[tp] = min(part.last_stable_offset, end)
            else:
                why[tp] = f"broker {broker} has not followed to offset {end} yet"
        return stable
