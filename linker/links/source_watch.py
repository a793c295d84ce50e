"""Finds partitions that were added to the source's topics, which no fetch would show, and has their mirrors take them.

A promote that is under way asks for the same before it holds writes, and looks again behind its fence
(`linker.promote.growth.check_growth`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from controller.decide.growth import not_now
from controller.judge.alignment import grown_at_source
from controller.state import MirrorTopic, same_source_topic
from linker.links.link_part import LinkContext, LinkPart
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL = 15.0  # by default; a link has its own
_TIMEOUT = 10.0


class SourceWatch(LinkPart):
    """The watch of one link, idle but on the link controller."""

    def __init__(
        self,
        context: LinkContext,
        place: Callable[[MirrorTopic, int], Sequence[Sequence[int]]],
        ask: Callable[[str], None],
        interval: Callable[[], float],
    ) -> None:
        """`place`: the real brokers of so many added partitions; `ask`: has a mirror looked at (`BringUp.ask`)."""
        super().__init__(context)
        self._place = place
        self._ask = ask
        #: Why mirrors have not taken yet what was added, by topic.
        self.grown: dict[str, str] = {}
        self.task = PeriodicTask(
            "source watch", self.look, _INTERVAL, failed=self._not_read, pause=lambda _task: interval()
        )

    def _not_read(self, error: Exception) -> None:
        # The fetchers see the same trouble and show it.
        log.debug("link %s: the source's topics cannot be read: %s", self._link, error)

    async def look(self, topics: Collection[str] | None = None, *, timeout: float = _TIMEOUT) -> None:
        """Once, at these topics or at all that are mirrored. LinkerError if the source does not answer."""
        image = self._controller.image
        mirrors = {mirror.topic: mirror for mirror in image.open_mirrors(self._link)}
        self.grown = {topic: why for topic, why in self.grown.items() if topic in mirrors}
        chosen = mirrors.keys() if topics is None else mirrors.keys() & topics
        if not chosen or not self._decides:
            return
        await self._source.refresh(chosen, timeout=timeout)
        for topic in sorted(chosen):
            mirror = self._controller.image.mirrors.get((self._link, topic))
            found = self._source.topics.get(topic)
            if mirror is None or found is None or found.error:
                continue
            now = len(found.partitions)
            # One that was deleted and made again is another topic, whatever it has.
            if now <= mirror.partitions or not same_source_topic(mirror.source_topic_id, found.topic_id):
                self.grown.pop(topic, None)
                continue
            why = await self._grow(mirror, now)
            if why is None:
                self.grown.pop(topic, None)
                continue
            reason = grown_at_source(mirror.partitions, now, why)
            if self.grown.get(topic) != reason:
                log.warning("mirror %s of link %s: %s", topic, self._link, reason)
            self.grown[topic] = reason

    async def _grow(self, mirror: MirrorTopic, partitions: int) -> str | None:
        """Why not; None if the mirror has them now."""
        why = not_now(self._controller.image, mirror)
        if why is not None:
            return why
        try:
            replicas = self._place(mirror, partitions - mirror.partitions)
            await self._controller.grow_mirror(self._link, mirror.topic, partitions, replicas)
        except LinkerError as error:
            return str(error)
        log.info(
            "mirror %s of link %s: the source has %d partitions now, %d before: the added ones are mirrored",
            mirror.topic,
            self._link,
            partitions,
            mirror.partitions,
        )
        self._ask(mirror.topic)
        return None
