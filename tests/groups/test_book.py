"""Saves of many gates that share a commit: each waits for itself. One that is cancelled takes nobody along, and what ends
the commit is an error to all who wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from controller.groups import GateKind, GateRecord, GateStage
from controller.mirror_group import GroupProtocol, MirrorGroup
from controller.operations import Operation
from fleet.stored_controller import StoredController
from fleet.stores.base import StoreError
from groups.group_book import GroupBook
from groups.offset_sync import OffsetSync, SyncStats
from tests.controller.memory_store import MemoryStore
from tests.links.group_rig import Rig
from wire.errors import LinkerError

NAMES = ("a", "b", "c")


class SlowStore(MemoryStore):
    """Commits when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.may.set()
        self.asked = 0
        self.error: Exception | None = None
        self.once = False  # and then not again, until it may

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        self.asked += 1
        await self.may.wait()
        if self.once:
            self.may.clear()
        if self.error is not None:
            raise self.error
        await super().commit(operations, controller_epoch=controller_epoch)


async def a_book() -> tuple[GroupBook, SlowStore]:
    """With three groups, and a store that takes nothing yet."""
    store = SlowStore()
    controller = await StoredController.open(store)
    await controller.create_link("old", "c", {})
    groups = [
        MirrorGroup(
            link="old", group=name, gate=GateKind.CONSUMER, topics=("t",), protocol=GroupProtocol.CLASSIC
        )
        for name in NAMES
    ]
    await controller.decide(lambda image: (groups, None))
    store.may.clear()
    store.asked = 0
    return GroupBook("old", controller), store


def record(name: str, stage: GateStage = GateStage.HELD) -> GateRecord:
    return GateRecord(group=name, kind=GateKind.CONSUMER, stage=stage)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def saving(book: GroupBook, store: SlowStore, *names: str) -> list[asyncio.Task[None]]:
    """Tasks that share one commit, which the store has been asked for."""
    tasks = [asyncio.create_task(book.save_gate(record(name))) for name in names]
    await turns()
    assert store.asked == 1
    return tasks


def saved(book: GroupBook) -> set[str]:
    return {group.group for group in book.all() if group.gate_state is not None}


@pytest.mark.parametrize("which", range(3))
async def test_one_that_is_cancelled_takes_nobody_along(which: int) -> None:
    """Not even the one that came first, which is who began the commit."""
    book, store = await a_book()
    tasks = await saving(book, store, *NAMES)
    tasks[which].cancel()
    await turns()
    assert [task.done() for task in tasks] == [n == which for n in range(3)]
    store.may.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [
        asyncio.CancelledError if n == which else type(None) for n in range(3)
    ]
    assert saved(book) == set(NAMES)
    await book.close()


@pytest.mark.parametrize("which", range(2))
async def test_nor_one_of_those_who_came_during_the_commit_before(which: int) -> None:
    book, store = await a_book()
    [first] = await saving(book, store, "a")
    tasks = [asyncio.create_task(book.save_gate(record(name))) for name in ("b", "c")]
    await turns()
    store.once = True
    store.may.set()
    await first
    await turns()
    assert store.asked == 2
    tasks[which].cancel()
    await turns()
    assert not tasks[1 - which].done()
    store.may.set()
    await tasks[1 - which]
    assert tasks[which].cancelled()
    assert saved(book) == set(NAMES)
    await book.close()


async def test_saves_during_a_commit_go_together_with_the_next_one() -> None:
    book, store = await a_book()
    [first] = await saving(book, store, "a")
    later = [asyncio.create_task(book.save_gate(record(name))) for name in ("b", "c", "b")]
    await turns()
    assert store.asked == 1
    store.may.set()
    await asyncio.gather(first, *later)
    assert store.asked == 2
    assert saved(book) == set(NAMES)
    await book.close()


async def test_what_nobody_waits_for_any_more_is_not_saved() -> None:
    """Its step is not taken, and the gate goes on from the record before: so does who takes it over."""
    book, store = await a_book()
    [first] = await saving(book, store, "a")
    later = {name: asyncio.create_task(book.save_gate(record(name))) for name in ("b", "c")}
    await turns()
    later["b"].cancel()
    await turns()
    store.may.set()
    await asyncio.gather(first, later["c"])
    assert saved(book) == {"a", "c"}
    await book.close()


async def test_an_error_of_the_store_is_told_to_all_and_the_next_save_is_tried() -> None:
    book, store = await a_book()
    tasks = await saving(book, store, *NAMES)
    tasks[0].cancel()
    store.error = StoreError("the disk is full")
    store.may.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [str(result) for result in results[1:]] == ["the disk is full"] * 2
    store.error = None
    await book.save_gate(record("a"))
    assert saved(book) == {"a"}
    await book.close()


@pytest.mark.parametrize("begun", [False, True])
async def test_who_still_waits_when_it_is_closed_gets_an_error_and_is_not_cancelled(begun: bool) -> None:
    """A cancellation would be taken for one's own: a loop of somebody else would end by it, without a word."""
    book, store = await a_book()
    tasks = [asyncio.create_task(book.save_gate(record(name))) for name in NAMES]
    await asyncio.sleep(0)
    if begun:
        await turns()
        assert store.asked == 1
    await book.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, LinkerError)
        assert "not looked after here any more" in str(result)
    with pytest.raises(LinkerError, match="any more"):
        await book.save_gate(record("a"))
    await book.close()  # may be repeated
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not {name for name in left if "gates are saved" in name}


async def test_the_offsets_of_others_are_brought_over_when_a_step_of_one_group_is_cancelled() -> None:
    """As when a link is to be deleted: what its groups are doing is cancelled, whoever shares a commit with it."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("h", 10)
        rig.run()
        await rig.synced("g")
        await rig.synced("h")
        book, done = rig.tools.book, asyncio.Event()
        commit = book.commit

        async def slowly(decide: object) -> None:
            await done.wait()
            await commit(decide)  # type: ignore[arg-type]

        book.commit = slowly  # type: ignore[method-assign]
        gates = {name: rig.run_of(name).gate for name in ("g", "h")}
        records = {name: gate.record for name, gate in gates.items() if gate is not None}

        async def a_round() -> None:
            await book.save_gate(records["h"])  # what a commit of offsets does where an epoch has moved

        sync = OffsetSync(rig.tools, 0.01, {}, SyncStats(), None)  # type: ignore[arg-type]
        sync.sync = a_round  # type: ignore[method-assign]
        loop = asyncio.create_task(sync.task.run())
        step = asyncio.create_task(book.save_gate(records["g"]))
        await asyncio.sleep(0.05)
        step.cancel()
        await asyncio.sleep(0.05)
        assert not loop.done()
        done.set()
        rounds = sync._stats.rounds
        await rig.until("it goes on", lambda: sync._stats.rounds > rounds + 2)
        loop.cancel()
        await asyncio.gather(loop, step, return_exceptions=True)


async def test_the_end_of_the_groups_leaves_no_commit_behind() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        with pytest.raises(LinkerError, match="any more"):
            await rig.tools.book.save_gate(record("g"))
