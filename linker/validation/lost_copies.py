"""Forgets what was proved of copies that are gone: their watermarks are another log's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from fleet.link_controller import wall_clock_ms
from linker.links.copies import CopyView
from linker.links.link_part import LinkContext, LinkPart
from linker.validation.planner import Position, lost, other_copies, positions_of
from linker.validation.result_book import ResultBook
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.5  # metadata changes come in bursts
_RETRY = 1.0


class LostCopies(LinkPart):
    """Of one link."""

    def __init__(
        self,
        context: LinkContext,
        copy: Callable[[TopicPartition], CopyView | None],
        book: ResultBook,
    ) -> None:
        super().__init__(context)
        self._copy = copy
        self._book = book
        self._changed = asyncio.Event()

    def look(self) -> None:
        """The target's metadata have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_LOOK_AGAIN)
            self._changed.clear()
            try:
                await self.forget()
            except LinkerError as error:
                log.warning(
                    "link %s: forgetting watermarks of lost copies failed: %s; tried again", self._link, error
                )
                await asyncio.sleep(_RETRY)
                self._changed.set()

    async def forget(self) -> None:
        image = self._controller.image
        self._book.keep_only({mirror.topic for mirror in image.link_mirrors(self._link)})
        gone = self.others([tp for link, tp in image.validations if link == self._link])
        for tp, brokers in gone.items():
            log.warning(
                "link %s: the copies of %s on brokers %s are not those any more that were validated: from the start again",
                self._link,
                tp,
                sorted(brokers),
            )
            await self._controller.forget_validation(self._link, [tp], brokers)

    def others(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, set[int]]:
        """Brokers whose copies are not those any more that were validated; their watermarks are still to be forgotten."""
        positions = {tp: self._positions(tp) for tp in tps}
        return other_copies(
            self._controller.image, self._target.image, self._link, self._link_brokers(), positions
        )

    def _positions(self, tp: TopicPartition) -> dict[int, tuple[Position, ...]]:
        copy = self._copy(tp)
        return {} if copy is None else positions_of(copy, wall_clock_ms(), time.monotonic())

    def lost(self, tp: TopicPartition, broker_id: int, through: int, since: int) -> bool:
        """Whether a copy has lost something below `through` since then."""
        return lost(self._positions(tp).get(broker_id, ()), through, since)
