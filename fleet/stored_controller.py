"""StoredController: decides, one at a time: decide -> commit -> replay, so memory never runs ahead of the store.

A commit whose outcome is unknown (cancelled, I/O error) makes the image stale: it is read from the store again before the
next decision, never guessed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from controller.image import ControllerImage
from controller.state import MirrorPartition, Record
from fleet.link_controller import LinkController, wall_clock_ms
from fleet.stores.base import ControllerFenced, Store

T = TypeVar("T")


class StoredController(LinkController):
    """The one writer of link state: it holds the store's controller epoch."""

    def __init__(self, store: Store, image: ControllerImage, epoch: int, now: Callable[[], int]) -> None:
        super().__init__(now)
        self._store = store
        self._image = image
        self._claimed = epoch
        self._turn = asyncio.Lock()
        self._stale = False

    @classmethod
    async def load(
        cls, store: Store, epoch: int, *, now: Callable[[], int] = wall_clock_ms
    ) -> StoredController:
        """With an epoch that was claimed just now."""
        return cls(store, ControllerImage.load(await store.tree("/"), epoch), epoch, now)

    @classmethod
    async def open(cls, store: Store, *, now: Callable[[], int] = wall_clock_ms) -> StoredController:
        """Claim the controller epoch, then load: nothing older can write between the two."""
        return await cls.load(store, await store.claim(), now=now)

    @property
    def image(self) -> ControllerImage:
        return self._image

    @property
    def controller_epoch(self) -> int:
        return self._claimed

    async def refresh(self) -> None:
        async with self._turn:
            await self._reload_if_stale()

    async def prove_newest(self) -> None:
        await self._store.commit((), controller_epoch=self._claimed)

    async def decide(
        self, decide: Callable[[ControllerImage], tuple[Sequence[Record], T]], dry_run: bool = False
    ) -> T:
        async with self._turn:
            await self._reload_if_stale()
            records, reply = decide(self._image)
            if dry_run or not records:
                return reply
            records = [self._stamped(record) for record in records]
            operations = self._image.operations(records)
            self._stale = True
            try:
                await self._store.commit(operations, controller_epoch=self._claimed)
            except ControllerFenced:
                # Nothing was written, nor ever will be by us. A caller that is told of an image read anew would try
                # again, and have it read anew.
                self._stale = False
                raise
            self._image.replay(records)
            self._stale = False
        self._tell(records)
        return reply

    def _stamped(self, record: Record) -> Record:
        """A partition's state names the controller that wrote it last."""
        if isinstance(record, MirrorPartition) and record.controller_epoch != self._claimed:
            return replace(record, controller_epoch=self._claimed)
        return record

    async def _reload_if_stale(self) -> None:
        if self._stale:
            self._image = ControllerImage.load(await self._store.tree("/"), self._claimed)
            self._stale = False
            self._tell(())
