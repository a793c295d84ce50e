"""Groups of a link from discovery to promote and back, over fake coordinators and with the real gates."""

from __future__ import annotations

import asyncio

import pytest

from controller.decide import groups
from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupPolicy, GroupProtocol
from controller.phases import Phase
from groups.confirm import confirmation, positions
from groups.gates.base import GroupMember
from groups.group_reader import GroupReader
from groups.members import subscribed_topics
from groups.views import GroupView
from linker.service.group_status import group_summary, groups_status
from tests.fakes import FakeCluster
from tests.fakes.groups.clients import ClassicClient, ConsumerClient
from tests.links.group_rig import LINK, FakeCopy, Rig
from wire.frames.types import TopicPartition

P = GroupPhase
T0 = TopicPartition("orders", 0)


async def begin_promote(rig: Rig, name: str, **more: object) -> None:
    options = {"force": False, "partial": False, "timeout_ms": None, "now": rig.tools.book.now(), **more}
    await rig.controller.decide(
        lambda image: groups.begin_promote(image, LINK, [name], **options)  # type: ignore[arg-type]
    )


async def begin_demote(rig: Rig, name: str, timeout_ms: int | None = None) -> None:
    await rig.controller.decide(
        lambda image: groups.begin_demote(
            image, LINK, [name], timeout_ms=timeout_ms, now=rig.tools.book.now()
        )
    )


# Reading.


async def test_reader_over_several_coordinators() -> None:
    async with Rig(nodes=3) as rig:
        for n in range(6):
            rig.commit(f"g{n}", n, metadata="m")
            rig.at_source.move(0, f"g{n}", 1 + n % 3)
        member = rig.source_member("g5")
        reader = GroupReader(rig.clusters[0])
        listing = await reader.list_groups(timeout=5)
        assert sorted(listing.groups) == [f"g{n}" for n in range(6)]
        assert not listing.silent
        assert listing.groups["g5"].protocol is GroupProtocol.CONSUMER
        names = [*listing.groups, "never"]
        offsets = await reader.offsets(names, timeout=5)
        assert offsets.found["g3"] == {T0: Committed(3, "m")}
        assert offsets.found["never"] == {}
        views, failed = await reader.describe(names, timeout=5)
        assert not failed
        assert [one.member_id for one in views["g5"].members] == [member.member_id]
        assert views["g5"].topics == {"orders"}
        assert views["never"].empty
        # g5 moves: the old coordinator says so, and the next question finds the new one
        rig.at_source.move(0, "g5", 1)
        assert "g5" in (await reader.offsets(["g5"], timeout=5)).failed
        assert (await reader.offsets(["g5"], timeout=5)).found["g5"][T0].offset == 5
        # a broker that is away hides its groups, and only those
        await rig.source.brokers[2].stop()
        listing = await reader.list_groups(timeout=5)
        assert "g0" in listing.groups
        assert "g1" not in listing.groups
        some = await reader.offsets([f"g{n}" for n in range(6)], timeout=2)
        assert some.found.keys() == {"g0", "g2", "g3", "g5"}
        assert some.failed.keys() == {"g1", "g4"}


@pytest.mark.parametrize(
    "versions", [{"offset_fetch": (1, 7), "find_coordinator": (0, 3), "list_groups": (0, 2)}]
)
async def test_reader_of_an_old_source(versions: dict[str, tuple[int, int]]) -> None:
    async with Rig() as rig:
        rig.source.api_versions.update(versions)
        rig.source.api_versions["consumer_group_describe"] = None
        rig.source.handlers["offset_fetch"] = _old_offset_fetch
        reader = GroupReader(rig.clusters[0])
        rig.commit("g", 7)
        assert (await reader.list_groups(timeout=5)).groups["g"].state is None
        assert (await reader.offsets(["g"], timeout=5)).found == {"g": {T0: Committed(7)}}
        views, failed = await reader.describe(["g", "h"], timeout=5)
        assert (views["h"].empty, failed) == (True, {})


async def _old_offset_fetch(_broker: object, request: object) -> dict[str, object]:
    assert request.version == 7  # type: ignore[attr-defined]
    assert request.entity.topics is None  # type: ignore[attr-defined]
    return {
        "topics": [
            {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 7, "error_code": 0}]}
        ],
        "error_code": 0,
    }


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (b"\0\1\0\0\0\2\0\1a\0\2bc\xff\xff\xff\xff", ("a", "bc")),
        (b"", ()),
        (b"\0\1\x7f\xff\xff\xff", ()),
        (b"\0\1\0\0\0\1\x7f\xffa", ()),
        (b"\0\1\0\0\0\1\0\1\xff", ()),
        (b"\0\1\0\0\0\1\xff\xff", ()),
    ],
)
def test_subscriptions_are_read_or_ignored(metadata: bytes, topics: tuple[str, ...]) -> None:
    assert subscribed_topics(metadata) == topics


# Discovery and sync.


async def test_a_group_is_held_and_its_offsets_follow() -> None:
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        rig.commit("g", 10, metadata="mine")
        rig.commit("g", 20, partition=1)
        rig.commit("connect-sink", 1)
        rig.commit("elsewhere", 1, topic="other")
        rig.run()
        await rig.synced("g")
        assert list(rig.controller.image.groups) == [(LINK, "g")]
        assert rig.group("g").gate is GateKind.CONSUMER_AND_TRANSACTION
        assert rig.committed("g") == {0: Committed(10, "mine"), 1: Committed(20)}
        waiting = [
            ConsumerClient(rig.at_target, "g", ("orders",)),
            ConsumerClient(rig.at_target, "g", ("orders",)),
        ]
        for member in waiting:
            rig.join(member)
        rig.commit("g", 30)
        await rig.until("the new offset is there", lambda: rig.committed("g")[0] == Committed(30))
        rig.commit("g", 25)  # somebody went back
        await rig.until("back again", lambda: rig.committed("g")[0] == Committed(25))
        assert not any(member.owned or member.reads for member in waiting)
        await rig.until("no difference", lambda: group_summary(rig.group("g"), rig.manager).difference == 0)
        shown = group_summary(rig.group("g"), rig.manager)
        assert (shown.state.value, shown.reason) == ("GATED", None)
        assert (shown.sync_age_ms or 0) < 5000
        summed = groups_status([rig.group("g")], rig.manager)
        assert (summed.groups, summed.gated) == (1, 1)


async def test_commits_stay_inside_what_the_target_has() -> None:
    async with Rig() as rig:
        rig.copies[T0] = FakeCopy(log_start_offset=40, high_watermark=60)
        rig.commit("g", 5)
        rig.run()
        await rig.synced("g")
        assert rig.committed("g") == {0: Committed(40)}
        rig.commit("g", 90)
        await rig.until("clamped to the end", lambda: rig.committed("g")[0].offset == 60)
        rig.copies[T0].high_watermark = 95
        await rig.until("the end has come", lambda: rig.committed("g")[0].offset == 90)


async def test_topics_that_come_later_are_held_too() -> None:
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        waiting = ConsumerClient(rig.at_target, "g", ("orders", "late"))
        rig.join(waiting)
        late = TopicPartition("late", 0)

        def arrives(cluster: FakeCluster) -> None:
            cluster.add_topic("late", partitions=1)
            for _ in range(5):
                cluster.add("late", 0)

        # Read at the source before it is mirrored: held before the target has it, or who waits would be given it.
        arrives(rig.source)
        rig.commit("g", 4, topic="late")
        await rig.until("it is known", lambda: rig.group("g").unmirrored == ("late",))
        await rig.until("held too", lambda: late in rig.run_of("g").covered)
        arrives(rig.target)
        await rig.mirror("late", 1)
        rig.manager.look_now()
        await rig.until("synced too", lambda: rig.at_target.offsets.get("g", ("late", 0)) is not None)
        assert rig.group("g").topics == ("late", "orders")
        assert ("late", 0) not in waiting.reads
        await begin_promote(rig, "g")
        await rig.until("it reads both", lambda: waiting.reads.get(("late", 0)) == 4)


async def test_only_what_changed_is_committed() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("h", 10)
        rig.run()
        await rig.synced("g")
        await rig.synced("h")
        before = rig.target.counts["offset_commit"]
        rounds = rig.manager.stats.rounds
        await rig.until("ten rounds", lambda: rig.manager.stats.rounds > rounds + 10)
        assert rig.target.counts["offset_commit"] == before
        rig.commit("g", 11)
        await rig.until("committed", lambda: rig.committed("g")[0].offset == 11)
        assert rig.target.counts["offset_commit"] == before + 1


async def test_active_on_the_target_is_refused_by_name_and_held_when_it_is_free() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        stranger = ConsumerClient(rig.at_target, "g", ("orders",))
        for _ in range(3):
            stranger.step()
        rig.run()
        refused = await rig.phase("g", P.REFUSED)
        assert "app at 127.0.0.1" in (refused.reason or "")
        assert 0 not in rig.committed("g")  # its offsets are its own
        stranger.leave()
        rig.run_of("g").retry_at = 0
        rig.manager.look_now()
        await rig.synced("g")
        assert rig.committed("g")[0].offset == 10


async def test_a_group_that_is_gone_at_the_source_stays_held() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        del rig.at_source.offsets.committed["g"]
        rig.manager.look_now()
        await rig.until("noticed", lambda: rig.run_of("g").gone)
        assert "does not have it any more" in (group_summary(rig.group("g"), rig.manager).reason or "")
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0].offset == 10


async def test_a_group_whose_coordinator_is_away_is_not_gone() -> None:
    """Nobody lists it, as after its offsets partition has lost its leader."""
    async with Rig(nodes=2) as rig:
        rig.at_source.move(0, "g", 2)
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.source.brokers[2].stop()
        await rig.manager.look()
        assert not rig.run_of("g").gone
        assert rig.group("g").phase is P.GATED


async def test_what_is_no_longer_to_be_held_is_let_go() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.controller.delete_mirror(LINK, "orders")
        rig.manager.look_now()
        await rig.until("let go", lambda: (LINK, "g") not in rig.controller.image.groups)
        assert not rig.at_target.groups["g"].members
        assert not any(rig.at_target.offsets.pending.values())


async def test_a_source_that_is_away_lets_no_gate_expire() -> None:
    async with Rig(gate=GateKind.CONSUMER_AND_TRANSACTION) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.source.brokers[1].stop()
        await rig.until("told", lambda: rig.run_of("g").any_trouble is not None, timeout=30)
        assert rig.group("g").phase is P.GATED
        run = rig.run_of("g")
        assert run.gate is not None
        before = rig.target.counts["consumer_group_heartbeat"]
        await rig.until(
            "heartbeats go on", lambda: rig.target.counts["consumer_group_heartbeat"] > before, timeout=10
        )


# Promote.


async def test_promote_waits_for_the_source_and_opens_at_its_last_offsets() -> None:
    async with Rig() as rig:
        member = rig.source_member("g")
        rig.commit("g", 10)
        rig.commit("g", 20, partition=1)
        rig.run()
        await rig.synced("g")
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        await begin_promote(rig, "g")
        await rig.until(
            "it says who is there",
            lambda: "app at 127.0.0.1 (orders-0" in (rig.run_of("g").waiting_for or ""),
        )
        rig.commit("g", 33)
        assert rig.group("g").phase is P.DRAINING
        assert not waiting.reads
        member.leave()
        done = await rig.phase("g", P.PROMOTED)
        await rig.until("it reads", lambda: len(waiting.reads) == 2)
        assert waiting.reads == {("orders", 0): 33, ("orders", 1): 20}
        assert (done.move, done.gate_state) == (None, None)
        assert [(one.tp.partition, one.offset) for one in done.offsets] == [(0, 33), (1, 20)]
        await rig.until("it is seen to run", lambda: "runs on the target" in (rig.group("g").reason or ""))
        # From here on its offsets are its own.
        rig.commit("g", 90)
        rounds = rig.manager.stats.rounds
        await rig.until("rounds", lambda: rig.manager.stats.rounds > rounds + 3)
        assert rig.committed("g")[0].offset == 33


async def test_a_promote_that_waits_too_long_says_for_whom() -> None:
    async with Rig() as rig:
        rig.source_member("g")
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await begin_promote(rig, "g", timeout_ms=300)
        await rig.phase("g", P.DRAINING)
        group = await rig.phase("g", P.GATED)
        assert "promote given up: still in the group at the source: app at 127.0.0.1" in (group.reason or "")
        assert group.move is None
        # and it is held and synced as before
        rig.commit("g", 12)
        await rig.until("synced on", lambda: rig.committed("g")[0].offset == 12)
        await begin_promote(rig, "g", force=True)
        await rig.phase("g", P.PROMOTED)


@pytest.mark.parametrize("phase", [P.DRAINING, P.FINAL_SYNC, P.OPENING])
async def test_another_process_goes_on_wherever_the_first_one_died(phase: GroupPhase) -> None:
    async with Rig() as rig:
        member = rig.source_member("g")
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        died = asyncio.Event()
        step = rig.tools.book.step

        async def stepping(name: str, wanted: GroupPhase, **fields: object) -> None:
            await step(name, wanted, **fields)
            if wanted is phase:
                died.set()
                await asyncio.sleep(3600)  # killed after the write, before anything else

        rig.tools.book.step = stepping  # type: ignore[method-assign]
        await begin_promote(rig, "g")
        rig.commit("g", 44)
        member.leave()
        if phase is not P.DRAINING:
            await asyncio.wait_for(died.wait(), 30)
        await rig.restart()
        await rig.phase("g", P.PROMOTED)
        await rig.until("it reads", lambda: ("orders", 0) in waiting.reads)
        assert waiting.reads["orders", 0] == 44


async def test_an_opening_that_is_repeated_sends_nobody_back() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        real_step = rig.tools.book.step

        async def stepping(name: str, wanted: GroupPhase, **fields: object) -> None:
            if wanted is P.PROMOTED:
                await asyncio.sleep(3600)
            await real_step(name, wanted, **fields)

        rig.tools.book.step = stepping  # type: ignore[method-assign]
        reader = ConsumerClient(rig.at_target, "g", ("orders",), stable=False)
        rig.join(reader)
        await begin_promote(rig, "g")
        await rig.until("it reads", lambda: ("orders", 0) in reader.reads)
        rig.at_target.offsets.commit("g", ("orders", 0), 15, "its own")
        await rig.restart()
        await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0] == Committed(15, "its own")


async def test_after_the_topics_promote_the_targets_own_ends_count() -> None:
    async with Rig() as rig:
        rig.commit("g", 100)
        rig.run()
        await rig.synced("g")
        for phase in (Phase.CATCHING_UP, Phase.FENCED):
            await rig.controller.advance(LINK, [T0], phase)
        image = rig.controller.image
        await rig.controller.decide(
            lambda _: (
                [_ended(state) for state in image.topic_partitions(LINK, "orders")],
                None,
            )
        )
        rig.copies.clear()
        for _ in range(20):
            rig.target.add("orders", 0)
        rig.commit("g", 500)  # nonsense, and kept inside what there is
        await rig.until(
            "clamped to the target's end", lambda: rig.committed("g")[0].offset == 120, timeout=20
        )
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        assert rig.committed("g")[0].offset == 120


def _ended(state: object) -> object:
    from dataclasses import replace

    return replace(state, phase=Phase.PROMOTED)  # type: ignore[type-var]


async def test_partly_mirrored_groups_keep_their_other_offsets_at_the_source() -> None:
    async with Rig() as rig:
        rig.source.add_topic("audit", partitions=1)
        rig.commit("g", 10)
        rig.commit("g", 3, topic="audit")
        rig.run()
        await rig.synced("g")
        assert rig.group("g").unmirrored == ("audit",)
        assert ("audit", 0) not in rig.at_target.offsets.committed["g"]
        with pytest.raises(Exception, match="also reads audit"):
            await begin_promote(rig, "g")
        await begin_promote(rig, "g", partial=True)
        await rig.phase("g", P.PROMOTED)


async def test_by_policy_when_it_has_left_and_somebody_waits() -> None:
    async with Rig(policy=GroupPolicy.AUTO) as rig:
        member = rig.source_member("g")
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        for _ in range(4):
            rig.manager.look_now()
            await rig.until("looked", lambda: not rig.manager.discovery.woken)
        assert rig.group("g").phase is P.GATED
        member.leave()
        for _ in range(4):
            await rig.manager.look()
        assert rig.group("g").phase is P.GATED  # nobody waits for it
        rig.join(ConsumerClient(rig.at_target, "g", ("orders",)))
        rig.clients[0].step()
        await rig.manager.look()
        group = await rig.phase("g", P.PROMOTED)
        assert group.group == "g"


# Gates that are lost.


async def test_a_gate_that_was_lost_is_closed_again_if_nobody_came_in() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        rig.at_target.advance(700)  # the session and the transaction are over
        assert not rig.at_target.groups["g"].members
        await rig.claim()
        rig.run()
        await rig.synced("g")
        assert rig.at_target.groups["g"].members
        waiting = ConsumerClient(rig.at_target, "g", ("orders",))
        for _ in range(4):
            waiting.step()
        assert not waiting.reads


async def test_a_gate_that_somebody_came_through_is_a_failure_and_its_offsets_are_left_alone() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.end()
        rig.at_target.advance(700)
        reader = ConsumerClient(rig.at_target, "g", ("orders",))
        for _ in range(4):
            reader.step()
        assert reader.reads
        rig.at_target.offsets.commit("g", ("orders", 0), 17, "")
        rig.commit("g", 11)
        await rig.claim()
        rig.run()
        failed = await rig.phase("g", P.FAILED)
        assert "app at 127.0.0.1" in (failed.reason or "")
        rounds = rig.manager.stats.rounds
        await rig.until("rounds", lambda: rig.manager.stats.rounds > rounds + 3)
        assert rig.committed("g")[0].offset == 17
        await begin_promote(rig, "g", force=True)
        assert (await rig.phase("g", P.PROMOTED)).gate_state is None


# Demote.


async def test_demote_returns_the_offsets_and_holds_again() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        reader = ConsumerClient(rig.at_target, "g", ("orders",))
        for _ in range(3):
            reader.step()
        await begin_demote(rig, "g")
        await rig.until(
            "it waits for its members", lambda: "at the target: app" in (rig.run_of("g").waiting_for or "")
        )
        rig.at_target.offsets.commit("g", ("orders", 0), 40, "m")
        reader.leave()
        await rig.synced("g")
        assert rig.at_source.offsets.committed["g"]["orders", 0].offset == 40
        assert rig.at_source.offsets.committed["g"]["orders", 0].metadata == "m"
        reader.step()
        reader.step()
        assert not reader.reads
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        # given up: still promoted
        reader.step()
        reader.step()
        await begin_demote(rig, "g", timeout_ms=200)
        await rig.phase("g", P.DEMOTING)
        group = await rig.phase("g", P.PROMOTED)
        assert "demote given up: still in the group at the target" in (group.reason or "")


# The classic gate.


async def test_classic_gates_where_the_target_has_no_consumer_protocol() -> None:
    async with Rig(consumer_protocol=False) as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        assert rig.group("g").gate is GateKind.CLASSIC_AND_TRANSACTION
        waiting = ClassicClient(rig.at_target, "g", ("orders",))
        rig.join(waiting)
        rig.commit("g", 12)
        await rig.until("synced", lambda: rig.committed("g")[0].offset == 12)
        assert not waiting.reads
        await begin_promote(rig, "g")
        await rig.phase("g", P.PROMOTED)
        await rig.until("it reads", lambda: ("orders", 0) in waiting.reads)
        assert waiting.reads["orders", 0] == 12


# What is seen after an opening.


async def test_where_members_began_is_compared_with_the_commits() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("g", 20, partition=1)
        rig.run()
        await rig.synced("g")
        rig.join(ConsumerClient(rig.at_target, "g", ("orders",)))
        await begin_promote(rig, "g")
        await rig.until("it is watched", lambda: bool(rig.first_fetches))
        rig.first_fetches.note(T0, "app", 10)
        rig.first_fetches.note(T0, "app", 11)  # its second fetch
        rig.first_fetches.note(TopicPartition("orders", 1), "somebody else", 3)
        await rig.until("it is said", lambda: "runs on" in (rig.group("g").reason or ""))
        reason = rig.group("g").reason or ""
        assert "1 partitions were seen to be read from their committed offsets on" in reason
        await rig.until("nobody watches any more", lambda: not rig.first_fetches)


def test_a_member_that_began_elsewhere_is_named() -> None:
    member = GroupMember("m", "app", "h", None, (T0,))
    view = GroupView("g", "Stable", GroupProtocol.CLASSIC, (member,))
    final = {T0: Committed(10)}
    places = positions([member], final, {T0: {"app": 7, "x": 10}})
    text, wrong = confirmation(view, [member], final, places, {})
    assert wrong
    assert "orders-0 at 7, not 10" in text
    assert confirmation(view, [member], final, positions([member], final, {T0: {"app": 10}}), {})[1] is False
    text, wrong = confirmation(view, [member], final, {}, {T0: 4})
    assert wrong
    assert "orders-0 by 4" in text


async def test_a_link_that_is_deleted_lets_its_groups_go() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        await rig.manager.release_all()
        assert not rig.at_target.groups["g"].members
        assert not any(rig.at_target.offsets.pending.values())
        looked = rig.source.counts["list_groups"]
        rig.manager.look_now()
        await rig.until("looked again", lambda: rig.source.counts["list_groups"] > looked)
        await asyncio.sleep(0.2)
        assert not rig.at_target.groups["g"].members
