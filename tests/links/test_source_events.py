"""What fetchers report reaches the store: in an order that a crash may cut anywhere, and never held up for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.mirrors import Leadership
from controller.operations import Operation
from controller.phases import Phase
from controller.state import MirrorTopic
from fetcher.partition_copy import PartitionCopy
from fetcher.spec import MirrorSpec
from fleet.channel import pair
from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from fleet.member import Member
from fleet.shared_controller import SharedController
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from linker.links.source_events import SourceEvents
from tests.controller.established import establish
from tests.controller.fleet_kit import (
    LINK,
    SETTINGS,
    Ports,
    TroubledStore,
    hello,
    now,
    running_head,
    with_mirror,
)
from tests.controller.memory_store import MemoryStore
from tests.controller.virtual_loop import run_virtual
from wire.frames.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Crashing(MemoryStore):
    """Dies after so many commits."""

    left = 1000

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        if self.left == 0:
            await asyncio.Event().wait()
        self.left -= 1
        await super().commit(operations, controller_epoch=controller_epoch)


class Copies:
    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionCopy] = {}


async def controller_on(store: MemoryStore) -> LinkController:
    controller = await StoredController.open(store, now=lambda: 7)
    await controller.create_link("l", "cluster", {})
    await controller.create_mirror(
        MirrorTopic(link="l", topic="t", topic_id=b"i" * 16, source_topic_id=None, partitions=2)
    )
    for tp in (T0, T1):
        await establish(
            controller, "l", tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
    return controller


@contextlib.asynccontextmanager
async def running(events: SourceEvents) -> AsyncIterator[None]:
    task = asyncio.create_task(events.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def copy_of(tp: TopicPartition, events: SourceEvents) -> PartitionCopy:
    spec = MirrorSpec(
        link="l",
        topic=tp.topic,
        partition=tp.partition,
        topic_id=b"i" * 16,
        source_topic_id=None,
        session_epoch=3,
        start_offset=0,
        target_replicas=(1, 2),
    )
    host: Any = SimpleNamespace()
    return PartitionCopy(spec, events, host)


def copy_with(epochs: tuple[tuple[int, int], ...], untruncated: dict[int, int]) -> Any:
    return SimpleNamespace(
        source_epochs=epochs,
        untruncated=untruncated,
        epochs_written=lambda _entries: None,
        serve_all=lambda: None,
    )


async def test_a_write_that_is_refused_for_good_holds_up_nobody() -> None:
    controller = await controller_on(MemoryStore())
    damaged: Any = copy_with(((7, 0), (7, 100)), {})
    events = SourceEvents("l", controller, lambda tp: damaged)
    async with running(events):
        events.source_epoch(T0, 5, 100)
        events.failed(T1, "retention outran it")
        async with asyncio.timeout(30):
            while controller.image.partitions["l", T1].phase is not Phase.FAILED:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("commits", [0, 1])
async def test_the_epochs_are_never_newer_than_the_truncation_before_them(commits: int) -> None:
    """They are one write, and it finds both as they are by then."""
    store = Crashing()
    controller = await controller_on(store)
    now = copy_with(((5, 0), (7, 90)), {2: 90})
    events = SourceEvents("l", controller, lambda tp: now)
    store.left = commits
    async with running(events):
        events.source_epoch(T0, 5, 0)  # from before; the truncation's own write waits behind it
        await asyncio.sleep(0.05)
    state = (await StoredController.open(store)).image.partitions["l", T0]
    both = (((2, 90),), ((5, 0), (7, 90))) if commits else ((), ())
    assert (state.untruncated, state.source_epochs) == both


async def test_notes_about_many_copies_are_one_write_and_each_copy_hears_of_it() -> None:
    store = Crashing()
    controller = await controller_on(store)
    copies = Copies()
    events = SourceEvents("l", controller, copies.partitions.get)
    cursor: Any = SimpleNamespace(limit=0, full=False)
    for tp in (T0, T1):
        copy = copies.partitions[tp] = copy_of(tp, events)
        copy.add_chunks(cursor, [], [(3, 0)], 0)
        assert copy.epochs_unwritten
    store.left = 1
    async with running(events):
        async with asyncio.timeout(30):
            while any(copy.epochs_unwritten for copy in copies.partitions.values()):
                await asyncio.sleep(0.01)
    states = controller.image.partitions
    assert {states["l", tp].source_epochs for tp in (T0, T1)} == {((3, 0),)}
    assert store.left == 0


@pytest.mark.parametrize("in_sync", [False, True])
async def test_replicas_wait_for_epochs_that_are_written_later_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, in_sync: bool
) -> None:
    """Of a mirror that is in sync they wait as long as it takes: what they have counts as the end of the source's log."""
    monkeypatch.setattr("linker.links.source_events._RETRY", 0.01)
    store = TroubledStore()
    controller = await controller_on(store)
    copies = Copies()
    events = SourceEvents("l", controller, copies.partitions.get)
    copy = copies.partitions[T0] = copy_of(T0, events)
    store.failing = StoreError("the disk is full")
    cursor: Any = SimpleNamespace(limit=0, full=False)
    if in_sync:
        copy.feed = SimpleNamespace(replica_moved=lambda _copy: None)
    copy.add_chunks(cursor, [], [(3, 0)], 0)
    copy.add_chunks(cursor, [], [(4, 10)], 0)
    async with running(events):
        await asyncio.sleep(0.1)
        assert copy.unwritten_from == 0
        monkeypatch.setattr("linker.links.source_events._SERVED_ANYWAY", 0.0)
        if in_sync:
            await asyncio.sleep(0.1)
            assert copy.unwritten_from == 0
        else:
            async with asyncio.timeout(30):
                while copy.unwritten_from == 0:
                    await asyncio.sleep(0.01)
        assert copy.epochs_unwritten  # so the source is told nothing all the same
        store.failing = None
        async with asyncio.timeout(30):
            while copy.epochs_unwritten:
                await asyncio.sleep(0.01)
        assert copy.unwritten_from > 10


async def test_a_removed_partition_is_not_counted_as_unavailable() -> None:
    copies = Copies()
    events = SourceEvents("l", await controller_on(MemoryStore()), copies.partitions.get)
    copies.partitions[T0] = copy_of(T0, events)
    copies.partitions[T0].source_trouble("connection refused", 1.0)
    assert T0 in events.unavailable
    copies.partitions.pop(T0).close()
    assert not events.unavailable


@contextlib.asynccontextmanager
async def asking(head: FleetController, broker_id: int) -> AsyncIterator[SharedController]:
    """A sidecar that is not the link controller, and asks it for what it wants written."""
    shared = SharedController(lambda: 0)
    member = Member(lambda: hello(broker_id), shared, Ports(), SETTINGS, now)
    ours, theirs = pair(f"sidecar {broker_id}", "head")
    tasks = [asyncio.create_task(head.serve(theirs)), asyncio.create_task(member.session(ours))]
    await asyncio.sleep(0.1)
    try:
        yield shared
    finally:
        ours.close("the test is over")
        await asyncio.gather(*tasks, return_exceptions=True)


NEW = Leadership(901, 6, (900, 901))


def test_what_a_new_leader_reports_before_the_link_controller_knows_of_it_is_written_later() -> None:
    """The metadata log names 901 already, the state says 900 until the link controller has adopted it."""

    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store, partitions=2)
        await controller.adopt_leadership(LINK, {T1: NEW})
        mirror: Any = copy_with(((5, 0), (7, 90)), {2: 90})
        async with running_head(controller, store) as head, asking(head, 901) as shared:
            events = SourceEvents(LINK, shared, lambda tp: mirror)
            async with running(events):
                events.source_truncated(T0, 90, (2,))
                events.failed(T0, "retention outran it")
                events.failed(T1, "retention outran it")
                await asyncio.sleep(2)
                states = controller.image.partitions
                assert states[LINK, T1].phase is Phase.FAILED, "it waits for nobody else"
                assert (states[LINK, T0].phase, states[LINK, T0].untruncated) == (Phase.ACTIVE, ())
                await controller.adopt_leadership(LINK, {T0: NEW})
                await asyncio.sleep(1)
                found = states[LINK, T0]
                assert (found.phase, found.reason) == (Phase.FAILED, "retention outran it")
                assert (found.untruncated, found.source_epochs) == (((2, 90),), ((5, 0), (7, 90)))

    run_virtual(main())


def test_what_an_old_leader_reports_ends_with_its_copy() -> None:
    """Another leads, and finds out by itself. What the old one saw is not told of a mirror that begins anew later on."""

    async def main() -> None:
        store = TroubledStore()
        controller = await with_mirror(store)
        mirrors: dict[TopicPartition, Any] = {T0: SimpleNamespace()}
        async with running_head(controller, store) as head, asking(head, 901) as shared:
            events = SourceEvents(LINK, shared, mirrors.get)
            async with running(events):
                events.failed(T0, "retention outran it")
                await asyncio.sleep(1)
                del mirrors[T0]
                await asyncio.sleep(1)
                mirrors[T0] = SimpleNamespace()
                await controller.adopt_leadership(LINK, {T0: NEW})
                await asyncio.sleep(2)
                assert controller.image.partitions[LINK, T0].phase is Phase.ACTIVE

    run_virtual(main())
