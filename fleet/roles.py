"""The role of this process: member always, and candidate for link controller.

    stand for the seat ---> claimed: load, duties ---> seat lost or fenced: end them ---> stand again
    look who holds it  ---> be its member until the channel closes ---> look again

Both loops run beside each other; the link controller's own sidecar is a member like any other, through a channel in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fleet.channel import MemberChannel, pair
from fleet.fleet_controller import FleetController
from fleet.member import JoinRefused, Member
from fleet.settings import FleetSettings
from fleet.shared_controller import SharedController
from fleet.stored_controller import StoredController
from fleet.stores.base import Candidate, ControllerFenced, FleetStore, Seat, StoreError, StoreUnusable
from wire.backoff import Backoff
from wire.errors import LinkerError
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

_SEAT_LOOK = 5.0
_LAST_WORD = 2.0
_ASIDE_LOOK = 0.5
_ASIDE = 10.0

Duties = Callable[[FleetController], AbstractAsyncContextManager[None]]


class FleetRunner:
    """One per process. `duties` is entered when this sidecar has become the link controller, and left when it no longer
    is; tasks inside must not outlive it. `connect` opens a channel to another link controller."""

    def __init__(
        self,
        store: FleetStore,
        candidate: Candidate,
        shared: SharedController,
        member: Member,
        settings: FleetSettings,
        clock: Callable[[], float],
        *,
        connect: Callable[[Seat], Awaitable[MemberChannel]],
        duties: Duties,
        endless_leases: bool = False,
        cluster_id: Callable[[], str] = lambda: "",
        check_store: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`check_store`: raises StoreUnusable if the store is not the one to use any more; asked with the seat taken."""
        self._store = store
        self._candidate = candidate
        self._shared = shared
        self.member = member
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._duties = duties
        self._endless = endless_leases
        self._cluster_id = cluster_id
        self._check_store = check_store
        self.fleet_controller: FleetController | None = None
        self._role_changed = asyncio.Event()
        self._resigns: asyncio.Future[str] | None = None
        #: Whether this sidecar, if another one can, should rather not be the link controller.
        self.stand_aside: Callable[[], bool] = lambda: False
        self._backoff = Backoff(settings.retry_first, settings.retry_max)
        #: Why this sidecar is not part of the fleet; None when it is.
        self.trouble: str | None = "the fleet was not joined yet"
        #: Why this sidecar lost the seat, or could not take it; None while it is part of a fleet.
        self.vacancy: str | None = None
        self._noted: str | None = None

    async def run(self) -> None:
        """Until cancelled. A refusal that no waiting helps against is raised."""
        try:
            async with TaskGroup() as group:
                group.create_task(self._stand(), name="link controller")
                group.create_task(self._follow(), name="fleet member")
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    # The link controller.

    async def _stand(self) -> None:
        backoff = Backoff(self._settings.retry_first, self._settings.retry_max)
        while True:
            await self._let_others()
            try:
                epoch = await self._store.take_seat(self._candidate)
                claimed_at = self._clock()
                if self._check_store is not None:
                    # The store may have been moved away while this sidecar waited for the seat.
                    await self._check_store()
                controller = await StoredController.load(self._store, epoch)
                log.info("this sidecar is the link controller now, with epoch %d", epoch)
                backoff.reset()
                await self._rule(controller, claimed_at)
            except asyncio.CancelledError:
                # A planned stop: the next one need not wait for a timeout.
                await self._resign(_LAST_WORD)
                raise
            except StoreUnusable:
                await self._resign(_LAST_WORD)
                raise
            except ControllerFenced as fenced:
                log.warning("this sidecar is not the link controller any more: %s", fenced)
            except LinkerError as error:
                log.warning("this sidecar cannot be the link controller: %s", error)
                self.vacancy = str(error)
            await self._resign(self._settings.store_timeout)
            await asyncio.sleep(backoff.next())

    async def _resign(self, timeout: float) -> None:
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(timeout):
                await self._store.resign()

    async def _rule(self, controller: StoredController, claimed_at: float) -> None:
        """Be the link controller until the seat is lost; raises ControllerFenced, or the error that ended it."""
        fleet_controller = FleetController(
            controller,
            self._store,
            self._settings,
            self._clock,
            endless_leases=self._endless,
            cluster_id=self._cluster_id,
            claimed_at=claimed_at,
        )
        fleet_controller.commands.own_copies = self.member.copies
        running = asyncio.create_task(fleet_controller.run(), name="link controller")
        try:
            # After the image is there and before anybody looks: what was fenced stays fenced.
            self._shared.become_controller(controller)
            self.fleet_controller = fleet_controller
            self._role_changed.set()
            async with self._duties(fleet_controller):
                # The end of the link controller is waited for there, so that it comes only once: a second reason, while
                # the term is being ended, would cut that short, and promotes of this sidecar would go on.
                lost = await self._until_lost(running)
        finally:
            running.cancel()
            try:
                await asyncio.gather(running, return_exceptions=True)
            finally:
                self.fleet_controller = None
                self._shared.cease_controller()
                self._role_changed.set()
        log.warning("this sidecar is not the link controller any more: %s", lost)
        self.vacancy = lost

    async def _until_lost(self, running: asyncio.Task[None]) -> str:
        """Until the seat is lost or given up; raises the error that ended the link controller."""
        self._resigns = asyncio.get_running_loop().create_future()
        lost = asyncio.create_task(self._store.seat_lost())
        try:
            reasons: set[asyncio.Future[Any]] = {running, lost, self._resigns}
            await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            return self._resigns.result() if self._resigns.done() else lost.result()
        finally:
            self._resigns = None
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)

    def resign(self, why: str) -> None:
        """Give up the seat, if this sidecar has it: another one takes it."""
        if self._resigns is not None and not self._resigns.done():
            self._resigns.set_result(why)

    async def _let_others(self) -> None:
        """Stand aside while another sidecar has the seat, and for a while in which one could take it. If none does,
        the fleet needs this one again."""
        free = 0.0
        while self.stand_aside() and free < _ASIDE:
            await asyncio.sleep(_ASIDE_LOOK)
            seat = self._store.seat
            if seat is not None and seat.holder.session == self._candidate.session:
                # It could not be given back, or that is not seen yet: nobody else takes it while it looks like ours.
                await self._resign(self._settings.store_timeout)
            free = free + _ASIDE_LOOK if self._store.seat is None else 0.0

    # The member.

    async def _follow(self) -> None:
        while True:
            self._role_changed.clear()
            seat = self._shared.seat = self._store.seat
            try:
                if self.fleet_controller is not None:
                    async with self._local(self.fleet_controller) as channel:
                        await self._session(channel, seat, local=True)
                elif seat is not None and seat.holder.session != self._candidate.session:
                    remote = await self._reach(seat)
                    if remote is not None:
                        await self._session(remote, seat)
                else:
                    self.trouble = "no sidecar is the link controller at the moment"
            except JoinRefused as refused:
                if refused.fatal:
                    raise
                self._note(str(refused))
            except TimeoutError:
                self._note("the link controller does not take connections")
            except LinkerError as error:
                self._note(str(error))
            await self._look_again(seat, self._backoff.next())

    async def _reach(self, seat: Seat) -> MemberChannel | None:
        """A channel to the link controller; None if another one is to be followed by now. One that stands still takes
        connections and says nothing, and its follower counts who has come."""
        connecting = asyncio.ensure_future(self._connect(seat))
        taken = False
        try:
            async with asyncio.timeout(self._settings.connect_timeout):
                taken = await self._ends_under(seat, connecting)
            return connecting.result() if taken else None
        finally:
            if not taken:
                connecting.cancel()
                (outcome,) = await asyncio.gather(connecting, return_exceptions=True)
                if not isinstance(outcome, BaseException):
                    outcome.close("another link controller is to be followed")

    async def _session(self, channel: MemberChannel, seat: Seat | None, *, local: bool = False) -> None:
        """Until it ends by itself, or another link controller is to be followed: an old one that has lost the store,
        but not us, could not prolong our lease."""
        session = asyncio.ensure_future(self.member.session(channel, local=local))
        self.trouble = self.vacancy = None
        began = self._clock()
        try:
            if await self._ends_under(seat, session):
                await session
        finally:
            session.cancel()
            await asyncio.gather(session, return_exceptions=True)
            channel.close("the member's session is over")
            if self._clock() - began > self._settings.retry_max:
                # Else it is one attempt of many, at a sidecar that is not the link controller any more.
                self._noted = None
                self._backoff.reset()

    async def _ends_under(self, seat: Seat | None, work: asyncio.Future[Any]) -> bool:
        """Wait for the end of work with the holder of the seat; False if this sidecar's role changes first, or another
        one has the seat with a higher epoch."""
        role = asyncio.ensure_future(self._role_changed.wait())
        known = seat
        try:
            while not work.done():
                change = asyncio.ensure_future(self._store.seat_changed(known, timeout=_SEAT_LOOK))
                try:
                    await asyncio.wait({work, role, change}, return_when=asyncio.FIRST_COMPLETED)
                    if role.done() or self._superseded(change, seat):
                        return False
                    if change.done() and change.exception() is not None:
                        # The store is away; it goes on without it.
                        await asyncio.wait(
                            {work, role}, timeout=_SEAT_LOOK, return_when=asyncio.FIRST_COMPLETED
                        )
                    elif change.done():
                        known = change.result()  # free, while its holder is still there: no reason to go
                finally:
                    change.cancel()
                    await asyncio.gather(change, return_exceptions=True)
            return True
        finally:
            role.cancel()
            await asyncio.gather(role, return_exceptions=True)

    @staticmethod
    def _superseded(change: asyncio.Future[Seat | None], seat: Seat | None) -> bool:
        if not change.done() or change.exception() is not None:
            return False
        now = change.result()
        return now is not None and (seat is None or now.epoch > seat.epoch)

    def _note(self, trouble: str) -> None:
        if trouble != self._noted:
            log.info("not part of the fleet at the moment: %s", trouble)
        self.trouble = self._noted = trouble

    async def _look_again(self, seat: Seat | None, pause: float) -> None:
        """After a pause, or at once when the seat or this sidecar's role has changed."""
        change = asyncio.ensure_future(self._store.seat_changed(seat, timeout=pause))
        role = asyncio.ensure_future(self._role_changed.wait())
        try:
            await asyncio.wait({change, role}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if change.done() and not change.cancelled() and change.exception() is not None:
                log.debug("the seat cannot be looked at: %s", change.exception())
                await asyncio.wait({role}, timeout=pause)
        finally:
            for task in (change, role):
                task.cancel()
            await asyncio.gather(change, role, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _local(self, fleet_controller: FleetController) -> AsyncIterator[MemberChannel]:
        ours, theirs = pair("this sidecar", "this sidecar's link controller")
        serving = asyncio.create_task(fleet_controller.serve(theirs, local=True))
        try:
            yield ours
        finally:
            ours.close("the session is over")
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def accept(self, channel: MemberChannel) -> None:
        """Another sidecar has connected, taking this one for the link controller."""
        fleet_controller = self.fleet_controller
        if fleet_controller is None:
            channel.close("this sidecar is not the link controller")
            return
        await fleet_controller.serve(channel)
