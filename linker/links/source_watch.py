"""Finds partitions that were added to the source's topics, which no fetch would show.

An added partition is not part of the mirror, and its records would be left behind. So such a mirror is shown with the
reason, and its promote is refused. A promote that is under way looks itself (`PromoteBatch.check_growth`).
"""

from __future__ import annotations

import logging

from controller.judge.alignment import grown_at_source
from controller.phases import ENDED
from fleet.link_controller import LinkController
from wire.client.cluster import Cluster
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

INTERVAL = 15.0
_TIMEOUT = 10.0


class SourceWatch:
    """The watch of one link."""

    def __init__(self, link: str, source: Cluster, controller: LinkController) -> None:
        self._link = link
        self._source = source
        self._controller = controller
        #: Troubles by topic.
        self.grown: dict[str, str] = {}
        self.task = PeriodicTask("source watch", self.look, INTERVAL, failed=self._not_read)

    def _not_read(self, error: Exception) -> None:
        # The fetchers see the same trouble and show it.
        log.debug("link %s: the source's topics cannot be read: %s", self._link, error)

    async def look(self) -> None:
        """Once. LinkerError if the source does not answer."""
        image = self._controller.image
        mirrors = {
            mirror.topic: mirror.partitions
            for mirror in image.link_mirrors(self._link)
            if any(state.phase not in ENDED for state in image.topic_partitions(self._link, mirror.topic))
        }
        if not mirrors:
            self.grown.clear()
            return
        await self._source.refresh(mirrors, timeout=_TIMEOUT)
        for topic, partitions in mirrors.items():
            found = self._source.topics.get(topic)
            now = 0 if found is None or found.error else len(found.partitions)
            reason = grown_at_source(partitions, now)
            if reason is None:
                self.grown.pop(topic, None)
                continue
            if self.grown.get(topic) != reason:
                log.error("mirror %s of link %s: %s", topic, self._link, reason)
            self.grown[topic] = reason
        for topic in self.grown.keys() - mirrors.keys():
            del self.grown[topic]
