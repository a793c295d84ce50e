"""Groups whose source is dead: promoted from what was brought over last, inside what the target has, and it is said so."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupMove
from controller.phases import Phase
from groups import gate_keeper, group_steps, source_patience
from groups.gate_keeper import GateKeeper, Unstable
from groups.source_patience import SourcePatience
from tests.fakes.groups import ConsumerClient
from tests.groups.test_gates_life import steps
from tests.groups.test_let_go import members
from tests.groups.test_taken_over import waits_for
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_promote
from wire.errors import LinkerError

P = GroupPhase


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_keeper, "CALL_TIMEOUT", 1.0)
    monkeypatch.setattr(group_steps, "CALL_TIMEOUT", 1.0)
    monkeypatch.setattr(source_patience, "PATIENCE", 0.3)


async def end_topic(rig: Rig, phase: Phase, partitions: int = 2) -> None:
    """As after a failover, or a promote, of the topic, or of a part of it."""
    states = rig.controller.image.topic_partitions(LINK, "orders")[:partitions]
    await rig.controller.decide(lambda _: ([replace(state, phase=phase) for state in states], None))
    rig.copies.clear()


async def synced_and_dead(rig: Rig, offset: int = 100) -> None:
    rig.commit("g", offset, metadata="m")
    rig.commit("g", 20, partition=1)
    rig.run()
    await rig.synced("g")
    await rig.source.brokers[1].stop()


def shorter_target(rig: Rig, end: int) -> None:
    """The longest replica ended there: the rest was lost with the source."""
    rig.target.topics["orders"].partitions[0].log.truncate(end)


# With and without force.


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_fail_over_it_goes_on_inside_what_the_target_has(force: bool, restarted: bool) -> None:
    async with Rig() as rig:
        await synced_and_dead(rig)
        await end_topic(rig, Phase.FAILED_OVER)
        shorter_target(rig, 90)
        if restarted:
            await rig.restart()
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        await begin_promote(rig, "g", force=force)
        done = await rig.phase("g", P.PROMOTED)
        assert rig.committed("g") == {0: Committed(90, "m"), 1: Committed(20)}
        assert [(one.partition, one.offset) for one in done.offsets] == [(0, 90), (1, 20)]
        why = "by force" if force else "its topics are failed over"
        assert "promoted without its source, which did not answer" in (done.reason or "")
        assert why in (done.reason or "")
        await rig.until("it reads", lambda: len(waiting.reads) == 2)
        assert waiting.reads == {("orders", 0): 90, ("orders", 1): 20}
        await rig.until("seen to run", lambda: "runs on the target" in (rig.group("g").reason or ""))
        assert "promoted without its source" in (rig.group("g").reason or "")
        assert not any(one.startswith("kafka-linker") for one in members(rig))


async def test_by_force_before_the_fail_over_too() -> None:
    """What the target has of a partition is then what was copied of it."""
    async with Rig() as rig:
        await synced_and_dead(rig)
        for copy in rig.copies.values():
            copy.high_watermark = 95
        await begin_promote(rig, "g", force=True)
        done = await rig.phase("g", P.PROMOTED)
        assert "by force" in (done.reason or "")
        assert rig.committed("g") == {0: Committed(95, "m"), 1: Committed(20)}


@pytest.mark.parametrize(
    ("phase", "partitions"), [(Phase.ACTIVE, 0), (Phase.PROMOTED, 2), (Phase.FAILED_OVER, 1)]
)
async def test_without_force_it_waits_for_the_source_until_all_is_failed_over(
    phase: Phase, partitions: int
) -> None:
    """The source may only be away for a while, with members that read there."""
    async with Rig() as rig:
        await synced_and_dead(rig)
        await end_topic(rig, phase, partitions)
        await begin_promote(rig, "g")
        await rig.until("told", lambda: rig.run_of("g").trouble is not None)
        await asyncio.sleep(1.0)
        assert rig.group("g").phase is P.DRAINING
        # It goes on by itself then.
        await end_topic(rig, Phase.FAILED_OVER)
        await rig.phase("g", P.PROMOTED)


@pytest.mark.parametrize("dead", [False, True])
async def test_one_that_waits_may_be_told_not_to(dead: bool) -> None:
    """For members at the source, or for a source that is dead."""
    async with Rig() as rig:
        rig.source_member("g")
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        if dead:
            await rig.source.brokers[1].stop()
        await begin_promote(rig, "g")
        await rig.until("waits", lambda: bool(rig.run_of("g").trouble if dead else waits_for(rig)))
        await begin_promote(rig, "g", force=True)
        done = await rig.phase("g", P.PROMOTED)
        assert ("promoted without its source" in (done.reason or "")) == dead
        assert rig.committed("g")[0] == Committed(10)


async def test_a_promote_that_waits_too_long_for_a_source_is_given_up() -> None:
    async with Rig() as rig:
        await synced_and_dead(rig)
        await begin_promote(rig, "g", timeout_ms=300)
        group = await rig.phase("g", P.GATED)
        assert "promote given up: not done in its time: group g cannot be described" in (group.reason or "")


async def test_a_source_that_answers_is_asked_also_behind_a_fail_over() -> None:
    """It is back, and somebody is in the group there."""
    async with Rig() as rig:
        member = rig.source_member("g")
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await end_topic(rig, Phase.FAILED_OVER)
        await begin_promote(rig, "g")
        await rig.until("it waits", lambda: "at the source: app" in waits_for(rig))
        await asyncio.sleep(0.6)
        assert rig.group("g").phase is P.DRAINING
        rig.commit("g", 44)
        member.leave()
        done = await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0] == Committed(44)
        assert "without its source" not in (done.reason or "")


async def test_a_source_that_comes_back_in_time_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is restarted is no dead source: the newest offsets are to be had from it a moment later."""
    monkeypatch.setattr(source_patience, "PATIENCE", 30.0)
    async with Rig() as rig:
        await synced_and_dead(rig)
        await end_topic(rig, Phase.FAILED_OVER)
        await begin_promote(rig, "g", force=True)
        await rig.until("told", lambda: rig.run_of("g").trouble is not None)
        await asyncio.sleep(0.6)
        assert rig.group("g").phase is P.FINAL_SYNC
        rig.commit("g", 33, metadata="m")
        await rig.source.brokers[1].start()
        done = await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0] == Committed(33, "m")
        assert "without its source" not in (done.reason or "")


async def test_the_time_counts_from_the_first_silence_and_ends_with_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_patience, "PATIENCE", 3.0)
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        now = 100.0
        source = SourcePatience(rig.tools.book, rig.run_of("g"), lambda: now)
        forced = replace(rig.group("g"), move=GroupMove(asked_at=1, force=True))

        async def silent() -> int:
            raise LinkerError("nobody is there")

        async def answers() -> int:
            return 7

        async def unstable() -> int:
            raise Unstable("in an open transaction")

        async def silence() -> None:
            with pytest.raises(LinkerError, match="nobody is there"):
                await source.ask(forced, silent)

        await silence()
        now += 2.9
        await silence()
        assert await source.ask(forced, answers) == 7
        now += 2.9
        await silence()
        now += 3.0
        with pytest.raises(Unstable):
            await source.ask(forced, unstable)
        assert await source.ask(forced, silent) is None
        with pytest.raises(LinkerError, match="nobody is there"):
            await source.ask(rig.group("g"), silent)  # neither forced nor failed over


async def test_offsets_in_an_open_transaction_are_an_answer() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await end_topic(rig, Phase.FAILED_OVER)
        rig.at_source.offsets.put_pending(7, "g", ("orders", 0), 50, "")
        await begin_promote(rig, "g")
        await rig.until("told", lambda: "open transaction" in (rig.run_of("g").trouble or ""))
        await asyncio.sleep(1.0)
        assert rig.group("g").phase is P.FINAL_SYNC
        rig.at_source.offsets.end(7, commit=True)
        await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0] == Committed(50)


# Which offsets.


async def test_what_was_read_at_the_source_last_counts_more_than_what_the_target_took() -> None:
    """Clients wait in the group, and the gate's member is out: the target has not taken commits for a while."""
    async with Rig(gate=GateKind.TRANSACTION) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        steps(waiting)
        rig.commit("g", 33)
        await rig.until("held up", lambda: "when it is opened" in (rig.run_of("g").sync_trouble or ""))
        await rig.source.brokers[1].stop()
        await end_topic(rig, Phase.FAILED_OVER)
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        await rig.until("it reads", lambda: ("orders", 0) in waiting.reads)
        assert waiting.reads["orders", 0] == 33


async def test_another_process_goes_on_with_it_and_says_so_too() -> None:
    async with Rig() as rig:
        await synced_and_dead(rig)
        await end_topic(rig, Phase.FAILED_OVER)
        keeper_open = GateKeeper.open

        async def never(*_: object) -> bool:
            raise LinkerError("this process does not get that far")

        try:
            GateKeeper.open = never  # type: ignore[method-assign]
            await begin_promote(rig, "g")
            await rig.phase("g", P.OPENING)
            await rig.end()
        finally:
            GateKeeper.open = keeper_open  # type: ignore[method-assign]
        await rig.claim()
        rig.run()
        done = await rig.phase("g", P.PROMOTED)
        assert "promoted without its source" in (done.reason or "")
        assert rig.committed("g")[0] == Committed(100, "m")
