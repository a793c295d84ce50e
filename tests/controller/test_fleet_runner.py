"""Roles: who is the head, who follows whom, and what becomes of leases when either goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from fleet.channel import ChannelClosed, MemberChannel, pair
from fleet.fleet_controller import FleetController
from fleet.lease import DRIFT
from fleet.member import Member
from fleet.roles import FleetRunner
from fleet.shared_controller import SharedController
from fleet.stores.base import Candidate, ControllerFenced, Seat, StoreError, StoreUnusable
from tests.controller.fleet_kit import LINK, SETTINGS, TP, Ports, TroubledStore, hello, now
from tests.controller.memory_store import MemoryStore
from tests.controller.virtual_loop import run_virtual

LEASE = SETTINGS.lease * DRIFT


class Server:
    """What the sidecars share: the nodes and the seat."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, int]] = {}
        self.seat: Seat | None = None
        self.changed = asyncio.Event()

    def give(self, seat: Seat | None) -> None:
        self.seat = seat
        self.changed.set()
        self.changed = asyncio.Event()


class Client(TroubledStore):
    """One sidecar's way to the server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        super().__init__()
        self.away = False
        self.lost: asyncio.Future[str] | None = None
        self.looks = 0
        self.epoch = -1

    @property
    def nodes(self) -> dict[str, tuple[str, int]]:  # type: ignore[override]
        return self.server.nodes

    @nodes.setter
    def nodes(self, nodes: dict[str, tuple[str, int]]) -> None:
        self.server.nodes = nodes or self.server.nodes

    @property
    def seat(self) -> Seat | None:
        return self.server.seat

    def _reach(self) -> None:
        if self.away:
            raise StoreError("the store is away")

    async def tree(self, path: str):  # type: ignore[no-untyped-def]
        self._reach()
        return await super().tree(path)

    async def commit(self, operations, *, controller_epoch: int) -> None:  # type: ignore[no-untyped-def]
        self._reach()
        await super().commit(operations, controller_epoch=controller_epoch)

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        self.looks += 1
        self._reach()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.server.seat == known:
                    await self.server.changed.wait()
        return self.server.seat

    async def announce(self, me: Candidate) -> None:
        """Nobody looks."""

    async def take_seat(self, me: Candidate) -> int:
        self._reach()
        while self.server.seat is not None:
            await self.server.changed.wait()
            await asyncio.sleep(0.05)
            self._reach()
        epoch = self.epoch = await MemoryStore.claim(self)
        self.lost = asyncio.get_running_loop().create_future()
        self.server.give(Seat(holder=me, epoch=epoch))
        return epoch

    async def seat_lost(self) -> str:
        assert self.lost is not None
        return await asyncio.shield(self.lost)

    async def resign(self) -> None:
        seat = self.server.seat
        if seat is not None and seat.epoch == self.epoch:
            self._reach()
            self.server.give(None)


class Sidecar:
    def __init__(self, fleet: Fleet, broker_id: int) -> None:
        self.fleet = fleet
        self.broker_id = broker_id
        self.store = Client(fleet.server)
        self.shared = SharedController(lambda: 0)
        self.ports = Ports()
        self.member = Member(lambda: hello(broker_id), self.shared, self.ports, SETTINGS, now)
        self.channels: list[MemberChannel] = []
        self.ruling = 0
        self.parting = 0.0  # seconds that the end of what only the head does takes
        self.runner = FleetRunner(
            self.store,
            Candidate(broker_id=broker_id, session=f"s{broker_id}"),
            self.shared,
            self.member,
            SETTINGS,
            now,
            connect=self._connect,
            duties=self._duties,
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self.runner.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def _connect(self, seat: Seat) -> MemberChannel:
        there = self.fleet.sidecars[seat.holder.broker_id]
        if self.fleet.cut == {self.broker_id, there.broker_id}:
            raise ChannelClosed("no route")
        if there.broker_id in self.fleet.silent:
            await asyncio.Event().wait()
        ours, theirs = pair(str(self.broker_id), str(there.broker_id))
        self.fleet.tasks.append(asyncio.create_task(there.runner.accept(theirs)))
        self.channels.append(ours)
        return ours

    @contextlib.asynccontextmanager
    async def _duties(self, head: FleetController) -> AsyncIterator[None]:
        self.ruling += 1
        try:
            yield
        finally:
            await asyncio.sleep(self.parting)
            self.ruling -= 1

    @property
    def leased(self) -> bool:
        return self.member.lease.valid(now())


class Fleet:
    def __init__(self) -> None:
        self.server = Server()
        self.cut: set[int] = set()
        self.silent: set[int] = set()  # takes connections and says nothing
        self.tasks: list[asyncio.Task[None]] = []
        self.sidecars = {broker: Sidecar(self, broker) for broker in (900, 901, 902)}

    @property
    def head(self) -> Sidecar:
        (found,) = [s for s in self.sidecars.values() if s.runner.fleet_controller is not None]
        return found

    @property
    def others(self) -> list[Sidecar]:
        return [s for s in self.sidecars.values() if s.runner.fleet_controller is None]


@contextlib.asynccontextmanager
async def fleet_of_three() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    for sidecar in fleet.sidecars.values():
        sidecar.start()
    await asyncio.sleep(3)
    try:
        yield fleet
    finally:
        for sidecar in fleet.sidecars.values():
            await sidecar.stop()
        await asyncio.gather(*fleet.tasks, return_exceptions=True)


def test_one_is_the_head_and_all_are_members() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            assert all(s.leased and s.runner.trouble is None for s in fleet.sidecars.values())
            await fleet.head.shared.create_link(LINK, "c", {})
            await asyncio.sleep(0.01)
            assert all(LINK in s.shared.image.links for s in fleet.sidecars.values())
            assert fleet.head.ruling == 1
            assert sum(s.ruling for s in fleet.sidecars.values()) == 1

    run_virtual(main())


def test_the_head_dies() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            await old.stop()
            old.runner.fleet_controller = None
            died = now()
            fleet.server.give(None)
            await asyncio.sleep(2)
            new = fleet.head
            assert new is not old
            assert all(s.leased for s in fleet.others if s is not old)
            assert all(s.member.highest_epoch == 2 for s in (new, *[s for s in fleet.others if s is not old]))
            # What the dead one's lease may cover is waited for.
            assert new.runner.fleet_controller is not None
            await new.runner.fleet_controller.commands.fence(LINK, [TP], timeout=30)
            assert now() >= died + SETTINGS.lease - SETTINGS.renew_interval

    run_virtual(main())


def test_a_reign_ends_once_and_to_its_end() -> None:
    """The seat is lost, and while what only the head does is ended the head itself learns from a commit that another
    one is there."""

    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            old.parting = 2.0
            assert old.store.lost is not None
            old.store.lost.set_result("the session with the store is over")
            old.store.failing = ControllerFenced(1, 2)
            await asyncio.sleep(0.1)
            fleet.server.give(None)
            await asyncio.sleep(4)
            assert fleet.head is not old
            assert old.ruling == 0
            assert fleet.head.ruling == 1

    run_virtual(main())


def test_a_head_that_stands_still_keeps_nobody_from_the_next() -> None:
    """The next one would take those for dead, itself included, that wait for an answer of the old one."""

    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            fleet.silent = {old.broker_id}
            old.store.away = True  # it gives nothing back
            await old.stop()
            old.runner.fleet_controller = None
            for sidecar in fleet.others:
                if sidecar is not old:
                    sidecar.channels[-1].close("reset")
            await asyncio.sleep(0.5)  # the others are connecting to it again
            fleet.server.give(None)
            await asyncio.sleep(1)
            new = fleet.head
            assert new.runner.fleet_controller is not None
            assert set(new.runner.fleet_controller.members) == set(fleet.sidecars) - {old.broker_id}

    run_virtual(main())


def test_a_zombie_head_that_lost_the_store_but_not_its_members() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            old = fleet.head
            old.store.away = True
            await asyncio.sleep(1)
            assert all(s.shared.ask for s in fleet.sidecars.values())
            fleet.server.give(None)  # its session with the store is over, and it does not know
            await asyncio.sleep(2)
            heads = [s for s in fleet.sidecars.values() if s.runner.fleet_controller is not None]
            assert len(heads) == 2
            new = next(s for s in heads if s is not old)
            for sidecar in fleet.sidecars.values():
                if sidecar is not old:
                    assert sidecar.member.highest_epoch == 2
                    assert sidecar.leased
            await asyncio.sleep(LEASE)
            assert not old.leased  # its own head could not prove anything
            await new.shared.create_link("x", "c", {})
            with pytest.raises(StoreError):
                await old.shared.create_link("y", "c", {})
            old.store.away = False
            await asyncio.sleep(SETTINGS.retry_max + 6)
            assert fleet.head is new
            assert old.leased
            assert "x" in old.shared.image.links

    run_virtual(main())


def test_the_store_is_away_then_back() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            for sidecar in fleet.sidecars.values():
                sidecar.store.away = True
            await asyncio.sleep(SETTINGS.lease - SETTINGS.renew_interval - 0.2)
            assert all(s.leased for s in fleet.sidecars.values())
            await asyncio.sleep(1)
            assert not any(s.leased for s in fleet.sidecars.values())
            assert fleet.head.runner.fleet_controller is not None
            for sidecar in fleet.sidecars.values():
                sidecar.store.away = False
            await asyncio.sleep(1.5)
            assert all(s.leased for s in fleet.sidecars.values())

    run_virtual(main())


def test_a_seat_that_is_free_is_no_reason_to_leave_nor_to_spin() -> None:
    """The head has lost its session with the store and nobody has taken the seat yet."""

    async def main() -> None:
        async with fleet_of_three() as fleet:
            for sidecar in fleet.sidecars.values():
                sidecar.store.looks = 0
            looking = [s.store for s in fleet.others]
            fleet.server.seat = None  # nobody is told to take it
            fleet.server.changed.set()
            fleet.server.changed = asyncio.Event()
            for store in looking:
                store.away = False
            await asyncio.sleep(0.04)  # before anybody stands
            assert max(store.looks for store in looking) < 5
            assert all(s.shared.ask for s in fleet.sidecars.values())

    run_virtual(main())


def test_the_seat_is_lost_and_the_reign_is_over_before_another_begins() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            for _ in range(3):
                old = fleet.head
                assert old.store.lost is not None
                old.store.lost.set_result("expired")
                await asyncio.sleep(0.01)
                assert old.runner.vacancy == "expired"
                await asyncio.sleep(4)
                assert sum(s.ruling for s in fleet.sidecars.values()) == 1
                assert fleet.head.ruling == 1
                assert all(s.leased for s in fleet.sidecars.values())
            assert fleet.head.shared.controller_epoch == 4

    run_virtual(main())


def test_a_seat_whose_holder_is_no_head_is_tried_slowly(caplog: pytest.LogCaptureFixture) -> None:
    """The store is away: nobody can take the seat, and it cannot be given back."""

    async def main() -> None:
        async with fleet_of_three() as fleet:
            for sidecar in fleet.sidecars.values():
                sidecar.store.away = True
            old = fleet.head
            assert old.store.lost is not None
            old.store.lost.set_result("not reachable")
            await asyncio.sleep(2)
            caplog.clear()
            tried = {s: len(s.channels) for s in fleet.sidecars.values()}
            await asyncio.sleep(20)
            assert all(len(s.channels) - tried[s] <= 20 / SETTINGS.retry_max + 1 for s in tried)
            said = [one for one in caplog.messages if "not part of the fleet" in one]
            assert len(said) < 10, said
            assert old.runner.vacancy

    with caplog.at_level("INFO"):
        run_virtual(main())


def test_a_member_that_cannot_reach_the_head_keeps_its_lease_to_its_end() -> None:
    async def main() -> None:
        async with fleet_of_three() as fleet:
            cut_off = fleet.others[0]
            fleet.cut = {cut_off.broker_id, fleet.head.broker_id}
            cut_off.channels[-1].close("cut")
            await asyncio.sleep(SETTINGS.lease - SETTINGS.renew_interval - 0.2)
            assert cut_off.leased
            assert cut_off.runner.trouble == "no route"
            await asyncio.sleep(1)
            assert not cut_off.leased
            fleet.cut = set()
            await asyncio.sleep(SETTINGS.retry_max + 0.5)
            assert cut_off.leased
            assert cut_off.runner.trouble is None

    run_virtual(main())


def test_a_store_that_was_moved_away_meanwhile_is_ruled_by_nobody() -> None:
    """A copy held the seat while these sidecars started, and marked the store before it gave the seat back."""

    async def main() -> None:
        fleet = Fleet()
        fleet.silent = set(fleet.sidecars)
        fleet.server.give(Seat(holder=Candidate(broker_id=900, session="store-copy"), epoch=0))
        checked: list[Seat | None] = []

        async def check() -> None:
            checked.append(fleet.server.seat)
            raise StoreUnusable("the state was moved")

        for sidecar in fleet.sidecars.values():
            sidecar.runner._check_store = check
            sidecar.start()
        await asyncio.sleep(1)
        assert not checked
        fleet.server.give(None)
        await asyncio.sleep(30)
        for sidecar in fleet.sidecars.values():
            assert sidecar.task is not None
            with pytest.raises(StoreUnusable, match="was moved"):
                await asyncio.wait_for(sidecar.task, 30)
            assert sidecar.ruling == 0
            assert not sidecar.shared.is_controller
        assert [seat and seat.holder.session for seat in checked] == ["s900", "s901", "s902"]
        assert fleet.server.seat is None

    run_virtual(main())
