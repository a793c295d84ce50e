"""The link controller's side of the fleet: takes members, proves their leases, sends them what was committed, and has
commands carried out by every one of them that matters.

Who matters for a fence is answered by the lease table alone, not by who is connected: everybody whose lease is not
certainly over. What is alive (leads partitions, may be elected) is answered by who was heard of lately. The two are
apart on purpose: the first may never be wrong, the second only has to be quick.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from controller.codec import encode as encode_entity
from controller.codec import path_of
from controller.errors import ControllerError, NotFound, Refused
from controller.fleet import messages as m
from controller.fleet.channel import Channel, ChannelClosed
from controller.fleet.lease import Holder, LeaseTable
from controller.fleet.progress import CopyReport, ReportBook, decode_copies
from controller.fleet.settings import FleetSettings
from controller.fleet.shared import removal_entry
from controller.manager import StoredController
from controller.state import (
    Record,
    Removal,
    SidecarIdentity,
)
from controller.store.base import ControllerFenced, Store, StoreError
from wire.errors import LinkerError
from wire.task_group import TaskGroup
from wire.types import TopicPartition, parse_topic_id

log = logging.getLogger(__name__)

Tell = Literal["unfence", "handed_over"]

_TICK = 0.1
_STALL = 0.5  # the clock has gone on by so much more than we have slept
_STORE_PAUSE = 0.2
_MOST_ASKED = 10_000
_ASK_PROGRESS = 0.25


class FleetIncomplete(ControllerError):
    """A sidecar that may still acknowledge writes did not carry out a command in time."""


@dataclass(slots=True)
class MemberInfo:
    """A connected sidecar, as status and elections see it."""

    hello: m.Hello
    channel: Channel
    connected_at: float
    last_heard: float
    lease_until: float = float("-inf")  # the head's clock
    seq: int = 0
    local: bool = False
    said: m.SidecarReport | None = None  # of itself, with its last report
    asked: asyncio.Queue[m.Ask] = field(default_factory=lambda: asyncio.Queue(_MOST_ASKED))

    @property
    def holder(self) -> Holder:
        return Holder(self.hello.broker_id, self.hello.session)


@dataclass(slots=True)
class _Pending:
    """A command under way."""

    message: m.Command
    waiting: set[Holder]
    everybody: bool  # whoever connects meanwhile is told too
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    errors: dict[Holder, str] = field(default_factory=dict)
    again: set[Holder] = field(default_factory=set)


class Head:
    """One per reign: from the claim of an epoch until the seat is lost."""

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
        self.controller = controller
        self._store = store
        self._settings = settings
        self._clock = clock
        self._endless = endless_leases
        self._cluster_id = cluster_id
        self.started_at = clock() if claimed_at is None else claimed_at
        self.leases = LeaseTable(settings.lease)
        self.book = ReportBook()
        self.members: dict[int, MemberInfo] = {}
        #: When a sidecar's connection ended, by broker id; of those that are not connected.
        self.lost: dict[int, float] = {}
        self._left: set[int] = set()
        self._entering: dict[int, asyncio.Lock] = {}
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._renewals: list[tuple[MemberInfo, int]] = []
        self._renewal = asyncio.Event()
        self._dead: frozenset[int] = frozenset()
        #: What this very sidecar leads, if it can be looked at without a message.
        self.own_copies: Callable[[str, Collection[TopicPartition]], Sequence[CopyReport]] | None = None
        #: Called when somebody came, went or drains.
        self.on_membership: set[Callable[[], None]] = set()
        if not endless_leases:
            self.leases.inherit(
                ((Holder(i.broker_id, i.session), i.lease) for i in controller.image.identities.values()),
                self.started_at,
            )

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

    # Who is there.

    def alive(self) -> frozenset[int]:
        """Broker ids of the sidecars that were heard of lately. Right after the start everybody is given time."""
        known = set(self.controller.image.identities) | set(self.members)
        return frozenset(known - self._dead - self._left)

    def _is_dead(self, broker_id: int, now: float) -> bool:
        member = self.members.get(broker_id)
        if member is not None:
            # Our own sidecar lives as long as we do, however late its messages are read.
            return not member.local and now - member.last_heard > self._settings.failure_timeout
        since = self.lost.get(broker_id)
        if since is not None:
            return now - since > self._settings.reset_grace
        return now - self.started_at > self._settings.failure_timeout + self._settings.retry_max

    async def _watch(self) -> None:
        before: tuple[object, ...] = ()
        last = self._clock()
        while True:
            now = self._clock()
            if now - last > _STALL:
                self._forgive(now - last)
            last = now
            known = set(self.controller.image.identities) | set(self.members)
            dead = frozenset(broker for broker in known if self._is_dead(broker, now))
            for broker in sorted(dead - self._dead):
                log.warning("sidecar %d is not heard of any more", broker)
            for broker in sorted(self._dead - dead):
                if broker in known:
                    log.info("sidecar %d is heard of again", broker)
            self._dead = dead
            seen = (self.alive(), frozenset(self.members), self.draining())
            if seen != before:
                before = seen
                self._tell_membership()
            for pending in self._pending.values():
                pending.changed.set()  # a lease may be over now
            await asyncio.sleep(_TICK)

    def _forgive(self, stall: float) -> None:
        """We were not running ourselves: what the others said meanwhile waits to be read."""
        for member in self.members.values():
            member.last_heard += stall
        for broker_id in self.lost:
            self.lost[broker_id] += stall

    def absent(self) -> str | None:
        """controller.ports.Fencer.absent"""
        now = self._clock()
        texts = []
        for holder in self.leases.may_hold(now):
            member = self.members.get(holder.broker_id)
            if member is not None and member.holder == holder and not self._is_dead(holder.broker_id, now):
                continue
            left = self.leases.until(holder) - now
            texts.append(f"sidecar {holder.broker_id} is away, and its lease ends in {left:.1f} s")
        return "; ".join(texts) or None

    def draining(self) -> frozenset[int]:
        """Who is to be given nothing to lead."""
        identities = self.controller.image.identities.values()
        return frozenset(i.broker_id for i in identities if i.draining or i.leaving)

    def heard_ago(self, broker_id: int) -> float | None:
        """Seconds since the sidecar said something; None if it never did to this controller."""
        member = self.members.get(broker_id)
        since = self.lost.get(broker_id) if member is None else member.last_heard
        return None if since is None else max(0.0, self._clock() - since)

    def lease_left(self, broker_id: int) -> float | None:
        """Seconds for which a process of the sidecar may still acknowledge writes, 0 if none may; None: for ever."""
        if self._endless:
            return None
        now = self._clock()
        mine = [self.leases.until(h) - now for h in self.leases.may_hold(now) if h.broker_id == broker_id]
        return max(mine, default=0.0)

    def waiting(self) -> list[tuple[m.Command, list[int]]]:
        """Commands under way, each with the sidecars that have not carried it out yet."""
        return [
            (pending.message, sorted({holder.broker_id for holder in pending.waiting}))
            for pending in self._pending.values()
        ]

    @property
    def reigning_for(self) -> float:
        """Seconds since the claim."""
        return max(0.0, self._clock() - self.started_at)

    def _tell_membership(self) -> None:
        for listener in tuple(self.on_membership):
            listener()

    # A member's connection.

    async def serve(self, channel: Channel, *, local: bool = False) -> None:
        """Take one member until its channel closes. Whatever is wrong with it ends the channel, never the head."""
        member: MemberInfo | None = None
        writing: asyncio.Task[None] | None = None
        try:
            member = await self._enter(channel, local)
            writing = asyncio.create_task(self._write_asked(member))
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
                self._tell_membership()

    async def _enter(self, channel: Channel, local: bool) -> MemberInfo:
        try:
            async with asyncio.timeout(self._settings.hello_timeout):
                hello = m.from_member(await channel.receive())
        except TimeoutError:
            raise ChannelClosed(f"{channel.peer} said nothing") from None
        if not isinstance(hello, m.Hello):
            raise m.BadMessage(f"{channel.peer} began with {hello.type}, not hello")
        # One process of a sidecar at a time: what is found out below must still hold when it is taken.
        async with self._entering.setdefault(hello.broker_id, asyncio.Lock()):
            return await self._take_member(hello, channel, local)

    async def _take_member(self, hello: m.Hello, channel: Channel, local: bool) -> MemberInfo:
        protocol = self._admit(hello, channel)
        self.leases.gone(hello.broker_id, [s for s in hello.replaces if s != hello.session])
        # Before it is written down: the store keeps one session of a sidecar, and the next controller has to hear
        # of the one that may hold a lease.
        self._check_alone(hello, channel)
        earlier = self.members.pop(hello.broker_id, None)
        if earlier is not None:
            # Before the wait below, in which it could be given a lease again.
            earlier.channel.close("the sidecar has connected again")
            self.lost[hello.broker_id] = self._clock()
        # Durable before the lease is: the next controller has to know whom to wait for.
        await self._note_identity(hello)
        now = self._clock()
        member = MemberInfo(hello=hello, channel=channel, connected_at=now, last_heard=now, local=local)
        # From here on without a wait: what is committed next follows the image as a delta.
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
        self._left.discard(hello.broker_id)
        for pending in self._pending.values():
            if pending.everybody or member.holder in pending.waiting:
                pending.waiting.add(member.holder)
                channel.send(m.encode(pending.message))
        log.info("sidecar %d joined (%s, program version %s)", hello.broker_id, channel.peer, hello.version)
        self._tell_membership()
        return member

    def _admit(self, hello: m.Hello, channel: Channel) -> int:
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
            and not self._is_dead(hello.broker_id, self._clock())
        ):
            self._refuse(
                channel,
                f"another sidecar with broker.id {hello.broker_id} is running ({present.channel.peer}): "
                "every sidecar needs an id of its own",
                fatal=True,
            )
        return high

    def _check_alone(self, hello: m.Hello, channel: Channel) -> None:
        """No other process of this sidecar may hold a lease."""
        others = self.leases.others_of(hello.broker_id, hello.session, self._clock())
        if others and not self._endless:
            left = max(self.leases.until(other) for other in others) - self._clock()
            self._refuse(
                channel,
                f"an earlier process of sidecar {hello.broker_id} may still be running; its lease ends in {left:.1f} s",
            )

    def _refuse(self, channel: Channel, reason: str, *, fatal: bool = False) -> None:
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
                # Of a process that may hold a longer one from an older head, the longer one counts.
                lease=max(self._settings.lease, known.lease)
                if known is not None and same_process
                else self._settings.lease,
                draining=known is not None and known.draining and same_process,
                leaving=known is not None and known.leaving and same_process,
            )
        )

    def _take(self, member: MemberInfo, message: m.FromMember) -> None:
        match message:
            case m.Renew():
                self._renewals.append((member, message.n))
                self._renewal.set()
            case m.Done():
                self._done(member, message)
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
                self._left.add(member.hello.broker_id)
                for pending in self._pending.values():
                    pending.changed.set()
                raise ChannelClosed("it said good-bye")
            case m.Hello():
                raise m.BadMessage("a second hello")

    # Leases.

    async def _prove(self) -> None:
        """Answers renewals. One proof serves everything that had arrived before it was begun."""
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
                # Leases run out, which is what they are for; the sidecars ask again.
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
                member.lease_until = self.leases.until(member.holder)
                self._send(member, m.Renewed(n=number, controller_epoch=self.controller.controller_epoch))

    # What was committed.

    def _committed(self, records: Sequence[Record]) -> None:
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
            self._send(
                member,
                m.Delta(
                    controller_epoch=self.controller.controller_epoch,
                    seq=member.seq,
                    reset=not records,
                    put=put,
                    gone=gone,
                ),
            )

    def _send(self, member: MemberInfo, message: m.FromHead) -> None:
        """A channel that cannot be sent to is closed; its reader notices."""
        try:
            member.channel.send(m.encode(message))
        except ChannelClosed as error:
            log.info("sidecar %d: %s", member.hello.broker_id, error)
            member.channel.close("cannot be sent to")

    # Commands.

    async def fence(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Return when nobody can acknowledge a write of these partitions any more that is not answered by the source
        already. FleetIncomplete if somebody who may is silent until the time is over."""
        holders = set(self.leases.may_hold(self._clock())) | {x.holder for x in self.members.values()}
        pending = self._command("fence", link, tps, timeout, holders, everybody=True)
        deadline = self._clock() + timeout
        try:
            while True:
                now = self._clock()
                bound = set(self.leases.may_hold(now))
                connected = {x.holder for x in self.members.values()}
                # Over: nothing it does counts. One that is connected and holds no lease yet got the fence first.
                pending.waiting &= bound | connected
                for holder in [h for h in pending.waiting if h not in bound]:
                    pending.waiting.discard(holder)
                if not pending.waiting:
                    return
                if now >= deadline:
                    raise FleetIncomplete(self._silent(pending, now))
                for member in [x for x in self.members.values() if x.holder in pending.again]:
                    self._send(member, pending.message)
                pending.again.clear()
                await self._wait(pending, min(deadline - now, _TICK))
        finally:
            self._pending.pop(pending.message.id, None)

    def _silent(self, pending: _Pending, now: float) -> str:
        texts = []
        for holder in sorted(pending.waiting, key=lambda h: h.broker_id):
            why = pending.errors.get(holder)
            if why is None:
                left = self.leases.until(holder) - now
                where = "is connected" if holder.broker_id in self.members else "is away"
                why = f"{where}, and its lease ends in {left:.1f} s"
            texts.append(f"sidecar {holder.broker_id}: {why}")
        return f"the fence is not complete: {'; '.join(texts)}"

    async def tell(self, what: Tell, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """`unfence` or `handed_over`, to everybody who is connected; the others learn it from the image. Returns when
        all of them have done it, are gone, or the time is over."""
        await self._until_done(what, link, tps, timeout, set(self.members))

    async def ask_progress(
        self, link: str, tps: Collection[TopicPartition], brokers: Collection[int], timeout: float
    ) -> None:
        """fleet.progress.AskProgress"""
        others = set(brokers)
        for member in list(self.members.values()):
            if member.local and self.own_copies is not None and member.hello.broker_id in others:
                # A message takes its turns of the event loop, which are long under load, and is encoded and checked for
                # nothing: a promote looks every few milliseconds while producers wait.
                self.book.note(member.hello.broker_id, self.own_copies(link, tps), self._clock())
                others.discard(member.hello.broker_id)
        if others:
            await self._until_done("progress", link, tps, min(timeout, _ASK_PROGRESS), others)

    async def hold(self, link: str, tps: Collection[TopicPartition], broker: int, *, timeout: float) -> None:
        """Fence at one sidecar, around a planned change of leader: for order and latency, not for safety."""
        await self._until_done("hold", link, tps, timeout, {broker})

    async def release(
        self, link: str, tps: Collection[TopicPartition], broker: int, *, timeout: float
    ) -> None:
        """Undo `hold`: what is held is forwarded, or answered with the new leader if there is one."""
        await self._until_done("release", link, tps, timeout, {broker})

    async def _until_done(
        self, what: str, link: str, tps: Collection[TopicPartition], timeout: float, brokers: set[int]
    ) -> None:
        holders = {x.holder for x in self.members.values() if x.hello.broker_id in brokers}
        pending = self._command(what, link, tps, timeout, holders, everybody=False)
        deadline = self._clock() + timeout
        try:
            while True:
                now = self._clock()
                pending.waiting &= {
                    x.holder for x in self.members.values() if not self._is_dead(x.hello.broker_id, now)
                }
                if not pending.waiting or now >= deadline:
                    return
                await self._wait(pending, min(deadline - now, _TICK))
        finally:
            self._pending.pop(pending.message.id, None)

    def _command(
        self,
        what: str,
        link: str,
        tps: Collection[TopicPartition],
        timeout: float,
        holders: set[Holder],
        *,
        everybody: bool,
    ) -> _Pending:
        message = m.Command.model_validate(
            {
                "id": next(self._ids),
                "controller_epoch": self.controller.controller_epoch,
                "what": what,
                "link": link,
                "partitions": [(tp.topic, tp.partition) for tp in sorted(tps)],
                "timeout": timeout,
            },
            strict=False,
        )
        pending = self._pending[message.id] = _Pending(message, holders, everybody)
        for member in list(self.members.values()):
            if member.holder in holders:
                self._send(member, message)
        return pending

    @staticmethod
    async def _wait(pending: _Pending, timeout: float) -> None:
        pending.changed.clear()
        try:
            async with asyncio.timeout(timeout):
                await pending.changed.wait()
        except TimeoutError:
            return

    def _done(self, member: MemberInfo, done: m.Done) -> None:
        if done.data is not None:
            self.book.note(member.hello.broker_id, decode_copies(done.data), self._clock())
        pending = self._pending.get(done.command)
        if pending is None:
            return
        if done.error is None:
            pending.waiting.discard(member.holder)
            pending.errors.pop(member.holder, None)
        else:
            pending.errors[member.holder] = done.error
            if pending.everybody:
                pending.again.add(member.holder)  # until it is done, or does not matter any more
            else:
                pending.waiting.discard(member.holder)
        pending.changed.set()

    # Changes that members ask for.

    async def _write_asked(self, member: MemberInfo) -> None:
        """One after the other, in the member's order."""
        while True:
            ask = await member.asked.get()
            error: tuple[str, str] | None = None
            try:
                await self._write(member, ask)
            except LinkerError as failed:
                error = type(failed).__name__, str(failed)
            except Exception as failed:
                log.exception("a change that sidecar %d asked for", member.hello.broker_id)
                error = type(failed).__name__, str(failed)
            self._send(member, m.Answer(n=ask.n, error=error))

    async def _write(self, member: MemberInfo, ask: m.Ask) -> None:
        tp = TopicPartition(ask.topic, ask.partition)
        state = self.controller.image.partitions.get((ask.link, tp))
        if state is None:
            raise NotFound(f"link {ask.link!r} has no mirror of partition {tp}")
        if state.leader != member.hello.broker_id:
            raise Refused(f"{tp} is led by sidecar {state.leader}, not by {member.hello.broker_id}")
        match ask.what:
            case "fail_partition":
                await self.controller.fail_partition(ask.link, tp, ask.reason or "no reason was given")
            case "source_epochs":
                await self.controller.set_source_epochs(ask.link, tp, ask.pairs)
            case "untruncated":
                await self.controller.set_untruncated(ask.link, tp, ask.pairs)


def _uuid(text: str, known: bytes | None) -> bytes:
    """What a sidecar that has not made an identity yet does not say is not forgotten either."""
    return parse_topic_id(text) if text else known or bytes(16)
