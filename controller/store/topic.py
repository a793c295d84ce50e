"""The fleet's state in a compacted topic of the target cluster. The contract is in `base`.

File map: topic_records (what records mean), topic_producer (fencing and transactions), topic_tail (reading),
topic_admin (the topic itself), topic_brokers (connections), nodes (the tree).

Who may write is decided by the transaction coordinator: a claim fences every earlier producer, then reads to
the end, then writes the new controller epoch; had anybody else written or claimed meanwhile, that last
transaction would have been refused. So the holder's memory is the truth while it is not fenced, and commits
are checked against it. Others read the tail, which is a little behind.

A commit whose outcome is unknown is settled before the next operation: the log is read to its end, the
producer's epoch is renewed (which fails if somebody has fenced us, and aborts what is open), and the tree is
taken from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence

from controller import paths
from controller.errors import ControllerError
from controller.state import JsonValue
from controller.store import nodes
from controller.store.base import (
    Candidate,
    ControllerFenced,
    Operation,
    Seat,
    StoreError,
    Versioned,
)
from controller.store.nodes import Node
from controller.store.topic_admin import prepare_topic
from controller.store.topic_brokers import Address, Brokers, Refused
from controller.store.topic_producer import (
    NotCommitted,
    OutcomeUnknown,
    ProducerFenced,
    TransactionalProducer,
)
from controller.store.topic_records import BEAT, CONTROLLER, FLEET, Item, beat_item, item_of, seat_value
from controller.store.topic_tail import TopicTail
from wire.errors import LinkerError
from wire.security import ClientSecurity

log = logging.getLogger(__name__)

DEFAULT_TOPIC = "__kafka_linker_state"
SEAT_TIMEOUT = 6.0
OPEN_TIMEOUT = 30.0
COMMIT_TIMEOUT = 20.0
"""Below the transaction's own timeout, so that the coordinator never aborts what we still try to commit."""
RESIGN_TIMEOUT = 3.0
_JITTER = 0.2  # of the seat timeout
_JITTER_RESIGNED = 0.3  # seconds
_RETRY_SEAT = 1.0
_DECIDED = 1.0
_OWN = frozenset({CONTROLLER, FLEET, BEAT})
_RESERVED = _OWN | {paths.CONTROLLER_EPOCH}


class TopicStore:
    """A `FleetStore`. Make one with `open`."""

    def __init__(self, brokers: Brokers, tail: TopicTail, seat_timeout: float, commit_timeout: float) -> None:
        self._brokers = brokers
        self._tail = tail
        self._producer = TransactionalProducer(brokers)
        self._seat_timeout = seat_timeout
        self._commit_timeout = commit_timeout
        self._beat_interval = min(1.0, seat_timeout / 5)
        self._session = uuid.uuid4().hex
        self._lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._next_proof: asyncio.Task[None] | None = None
        self._closed = False
        # As the holder. The epoch is None before a claim; after a loss it stays, for the refusals.
        self._epoch: int | None = None
        self._holding = False
        self._unsettled = False
        self._nodes: dict[str, Node] = {}
        self._seat: Seat | None = None  # what take_seat took
        self._lost: asyncio.Future[str] | None = None
        self._last_commit = 0.0

    @classmethod
    async def open(
        cls,
        bootstrap: Sequence[Address],
        security: ClientSecurity,
        *,
        topic: str = DEFAULT_TOPIC,
        client_id: str = "kafka-linker",
        real_brokers: Sequence[int] | None = None,
        seat_timeout: float = SEAT_TIMEOUT,
        commit_timeout: float = COMMIT_TIMEOUT,
        timeout: float = OPEN_TIMEOUT,
        create: bool = True,
    ) -> TopicStore:
        """Make the topic if it is missing (StoreMissing without `create`), and read it to its end.

        `bootstrap` are real brokers. `real_brokers`, if given, are the ids that may get a replica; else Kafka
        places them. StoreError when it cannot be used within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        brokers = Brokers(bootstrap, security, client_id, topic)
        try:
            found = await prepare_topic(brokers, real_brokers, deadline, create=create)
            store = cls(brokers, TopicTail(brokers, found.topic_id), seat_timeout, commit_timeout)
            store._reading = asyncio.create_task(store._tail.run(), name="state-topic")
        except BaseException:
            await brokers.close()
            raise
        try:
            await store._tail.at_end(deadline)
            await store._tail.decided(_DECIDED)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def topic(self) -> str:
        return self._brokers.topic

    # --- reading --------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned | None:
        paths.split(path)
        node = (await self._current()).get(path)
        return None if node is None else node.read()

    async def children(self, path: str) -> list[str]:
        return [
            name
            for name in nodes.children(await self._current(), path)
            if path != "/" or f"/{name}" not in _OWN
        ]

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        """Without the nodes that are the store's own; `get` has them too."""
        found = nodes.tree(await self._current(), path)
        return {name: node for name, node in found.items() if name not in _OWN}

    async def _current(self) -> Mapping[str, Node]:
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

    # --- writing --------------------------------------------------------------------------------------------

    async def claim(self) -> int:
        return await self._claim(None)

    async def _claim(self, me: Candidate | None) -> int:
        async with self._turn() as deadline:
            self._lose("this process claims the store anew")
            try:
                await self._producer.fence(deadline)
                await self._read_back(deadline)
                epoch = self._tail.replay.epoch + 1
                changed = self._claim_changes(epoch, me)
                await self._write([item_of(path, node) for path, node in changed.items()], deadline)
            except ProducerFenced as error:
                raise StoreError(f"another sidecar has claimed the store meanwhile ({error})") from error
            self._nodes.update(changed)
            self._holding = True
            self._epoch = epoch
            self._last_commit = time.monotonic()
            if me is not None:
                self._seat = Seat(holder=me, epoch=epoch)
                self._lost = asyncio.get_running_loop().create_future()
                self._beating = asyncio.create_task(self._beat(epoch), name="state-topic-beat")
            return epoch

    def _claim_changes(self, epoch: int, me: Candidate | None) -> dict[str, Node]:
        def node(path: str, value: JsonValue) -> Node:
            old = self._nodes.get(path)
            return Node(nodes.encode(path, value), 0 if old is None else old.version + 1)

        changed = {paths.CONTROLLER_EPOCH: node(paths.CONTROLLER_EPOCH, epoch)}
        if me is not None:
            self._check_fleet(self._nodes, me)
            if FLEET not in self._nodes and me.cluster_id:
                changed[FLEET] = node(FLEET, {"cluster_id": me.cluster_id})
            changed[CONTROLLER] = node(CONTROLLER, seat_value(Seat(holder=me, epoch=epoch)))
        return changed

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        if operations:
            await self._commit(operations, controller_epoch)
            return
        # Proofs that wait for the same turn are one: it begins after all of their calls.
        self._check_epoch(controller_epoch)
        task = self._next_proof
        if task is None:
            task = self._next_proof = asyncio.create_task(self._prove(controller_epoch))
            task.add_done_callback(_retrieve)
        await asyncio.shield(task)
        self._check_epoch(controller_epoch)

    async def _prove(self, epoch: int) -> None:
        try:
            async with self._turn() as deadline:
                self._next_proof = None  # whoever comes from here on needs a later one
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
        except OutcomeUnknown as error:
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
        """One transaction, again as long as the one before certainly was not committed; the last offset."""
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
        """Take the tree from the log, up to a record of ours: all that was ever committed stands before it."""
        try:
            offset = await self._write([beat_item(self._session, self._epoch or 0)], deadline)
        except OutcomeUnknown as error:
            raise StoreError(str(error)) from error
        await self._tail.reach(offset, deadline)
        self._tail.check()
        self._nodes = dict(self._tail.replay.nodes)

    async def _settle(self, deadline: float) -> None:
        """Find out what became of a commit whose outcome is unknown."""
        epoch = self._epoch or 0
        # Look first: asking for a renewal would abort the open transaction of whoever has fenced us.
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
        if epoch != self._epoch or not self._holding:
            raise ControllerFenced(epoch, self._newest(epoch))

    def _newest(self, epoch: int) -> int:
        """The epoch that fences this one. Whoever fences us writes its own a moment later: at least one more."""
        own = (self._epoch or 0) + (0 if self._holding else 1)
        return max(own, self._tail.replay.epoch, epoch + (epoch == self._epoch))

    def _fenced(self, epoch: int, why: object) -> ControllerFenced:
        self._lose(f"another sidecar has claimed the store ({why})")
        return ControllerFenced(epoch, self._newest(epoch))

    def _lose(self, reason: str) -> None:
        self._holding = False
        self._unsettled = False
        self._seat = None
        self._nodes = {}
        if self._beating is not None:
            beating, self._beating = self._beating, None
            if beating is not asyncio.current_task():
                beating.cancel()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    # --- the seat -------------------------------------------------------------------------------------------

    @property
    def seat(self) -> Seat | None:
        if self._holding and self._seat is not None:
            return self._seat
        return None if self._tail.silence >= self._seat_timeout else self._tail.replay.seat

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        deadline = time.monotonic() + timeout
        while True:
            self._check()
            seat = self.seat
            left = deadline - time.monotonic()
            if seat != known or left <= 0:
                return seat
            await self._tail.changed(left)

    async def announce(self, me: Candidate) -> None:
        self._check()
        self._check_fleet(self._tail.replay.nodes, me)

    def _check_fleet(self, known: Mapping[str, Node], me: Candidate) -> None:
        node = known.get(FLEET)
        value = None if node is None else node.read().value
        other = value.get("cluster_id") if isinstance(value, dict) else None
        if other is not None and me.cluster_id and other != me.cluster_id:
            raise StoreError(
                f"topic {self.topic} holds the state of the fleet of cluster {other}, this one belongs to "
                f"{me.cluster_id}: give store.topic another name"
            )

    async def take_seat(self, me: Candidate) -> int:
        while True:
            await self._wait_for_free_seat()
            try:
                return await self._claim(me)
            except StoreError as error:
                # Another was quicker, or the cluster is away: both are waited out.
                self._check()
                self._check_fleet(self._tail.replay.nodes, me)
                if isinstance(error, Refused):
                    raise
                log.info("the seat of the link controller was not taken: %s", error)
            await asyncio.sleep(_RETRY_SEAT * random.random())

    async def _wait_for_free_seat(self) -> None:
        while True:
            while self.seat is not None:
                await self._tail.changed(1.0)
                self._check()
            resigned = self._tail.replay.seat is None
            commits = self._tail.replay.commits
            jitter = _JITTER_RESIGNED if resigned else self._seat_timeout * _JITTER
            end = time.monotonic() + jitter * random.random()
            while (left := end - time.monotonic()) > 0:
                await self._tail.changed(left)
            self._check()
            # Nobody has moved meanwhile, and the topic can be read: a claim would succeed.
            if self.seat is None and self._tail.replay.commits == commits and not self._tail.trouble:
                return
            await self._tail.changed(1.0)

    async def seat_lost(self) -> str:
        if self._lost is None:
            raise StoreError("the seat was never taken")
        return await asyncio.shield(self._lost)

    async def resign(self) -> None:
        seat = self._seat
        if not self._holding or seat is None:
            return
        async with self._turn() as deadline:
            if not self._holding or self._seat is not seat:
                return
            deadline = min(deadline, time.monotonic() + RESIGN_TIMEOUT)
            try:
                if self._unsettled:
                    await self._settle(deadline)
                await self._write([item_of(CONTROLLER, None)], deadline)
            except (ControllerFenced, ProducerFenced):
                pass  # somebody else has it already
            finally:
                self._lose("it was given back")

    async def _beat(self, epoch: int) -> None:
        """Signs of life while nobody commits."""
        trouble = ""
        while self._holding and self._epoch == epoch:
            wait = self._last_commit + self._beat_interval - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            try:
                await self.commit((), controller_epoch=epoch)
                trouble = ""
            except ControllerFenced:
                return
            except LinkerError as error:
                if str(error) != trouble:
                    log.warning("no sign of life could be given in topic %s: %s", self.topic, error)
                trouble = str(error)
                await asyncio.sleep(self._beat_interval)
            except Exception as error:
                log.exception("the beat in topic %s ended by a bug", self.topic)
                self._lose(f"internal error: {error!r}; see the log")
                return

    # --- life -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._closed:
            return
        try:
            with contextlib.suppress(ControllerError, TimeoutError):
                async with asyncio.timeout(RESIGN_TIMEOUT):
                    await self.resign()
            with contextlib.suppress(ControllerError):
                async with self._turn():  # what is being written ends by its deadline
                    self._closed = True
        finally:
            self._closed = True
            self._lose("the store was closed")
            tasks = [task for task in (self._reading, self._next_proof) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._brokers.close()


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
