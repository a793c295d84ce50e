"""Groups of kinds that no gate holds: their promote, step by step, and what would get in its way."""

from __future__ import annotations

import pytest

from admin.models import GroupSummary
from controller.decide import groups as group_decisions
from controller.decide.groups import discover
from controller.errors import Refused
from controller.group_phases import GroupPhase
from controller.judge.group_gates import FoundGroup
from controller.judge.group_offsets import Committed, Offsets
from controller.mirror_group import GroupProtocol
from groups import share_offsets
from groups.share_offsets import acknowledged_beyond
from groups.unheld_steps import UnheldSteps
from linker.service import group_status
from tests.fakes.groups import OtherGroup, OtherKinds
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_demote, begin_promote
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

SHARE, STREAMS = GroupProtocol.SHARE, GroupProtocol.STREAMS
P0, P1 = ("orders", 0), ("orders", 1)


class Scene:
    """One group at the source; nothing on the target yet."""

    def __init__(self, rig: Rig, kind: GroupProtocol) -> None:
        self.rig, self.kind = rig, kind
        self.source, self.target = OtherKinds(rig.at_source), OtherKinds(rig.at_target)
        self.group = self.source.groups["g"] = OtherGroup(kind, ("orders",), members={"m": "app"})
        self.at(P0, 40)
        self.at(P1, 7)

    def at(self, place: tuple[str, int], offset: int) -> None:
        """At the source it has come to here."""
        if self.kind is SHARE:
            self.group.starts[place], self.group.lags[place] = offset, 100 - offset - 3
        else:
            self.rig.commit("g", offset, partition=place[1])

    def on_target(self) -> dict[int, int]:
        if self.kind is SHARE:
            group = self.target.groups.get("g")
            return {} if group is None else {index: start for (_, index), start in group.starts.items()}
        return {index: one.offset for index, one in self.rig.committed("g").items()}

    def there(self, **members: str) -> None:
        """Members on the target, where the group has offsets of its own."""
        self.rig.at_target.groups.pop("g", None)  # an empty classic group becomes a streams group
        known = self.target.groups.setdefault("g", OtherGroup(self.kind, ("orders",)))
        known.members = members

    async def promoted(self) -> str:
        self.rig.run()
        await self.rig.phase("g", GroupPhase.REFUSED)
        await begin_promote(self.rig, "g")
        await self.rig.phase("g", GroupPhase.DRAINING)
        self.group.members.clear()
        await self.rig.phase("g", GroupPhase.PROMOTED)
        await self.rig.until("said", lambda: "on the target" in (self.rig.group("g").reason or ""))
        return self.rig.group("g").reason or ""


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_waits_for_its_members_at_the_source_then_its_offsets_are_on_the_target(
    kind: GroupProtocol,
) -> None:
    async with Rig() as rig:
        scene = Scene(rig, kind)
        rig.run()
        await rig.phase("g", GroupPhase.REFUSED)
        await begin_promote(rig, "g")
        await rig.phase("g", GroupPhase.DRAINING)
        await rig.until("says who", lambda: "app at 127.0.0.1" in (rig.run_of("g").waiting_for or ""))
        scene.at(P0, 60)
        await rig.manager.look()  # nothing is brought over beside a promote
        assert scene.on_target().get(0) != 60
        scene.group.members.clear()
        done = await rig.phase("g", GroupPhase.PROMOTED)
        assert scene.on_target() == {0: 60, 1: 7}
        assert {one.partition: one.offset for one in done.offsets} == {0: 60, 1: 7}
        await rig.until("said", lambda: "its members can be started there" in (rig.group("g").reason or ""))
        if kind is SHARE:
            assert "; 6 records beyond its start offsets were acknowledged at the most, and" in str(
                rig.group("g").reason
            )
        if kind is SHARE:
            with pytest.raises(Refused, match="is not taken back"):
                await begin_demote(rig, "g")


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_its_offsets_follow_while_nobody_is_in_it_on_the_target(kind: GroupProtocol) -> None:
    """Started there too early its members skip nothing, and if the source dies this is what is left of the group."""
    async with Rig() as rig:
        scene = Scene(rig, kind)
        rig.run()
        await rig.until("brought over", lambda: scene.on_target() == {0: 40, 1: 7})
        await rig.until("said", lambda: _shown(rig).difference == 0 and _shown(rig).sync_age_ms is not None)
        scene.at(P0, 150)  # beyond the end on the target
        rig.manager.look_now()
        await rig.until("kept inside", lambda: scene.on_target() == {0: 100, 1: 7})
        scene.there(n="early")
        scene.at(P1, 9)
        rig.manager.look_now()
        await rig.until("in the way", lambda: rig.run_of("g").sync_trouble is not None)
        assert scene.on_target() == {0: 100, 1: 7}
        shown = _shown(rig).reason or ""
        assert "its offsets are not brought over now: " in shown and "is not held on the target" in shown
        scene.there()
        rig.manager.look_now()
        await rig.until("brought over", lambda: scene.on_target() == {0: 100, 1: 9})
        await rig.until("said", lambda: rig.run_of("g").sync_trouble is None)


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_its_offsets_do_not_follow_after_its_promote(kind: GroupProtocol) -> None:
    async with Rig() as rig:
        scene = Scene(rig, kind)
        await scene.promoted()
        scene.at(P0, 90)
        await rig.manager.look()
        assert scene.on_target() == {0: 40, 1: 7}


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_after_the_source_has_died_the_offsets_that_were_brought_over_last_count(
    kind: GroupProtocol,
) -> None:
    async with Rig() as rig:
        scene = Scene(rig, kind)
        rig.run()
        await rig.until("brought over", lambda: scene.on_target() == {0: 40, 1: 7})
        await rig.end()
        await rig.claim()
        for node in rig.source.brokers.values():
            await node.stop()
        rig.run()
        await begin_promote(rig, "g", force=True)
        done = await rig.phase("g", GroupPhase.PROMOTED, timeout=60)
        assert scene.on_target() == {0: 40, 1: 7}
        assert {one.partition: one.offset for one in done.offsets} == {0: 40, 1: 7}
        assert "from the offsets that were brought over last" in (done.reason or "")


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_a_promote_is_taken_up_by_the_next_link_controller(kind: GroupProtocol) -> None:
    async with Rig() as rig:
        scene = Scene(rig, kind)
        rig.run()
        await rig.phase("g", GroupPhase.REFUSED)
        await begin_promote(rig, "g")
        await rig.phase("g", GroupPhase.DRAINING)
        await rig.end()
        scene.group.members.clear()
        await rig.claim()
        rig.run()
        await rig.phase("g", GroupPhase.PROMOTED)
        assert scene.on_target() == {0: 40, 1: 7}


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_an_opening_that_another_process_began_sends_no_member_back(kind: GroupProtocol) -> None:
    """It had set the offsets, and died before it could say so; members have gone on since."""
    async with Rig() as rig:
        scene = Scene(rig, kind)
        await scene.promoted()
        await rig.end()
        await rig.claim()
        opening = {"phase": GroupPhase.OPENING, "reason": None}
        await rig.tools.book.commit(lambda image: group_decisions.amend(image, LINK, "g", **opening))
        scene.there(n="new")
        if kind is SHARE:
            scene.target.groups["g"].starts[P0] = 90
        else:
            rig.at_target.offsets.commit("g", P0, 90, "")
        rig.run()
        await rig.phase("g", GroupPhase.PROMOTED)
        assert scene.on_target() == {0: 90, 1: 7}


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_members_on_the_target_end_the_promote_and_are_named(kind: GroupProtocol) -> None:
    async with Rig() as rig:
        scene = Scene(rig, kind)
        scene.group.members.clear()
        scene.there(n="early")
        rig.run()
        await rig.phase("g", GroupPhase.REFUSED)
        await begin_promote(rig, "g")
        await rig.until("given up", lambda: "promote given up" in (rig.group("g").reason or ""))
        refused = rig.group("g")
        assert refused.phase is GroupPhase.REFUSED
        assert "runs on the target already: early at 127.0.0.1" in (refused.reason or "")
        assert "is not held on the target" in (refused.reason or ""), (
            "what its clients would do is still said"
        )
        assert scene.on_target() == {}
        await begin_promote(rig, "g", force=True)
        await rig.phase("g", GroupPhase.PROMOTED)
        assert scene.on_target() == {}, "its own offsets there count"


async def test_acknowledgements_of_a_trial_on_the_target_are_cleared_although_the_start_is_the_same() -> None:
    async with Rig() as rig:
        scene = Scene(rig, SHARE)
        scene.there()
        scene.target.groups["g"].starts.update({P0: 40, P1: 7})
        await scene.promoted()
        assert scene.target.altered == [{P0: 40, P1: 7}]


async def test_an_unmirrored_changelog_is_in_the_way() -> None:
    async with Rig() as rig:
        scene = Scene(rig, STREAMS)
        scene.group.changelogs = ("g-counts-changelog",)
        rig.run()
        await rig.phase("g", GroupPhase.REFUSED)
        with pytest.raises(
            Refused,
            match=r"g-counts-changelog, which the link does not mirror.* state that is in its changelogs",
        ):
            await begin_promote(rig, "g")
        await begin_promote(rig, "g", partial=True)


async def test_a_held_group_that_is_made_again_as_another_kind_is_let_go_and_found_anew() -> None:
    async with Rig() as rig:
        others = OtherKinds(rig.at_source)
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        assert "g" in rig.at_target.groups and rig.at_target.groups["g"].members
        rig.at_source.offsets.committed.pop("g")
        others.groups["g"] = OtherGroup(SHARE, ("orders",), members={"m": "app"})
        rig.manager.look_now()
        await rig.until("found anew", lambda: _protocol(rig) is SHARE)
        assert (await rig.phase("g", GroupPhase.REFUSED)).gate_state is None
        await rig.until("let go", lambda: not rig.at_target.groups["g"].members)
        others.groups.pop("g")
        rig.at_source.groups.pop("g", None)
        rig.commit("g", 11)
        rig.manager.look_now()
        await rig.until("found anew", lambda: _protocol(rig) is GroupProtocol.CLASSIC)
        rig.run_of("g").retry_at = 0
        await rig.phase("g", GroupPhase.GATED)


def _shown(rig: Rig) -> GroupSummary:
    return group_status.group_summary(rig.group("g"), rig.manager)


def _protocol(rig: Rig) -> GroupProtocol | None:
    known = rig.controller.image.groups.get((LINK, "g"))
    return None if known is None else known.protocol


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_a_group_that_one_broker_does_not_list_is_not_taken_for_gone(kind: GroupProtocol) -> None:
    """By the apis of other kinds it is GROUP_ID_NOT_FOUND or Dead, and it may have no offsets."""
    async with Rig() as rig:
        scene = Scene(rig, kind)
        scene.group.starts.clear()
        rig.at_source.offsets.committed.pop("g", None)
        rig.run()
        await rig.phase("g", GroupPhase.REFUSED)
        rig.source.handlers["list_groups"] = rig.at_source.list_groups
        await rig.manager.look()
        assert rig.group("g").phase is GroupPhase.REFUSED
        scene.source.groups.clear()
        await rig.manager.look()
        await rig.until("gone", lambda: _protocol(rig) is None)


@pytest.mark.parametrize("kind", [SHARE, STREAMS])
async def test_a_group_of_another_kind_on_the_target_is_not_taken_for_an_empty_one(
    kind: GroupProtocol,
) -> None:
    async with Rig() as rig:
        target = OtherKinds(rig.at_target)
        target.groups["g"] = OtherGroup(kind, ("orders",), members={"m": "stranger"})
        views, failed = await rig.tools.target.describe(["g", "none"], timeout=5)
        assert (views["g"].protocol, views["g"].empty, failed) == (kind, False, {})
        assert views["none"].empty


async def test_the_start_offset_of_a_group_with_members_is_not_set() -> None:
    async with Rig() as rig:
        target = OtherKinds(rig.at_target)
        target.groups["g"] = OtherGroup(SHARE, members={"m": "app"})
        offsets = {TopicPartition("orders", 0): Committed(3), TopicPartition("orders", 9): Committed(1)}
        with pytest.raises(LinkerError, match="NON_EMPTY_GROUP"):
            await share_offsets.alter(rig.tools.target, "g", offsets, timeout=5)
        target.groups["g"].members.clear()
        assert await share_offsets.alter(rig.tools.target, "g", offsets, timeout=5) == {
            TopicPartition("orders", 9)
        }
        assert target.groups["g"].starts == {P0: 3}


async def test_an_old_source_is_asked_for_no_group_of_a_newer_kind() -> None:
    async with Rig() as rig:
        views, failed = await rig.tools.source.describe(["g"], timeout=5)
        assert (views["g"].empty, failed) == (True, {})
        answer = await share_offsets.read(rig.tools.source, ["g"], timeout=5)
        assert (answer.found, answer.failed.keys()) == ({}, {"g"})


def test_what_is_delivered_again_is_counted_where_all_is_known() -> None:
    tp, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert acknowledged_beyond({tp: Committed(10)}, {tp: 5}, {tp: 20}) == 5
    assert acknowledged_beyond({tp: Committed(10), other: Committed(0)}, {tp: 10}, {tp: 20, other: 9}) == 0


async def test_a_kind_that_changes_is_another_group_and_classic_to_consumer_is_not() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        image, rules = rig.controller.image, rig.settings.rules
        for now, gone in ((GroupProtocol.CONSUMER, []), (STREAMS, ["g"]), (SHARE, ["g"])):
            seen = {"g": FoundGroup("g", now, frozenset({"orders"}))}
            found = discover(image, LINK, seen, rules, consumer_protocol=True, now=1)
            assert list(found.forget) == gone
            assert bool(found.records) is not bool(gone)


async def test_a_member_that_comes_during_the_opening_is_named_and_not_sent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        scene = Scene(rig, STREAMS)
        scene.group.members.clear()
        known = UnheldSteps._commit_last

        async def then_somebody_comes(self: UnheldSteps, wanted: Offsets, *, force: bool) -> Offsets | None:
            found = await known(self, wanted, force=force)
            scene.there(n="early")
            rig.at_target.offsets.commit("g", P0, 3, "")
            return found

        monkeypatch.setattr(UnheldSteps, "_commit_last", then_somebody_comes)
        rig.run()
        await rig.phase("g", GroupPhase.REFUSED)
        await begin_promote(rig, "g")
        await rig.until("named", lambda: "early at 127.0.0.1" in (rig.run_of("g").trouble or ""))
        assert rig.group("g").phase is GroupPhase.OPENING
        for place in (P0, P1):
            rig.at_target.offsets.commit("g", place, 77, "")
        await rig.phase("g", GroupPhase.PROMOTED)
        assert scene.on_target() == {0: 77, 1: 77}
