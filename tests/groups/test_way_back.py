"""A demote that waits while a topic of the group is promoted: its offsets do not go to the source any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.group_phases import GroupPhase
from controller.phases import Phase
from tests.fakes.groups import ConsumerClient
from tests.groups.test_gates_life import steps
from tests.groups.test_let_go import members
from tests.groups.test_taken_over import demoting_and_held, promoted, waits_for
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_demote

P = GroupPhase


async def topic_is(rig: Rig, phase: Phase) -> None:
    states = rig.controller.image.topic_partitions(LINK, "orders")
    await rig.controller.decide(lambda _: ([replace(state, phase=phase) for state in states], None))


def at_source(rig: Rig) -> int:
    return rig.at_source.offsets.committed["g"]["orders", 0].offset


@pytest.mark.parametrize("phase", [Phase.HANDED_OVER, Phase.PROMOTED, Phase.FAILED_OVER])
async def test_it_is_given_up_as_soon_as_a_topic_is_promoted(phase: Phase) -> None:
    """Its members read on, and need not leave for that."""
    async with Rig() as rig:
        await promoted(rig)
        reader = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(reader)
        steps(reader)
        await begin_demote(rig, "g")
        await rig.until("it waits", lambda: "at the target: app" in waits_for(rig))
        await topic_is(rig, phase)
        rig.at_target.offsets.commit("g", ("orders", 0), 140, "")  # the target's log goes on
        group = await rig.phase("g", P.PROMOTED)
        assert "demote given up: its topics orders are promoted" in (group.reason or "")
        assert (group.move, group.gate_state) == (None, None)
        assert at_source(rig) == 10
        assert members(rig) == {reader.member_id}
        assert rig.at_target.offsets.committed["g"]["orders", 0].offset == 140


async def test_its_gate_is_let_go_when_it_is_given_up() -> None:
    async with Rig() as rig:
        member = await demoting_and_held(rig)
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        steps(waiting)
        assert not waiting.reads
        await topic_is(rig, Phase.PROMOTED)
        await rig.phase("g", P.PROMOTED)
        await rig.until("it reads", lambda: waiting.reads.get(("orders", 0)) == 10)
        assert not any(rig.at_target.offsets.pending.values())
        member.leave()


@pytest.mark.parametrize("phase", [Phase.CATCHING_UP, Phase.FENCED, Phase.ALIGNED, Phase.VALIDATED])
@pytest.mark.parametrize("abandoned", [False, True])
async def test_it_waits_for_a_promote_that_is_under_way(phase: Phase, abandoned: bool) -> None:
    """VALIDATED: the log may be the target's already, and nobody has heard of it."""
    async with Rig() as rig:
        member = await demoting_and_held(rig)
        rig.at_target.offsets.commit("g", ("orders", 0), 40, "")
        await topic_is(rig, phase)
        member.leave()
        await rig.until("it waits", lambda: "are being promoted" in (rig.run_of("g").trouble or ""))
        assert at_source(rig) == 10
        await topic_is(rig, Phase.ACTIVE if abandoned else Phase.PROMOTED)
        if abandoned:
            await rig.phase("g", P.GATED)
            assert at_source(rig) == 40
        else:
            await rig.phase("g", P.PROMOTED)
            assert at_source(rig) == 10


async def test_a_topic_that_is_promoted_while_offsets_are_returned_keeps_the_group_on_the_target() -> None:
    """They were right, but nobody may be sent to the source any more."""
    async with Rig() as rig:
        member = await demoting_and_held(rig)
        commit = rig.tools.source.commit_empty

        async def and_promoted(*given: object, **more: object) -> None:
            await commit(*given, **more)  # type: ignore[arg-type]
            await topic_is(rig, Phase.PROMOTED)

        rig.tools.source.commit_empty = and_promoted  # type: ignore[method-assign, assignment]
        seen: list[GroupPhase] = []
        rig.controller.listeners.add(lambda _: seen.append(rig.group("g").phase))
        member.leave()
        group = await rig.phase("g", P.PROMOTED)
        assert "demote given up" in (group.reason or "")
        assert P.DEMOTED not in seen
        assert P.GATED not in seen
