"""The writing side of the topic store: claims and commits, and the settling of commits without an answer.

`store` explains the idea; the transactions themselves are in `producer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from controller import keys
from controller.operations import Operation
from controller.state import JsonValue
from fleet.stores import nodes
from fleet.stores.base import ControllerFenced, StoreError
from fleet.stores.nodes import StoredNode
from fleet.stores.topic.brokers import StateTopicBrokers
from fleet.stores.topic.producer import (
    CommitOutcomeUnknown,
    NotCommitted,
    ProducerFenced,
    TransactionalProducer,
)
from fleet.stores.topic.records import BEAT, CONTROLLER, FLEET, Item, beat_item, item_of
from fleet.stores.topic.tail import TopicTail
from wire.together import retrieved

log = logging.getLogger(__name__)

OWN = frozenset({CONTROLLER, FLEET, BEAT})
"""Nodes that are the store's own; `get` shows them, `tree` and `children` do not."""
_RESERVED = OWN | {keys.CONTROLLER_EPOCH}


class TopicWriter:
    """A store with one holder at a time: the last process that claimed it."""

    def __init__(self, brokers: StateTopicBrokers, tail: TopicTail, commit_timeout: float) -> None:
        self._brokers = brokers
        self._tail = tail
        self._producer = TransactionalProducer(brokers)
        self._commit_timeout = commit_timeout
        self._session = uuid.uuid4().hex
        self._lock = asyncio.Lock()
        self._next_proof: asyncio.Task[None] | None = None
        self._closed = False
        # As the holder. The epoch is None before a claim; after a loss it stays, for the refusals.
        self._epoch: int | None = None
        self._holding = False
        self._unsettled = False  # the last commit's outcome is unknown
        self._nodes: dict[str, StoredNode] = {}
        self._last_commit = 0.0

    @property
    def topic(self) -> str:
        return self._brokers.topic

    async def _current(self) -> Mapping[str, StoredNode]:
        self._check()
        if self._holding and self._unsettled:
            async with self._turn() as deadline:
                if self._holding and self._unsettled:
                    await self._settle(deadline)
        return self._nodes if self._holding else self._tail.replay.nodes

    def _check(self) -> None:
        if self._closed:
            raise StoreError(f"the state store in topic {self.topic} is closed")
        self._tail.check()

    async def claim(self) -> int:
        return await self._claim({})

    async def _claim(self, values: Mapping[str, Callable[[int], JsonValue]]) -> int:
        """Claim, and write these nodes in the same transaction; each is made of the new epoch."""
        async with self._turn() as deadline:
            self._lose("this process claims the store anew")
            try:
                await self._producer.fence(deadline)
                await self._read_back(deadline)
                epoch = self._tail.replay.epoch + 1
                self._check_claim(self._nodes)
                changed = {keys.CONTROLLER_EPOCH: self._next(keys.CONTROLLER_EPOCH, epoch)}
                changed |= {path: self._next(path, value(epoch)) for path, value in values.items()}
                await self._write([item_of(path, node) for path, node in changed.items()], deadline)
            except ProducerFenced as error:
                raise StoreError(f"another sidecar has claimed the store meanwhile ({error})") from error
            self._nodes.update(changed)
            self._holding = True
            self._epoch = epoch
            self._last_commit = time.monotonic()
            return epoch

    def _next(self, path: str, value: JsonValue) -> StoredNode:
        old = self._nodes.get(path)
        return StoredNode(nodes.encode(path, value), 0 if old is None else old.version + 1)

    def _check_claim(self, found: Mapping[str, StoredNode]) -> None:
        """Raise if the state that was read must not be taken over."""

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        if operations:
            await self._commit(operations, controller_epoch)
            return
        # Proofs that wait for the same turn are one: it begins after all of their calls.
        self._check_epoch(controller_epoch)
        task = self._next_proof
        if task is None:
            task = self._next_proof = asyncio.create_task(self._prove(controller_epoch))
            task.add_done_callback(retrieved)
        await asyncio.shield(task)
        self._check_epoch(controller_epoch)

    async def _prove(self, epoch: int) -> None:
        try:
            async with self._turn() as deadline:
                self._next_proof = None  # later callers need a later one
                await self._commit_in_turn((), epoch, deadline)
        finally:
            if self._next_proof is asyncio.current_task():
                self._next_proof = None

    async def _commit(self, operations: Sequence[Operation], epoch: int) -> None:
        async with self._turn() as deadline:
            await self._commit_in_turn(operations, epoch, deadline)

    async def _commit_in_turn(self, operations: Sequence[Operation], epoch: int, deadline: float) -> None:
        self._check_epoch(epoch)
        if self._unsettled:
            await self._settle(deadline)
        changed = nodes.changes(self._nodes, operations, _RESERVED)
        items = [item_of(path, node) for path, node in changed.items()]
        # A transaction with data is as good a proof and a sign of life.
        items = items or [beat_item(self._session, epoch)]
        self._unsettled = True
        try:
            await self._write(items, deadline)
        except ProducerFenced as error:
            raise self._fenced(epoch, error) from error
        except CommitOutcomeUnknown as error:
            if error.fenced:
                self._lose(f"another sidecar has claimed the store ({error})")
            raise
        except StoreError:
            self._unsettled = False  # certainly nothing
            raise
        for path, node in changed.items():
            if node is None:
                self._nodes.pop(path, None)
            else:
                self._nodes[path] = node
        self._unsettled = False
        self._last_commit = time.monotonic()

    async def _write(self, items: Sequence[Item], deadline: float) -> int:
        """One transaction, repeated while the one before certainly was not committed; the last offset."""
        while True:
            try:
                if self._producer.stale:
                    await self._producer.renew(deadline)
                return await self._producer.transaction(items, deadline)
            except NotCommitted:
                if time.monotonic() + 0.1 >= deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _read_back(self, deadline: float) -> None:
        """Take the tree from the log, up to a record of ours: every commit so far stands before it."""
        try:
            offset = await self._write([beat_item(self._session, self._epoch or 0)], deadline)
        except CommitOutcomeUnknown as error:
            raise StoreError(str(error)) from error
        await self._tail.reach(offset, deadline)
        self._tail.check()
        self._nodes = dict(self._tail.replay.nodes)

    async def _settle(self, deadline: float) -> None:
        """Find the outcome of a commit whose answer is missing."""
        epoch = self._epoch or 0
        # Look first: a renewal would abort the open transaction of the process that has fenced us.
        await self._tail.at_end(deadline)
        if self._tail.replay.epoch > epoch:
            raise self._fenced(epoch, "its epoch stands in the topic")
        try:
            await self._producer.renew(deadline)
            await self._read_back(deadline)
        except ProducerFenced as error:
            raise self._fenced(epoch, error) from error
        self._unsettled = False
        log.info("a commit to the state topic %s whose outcome was unknown is settled", self.topic)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[float]:
        """One operation at a time; its deadline, which covers the wait for the turn."""
        deadline = time.monotonic() + self._commit_timeout
        try:
            async with asyncio.timeout(self._commit_timeout):
                await self._lock.acquire()
        except TimeoutError:
            raise StoreError(
                f"the state topic {self.topic} has been busy for {self._commit_timeout:g} s"
            ) from None
        try:
            self._check()
            yield deadline
        finally:
            self._lock.release()

    # --- fencing --------------------------------------------------------------------------------------------

    def _check_epoch(self, epoch: int) -> None:
        if self._epoch is None:
            raise StoreError("claim the store before you commit")
        if epoch > max(self._epoch, self._tail.replay.epoch):
            raise StoreError(f"controller epoch {epoch} was never claimed in topic {self.topic}")
        if epoch != self._epoch or not self._holding:
            raise ControllerFenced(epoch, self._newest(epoch))

    def _newest(self, epoch: int) -> int:
        """The epoch that fences this one. The fencing process writes its own a moment later: at least one more."""
        own = (self._epoch or 0) + (0 if self._holding else 1)
        return max(own, self._tail.replay.epoch, epoch + (epoch == self._epoch))

    def _fenced(self, epoch: int, why: object) -> ControllerFenced:
        self._lose(f"another sidecar has claimed the store ({why})")
        return ControllerFenced(epoch, self._newest(epoch))

    def _lose(self, reason: str) -> None:
        """From now on another process may write; the store that has a seat to lose overrides it."""
        log.debug("topic %s is not ours to write: %s", self.topic, reason)
        self._holding = False
        self._unsettled = False
        self._nodes = {}
