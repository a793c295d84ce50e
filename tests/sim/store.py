"""The shared store: linearizable, elects, expires sessions; its answers get lost, its commits come late."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from controller.operations import Operation, Put, Versioned
from controller.phases import TRANSITIONS, Phase
from fleet.stores.base import Candidate, ControllerFenced, Seat, StoreError
from tests.controller.memory_store import MemoryStore
from tests.sim.loop import Process
from tests.sim.network import NoAnswer

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")
SESSION_TIMEOUT = 0.8
STORE = "store"
_TICK = 0.1
_TIMEOUT = 0.9


def at_once(coro: Coroutine[Any, Any, T]) -> T:
    """The result of something that never waits."""
    try:
        coro.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waited")


@dataclass(eq=False)
class Session:
    client: StoreClient
    heard: float
    expired: bool = False


class StoreServer:
    #: Whether an operation of a process settles what its earlier ones came to.
    settles = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.data: MemoryStore = MemoryStore()
        self.seat: Seat | None = None
        self.seated: Session | None = None
        self.sessions: list[Session] = []
        self.version = 0
        self.fail_before = self.fail_after = self.late = 0.0
        self._tick()

    def _tick(self) -> None:
        now, network = self.world.loop.time(), self.world.network
        for session in list(self.sessions):
            process = session.client.process
            if process.runs and network.both(process.name, STORE):
                session.heard = now
            elif now - session.heard > SESSION_TIMEOUT:
                self.expire(session)
        self.world.loop.kernel(_TICK, self._tick)

    def expire(self, session: Session) -> None:
        session.expired = True
        if session in self.sessions:
            self.sessions.remove(session)
        self.world.note(f"store: session of {session.client.process.name} expired")
        if self.seated is session:
            self._give(None, None)
        network, name = self.world.network, session.client.process.name
        network.deliver(STORE, name, lambda: session.client.session_over(session), network.delay())

    def _give(self, seat: Seat | None, session: Session | None) -> None:
        self.seat, self.seated = seat, session
        self.version += 1
        version = self.version
        self.world.note(f"store: seat {'free' if seat is None else (seat.holder.broker_id, seat.epoch)}")
        for client in self.world.clients():
            name = client.process.name
            self.world.network.deliver(
                STORE,
                name,
                lambda client=client: client.saw(version, seat),  # type: ignore[misc]
                self.world.network.delay(),
            )

    # What clients ask for.

    def take(self, session: Session, me: Candidate) -> int | None:
        if session.expired:
            raise StoreError("the session is over")
        if self.seat is not None and self.seated is not session:
            return None
        epoch = at_once(self.data.claim())
        self.world.epochs.append(epoch)
        self._give(Seat(holder=me, epoch=epoch), session)
        return epoch

    def resign(self, session: Session) -> None:
        if self.seated is session:
            self._give(None, None)

    def commit(self, operations: Sequence[Operation], epoch: int, by: str) -> None:
        before = dict(self.data.nodes)
        at_once(self.data.commit(operations, controller_epoch=epoch))
        current = max(self.world.epochs)
        if epoch < current and operations:
            self.world.broken(f"b: a commit of epoch {epoch} is visible under {current}")
        for operation in operations:
            old, new = before.get(operation.path), self.data.nodes.get(operation.path)
            if old is not None and new is not None and new[1] <= old[1]:
                self.world.broken(f"b: version of {operation.path} fell from {old[1]} to {new[1]}")
            if isinstance(operation, Put) and operation.path.endswith("/state"):
                self._judge(None if old is None else json.loads(old[0]), operation.value, by)  # type: ignore[arg-type]
        if self.world.stepped is not None:
            for operation in operations:
                if operation.path.endswith("/state"):
                    self.world.stepped(operation.value if isinstance(operation, Put) else None)

    def _judge(self, old: Mapping[str, Any] | None, new: Mapping[str, Any], by: str) -> None:
        self.world.note(
            f"store: {new['topic']}-{new['partition']} {new['phase']} "
            f"leader {new['leader']}/{new['leader_epoch']} by {by}"
            if "topic" in new
            else f"store: {new.get('phase')} leader {new.get('leader')}/{new.get('leader_epoch')} by {by}"
        )
        if old is None:
            return
        was, now = Phase(old["phase"]), Phase(new["phase"])
        if now is not was and now not in TRANSITIONS[was]:
            self.world.broken(f"b: phase went from {was} to {now}: a write on an old state")
        for name in ("controller_epoch", "leader_epoch"):
            if new[name] < old[name]:
                self.world.broken(f"b: {name} fell from {old[name]} to {new[name]}")


class StoreClient:
    """One process's FleetStore."""

    def __init__(self, server: StoreServer, process: Process) -> None:
        self._server = server
        self._world = server.world
        self.process = process
        self.seat: Seat | None = server.seat
        self._version = server.version
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._over: asyncio.Event = asyncio.Event()
        self._unsettled: list[Callable[[], None]] = []

    # What the server tells.

    def saw(self, version: int, seat: Seat | None) -> None:
        if version > self._version:
            self._version, self.seat = version, seat
            self._changed.set()
            self._changed = asyncio.Event()

    def session_over(self, session: Session) -> None:
        if session is self._session:
            self._session = None
        self._over.set()

    # The contract.

    async def _request(self, carry_out: Callable[[], T], *, slow: float = 0.0) -> T:
        """What an earlier request of this process came to is settled before: it was carried out or never will be."""
        network = self._world.network
        state = {"open": True}

        def arrive() -> T:
            if not state["open"]:
                raise StoreError("given up before")  # nobody hears it
            state["open"] = False
            if self._server.settles:
                for settle in self._unsettled:
                    settle()
                self._unsettled.clear()
            return carry_out()

        def settle() -> None:
            if state["open"]:
                state["open"] = False
                if self._world.rng_store.random() < 0.5:
                    with contextlib.suppress(StoreError):
                        carry_out()

        try:
            return await network.request(self.process.name, STORE, arrive, _TIMEOUT, slow=slow)
        except NoAnswer as error:
            raise StoreError(str(error)) from None
        finally:
            self._unsettled.append(settle)

    async def get(self, path: str) -> Versioned | None:
        return await self._request(lambda: at_once(self._server.data.get(path)))

    async def children(self, path: str) -> list[str]:
        return await self._request(lambda: at_once(self._server.data.children(path)))

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        return await self._request(lambda: at_once(self._server.data.tree(path)))

    async def claim(self) -> int:
        raise AssertionError("a fleet takes the seat")

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        rng, server = self._world.rng_store, self._server
        if server.fail_before and rng.random() < server.fail_before:
            await asyncio.sleep(rng.random() * 0.05)
            raise StoreError("simulated, not carried out")
        slow = rng.uniform(0, 3.0) if server.late and rng.random() < server.late else 0.0
        by = f"{self.process.name} epoch {controller_epoch}"
        await self._request(lambda: server.commit(operations, controller_epoch, by), slow=slow)
        if server.fail_after and rng.random() < server.fail_after:
            raise StoreError("simulated, carried out")

    async def close(self) -> None:
        """Nothing is open."""

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.seat == known:
                    await self._changed.wait()
        return self.seat

    async def announce(self, me: Candidate) -> None:
        """Nobody looks."""

    def _connected(self) -> Session:
        if self._session is None or self._session.expired:
            self._session = Session(self, self._world.loop.time())
            self._server.sessions.append(self._session)
        return self._session

    async def take_seat(self, me: Candidate) -> int:
        while True:
            seat = self.seat
            if seat is None or (self._session is not None and seat.holder.session == me.session):
                session = self._connected()
                self._over = asyncio.Event()
                epoch: int | None = await self._request(partial(self._server.take, session, me))
                if epoch is not None:
                    return epoch
            await self.seat_changed(seat, timeout=0.3)

    async def seat_lost(self) -> str:
        await self._over.wait()
        return "the session with the store is over"

    async def resign(self) -> None:
        session = self._session
        if session is not None:
            await self._request(lambda: self._server.resign(session))


__all__ = ["STORE", "ControllerFenced", "StoreClient", "StoreServer"]
