"""A sidecar's part in the fleet: its lease, its copy of the state, the commands it carries out.

One session lasts as long as its channel. The order at its start is what safety rests on:

    hello -> welcome -> the welcome's image is applied, fences included -> the first renewal is sent

so no lease begins under an image that is out of date. The lease itself outlives the session: until it ends, the
sidecar goes on as it was, with another link controller or without one.

Epochs are checked first: a link controller below the highest epoch ever heard of is left at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from controller import errors
from controller.errors import ControllerError
from fleet import messages as m
from fleet.channel import ChannelClosed, MemberChannel
from fleet.lease import Lease
from fleet.progress import CopyReport, encode_copies
from fleet.settings import FleetSettings
from fleet.shared_controller import SharedController
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

_KEPT_RENEWALS = 256
# Of thousands of idle copies: looking at them all every second would be most of the work.
_MARKS_A_SECOND = 500
_LOCAL_AGAIN = 10  # reports, until one has said again of each copy that nothing happened to it
#: Errors of the link controller for a change that it did not write, by name.
_ANSWERS: dict[str, type[ControllerError]] = {
    kind.__name__: kind for kind in (errors.NotFound, errors.NotTheLeader, errors.Refused)
}


class JoinRefused(ControllerError):
    """The link controller does not take this sidecar. `fatal`: not before an operator has changed something."""

    def __init__(self, reason: str, *, fatal: bool) -> None:
        super().__init__(reason)
        self.fatal = fatal


class StaleController(ControllerError):
    """A link controller of an older epoch than one that is known already."""


class MemberPorts(Protocol):
    """The effects of a member on its sidecar. `fence`, `unfence` and `release` take effect before their first await."""

    async def fence(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Hold new produces; return when no forwarded one is in flight."""
        ...

    async def unfence(self, link: str, tps: Collection[TopicPartition]) -> None:
        """Forward what is held."""
        ...

    async def release(self, link: str, tps: Collection[TopicPartition]) -> None:
        """As unfence, but for what the state says that a promote holds."""
        ...

    async def handed_over(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Answer what is held with the new leader, once it is known here."""
        ...

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Return when no write of these partitions waits for its answer, or the time is over."""
        ...

    async def stop_following(
        self, link: str, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        """Ask the source of the link for no more of these partitions; the end of each, once the replicas of its mirror have
        it. Done already: the same end. LinkerError where that is not known here."""
        ...

    def follow_again(self, link: str, tps: Collection[TopicPartition]) -> None:
        """Undo `stop_following`. Not stopped: no change."""
        ...

    def marks(self) -> Mapping[str, Mapping[TopicPartition, int]]:
        """By link and partition a number that differs once a copy has changed: much cheaper than its report."""
        ...

    def copies(self, link: str | None, tps: Collection[TopicPartition]) -> Sequence[CopyReport]:
        """The copies that this sidecar leads, of these partitions, or of all if link is None."""
        ...

    def lease_renewed(self) -> None:
        """A renewal was answered: answers that waited for one may go."""
        ...


class Member:
    """One per process."""

    def __init__(
        self,
        hello: Callable[[], m.Hello],
        shared: SharedController,
        ports: MemberPorts,
        settings: FleetSettings,
        clock: Callable[[], float],
    ) -> None:
        self._hello = hello
        self._shared = shared
        self._ports = ports
        self._settings = settings
        self._clock = clock
        self.lease = Lease()
        self.highest_epoch = 0
        #: The sidecar's own part of every report.
        self.about: Callable[[], m.SidecarReport | None] = lambda: None
        self._channel: MemberChannel | None = None
        self._sent: dict[int, float] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[None]] = {}

    async def session(self, channel: MemberChannel, *, local: bool = False) -> None:
        """Be a member through this channel until it closes (ChannelClosed), or the link controller turns out to be stale,
        or refuses. `local`: the link controller is in this process.

        The channel is closed when this returns or raises.
        """
        try:
            welcome = await self._enter(channel)
            duration = math.inf if welcome.lease is None else welcome.lease
            self._channel = channel
            self._shared.ask = self._ask
            async with TaskGroup() as group:
                group.create_task(self._renew(channel))
                group.create_task(self._report(channel, _LOCAL_AGAIN if local else 1))
                await self._receive(channel, duration, group)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        finally:
            channel.close("the member's session is over")
            self._channel = None
            self._shared.ask = None
            self._sent.clear()
            asked, self._asked = self._asked, {}
            for waiting in asked.values():
                if not waiting.done():
                    waiting.set_exception(ChannelClosed("the link controller went away before it answered"))

    def copies(self, link: str, tps: Collection[TopicPartition]) -> Sequence[CopyReport]:
        """The answer to a `progress` command, for a link controller in the same process."""
        return self._ports.copies(link, tps)

    def leave(self) -> None:
        """Give the lease back; nothing is acknowledged after this."""
        self.lease.given_up()
        if self._channel is not None:
            try:
                self._channel.send(m.encode(m.Bye()))
            except ChannelClosed:
                log.debug("the link controller was away when this sidecar left")

    # The start.

    async def _enter(self, channel: MemberChannel) -> m.Welcome:
        hello = self._hello().model_copy(update={"highest_epoch": self.highest_epoch})
        channel.send(m.encode(hello))
        try:
            async with asyncio.timeout(self._settings.hello_timeout):
                answer = m.from_controller(await channel.receive())
        except TimeoutError:
            raise ChannelClosed(
                f"{channel.peer} has not answered within {self._settings.hello_timeout:g} s"
            ) from None
        if isinstance(answer, m.Refusal):
            raise JoinRefused(
                f"{channel.peer} does not take this sidecar: {answer.reason}", fatal=answer.fatal
            )
        if not isinstance(answer, m.Welcome):
            raise m.BadMessage(f"{channel.peer} answered {answer.type}, not welcome")
        self._check_epoch(answer.controller_epoch, channel)
        self.highest_epoch = answer.controller_epoch
        self._shared.welcomed(answer)
        return answer

    def _check_epoch(self, epoch: int, channel: MemberChannel) -> None:
        if epoch < self.highest_epoch:
            raise StaleController(
                f"{channel.peer} has controller epoch {epoch}, but {self.highest_epoch} is known already"
            )

    # The lease.

    async def _renew(self, channel: MemberChannel) -> None:
        while True:
            number = next(self._numbers)
            self._sent[number] = self._clock()  # before it is sent: the lease runs from here
            channel.send(m.encode(m.Renew(n=number)))
            while len(self._sent) > _KEPT_RENEWALS:
                del self._sent[next(iter(self._sent))]
            await asyncio.sleep(self._settings.renew_interval)

    def _renewed(self, answer: m.Renewed, duration: float) -> None:
        sent_at = self._sent.pop(answer.n, None)
        if sent_at is None:
            return  # of an earlier session, or doubled
        self.lease.renewed(sent_at, self._clock(), duration)
        self._ports.lease_renewed()

    # The rest.

    async def _report(self, channel: MemberChannel, again: int) -> None:
        """Report copies that have changed, and every `again`th of the others in turn.

        A remote link controller treats a copy without reports for some seconds as unknown, so it gets all of them. The
        local one reads the copies itself, and before it decides it asks; reporting thousands of unchanged copies would
        cost more than the changes.
        """
        told: Mapping[str, Mapping[TopicPartition, int]] = {}
        number = 0
        due = self._clock()
        while True:
            copies: list[CopyReport] = []
            if again == 1:
                copies += self._ports.copies(None, ())
            elif self._clock() >= due:
                now, seen = self._ports.marks(), 0
                for link, marks in now.items():
                    before = told.get(link, {})
                    chosen = [
                        tp
                        for index, (tp, mark) in enumerate(marks.items(), seen - number)
                        if index % again == 0 or mark != before.get(tp)
                    ]
                    seen += len(marks)
                    if chosen:
                        copies += self._ports.copies(link, chosen)
                told, number = now, number + 1
                due = self._clock() + seen / _MARKS_A_SECOND
            about = self.about()
            if copies or about is not None:
                channel.send(m.encode(m.Report(copies=encode_copies(copies), sidecar=about)))
            await asyncio.sleep(self._settings.report_interval)

    async def _receive(self, channel: MemberChannel, duration: float, group: TaskGroup) -> None:
        expected = 1
        while True:
            message = m.from_controller(await channel.receive())
            match message:
                case m.Renewed():
                    self._check_epoch(message.controller_epoch, channel)
                    self._renewed(message, duration)
                case m.Delta():
                    self._check_epoch(message.controller_epoch, channel)
                    if message.seq != expected:
                        raise m.BadMessage(f"{channel.peer} sent delta {message.seq}, {expected} was to come")
                    expected += 1
                    self._shared.apply(message)
                case m.Command():
                    self._check_epoch(message.controller_epoch, channel)
                    group.create_task(self._carry_out(message, channel))
                    # It has begun before the next message is looked at: a command must not open what a later
                    # delta closes, nor a renewal begin a lease before an earlier fence is there.
                    await asyncio.sleep(0)
                case m.Answer():
                    self._answered(message)
                case _:
                    raise m.BadMessage(f"{channel.peer} sent {message.type} in the middle of a session")

    async def _carry_out(self, command: m.Command, channel: MemberChannel) -> None:
        tps = [TopicPartition(topic, index) for topic, index in command.partitions]
        error: str | None = None
        data = ends = None
        try:
            match command.what:
                case "fence" | "hold":
                    await self._ports.fence(command.link, tps, timeout=command.timeout)
                case "unfence":
                    await self._ports.unfence(command.link, tps)
                case "release":
                    await self._ports.release(command.link, tps)
                case "handed_over":
                    await self._ports.handed_over(command.link, tps, timeout=command.timeout)
                case "answered":
                    await self._ports.answered(tps, timeout=command.timeout)
                case "progress":
                    data = encode_copies(self._ports.copies(command.link, tps))
                case "stop_following":
                    found = await self._ports.stop_following(command.link, tps, timeout=command.timeout)
                    ends = [(tp.topic, tp.partition, end) for tp, end in found.items()]
                case "follow_again":
                    self._ports.follow_again(command.link, tps)
        except (LinkerError, TimeoutError) as failed:
            error = str(failed) or repr(failed)
        channel.send(m.encode(m.Done(command=command.id, error=error, data=data, ends=ends)))

    # Changes that the link controller writes.

    async def _ask(self, ask: m.Ask) -> None:
        channel = self._channel
        if channel is None:
            raise ChannelClosed("the link controller cannot be reached at the moment")
        number = next(self._numbers)
        waiting = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            channel.send(m.encode(ask.model_copy(update={"n": number})))
            async with asyncio.timeout(self._settings.ask_timeout):
                await waiting
        except TimeoutError:
            raise ChannelClosed(
                f"the link controller has not answered within {self._settings.ask_timeout:g} s"
            ) from None
        finally:
            self._asked.pop(number, None)

    def _answered(self, answer: m.Answer) -> None:
        waiting = self._asked.get(answer.n)
        if waiting is None or waiting.done():
            return
        if answer.error is None:
            waiting.set_result(None)
        else:
            name, text = answer.error
            waiting.set_exception(_ANSWERS.get(name, ControllerError)(text))
