"""Small parts to test the fleet's classes with, one at a time, on the virtual loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TypeVar

from controller.operations import Operation
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from fleet import messages as m
from fleet.channel import ChannelClosed, MemberChannel, pair
from fleet.fleet_controller import FleetController
from fleet.member import Member
from fleet.progress import CopyReport
from fleet.settings import FleetSettings
from fleet.shared_controller import SharedController
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from tests.controller.memory_store import MemoryStore
from tests.fakes.copy_marks import marks_of
from wire.frames.types import TopicPartition

LINK = "l"
TP = TopicPartition("t", 0)
SETTINGS = FleetSettings()
T = TypeVar("T")


def now() -> float:
    return asyncio.get_running_loop().time()


class TroubledStore(MemoryStore):
    """Commits take a moment, fail or hang as told."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: StoreError | None = None
        self.hanging = False
        self.delay = 0.0

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.hanging:
            await asyncio.Event().wait()
        if self.failing is not None:
            raise self.failing
        await super().commit(operations, controller_epoch=controller_epoch)


async def with_mirror(store: MemoryStore, partitions: int = 1) -> StoredController:
    """A controller whose store has an ACTIVE mirror that sidecar 900 leads."""
    controller = await StoredController.open(store, now=lambda: int(now() * 1000))
    await controller.create_link(LINK, "source", {})
    mirror = MirrorTopic(
        link=LINK, topic="t", topic_id=b"\x07" * 16, source_topic_id=None, partitions=partitions
    )
    states = [
        MirrorPartition(
            link=LINK,
            topic="t",
            partition=index,
            phase=Phase.ACTIVE,
            leader=900,
            leader_epoch=5,
            isr=(900,),
            session_epoch=5,
            start_offset=0,
        )
        for index in range(partitions)
    ]
    await controller.create_mirror(mirror, states)
    return controller


@contextlib.asynccontextmanager
async def running_head(
    controller: StoredController, store: MemoryStore, **options: object
) -> AsyncIterator[FleetController]:
    arguments = {"endless_leases": False, "cluster_id": lambda: "cluster"} | options
    head = FleetController(controller, store, SETTINGS, now, **arguments)  # type: ignore[arg-type]
    running = asyncio.create_task(head.run())
    await asyncio.sleep(0)
    try:
        yield head
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def head_with_mirror(**options: object) -> AsyncIterator[FleetController]:
    """A head whose store has the mirror of `with_mirror`."""
    store = TroubledStore()
    async with running_head(await with_mirror(store), store, **options) as head:
        yield head


def hello(broker_id: int = 900, session: str = "", **fields: object) -> m.Hello:
    given = {"broker_id": broker_id, "session": session or f"s{broker_id}", "cluster_id": "cluster"} | fields
    return m.Hello.model_validate(given)


class Caller:
    """A raw member: says what the test wants it to say."""

    def __init__(self, head: FleetController, broker_id: int = 900, *, local: bool = False) -> None:
        self.channel, theirs = pair(f"sidecar {broker_id}", "head")
        self.broker_id = broker_id
        self.serving = asyncio.create_task(head.serve(theirs, local=local))

    def say(self, message: m.FromMember) -> None:
        self.channel.send(m.encode(message))

    async def hear(self, kind: type[T], timeout: float = 3.0) -> T:
        """The next message of this kind; others are skipped."""
        async with asyncio.timeout(timeout):
            while True:
                message = m.from_controller(await self.channel.receive())
                if isinstance(message, kind):
                    return message

    async def join(self, **fields: object) -> m.Welcome:
        self.say(hello(self.broker_id, **fields))
        return await self.hear(m.Welcome)

    async def renew(self, n: int = 1) -> m.Renewed:
        self.say(m.Renew(n=n))
        return await self.hear(m.Renewed)

    async def heard(self) -> list[m.FromController]:
        """Everything that has come, after whatever is under way had its turn."""
        await asyncio.sleep(0.01)
        found: list[m.FromController] = []
        with contextlib.suppress(TimeoutError, ChannelClosed):
            async with asyncio.timeout(0.01):
                while True:
                    found.append(m.from_controller(await self.channel.receive()))
        return found

    async def over(self, timeout: float = 3.0) -> None:
        async with asyncio.timeout(timeout):
            await self.serving


class Ports:
    """A sidecar that notes what is done to it, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.drain = 0.0
        self.failing: Exception | None = None
        self.reports: list[CopyReport] = []
        self.on_renewed: Callable[[], None] = lambda: None

    async def fence(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        self.done.append("fence")
        await asyncio.sleep(self.drain)
        if self.failing is not None:
            raise self.failing
        self.done.append("drained")

    async def unfence(self, link: str, tps: Collection[TopicPartition]) -> None:
        self.done.append("unfence")

    async def release(self, link: str, tps: Collection[TopicPartition]) -> None:
        self.done.append("release")

    async def handed_over(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        self.done.append("handed_over")

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        self.done.append("answered")

    async def stop_following(
        self, link: str, tps: Collection[TopicPartition], *, timeout: float
    ) -> dict[TopicPartition, int]:
        self.done.append("stop_following")
        if self.failing is not None:
            raise self.failing
        return dict.fromkeys(tps, 42)

    def follow_again(self, link: str, tps: Collection[TopicPartition]) -> None:
        self.done.append("follow_again")

    def marks(self) -> dict[str, dict[TopicPartition, int]]:
        return marks_of(self.reports)

    def copies(self, link: str | None, tps: Collection[TopicPartition]) -> Sequence[CopyReport]:
        return [one for one in self.reports if link is None or (one.link == link and one.tp in tps)]

    def lease_renewed(self) -> None:
        self.done.append("renewed")
        self.on_renewed()


class Sidecar:
    """A member with its copy and its ports, and the head's end of a channel in the test's hands."""

    def __init__(self, broker_id: int = 900) -> None:
        self.shared = SharedController(lambda: 0)
        self.ports = Ports()
        self.member = Member(lambda: hello(broker_id), self.shared, self.ports, SETTINGS, now)
        self.head: MemberChannel
        self.session: asyncio.Task[None]

    def connect(self, *, local: bool = False) -> None:
        ours, self.head = pair("sidecar", "head")
        self.session = asyncio.create_task(self.member.session(ours, local=local))

    def say(self, message: m.FromController) -> None:
        self.head.send(m.encode(message))

    async def hear(self, kind: type[T], timeout: float = 3.0) -> T:
        async with asyncio.timeout(timeout):
            while True:
                message = m.from_member(await self.head.receive())
                if isinstance(message, kind):
                    return message

    async def welcomed(self, epoch: int = 1, lease: float | None = 10.0, *, local: bool = False) -> None:
        self.connect(local=local)
        await self.hear(m.Hello)
        self.say(welcome(epoch, lease))

    async def ended(self) -> BaseException:
        (result,) = await asyncio.gather(self.session, return_exceptions=True)
        assert isinstance(result, BaseException)
        return result


def welcome(epoch: int = 1, lease: float | None = 10.0, image: list[object] | None = None) -> m.Welcome:
    return m.Welcome.model_validate(
        {"protocol": 1, "controller_epoch": epoch, "broker_id": 900, "lease": lease, "image": image or []},
        strict=False,
    )


def command(what: str, number: int = 1, epoch: int = 1, **fields: object) -> m.Command:
    given = {
        "id": number,
        "controller_epoch": epoch,
        "what": what,
        "link": LINK,
        "partitions": [("t", 0)],
        "timeout": 5.0,
    }
    return m.Command.model_validate(given | fields, strict=False)
