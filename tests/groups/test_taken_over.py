"""A demote and an opening that another process goes on with: the gate that was closed by then is taken over, not waited for,
and goes on holding while the rest is tried again.
"""

from __future__ import annotations

import asyncio

import pytest

from controller.group_phases import GroupPhase
from controller.groups import GateKind, GateStage
from groups.gate_keeper import GateKeeper
from tests.fakes.groups import ClassicClient, ConsumerClient
from tests.groups.gates_kit import GROUP, PAIRS, TOPIC, at, offsets, target
from tests.groups.test_gates_life import make_client, steps
from tests.links.group_rig import Rig
from tests.links.test_groups import begin_demote, begin_promote
from wire.errors import LinkerError

P = GroupPhase
WITH_TRANSACTION = [GateKind.TRANSACTION, *PAIRS]


def waiting_client(rig: Rig, kind: GateKind) -> ClassicClient | ConsumerClient:
    made = ClassicClient if kind is GateKind.CLASSIC_AND_TRANSACTION else ConsumerClient
    return made(rig.at_target, "g", ("orders",))


async def promoted(rig: Rig) -> None:
    rig.commit("g", 10)
    rig.run()
    await rig.synced("g")
    await begin_promote(rig, "g")
    await rig.phase("g", P.PROMOTED)
    await rig.until("rests", lambda: (task := rig.run_of("g").task) is not None and task.done())


async def demoting_and_held(rig: Rig) -> ConsumerClient:
    """Its gate is closed, and somebody is in it at the source, who is returned."""
    await promoted(rig)
    at_source = rig.source_member("g")
    await begin_demote(rig, "g")
    await rig.until("held", lambda: "at the source" in (rig.run_of("g").waiting_for or ""))
    record = rig.group("g").gate_state
    assert record is not None
    assert record.stage is GateStage.HELD
    return at_source


def waits_for(rig: Rig) -> str:
    return (rig.manager.runs["g"].waiting_for if "g" in rig.manager.runs else None) or ""


# A demote.


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", WITH_TRANSACTION)
async def test_a_demote_that_is_taken_over_takes_its_gate_over(kind: GateKind, beside: bool) -> None:
    """Not even with clients beside it: they wait behind the gate, which has to be looked after for their sake."""
    async with Rig(gate=kind) as rig:
        at_source = await demoting_and_held(rig)
        client = waiting_client(rig, kind)
        if beside:
            rig.join(client)
            steps(client)
        await rig.restart()
        await rig.until("it waits again", lambda: bool(waits_for(rig)))
        assert waits_for(rig).startswith("still in the group at the source: app")
        assert rig.run_of("g").gate is not None
        assert not client.reads
        at_source.leave()
        await rig.synced("g")
        assert not client.reads
        assert rig.at_source.offsets.committed["g"]["orders", 0].offset == 10


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("kind", PAIRS)
async def test_a_gate_that_is_half_closed_is_not_waited_for(kind: GateKind, taken_over: bool) -> None:
    """Its member is in the group, and the record says PLANNED."""
    async with Rig(gate=kind) as rig:
        await promoted(rig)
        fault = rig.target.inject("init_producer_id", error=42, times=None)
        await begin_demote(rig, "g")
        await rig.until("half closed", lambda: rig.run_of("g").trouble is not None)
        record = rig.group("g").gate_state
        assert record is not None
        assert record.stage is GateStage.PLANNED
        assert fault.hits
        assert len(rig.at_target.groups["g"].members) == 1
        if taken_over:
            await rig.end()
            await rig.claim()
        rig.target.clear_faults()
        if taken_over:
            rig.run()
        await rig.synced("g")
        assert len(rig.at_target.groups["g"].members) == 1


async def test_who_came_in_while_nobody_looked_after_the_gate_is_waited_for() -> None:
    """The transaction goes on alone, which does not hold everybody: they may be reading on the target."""
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        at_source = await demoting_and_held(rig)
        await rig.end()
        rig.at_target.advance(50)  # the member's session
        reader = ConsumerClient(rig.at_target, "g", ("orders",), stable=False)
        steps(reader)
        assert reader.reads["orders", 0] == 10
        at_source.leave()
        await rig.claim()
        rig.run()
        rig.join(reader)
        await rig.until("it waits", lambda: "at the target: app" in waits_for(rig))
        assert rig.run_of("g").gate is not None  # and is looked after meanwhile
        rig.at_target.offsets.commit("g", ("orders", 0), 40, "")
        await asyncio.sleep(0.4)
        assert rig.group("g").phase is P.DEMOTING
        rig.clients.clear()
        reader.leave()
        await rig.synced("g")
        assert rig.at_source.offsets.committed["g"]["orders", 0].offset == 40


async def test_a_gate_that_is_lost_while_the_demote_waits_is_closed_again_first() -> None:
    """Or offsets would be returned of members that read on."""
    async with Rig() as rig:
        at_source = await demoting_and_held(rig)
        rig.at_target.advance(700)  # the session and the transaction
        reader = ConsumerClient(rig.at_target, "g", ("orders",))
        steps(reader)
        assert reader.reads["orders", 0] == 10
        rig.join(reader)
        await rig.until("lost", lambda: rig.run_of("g").gate is None)
        at_source.leave()
        await rig.until("it waits", lambda: "at the target: app" in waits_for(rig))
        rig.at_target.offsets.commit("g", ("orders", 0), 40, "")
        rig.clients.clear()
        reader.leave()
        await rig.synced("g")
        assert rig.at_source.offsets.committed["g"]["orders", 0].offset == 40


# An opening.


@pytest.mark.parametrize("kind", WITH_TRANSACTION)
async def test_a_gate_that_was_not_told_what_it_covers_renews_no_transaction(kind: GateKind) -> None:
    """A younger one would have nothing pending, and the one that holds would be aborted for it."""
    async with target() as held:
        await held.gate(kind).close(at(100))
        client = make_client(kind, held)
        steps(client)
        gate = held.gate()
        before = gate.record.transaction
        for _ in range(20):
            held.groups.advance(5.0)
            await gate.renew()
        assert gate.record.transaction == before
        assert held.groups.offsets.unstable(GROUP, (TOPIC, 0))
        assert not client.reads
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == {(TOPIC, 0): 300, (TOPIC, 1): 301, (TOPIC, 2): 302}


@pytest.mark.parametrize("source_away", [False, True])
@pytest.mark.parametrize("kind", [GateKind.TRANSACTION, GateKind.CONSUMER_AND_TRANSACTION])
async def test_an_opening_that_is_taken_over_and_fails_lets_nobody_in_early(
    kind: GateKind, source_away: bool
) -> None:
    """The target has older offsets than the opening is to publish: clients were in and the gate's member was not."""
    async with Rig(gate=kind) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        if kind is not GateKind.TRANSACTION:
            rig.at_target.advance(50)  # the member's session, before it can beat again
        client = ConsumerClient(rig.at_target, "g", ("orders",))
        steps(client)
        rig.join(client)
        rig.commit("g", 33)
        await rig.until("held up", lambda: "when it is opened" in (rig.run_of("g").sync_trouble or ""))
        keeper_open, failures = GateKeeper.open, 0

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
        build = rig.tools.gates.build

        def failing_build(*given: object) -> object:
            gate = build(*given)  # type: ignore[arg-type]
            gate_open = gate.open

            async def failing(final: object) -> None:
                nonlocal failures
                if failures < 3:
                    failures += 1
                    raise LinkerError("the coordinator is away")
                await gate_open(final)  # type: ignore[arg-type]

            gate.open = failing  # type: ignore[method-assign, assignment]
            return gate

        rig.tools.gates.build = failing_build  # type: ignore[method-assign, assignment]
        if source_away:
            await rig.source.brokers[1].stop()
        rig.run()

        def failed_often() -> bool:
            """The renewals have their time in between."""
            assert not client.reads
            assert rig.group("g").reason is None
            return failures == 3

        await rig.until("it failed", failed_often)
        done = await rig.phase("g", P.PROMOTED)
        assert "opened by itself" not in (done.reason or "")
        assert rig.committed("g")[0].offset == 33
        await rig.until("it reads", lambda: ("orders", 0) in client.reads)
        assert client.reads["orders", 0] == 33
