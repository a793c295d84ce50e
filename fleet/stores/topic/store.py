"""The fleet's state in a compacted topic of the target cluster. The contract is in `fleet.stores.base`.

The transaction coordinator decides which process may write: a claim fences every earlier producer, then reads to the
end, then writes the new controller epoch; had another process written or claimed meanwhile, that last transaction
would have been refused. So the holder's memory is the truth while it is not fenced, and commits are checked against
it. Others read the tail, which is a little behind.

A commit whose outcome is unknown is settled before the next operation: the log is read to its end, the producer's
epoch is renewed (which fails if another process has fenced us, and aborts the open transaction), and the tree is taken
from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Collection, Mapping, Sequence

from controller import keys
from controller.errors import ControllerError
from controller.operations import Versioned
from controller.state import JsonValue
from fleet.stores import nodes
from fleet.stores.base import Candidate, ControllerFenced, Seat, StoreError
from fleet.stores.nodes import StoredNode
from fleet.stores.topic.admin import prepare_topic
from fleet.stores.topic.brokers import Address, StateTopicBrokers, StoreRefused
from fleet.stores.topic.producer import ProducerFenced
from fleet.stores.topic.records import CONTROLLER, FLEET, item_of, seat_value
from fleet.stores.topic.tail import TopicTail
from fleet.stores.topic.writer import OWN, TopicWriter
from wire.backoff import Backoff
from wire.client.security import ClientSecurity
from wire.errors import LinkerError

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


class TopicStore(TopicWriter):
    """A `FleetStore`. Make one with `open`."""

    def __init__(
        self, brokers: StateTopicBrokers, tail: TopicTail, seat_timeout: float, commit_timeout: float
    ) -> None:
        super().__init__(brokers, tail, commit_timeout)
        self._seat_timeout = seat_timeout
        self._beat_interval = min(1.0, seat_timeout / 5)
        self._reading: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._candidate: Candidate | None = None  # the claiming sidecar, during the claim
        self._seat: Seat | None = None  # what take_seat took
        self._lost: asyncio.Future[str] | None = None

    @classmethod
    async def open(
        cls,
        bootstrap: Sequence[Address],
        security: ClientSecurity,
        *,
        topic: str = DEFAULT_TOPIC,
        client_id: str = "kafka-linker",
        link_brokers: Collection[int] = (),
        seat_timeout: float = SEAT_TIMEOUT,
        commit_timeout: float = COMMIT_TIMEOUT,
        timeout: float = OPEN_TIMEOUT,
        create: bool = True,
    ) -> TopicStore:
        """Make the topic if it is missing (StoreMissing without `create`), and read it to its end.

        `bootstrap` are real brokers. `link_brokers`: ids that must not get a replica of a topic that is made.
        StoreError when it cannot be used within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        brokers = StateTopicBrokers(bootstrap, security, client_id, topic)
        try:
            found = await prepare_topic(brokers, link_brokers, deadline, create=create)
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

    # --- reading --------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Versioned | None:
        keys.split(path)
        node = (await self._current()).get(path)
        return None if node is None else node.read()

    async def children(self, path: str) -> list[str]:
        return [
            name
            for name in nodes.children(await self._current(), path)
            if path != "/" or f"/{name}" not in OWN
        ]

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        """Without the nodes that are the store's own; `get` has them too."""
        found = nodes.tree(await self._current(), path)
        return {name: node for name, node in found.items() if name not in OWN}

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

    def _check_fleet(self, known: Mapping[str, StoredNode], me: Candidate) -> None:
        node = known.get(FLEET)
        value = None if node is None else node.read().value
        other = value.get("cluster_id") if isinstance(value, dict) else None
        if other is not None and me.cluster_id and other != me.cluster_id:
            raise StoreError(
                f"topic {self.topic} holds the state of the fleet of cluster {other}, this one belongs to "
                f"{me.cluster_id}: give store.topic another name"
            )

    async def take_seat(self, me: Candidate) -> int:
        retries = Backoff(_RETRY_SEAT, _RETRY_SEAT)
        while True:
            await self._wait_for_free_seat()
            try:
                return await self._claim_seat(me)
            except StoreError as error:
                # Another was quicker, or the cluster is away: both are waited out.
                self._check()
                self._check_fleet(self._tail.replay.nodes, me)
                if isinstance(error, StoreRefused):
                    raise
                log.info("the seat of the link controller was not taken: %s", error)
            await asyncio.sleep(retries.next(random.random()))

    async def _claim_seat(self, me: Candidate) -> int:
        def seat(epoch: int) -> JsonValue:
            return seat_value(Seat(holder=me, epoch=epoch))

        def fleet(epoch: int) -> JsonValue:
            return {"cluster_id": me.cluster_id}

        self._candidate = me
        try:
            epoch = await self._claim({CONTROLLER: seat, **({FLEET: fleet} if me.cluster_id else {})})
        finally:
            self._candidate = None
        self._seat = Seat(holder=me, epoch=epoch)
        self._lost = asyncio.get_running_loop().create_future()
        self._beating = asyncio.create_task(self._beat(epoch), name="state-topic-beat")
        return epoch

    def _check_claim(self, found: Mapping[str, StoredNode]) -> None:
        if self._candidate is not None:
            self._check_fleet(found, self._candidate)

    def _lose(self, reason: str) -> None:
        super()._lose(reason)
        self._seat = None
        if self._beating is not None:
            beating, self._beating = self._beating, None
            if beating is not asyncio.current_task():
                beating.cancel()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

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
        try:
            async with self._turn() as deadline:
                if not self._holding or self._seat is not seat:
                    return
                deadline = min(deadline, time.monotonic() + RESIGN_TIMEOUT)
                if self._unsettled:
                    await self._settle(deadline)
                await self._write([item_of(CONTROLLER, None)], deadline)
        except (ControllerFenced, ProducerFenced):
            pass  # another sidecar has it already
        finally:
            # Also if our turn did not come in time: signs of life of one that decides nothing would keep the seat from
            # the others for ever. Without them it is theirs after the seat's timeout.
            if self._seat is seat:
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
                async with self._turn():  # a write under way ends by its deadline
                    self._closed = True
        finally:
            self._closed = True
            self._lose("the store was closed")
            tasks = [task for task in (self._reading, self._next_proof) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._brokers.close()
