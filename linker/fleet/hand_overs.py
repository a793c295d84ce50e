"""From a hand-over in the metadata log until every real broker knows of it, on one sidecar.

The log tells us and every broker of the hand-over at about the same time, but brokers need a while: the new leader has
to become one, the others have to name it. A client that is sent away meanwhile asks a broker that does not know yet,
and each such answer costs it a back-off of a tenth of a second or more. So no client is sent away before every real
broker knows. Held and new produces are relayed to the new leader as soon as it leads, and the clients get its
acknowledgements.

It begins when our own copy of the metadata log shows that a real broker leads a partition that is fenced here. It
needs no command, so a lost command cannot keep producers waiting. It ends after LEADS_WITHIN + KNOWN_WITHIN at the
latest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, Protocol

from router.tasks import TaskKeeper
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage

#: Seconds. Held produces go to a new leader that does not say by then that it leads all the same; it may refuse them.
LEADS_WITHIN: Final = 1.0
#: Seconds after that. If a broker does not know the leader by then, clients find it themselves.
KNOWN_WITHIN: Final = 2.0

Leading = Callable[[Collection[TopicPartition]], None]
Known = Callable[[Collection[TopicPartition], Leading, float], Awaitable[bool]]
"""Asks the target's brokers until all know who leads these partitions, for so many seconds: whether they do.
Each leader's partitions are told when it says that it leads them (linker.promote.new_leaders.wait_known)."""


class Produces(Protocol):
    """The actions on producers (`router.dispatch.Router`)."""

    @property
    def tasks(self) -> TaskKeeper: ...

    def fenced_for_hand_over(self, tp: TopicPartition) -> bool: ...

    def holds(self, tps: Iterable[TopicPartition]) -> bool: ...

    def carry(self, tps: Iterable[TopicPartition]) -> None: ...

    def carried_enough(self, tps: Iterable[TopicPartition]) -> None: ...

    def led_elsewhere(self, tps: Iterable[TopicPartition]) -> None: ...

    def handed_over(self, tps: Iterable[TopicPartition]) -> None: ...


class HandOvers:
    """One per router: the fences, the held produces and the metadata log are of one cluster."""

    def __init__(self, router: Produces, known: Known) -> None:
        self._router = router
        self._known = known
        self._releasing: dict[TopicPartition, asyncio.Event] = {}

    def on_target_change(self, image: ClusterImage, topics: Iterable[bytes]) -> None:
        """A subscriber of the metadata log."""
        touched = (image.topics_by_id[topic_id] for topic_id in topics if topic_id in image.topics_by_id)
        self.look(TopicPartition(topic.name, index) for topic in touched for index in topic.partitions)

    def look(self, tps: Iterable[TopicPartition]) -> None:
        """Begin with partitions that are fenced here and led by a real broker."""
        over = [tp for tp in tps if tp not in self._releasing and self._router.fenced_for_hand_over(tp)]
        if not over:
            return
        if not self._router.holds(over):  # no client of ours writes to them
            self._router.handed_over(over)
            return
        released = asyncio.Event()
        self._releasing |= dict.fromkeys(over, released)
        self._router.tasks.spawn(self._guide(over, released), f"hand-over of {len(over)} partitions")

    async def released(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """The hand-over of these partitions has certainly happened: return when nothing is held for them any more."""
        self.look(tps)
        deadline = asyncio.get_running_loop().time() + timeout
        events = dict.fromkeys(self._releasing[tp] for tp in tps if tp in self._releasing)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                for event in events:
                    await event.wait()
        self._router.led_elsewhere(tps)

    async def _guide(self, tps: Collection[TopicPartition], released: asyncio.Event) -> None:
        left = dict.fromkeys(tps)

        def leading(some: Collection[TopicPartition]) -> None:
            news = [tp for tp in some if tp in left]
            for tp in news:
                del left[tp]
            self._router.carry(news)
            if not left:
                released.set()

        try:
            if not await self._known(tps, leading, LEADS_WITHIN):
                leading(tuple(left))
                await self._known(tps, lambda _tps: None, KNOWN_WITHIN)
        finally:
            for tp in tps:
                del self._releasing[tp]
            self._router.carried_enough(tps)
            self._router.led_elsewhere(left)
            released.set()
