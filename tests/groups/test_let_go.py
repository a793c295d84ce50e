"""Gates that are let go stay let go; what is not committed is not called committed; an opening without a gate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from controller.group_phases import GroupPhase
from controller.groups import GateKind, GateStage
from controller.judge.group_offsets import Committed
from groups.gates.base import GateLost
from linker.service.group_status import group_summary
from tests.fakes.groups.clients import ConsumerClient
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_demote, begin_promote
from wire.errors import LinkerError

P = GroupPhase


def slow_store(rig: Rig, seconds: float = 0.2) -> None:
    """Whoever asks for something between two records finds the time, and the groups are looked at there."""
    commit = rig.tools.book.commit

    async def slowly(decide: Callable[[Any], Sequence[Any]]) -> None:
        rig.manager._follow(rig.tools.book.all())
        await asyncio.sleep(seconds)
        await commit(decide)

    rig.tools.book.commit = slowly  # type: ignore[method-assign]


def members(rig: Rig) -> set[str]:
    group = rig.at_target.groups.get("g")
    return set() if group is None else set(group.members)


async def rounds(rig: Rig, count: int = 3) -> None:
    before = rig.manager.stats.rounds
    await rig.until("rounds", lambda: rig.manager.stats.rounds > before + count)


# Let go.


async def test_the_records_of_a_release_do_not_take_the_group_again() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        slow_store(rig)
        await rig.controller.delete_mirror(LINK, "orders")
        rig.manager.look_now()
        await rig.until("let go", lambda: (LINK, "g") not in rig.controller.image.groups)
        await rig.until("forgotten", lambda: "g" not in rig.manager.runs)
        await asyncio.sleep(0.3)
        assert not members(rig)
        assert not any(rig.at_target.offsets.pending.values())


async def test_another_gate_is_really_another_one() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        slow_store(rig)
        run = rig.run_of("g")
        await rig.manager._target_checks.hold_otherwise(run, GateKind.CLASSIC_AND_TRANSACTION)
        await rig.phase("g", P.GATED)
        await rig.until("held", lambda: run.gate is not None)
        assert run.gate is not None
        assert run.gate.record.kind is GateKind.CLASSIC_AND_TRANSACTION
        assert rig.group("g").gate is GateKind.CLASSIC_AND_TRANSACTION
        assert len(members(rig)) == 1


async def test_another_gate_lets_nobody_in_who_waits() -> None:
    """The members that have not moved yet are still reading at the source."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.source_member("g")
        rig.run()
        await rig.synced("g")
        waits = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waits)
        await rig.until("waits", lambda: waits.member_id in members(rig))
        run = rig.run_of("g")
        await rig.manager._target_checks.hold_otherwise(run, GateKind.CLASSIC_AND_TRANSACTION)
        shown = group_summary(rig.group("g"), rig.manager)
        assert "clients wait for it on the target already" in str(shown.reason)
        await rounds(rig)
        assert not waits.owned
        assert rig.group("g").phase is P.GATED
        assert run.gate is not None
        assert run.gate.record.kind is GateKind.CONSUMER_AND_TRANSACTION
        rig.clients.remove(waits)
        waits.leave()
        describe = rig.tools.target.describe

        async def unknown(names: Any, *, timeout: float) -> Any:
            return {}, dict.fromkeys(names, "its coordinator is away")

        rig.tools.target.describe = unknown  # type: ignore[method-assign]
        await rig.manager._target_checks.hold_otherwise(run, GateKind.CLASSIC_AND_TRANSACTION)
        assert rig.group("g").gate is GateKind.CONSUMER_AND_TRANSACTION
        assert "its coordinator is away" in str(run.gate_trouble)
        rig.tools.target.describe = describe  # type: ignore[method-assign]
        await rig.manager._target_checks.hold_otherwise(run, GateKind.CLASSIC_AND_TRANSACTION)
        assert rig.group("g").gate is GateKind.CLASSIC_AND_TRANSACTION
        assert run.gate_trouble is None


async def test_a_gate_that_cannot_be_released_is_kept_and_released_later() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        run = rig.run_of("g")
        gate = run.gate
        assert gate is not None
        release, failures = gate.release, [LinkerError("the coordinator is away")]

        async def failing() -> None:
            if failures:
                raise failures.pop()
            await release()

        gate.release = failing  # type: ignore[method-assign]
        await rig.controller.delete_mirror(LINK, "orders")
        await rig.manager._forget("g")
        assert run.gate is gate
        assert rig.group("g").phase is P.GATED
        await rig.manager._forget("g")
        assert (LINK, "g") not in rig.controller.image.groups
        assert not members(rig)


async def test_a_gate_that_another_process_left_is_released_too() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        await rig.claim()
        assert members(rig)
        await rig.manager._forget("g")  # before this process has taken it over
        assert not members(rig)
        assert not any(rig.at_target.offsets.pending.values())


async def test_a_link_that_stays_after_all_holds_its_groups_again() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.manager.release_all()
        assert not members(rig)
        rig.manager.hold_again()
        await rig.until("held again", lambda: bool(members(rig)) and rig.run_of("g").gate is not None)
        rig.commit("g", 12)
        await rig.until("synced", lambda: rig.committed("g")[0].offset == 12)


# Commits that are refused.


async def test_what_was_not_committed_is_a_difference_and_says_for_whom_it_waits() -> None:
    async with Rig(gate=GateKind.TRANSACTION) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        for _ in range(3):
            waiting.step()
        rig.commit("g", 33)
        await rig.until("told", lambda: rig.run_of("g").sync_trouble is not None)
        await rounds(rig)
        shown = group_summary(rig.group("g"), rig.manager)
        assert shown.difference == 23
        assert "app at 127.0.0.1" in (shown.reason or "")
        assert rig.committed("g")[0].offset == 10
        assert not waiting.reads
        # Opening publishes.
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0].offset == 33
        await rig.until("it reads", lambda: ("orders", 0) in waiting.reads)
        assert waiting.reads["orders", 0] == 33


@pytest.mark.parametrize("kind", [GateKind.TRANSACTION, GateKind.CONSUMER_AND_TRANSACTION])
async def test_an_opening_without_its_gate_says_who_is_in_the_way_and_ends_when_they_go(
    kind: GateKind,
) -> None:
    """The last offsets were decided on and not published when the gate expired: whoever is in began at older ones."""
    async with Rig(gate=kind) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        rig.commit("g", 33)
        await rig.synced("g")
        keeper_open = asyncio.Event()
        step = rig.tools.book.step

        async def stepping(name: str, wanted: GroupPhase, **fields: object) -> None:
            await step(name, wanted, **fields)
            if wanted is P.OPENING:
                keeper_open.set()
                await asyncio.sleep(3600)  # killed after the write, before anything else

        rig.tools.book.step = stepping  # type: ignore[method-assign]
        await begin_promote(rig, "g")
        await asyncio.wait_for(keeper_open.wait(), 30)
        await rig.end()
        # As if its last sync had never reached the target, and nobody had looked after the gate.
        rig.at_target.advance(700)
        rig.at_target.offsets.commit("g", ("orders", 0), 10, "")
        reader = ConsumerClient(rig.at_target, "g", ("orders",))
        for _ in range(3):
            reader.step()
        assert reader.reads["orders", 0] == 10
        await rig.claim()
        rig.run()
        rig.join(reader)
        await rig.until(
            "told", lambda: "g" in rig.manager.runs and "orders-0 by 23" in (rig.run_of("g").trouble or "")
        )
        shown = group_summary(rig.group("g"), rig.manager).reason or ""
        assert "app at 127.0.0.1" in shown
        assert rig.group("g").phase is P.OPENING
        assert not any(rig.at_target.offsets.pending.values())  # nothing keeps anybody waiting
        rig.clients.clear()
        reader.leave()
        done = await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0].offset == 33
        assert "opened by itself" in (done.reason or "")


async def test_an_opening_whose_readers_are_past_its_offsets_ends() -> None:
    async with Rig(gate=GateKind.TRANSACTION) as rig:
        rig.commit("g", 33)
        rig.run()
        await rig.synced("g")

        async def lost(*_: object) -> None:
            raise GateLost("g", GateKind.TRANSACTION, "expired", "on purpose")  # type: ignore[arg-type]

        gate = rig.run_of("g").gate
        assert gate is not None
        gate.open = lost  # type: ignore[method-assign]
        await begin_promote(rig, "g")
        done = await rig.phase("g", P.PROMOTED)
        assert "opened by itself" in (done.reason or "")
        assert rig.committed("g")[0] == Committed(33)


async def test_a_gate_that_is_being_opened_is_not_renewed() -> None:
    """Its errors would cover up why the opening takes so long."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        gate = rig.run_of("g").gate
        assert gate is not None

        async def opening(*_: object) -> None:
            await gate.ledger.update(stage=GateStage.ENDING)  # type: ignore[attr-defined]
            raise LinkerError("is pending in a transaction of somebody else")

        gate.open = opening  # type: ignore[method-assign]
        gate.due = lambda: 0.0  # type: ignore[method-assign]
        await begin_promote(rig, "g")
        await rig.until("told", lambda: rig.run_of("g").trouble is not None)
        await asyncio.sleep(0.6)
        assert rig.run_of("g").renewal_trouble is None
        assert "somebody else" in (group_summary(rig.group("g"), rig.manager).reason or "")


# After the opening.


async def test_a_look_that_fails_after_the_opening_leaves_no_trouble() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")

        async def failing(names: object, *, timeout: float) -> tuple[dict[str, object], dict[str, str]]:
            return {}, {"g": "NOT_COORDINATOR"}

        describe = rig.tools.target.describe
        rig.tools.target.describe = failing  # type: ignore[assignment, method-assign]
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        await rig.until("said", lambda: "could not be seen" in (rig.group("g").reason or ""))
        await rig.until("rests", lambda: (task := rig.run_of("g").task) is not None and task.done())
        assert rig.run_of("g").any_trouble is None
        rig.tools.target.describe = describe  # type: ignore[method-assign]
        await begin_demote(rig, "g")
        await rig.phase("g", P.GATED)
