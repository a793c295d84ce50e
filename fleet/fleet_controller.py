"""The link controller's side of the fleet: takes members, proves their leases, sends deltas, writes requested changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from controller.codec import encode as encode_entity
from controller.codec import path_of
from controller.errors import Refused
from controller.state import (
    Record,
    Removal,
    SidecarIdentity,
)
from fleet import messages as m
from fleet.asked_changes import AskedChanges
from fleet.channel import ChannelClosed, MemberChannel
from fleet.commands import Commands
from fleet.progress import ReportBook, decode_copies
from fleet.roster import MemberInfo, Roster
from fleet.settings import FleetSettings
from fleet.shared_controller import removal_entry
from fleet.stored_controller import StoredController
from fleet.stores.base import ControllerFenced, Store, StoreError
from wire.errors import LinkerError
from wire.frames.types import parse_topic_id
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

_TICK = 0.1
_STALL = 0.5  # the clock has gone on by so much more than we have slept
_STORE_PAUSE = 0.2


class FleetController(Roster):
    """One per duties: from the claim of an epoch until the seat is lost."""

    def __init__(
        self,
        controller: StoredController,
        store: Store,
        settings: FleetSettings,
        clock: Callable[[], float],
        *,
        endless_leases: bool,
        cluster_id: Callable[[], str],
        claimed_at: float | None = None,
    ) -> None:
        super().__init__(controller, settings, clock, endless_leases=endless_leases, claimed_at=claimed_at)
        self._store = store
        self._cluster_id = cluster_id
        self.book = ReportBook(lambda: self.controller.image.partitions)
        self.commands = Commands(self, self.book, clock)
        self._entering: dict[int, asyncio.Lock] = {}
        self._asked = AskedChanges(controller, self.send)
        self._renewals: list[tuple[MemberInfo, int]] = []
        self._renewal = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled, or until the store says that another controller has claimed it (ControllerFenced)."""
        self.controller.listeners.add(self._committed)
        try:
            async with TaskGroup() as group:
                group.create_task(self._prove())
                group.create_task(self._watch())
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            self.controller.listeners.discard(self._committed)
            for member in list(self.members.values()):
                member.channel.close("this sidecar is not the link controller any more")

    async def _watch(self) -> None:
        last = self._clock()
        while True:
            now = self._clock()
            if now - last > _STALL:
                self.forgive(now - last)
            last = now
            self.look(now)
            self.commands.look()
            await asyncio.sleep(_TICK)

    # A member's connection.

    async def serve(self, channel: MemberChannel, *, local: bool = False) -> None:
        """Take one member until its channel closes. Any error of the member ends the channel, never the link
        controller."""
        member: MemberInfo | None = None
        writing: asyncio.Task[None] | None = None
        try:
            member = await self._enter(channel, local)
            writing = asyncio.create_task(self._asked.write(member))
            while True:
                message = m.from_member(await channel.receive())
                member.last_heard = self._clock()
                self._take(member, message)
        except ChannelClosed as closed:
            log.debug("%s: %s", channel.peer, closed)
        except LinkerError as error:
            log.warning("sidecar at %s: %s", channel.peer, error)
        finally:
            channel.close("the link controller ended it")
            if writing is not None:
                writing.cancel()
            if member is not None and self.members.get(member.hello.broker_id) is member:
                del self.members[member.hello.broker_id]
                self.lost[member.hello.broker_id] = self._clock()
                self.tell_membership()

    async def _enter(self, channel: MemberChannel, local: bool) -> MemberInfo:
        try:
            async with asyncio.timeout(self._settings.hello_timeout):
                hello = m.from_member(await channel.receive())
        except TimeoutError:
            raise ChannelClosed(f"{channel.peer} said nothing") from None
        if not isinstance(hello, m.Hello):
            raise m.BadMessage(f"{channel.peer} began with {hello.type}, not hello")
        # One process of a sidecar at a time: the checks below must still hold when it is taken.
        async with self._entering.setdefault(hello.broker_id, asyncio.Lock()):
            return await self._take_member(hello, channel, local)

    async def _take_member(self, hello: m.Hello, channel: MemberChannel, local: bool) -> MemberInfo:
        protocol = self._admit(hello, channel)
        self.leases.gone(hello.broker_id, [s for s in hello.replaces if s != hello.session])
        # Before the record is written: the store keeps one session of a sidecar, and the next controller must know
        # of the one that may hold a lease.
        self._check_alone(hello, channel)
        earlier = self.members.pop(hello.broker_id, None)
        if earlier is not None:
            # Before the wait below, in which it could be given a lease again.
            earlier.channel.close("the sidecar has connected again")
            self.lost[hello.broker_id] = self._clock()
        # Durable before the lease: the next controller must know which sidecars to wait for.
        await self._note_identity(hello)
        now = self._clock()
        member = MemberInfo(hello=hello, channel=channel, connected_at=now, last_heard=now, local=local)
        # From here on without a wait: the next commit follows the image as a delta.
        image = None
        if not local:
            image = [(path, node.value, node.version) for path, node in self.controller.image.nodes().items()]
        channel.send(
            m.encode(
                m.Welcome(
                    protocol=protocol,
                    controller_epoch=self.controller.controller_epoch,
                    broker_id=hello.broker_id,
                    lease=None if self._endless else self._settings.lease,
                    image=image,
                )
            )
        )
        self.members[hello.broker_id] = member
        self.lost.pop(hello.broker_id, None)
        self.left.discard(hello.broker_id)
        self.commands.greet(member)
        log.info("sidecar %d joined (%s, program version %s)", hello.broker_id, channel.peer, hello.version)
        self.tell_membership()
        return member

    def _admit(self, hello: m.Hello, channel: MemberChannel) -> int:
        """The protocol version to speak; a refusal ends the channel."""
        low, high = max(hello.protocol[0], m.PROTOCOL[0]), min(hello.protocol[1], m.PROTOCOL[1])
        if low > high:
            self._refuse(
                channel,
                f"sidecar {hello.broker_id} (version {hello.version}) speaks the fleet's protocol in versions "
                f"{hello.protocol[0]} to {hello.protocol[1]}, this link controller {m.PROTOCOL[0]} to {m.PROTOCOL[1]}: "
                "upgrade one of them by a version in between",
                fatal=True,
            )
        ours = self._cluster_id()
        if hello.cluster_id and ours and hello.cluster_id != ours:
            self._refuse(
                channel,
                f"sidecar {hello.broker_id} belongs to target cluster {hello.cluster_id}, this fleet to {ours}",
                fatal=True,
            )
        if hello.highest_epoch > self.controller.controller_epoch:
            self._refuse(
                channel, f"controller epoch {self.controller.controller_epoch} is not the newest any more"
            )
        present = self.members.get(hello.broker_id)
        if (
            present is not None
            and present.hello.session != hello.session
            and present.hello.session not in hello.replaces
            and not self.is_dead(hello.broker_id, self._clock())
        ):
            self._refuse(
                channel,
                f"another sidecar with broker.id {hello.broker_id} is running ({present.channel.peer}): "
                "every sidecar needs an id of its own",
                fatal=True,
            )
        return high

    def _check_alone(self, hello: m.Hello, channel: MemberChannel) -> None:
        """No other process of this sidecar may hold a lease."""
        others = self.leases.others_of(hello.broker_id, hello.session, self._clock())
        if others and not self._endless:
            left = max(self.leases.until(other) for other in others) - self._clock()
            self._refuse(
                channel,
                f"an earlier process of sidecar {hello.broker_id} may still be running; its lease ends in {left:.1f} s",
            )

    async def remove_departed(self, broker_id: int) -> bool:
        """Forget a sidecar that was told to leave, has gone, and acknowledges nothing any more; returns whether that
        is so. Not while a process of it is being taken: its record would go, and its lease would not be waited for."""
        async with self._entering.setdefault(broker_id, asyncio.Lock()):
            known = self.controller.image.identities.get(broker_id)
            if known is None or not known.leaving:
                return False
            if broker_id in self.members or self.lease_left(broker_id) != 0:
                return False
            await self.controller.remove_sidecar(broker_id)
            return True

    def _refuse(self, channel: MemberChannel, reason: str, *, fatal: bool = False) -> None:
        with contextlib.suppress(ChannelClosed):
            channel.send(m.encode(m.Refusal(reason=reason, fatal=fatal)))
        raise Refused(reason)

    async def _note_identity(self, hello: m.Hello) -> None:
        known = self.controller.image.identities.get(hello.broker_id)
        if self._endless:
            return  # one process, which writes its identity itself
        same_process = known is not None and known.session == hello.session
        await self.controller.save_identity(
            SidecarIdentity(
                broker_id=hello.broker_id,
                incarnation_id=_uuid(hello.incarnation_id, None if known is None else known.incarnation_id),
                log_dir_id=_uuid(hello.log_dir_id, None if known is None else known.log_dir_id),
                broker_epoch=max(hello.broker_epoch, -1 if known is None else known.broker_epoch),
                cluster_id=hello.cluster_id or ("" if known is None else known.cluster_id),
                session=hello.session,
                # The longer lease counts if an older link controller gave the process one.
                lease=max(self._settings.lease, known.lease)
                if known is not None and same_process
                else self._settings.lease,
                draining=known is not None and known.draining and same_process,
                leaving=known is not None and known.leaving and same_process,
                sources=tuple(sorted(hello.sources)),
            )
        )

    def _take(self, member: MemberInfo, message: m.FromMember) -> None:
        match message:
            case m.Renew():
                self._renewals.append((member, message.n))
                self._renewal.set()
            case m.Done():
                self.commands.done(member, message)
            case m.Report():
                self.book.note(member.hello.broker_id, decode_copies(message.copies), self._clock())
                if message.sidecar is not None:
                    member.said = message.sidecar
            case m.Ask():
                try:
                    member.asked.put_nowait(message)
                except asyncio.QueueFull:
                    raise m.BadMessage("it asks for more changes than can be written") from None
            case m.Bye():
                self.leases.gone(member.hello.broker_id, [member.hello.session])
                self.left.add(member.hello.broker_id)
                self.commands.look()
                raise ChannelClosed("it said good-bye")
            case m.Hello():
                raise m.BadMessage("a second hello")

    # Leases.

    async def _prove(self) -> None:
        """Answer renewals. One proof serves every renewal that had arrived before it began."""
        trouble: str | None = None
        while True:
            await self._renewal.wait()
            self._renewal.clear()
            batch, self._renewals = self._renewals, []
            try:
                async with asyncio.timeout(self._settings.store_timeout):
                    await self._store.commit([], controller_epoch=self.controller.controller_epoch)
            except ControllerFenced:
                raise
            except (StoreError, TimeoutError) as error:
                # Leases run out as intended; the sidecars ask again.
                if trouble != str(error):
                    log.warning("leases cannot be prolonged: the state store does not answer: %s", error)
                trouble = str(error)
                await asyncio.sleep(_STORE_PAUSE)
                continue
            if trouble is not None:
                log.info("the state store answers again")
                trouble = None
            now = self._clock()
            for member, number in batch:
                if self.members.get(member.hello.broker_id) is not member:
                    continue
                self.leases.renewed(member.holder, now)
                self.send(member, m.Renewed(n=number, controller_epoch=self.controller.controller_epoch))

    # Committed changes.

    def _committed(self, records: Sequence[Record]) -> None:
        if not records or any(isinstance(record, Removal) for record in records):
            self.book.drop_deleted()
        remote = [member for member in self.members.values() if not member.local]
        if not remote:
            return
        image = self.controller.image
        gone: list[list[str | int]] = []
        latest: dict[str, object] = {}
        if not records:
            latest = {path: node.value for path, node in image.nodes().items()}
        for record in records:
            if isinstance(record, Removal):
                gone.append(removal_entry(record))
            else:
                latest[path_of(record)] = encode_entity(record)
        put = [
            (path, value, image.versions[path]) for path, value in latest.items() if path in image.versions
        ]
        for member in remote:
            member.seq += 1
            self.send(
                member,
                m.Delta(
                    controller_epoch=self.controller.controller_epoch,
                    seq=member.seq,
                    reset=not records,
                    put=put,
                    gone=gone,
                ),
            )


def _uuid(text: str, known: bytes | None) -> bytes:
    """A known identity is kept when a sidecar that has none yet does not name it."""
    return parse_topic_id(text) if text else known or bytes(16)
