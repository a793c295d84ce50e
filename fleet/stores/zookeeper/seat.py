"""Live sidecars and the holder of the seat, as ephemeral nodes of ZooKeeper. The contract is `base.FleetStore`.

Taking the seat is one transaction: it creates `/controller` and raises `/controller_epoch` (Kafka's
KafkaZkClient.registerControllerAndIncrementControllerEpoch). So as long as the epoch's znode has the version
that our taking gave it, no other process has taken the seat since, and `/controller` can only be ours: that check goes
with each transaction that removes it. Its own version would say nothing, it is 0 for every holder.

A node of another session is never removed, but waited for; only a seat that an earlier session of this very
object holds is taken over at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from controller import keys
from controller.errors import ControllerError
from fleet.stores.base import Candidate, Seat, StoreError
from fleet.stores.nodes import dump
from fleet.stores.zookeeper.client import Rejected, Stored, ZooKeeperClient
from fleet.stores.zookeeper.plan import (
    COMMITS,
    CONTROLLER,
    FLEET,
    LIVE,
    MARK,
    Create,
    Remove,
    Step,
    VersionCheck,
    Write,
    envelope,
    epoch_of,
    live_node,
    open_envelope,
    open_seat,
    seat_node,
)
from fleet.stores.zookeeper.session import Disconnected

logger = logging.getLogger(__name__)

RETRY = 1.0  # after an error that will not mend itself
RECHECK = 10.0  # watches do not get lost; if one did all the same, no waiter waits for ever


class Epoch(NamedTuple):
    value: int
    version: int  # ZooKeeper's, of the znode


async def read_epoch(client: ZooKeeperClient) -> Epoch | None:
    """None: never claimed yet."""
    stored = await client.read(keys.CONTROLLER_EPOCH)
    if stored is None:
        return None
    return Epoch(epoch_of(client.where(keys.CONTROLLER_EPOCH), stored.data), stored.version)


def raise_epoch(epoch: Epoch | None) -> tuple[Epoch, list[Step]]:
    """The next epoch and the steps that claim it, if no other process does. A claim counts as a commit."""
    if epoch is None:
        return Epoch(1, 0), [Create(keys.CONTROLLER_EPOCH, envelope("1")), Write(COMMITS, MARK, -1)]
    following = Epoch(epoch.value + 1, epoch.version + 1)
    text = str(following.value)
    return following, [Write(keys.CONTROLLER_EPOCH, envelope(text), epoch.version), Write(COMMITS, MARK, -1)]


class _Held(NamedTuple):
    epoch: Epoch
    session: int


class FleetNodes:
    """The fleet's side of one ZooKeeper store."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self.seat: Seat | None = None
        self._held: _Held | None = None
        self._taken: Epoch | None = None  # by the last taking, lost or not
        self._taking = asyncio.Lock()
        self._takings = 0  # an observation asked for before the last taking says nothing about it
        self._lost = "this process has not taken the seat"
        self._announced: Candidate | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._observe()
        self._run(self._watch(), "zookeeper seat")

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lose("the store was closed")

    def _run(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The seat.

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        try:
            async with asyncio.timeout(timeout):
                while True:
                    turn = self._client.changed.turn()
                    if self.seat != known:
                        break
                    await turn.wait()
        except TimeoutError:
            pass
        return self.seat

    async def take_seat(self, me: Candidate) -> int:
        while True:
            turn = self._client.changed.turn()
            await self._client.until_connected()
            try:
                await self.check_fleet(me)
                async with self._taking:
                    epoch = await self._try_to_take(me)
            except Disconnected as error:
                logger.warning("the seat of the link controller cannot be taken now: %s", error)
                await asyncio.sleep(0.1)
                continue
            except asyncio.CancelledError:
                self._run(self._drop_leftover(), "zookeeper seat leftover")
                raise
            if epoch is not None:
                return epoch
            await _wait(turn, RECHECK)

    async def _try_to_take(self, me: Candidate) -> int | None:
        """None: another sidecar has it, or was quicker."""
        session = self._client.session
        if session is None:
            return None
        epoch = await read_epoch(self._client)
        # Read after the epoch: if that has not changed when the transaction runs, neither has this.
        current = await self._client.read(CONTROLLER)
        steps: list[Step] = []
        if current is not None:
            if current.owner == 0:
                raise StoreError(
                    f"{self._client.where(CONTROLLER)} belongs to no session, so it is none of this program: "
                    "delete it, or use another path"
                )
            if current.owner != session and current.owner not in self._client.former:
                return None
            steps.append(Remove(CONTROLLER, current.version))
        following, claim = raise_epoch(epoch)
        steps = [*steps, Create(CONTROLLER, seat_node(me, following.value), ephemeral=True), *claim]
        try:
            await self._client.transact("taking the seat", steps)
        except Rejected:
            self._client.changed.send()  # it was taken, or has gone, under our hands: look again at once
            return None
        self._takings += 1
        self._held, self._taken = _Held(following, session), following
        self._lost = ""
        self.seat = Seat(holder=me, epoch=following.value)
        self._client.changed.send()
        return following.value

    async def _drop_leftover(self) -> None:
        """After a taking that was cancelled: the seat must not stay with a process that does not know of it."""
        try:
            async with self._taking:
                if self._held is None:
                    await self._vacate(await read_epoch(self._client))
        except ControllerError as error:
            logger.warning(
                "a cancelled claim of the seat could not be undone; the seat may stay taken until this ZooKeeper session "
                "ends: %s",
                error,
            )

    async def resign(self) -> None:
        self._lose("resigned")
        async with self._taking:
            await self._vacate(self._taken)
            self._taken = None

    async def _vacate(self, epoch: Epoch | None) -> None:
        """Only if no other process has taken the seat after this epoch."""
        if epoch is None:
            return
        current = await self._client.read(CONTROLLER)
        if current is None or current.owner != self._client.session:
            return
        try:
            await self._client.transact(
                "giving the seat back",
                [VersionCheck(keys.CONTROLLER_EPOCH, epoch.version), Remove(CONTROLLER, current.version)],
            )
        except Rejected:
            logger.info("the seat of the link controller was with another already")

    async def seat_lost(self) -> str:
        while True:
            turn = self._client.changed.turn()
            held = self._held
            if held is None:
                return self._lost
            remaining = RECHECK
            if self._client.session != held.session:
                self._lose("its session with ZooKeeper has ended")
                continue
            if not self._client.connected:
                limit = min(self._client.session_timeout, self._client.granted)  # then another may have it
                remaining = self._client.disconnected_since + limit - time.monotonic()
                if remaining <= 0:
                    self._lose(f"ZooKeeper at {self._client.servers} was not reachable for {limit:g} s")
                    continue
            await _wait(turn, remaining)

    def fenced(self, current: int) -> None:
        """A commit was refused because of this epoch."""
        if self._held is not None and current > self._held.epoch.value:
            self._lose(f"controller epoch {current} was claimed by another")

    def _lose(self, why: str) -> None:
        if self._held is not None:
            self._held = None
            self._lost = why
            self._client.changed.send()

    # Watching the store.

    async def _watch(self) -> None:
        troubled = False
        while not self._client.closed:
            try:
                await self._client.until_connected()
                turn = self._client.changed.turn()
                await self._observe()
                await self._stay_announced()
                troubled = False
            except ControllerError as error:
                if not troubled:  # said once, tried again until it is over
                    logger.warning("the fleet's nodes cannot be watched: %s", error)
                troubled = True
                await asyncio.sleep(RETRY)
                continue
            await _wait(turn, RECHECK)

    async def _observe(self) -> None:
        takings = self._takings
        current = await self._client.watch(CONTROLLER)
        if takings != self._takings:
            return  # the creation fires the watch: it is read again
        before = self.seat
        if self._held is not None and (current is None or current.owner != self._held.session):
            self._lose(
                f"{self._client.where(CONTROLLER)} is gone"
                if current is None
                else "another has taken the seat"
            )
        self.seat = None  # also if it cannot be read
        try:
            if current is not None:
                self.seat = open_seat(self._client.where(CONTROLLER), current.data)
        finally:
            if self.seat != before:
                self._client.changed.send()

    # Being alive.

    async def check_fleet(self, me: Candidate) -> None:
        """The store belongs to the first fleet that uses it. StoreError if that is another one."""
        if not me.cluster_id:
            return
        where = self._client.where(FLEET)
        for _ in range(5):
            stored = await self._client.read(FLEET)
            if stored is not None:
                opened = open_envelope(where, stored.data)
                if opened is None or opened.value != me.cluster_id:
                    raise StoreError(
                        f"{where} belongs to the fleet of target cluster "
                        f"{None if opened is None else opened.value}, not {me.cluster_id}: "
                        "give this fleet a path of its own in the store's connect string"
                    )
                return
            try:
                await self._client.transact(
                    "marking the fleet", [Create(FLEET, envelope(dump(FLEET, me.cluster_id)))]
                )
            except Rejected:
                continue
            return
        raise StoreError(f"{where} is created and deleted by somebody all the time")

    async def announce(self, me: Candidate) -> None:
        await self.check_fleet(me)
        # A killed predecessor's node lives as long as its session, and the server rounds up to its ticks.
        patience = 1.5 * max(self._client.session_timeout, self._client.granted) + 3.0
        try:
            async with asyncio.timeout(patience):
                while True:
                    turn = self._client.changed.turn()
                    if await self._be_alive(me):
                        break
                    await _wait(turn, RETRY)
        except TimeoutError:
            raise StoreError(
                f"another sidecar with broker.id {me.broker_id} is running: "
                f"{self._client.where(_live(me))} is still there after {patience:.0f} s. "
                "Stop it, or give this one another broker.id"
            ) from None
        self._announced = me

    async def _stay_announced(self) -> None:
        """Announce again after another session, or after the node was removed."""
        me = self._announced
        if me is not None and not await self._be_alive(me):
            raise StoreError(
                f"{self._client.where(_live(me))} is of another session: another sidecar with broker.id "
                f"{me.broker_id} runs, or this one's earlier session is not over yet"
            )

    async def _be_alive(self, me: Candidate) -> bool:
        """Whether the node is there and ours now; it is watched in any case."""
        path, data = _live(me), live_node(me)
        for _ in range(5):
            session = self._client.session
            current = await self._client.watch(path)
            if current is not None and current.owner != session:
                return False
            if current is not None and current.data == data:
                return True
            try:
                await self._client.transact("announcing", _alive_steps(path, data, current))
            except Rejected:
                continue
        return False


def _alive_steps(path: str, data: bytes, current: Stored | None) -> Sequence[Step]:
    return [Create(path, data, ephemeral=True)] if current is None else [Write(path, data, current.version)]


def _live(candidate: Candidate) -> str:
    return f"{LIVE}/{candidate.broker_id}"


async def _wait(turn: asyncio.Event, timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            await turn.wait()
    except TimeoutError:
        pass  # then the caller looks again without being told
