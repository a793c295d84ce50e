"""The moment between a hand-over in the metadata log and the last broker that knows of it, on one sidecar.

The log tells the hand-over to us and to every broker at about the same time, but brokers take their time: the new leader
has to make itself one, the others have to name it. A client that is sent away meanwhile asks a broker that does not
know yet, and each such answer costs it a back-off of a tenth of a second or more. So nobody is sent away before
every real broker knows. What was held, and what still comes, goes on to a new leader as soon as that one leads,
and its acknowledgements are what the clients get.

It begins when our own copy of the metadata log shows that a real broker leads what is fenced here: no command is needed
for that, and none that is lost can keep producers waiting. It ends after KNOWN_WITHIN at the latest.

Not here: the promote that leads to it (controller), what carrying is (router).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from linker.links.new_leaders import wait_known
from router.dispatch import Router
from wire.cluster import Cluster
from wire.metadata.image import ClusterImage
from wire.types import TopicPartition
from wire.waiting import until_set

#: Seconds. A new leader that has not said by then that it leads is sent what was held all the same; it may refuse it.
LEADS_WITHIN: Final = 1.0
#: Seconds. Clients find out by themselves what a broker does not know by then.
KNOWN_WITHIN: Final = 3.0


class HandOvers:
    """One per sidecar. `tasks` of the router run it."""

    def __init__(
        self,
        router: Router,
        cluster: Cluster,
        image: Callable[[], ClusterImage],
        link_brokers: Callable[[], Collection[int]],
    ) -> None:
        """cluster: the target, as a client sees it."""
        self._router = router
        self._cluster = cluster
        self._image = image
        self._link_brokers = link_brokers
        self._releasing: dict[TopicPartition, asyncio.Event] = {}

    def on_target_change(self, image: ClusterImage, topics: Iterable[bytes]) -> None:
        """A subscriber of the metadata log."""
        touched = (image.topics_by_id[topic_id] for topic_id in topics if topic_id in image.topics_by_id)
        self._begin(TopicPartition(topic.name, index) for topic in touched for index in topic.partitions)

    async def released(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """The hand-over of these is known to have happened: returns when nothing is held for them any more."""
        self._begin(tps)
        deadline = asyncio.get_running_loop().time() + timeout
        for event in {self._releasing[tp] for tp in tps if tp in self._releasing}:
            await until_set(event, deadline - asyncio.get_running_loop().time())
        self._router.led_elsewhere(tps)

    def _begin(self, tps: Iterable[TopicPartition]) -> None:
        over = [tp for tp in tps if tp not in self._releasing and self._router.fenced_for_hand_over(tp)]
        if not over:
            return
        if not self._router.holds(over):  # no client of ours writes to them
            self._router.handed_over(over)
            return
        released = asyncio.Event()
        self._releasing |= dict.fromkeys(over, released)
        self._router.tasks.spawn(self._guide(over, released), f"hand-over of {len(over)} partitions")

    async def _guide(self, tps: Collection[TopicPartition], released: asyncio.Event) -> None:
        left = set(tps)

        def leading(some: Iterable[TopicPartition]) -> None:
            known = left.intersection(some)
            left.difference_update(known)
            self._router.carry(known)
            if not left:
                released.set()

        late = asyncio.get_running_loop().call_later(LEADS_WITHIN, lambda: leading(tuple(left)))
        try:
            await wait_known(
                self._cluster,
                self._image(),
                tps,
                self._link_brokers(),
                leading=leading,
                timeout=KNOWN_WITHIN,
            )
        finally:
            late.cancel()
            for tp in tps:
                del self._releasing[tp]
            self._router.carried_enough(tps)
            self._router.led_elsewhere(left)
            released.set()
