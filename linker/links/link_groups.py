"""Builds the readers, gates and manager of a link's groups, anew in each term as link controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from controller.state import Link, Record
from groups.bounds import GroupCopies, TargetBounds
from groups.gates.coordinators import Coordinators
from groups.group_book import GroupBook
from groups.group_reader import GroupReader
from groups.manager import GroupManager
from groups.settings import GroupSettings
from groups.tools import TargetGates, Tools
from linker.links.group_options import group_settings
from linker.links.link_part import LinkContext, LinkPart
from router.dispatch import Router
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_GROUP_VERSION = "group.version"  # the feature that switches KIP-848 on
_CLOSING = 32
_AFTER_BUG = 5.0


class LinkGroups(LinkPart):
    """The running side of a link's groups; `manager` is None while another sidecar decides."""

    def __init__(
        self,
        context: LinkContext,
        copies: GroupCopies,
        router: Router,
        *,
        source_known: asyncio.Event,
        source_trouble: Callable[[], str | None],
    ) -> None:
        super().__init__(context)
        self._copies = copies
        self._router = router
        self._source_known = source_known
        self._source_trouble = source_trouble
        self.manager: GroupManager | None = None

    async def run(self) -> None:
        """Until cancelled."""
        self._controller.listeners.add(self._on_records)
        try:
            while True:
                coordinators = Coordinators(self._target.cluster)
                try:
                    self.manager = self._make(coordinators)
                    await self.manager.run()
                except Exception:
                    log.exception("link %s: its groups hit a bug and begin again", self._link)
                finally:
                    self.manager = None
                    await coordinators.close()
                await asyncio.sleep(_AFTER_BUG)
        finally:
            self._controller.listeners.discard(self._on_records)

    @property
    def periodic_tasks(self) -> list[PeriodicTask]:
        manager = self.manager
        return [] if manager is None else [manager.discovery, manager.renewal, manager.offsets.task]

    def _on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller: the link's options as they are now, whoever changed them."""
        manager = self.manager
        if manager is None or (
            records and not any(isinstance(one, Link) and one.name == self._link for one in records)
        ):
            return
        settings = self._settings()
        if settings != manager.settings:
            manager.follow(settings)

    def _settings(self) -> GroupSettings:
        link = self._controller.image.links.get(self._link)
        return group_settings({} if link is None else link.options)

    def _make(self, coordinators: Coordinators) -> GroupManager:
        tools = Tools(
            book=GroupBook(self._link, self._controller),
            source=GroupReader(self._source, self._source_trouble),
            target=GroupReader(self._target.cluster),
            bounds=TargetBounds(
                self._link, self._controller, self._copies, self._source, self._target.cluster
            ),
            gates=TargetGates(self._link, coordinators),
            partitions=self._partitions,
            closing=asyncio.Semaphore(_CLOSING),
            first_fetches=self._router.hub.first_fetches.watch,
        )
        return GroupManager(
            tools,
            self._settings(),
            consumer_protocol=self._consumer_protocol,
            source_known=self._source_known,
        )

    def _partitions(self, topic: str) -> int:
        """The number of partitions of a topic that gates name. Those that the source has added and the target does not
        have yet are left out: a gate that names one would be refused as a whole."""
        mirror = self._controller.image.mirrors.get((self._link, topic))
        if mirror is None:
            return 0
        found = self._target.image.topics_by_id.get(mirror.topic_id)
        return mirror.partitions if found is None else min(mirror.partitions, len(found.partitions))

    def _consumer_protocol(self) -> bool:
        return self._target.image.features.get(_GROUP_VERSION, 0) > 0

    async def release_all(self) -> None:
        """Before the link is deleted."""
        if self.manager is not None:
            await self.manager.release_all()

    def hold_again(self) -> None:
        """After `release_all`: the link was not deleted."""
        if self.manager is not None:
            self.manager.hold_again()
