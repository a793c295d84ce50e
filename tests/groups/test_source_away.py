"""A source that cannot be reached: gates that stand are taken over all the same, nothing is committed that it did not say,
and what else a group reads is held when it is back.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from controller.decide.groups import GroupRules
from controller.group_phases import GroupPhase
from controller.groups import GateKind, GateStage
from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupPolicy
from groups import gate_keeper, manager
from groups.settings import GroupSettings
from linker.service.group_status import group_summary
from tests.fakes.groups import ConsumerClient
from tests.groups.gates_kit import KINDS
from tests.groups.test_gates_life import steps
from tests.groups.test_taken_over import demoting_and_held, waits_for
from tests.links.group_rig import Rig
from tests.links.test_groups import begin_promote
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

P = GroupPhase
MEMBERS = [kind for kind in KINDS if kind not in (GateKind.TRANSACTION, GateKind.CLASSIC)]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_keeper, "CALL_TIMEOUT", 1.0)


async def held_and_cut_off(rig: Rig) -> None:
    """Synced, then the source goes, then the sidecar."""
    rig.commit("g", 10)
    rig.run()
    await rig.synced("g")
    await cut_off(rig)


async def cut_off(rig: Rig) -> None:
    await rig.source.brokers[1].stop()
    await rig.restart()


async def attached(rig: Rig) -> None:
    await rig.until("taken over", lambda: "g" in rig.manager.runs and rig.run_of("g").gate is not None)


# Taken over.


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gate_is_taken_over_without_the_source(kind: GateKind) -> None:
    async with Rig(gate=kind) as rig:
        await held_and_cut_off(rig)
        record = rig.group("g").gate_state
        assert record is not None
        await attached(rig)
        assert rig.run_of("g").covered == {TopicPartition("orders", 0), TopicPartition("orders", 1)}
        taken = rig.group("g").gate_state
        assert taken is not None
        assert (taken.consumer, taken.classic, taken.stage) == (
            record.consumer,
            record.classic,
            GateStage.HELD,
        )
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        if kind in (GateKind.CONSUMER, GateKind.CONSUMER_AND_TRANSACTION):
            steps(waiting)
        await rig.until("told", lambda: rig.run_of("g").sync_trouble is not None)
        assert "cannot be read at the source" in (group_summary(rig.group("g"), rig.manager).reason or "")
        assert rig.group("g").phase is P.GATED
        # Nothing was committed that the source did not say.
        assert rig.committed("g") == {0: Committed(10)}
        assert not waiting.reads
        await rig.source.brokers[1].start()
        rig.commit("g", 33)
        await rig.until("brought over", lambda: rig.committed("g") == {0: Committed(33)}, timeout=30)
        assert not waiting.reads


@pytest.mark.parametrize("kind", MEMBERS)
async def test_it_is_renewed_while_the_source_is_away(kind: GateKind) -> None:
    async with Rig(gate=kind) as rig:
        await held_and_cut_off(rig)
        await attached(rig)
        gate = rig.run_of("g").gate
        assert gate is not None
        renewed = asyncio.Event()
        renew, gate.due = gate.renew, lambda: 0.0  # type: ignore[method-assign]

        async def renewing() -> object:
            renewed.set()
            return await renew()

        gate.renew = renewing  # type: ignore[method-assign, assignment]
        await rig.until("renewed", renewed.is_set)
        assert rig.run_of("g").renewal_trouble is None


async def test_a_promote_that_waits_goes_on_when_the_source_is_back() -> None:
    async with Rig() as rig:
        member = rig.source_member("g")
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        await begin_promote(rig, "g")
        await rig.until("waits", lambda: bool(waits_for(rig)))
        await cut_off(rig)
        await attached(rig)
        await rig.until("told", lambda: rig.run_of("g").trouble is not None)
        assert rig.group("g").phase is P.DRAINING
        await asyncio.sleep(0.5)
        assert not waiting.reads
        await rig.source.brokers[1].start()
        rig.commit("g", 44)
        member.leave()
        await rig.phase("g", P.PROMOTED, timeout=30)
        await rig.until("it reads", lambda: ("orders", 0) in waiting.reads)
        assert waiting.reads["orders", 0] == 44


async def test_a_demote_that_waits_keeps_its_gate() -> None:
    async with Rig() as rig:
        at_source = await demoting_and_held(rig)
        await cut_off(rig)
        await attached(rig)
        await rig.until("told", lambda: rig.run_of("g").trouble is not None)
        assert rig.group("g").phase is P.DEMOTING
        await rig.source.brokers[1].start()
        at_source.leave()
        await rig.phase("g", P.GATED, timeout=30)
        assert rig.at_source.offsets.committed["g"]["orders", 0].offset == 10


async def test_a_gate_that_was_lost_is_closed_again_without_the_source() -> None:
    """It was away for longer than anybody holds without being renewed; nobody has come in."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        await rig.source.brokers[1].stop()
        rig.at_target.advance(700)
        assert not rig.at_target.groups["g"].members
        await rig.claim()
        rig.run()
        await attached(rig)
        await rig.until("a member", lambda: bool(rig.at_target.groups["g"].members))
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        steps(waiting)
        assert not waiting.reads
        assert rig.committed("g") == {0: Committed(10)}


async def test_a_group_that_was_never_held_waits_for_the_source() -> None:
    """Nothing of it is known to go on from."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        for member in list(rig.at_target.groups["g"].members):
            rig.at_target.consumer_group("g").leave(member)
        known = replace(rig.group("g"), phase=P.DISCOVERED, gate_state=None)
        await rig.controller.decide(lambda _: ([known], None))
        await cut_off(rig)
        await rig.until("told", lambda: "g" in rig.manager.runs and rig.run_of("g").trouble is not None)
        assert "cannot be read at the source" in (rig.run_of("g").trouble or "")
        assert rig.group("g").phase is P.DISCOVERED
        assert not rig.at_target.groups["g"].members
        await rig.source.brokers[1].start()
        await rig.phase("g", P.GATED, timeout=30)


async def test_what_else_it_reads_is_held_again_when_the_source_tells_of_it() -> None:
    """The state names no partitions of topics that are not mirrored. The next look at the source does, and the gate does not
    wait for the next sync, which may be an hour away."""
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION, interval=3600.0) as rig:
        rig.source.add_topic("audit", partitions=1)
        rig.commit("g", 10)
        rig.commit("g", 3, topic="audit")
        rig.run()
        await rig.phase("g", P.GATED)
        audit = TopicPartition("audit", 0)
        await rig.until("held", lambda: audit in rig.run_of("g").covered)
        await cut_off(rig)
        await attached(rig)
        assert audit not in rig.run_of("g").covered
        record = rig.group("g").gate_state
        assert record is not None
        assert record.consumer is not None
        assert record.consumer.topics == ("audit", "orders")  # the member never gives a topic up
        await rig.source.brokers[1].start()
        rig.manager.look_now()
        await rig.until("held again", lambda: audit in rig.run_of("g").covered, timeout=30)


async def test_a_source_that_does_not_even_refuse_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")

        async def silent(*_: object, **__: object) -> None:
            await asyncio.sleep(3600)

        monkeypatch.setattr(gate_keeper, "CALL_TIMEOUT", 0.1)
        rig.tools.source.offsets = silent  # type: ignore[method-assign, assignment]
        rig.tools.source.describe = silent  # type: ignore[method-assign, assignment]
        group_keeper = rig.run_of("g")
        async with asyncio.timeout(30):
            with pytest.raises(LinkerError, match=r"read at the source: no answer within 0\.1 s"):
                await group_keeper.read_source()
            with pytest.raises(LinkerError, match=r"described: no answer within 0\.1 s"):
                await group_keeper.look(rig.tools.source)


# Options.


def only(include: str) -> GroupSettings:
    patterns = (re.compile(include),) if include else ()
    return GroupSettings(GroupRules(patterns, (), GroupPolicy.MANUAL, None), 0.05)


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_the_options_exclude_is_let_go_without_the_source(restarted: bool) -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("kept", 10)
        rig.run()
        await rig.synced("g")
        await rig.synced("kept")
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        await rig.source.brokers[1].stop()
        if restarted:
            rig.settings = only("kept")
            await rig.restart()
        else:
            rig.manager.follow(only("kept"))
        await rig.until("let go", lambda: "g" not in {group.group for group in rig.tools.book.all()})
        await rig.until("it reads", lambda: ("orders", 0) in waiting.reads)
        assert waiting.reads["orders", 0] == 10
        assert rig.group("kept").phase is P.GATED
        await rig.until("held", lambda: rig.run_of("kept").gate is not None)


async def test_options_are_followed_while_gates_stand() -> None:
    async with Rig(include="g", interval=3600.0) as rig:
        rig.commit("g", 10)
        rig.commit("h", 10)
        rig.run()
        await rig.phase("g", P.GATED)
        gate = rig.run_of("g").gate
        rig.manager.follow(only(".*"))  # and from now on offsets follow at once
        await rig.synced("h")
        rig.commit("g", 12)
        await rig.until("synced", lambda: rig.committed("g") == {0: Committed(12)})
        assert rig.run_of("g").gate is gate


async def test_groups_that_begin_before_the_source_is_known_do_not_ask_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manager, "_SOURCE_PATIENCE", 60.0)
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        await rig.claim()
        known = asyncio.Event()
        rig.manager._source_known = known
        asked = rig.source.counts["list_groups"]
        rig.run()
        await attached(rig)
        assert rig.source.counts["list_groups"] == asked
        known.set()
        await rig.until("asked", lambda: rig.source.counts["list_groups"] > asked)
