"""Groups that the link's patterns leave out although they read a mirrored topic: told where a person decides, untouched."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import CheckResult, GroupState, MirrorState, PromoteGroupsRequest, PromoteRequest
from admin.service import GroupNotFound, IllegalState
from controller.decide.groups import GroupRules
from controller.group_phases import GroupPhase
from controller.mirror_group import GroupProtocol
from groups import other_kinds
from groups.excluded import Excluded, ExcludedGroups, in_one_line, why_excluded
from groups.other_kinds import OtherKinds
from groups.settings import GroupSettings
from groups.views import GroupView, ListedGroup, Listing, Offsets
from linker.checks import group_kinds as kinds
from linker.checks import preflight
from linker.checks.doctor import check_groups
from linker.config.check import ValidationConfig
from linker.links import status as view
from linker.links.group_options import group_settings
from linker.service import SidecarService
from linker.service.group_status import group_summaries, groups_status
from tests.links.group_rig import LINK, Rig
from wire.frames.types import TopicPartition

KSQL = "_confluent-ksql-default_query_CTAS_1"
DEFAULTS = group_settings({}).rules


async def nothing(*_: Any) -> list[str]:
    return []


def service(rig: Rig) -> SidecarService:
    runtime: Any = SimpleNamespace(
        name=LINK,
        target=None,
        groups=SimpleNamespace(manager=rig.manager),
        trouble=None,
        controller=rig.controller,
        heartbeats=SimpleNamespace(topic=""),
        came=SimpleNamespace(by_pattern=lambda _: {}, lines=nothing, looked=lambda _: None),
    )
    sidecar: Any = SimpleNamespace(
        controller=rig.controller,
        links={LINK: runtime},
        target=SimpleNamespace(image=None),
        not_ready=lambda: None,
        config=SimpleNamespace(validation=ValidationConfig(policy="skip")),
    )
    return SidecarService(sidecar)


@pytest.mark.parametrize(
    ("options", "name", "why"),
    [
        ({}, KSQL, "groups_exclude has the pattern _.*"),
        ({}, "connect-sink", "groups_exclude has the pattern connect-.*"),
        ({}, "console-consumer-7", "groups_exclude has the pattern console-consumer-.*"),
        ({}, "billing", None),
        ({}, "_" * 300, None),  # it is left out anyway, and told as such
        ({"groups_include": "a.*,b"}, "c", r"groups_include has no pattern for it (a.*, b)"),
        (
            {"groups_include": "a.*", "groups_exclude": ".*-test"},
            "a-test",
            "groups_exclude has the pattern .*-test",
        ),
        ({"groups_include": ""}, "c", "groups_include is empty"),
    ],
)
def test_the_pattern_that_leaves_a_group_out_is_named(
    options: dict[str, Any], name: str, why: str | None
) -> None:
    rules = group_settings(options).rules
    assert why_excluded(rules, name) == why
    assert rules.takes(name) is (why is None and len(name) < 256)


async def test_an_excluded_group_that_reads_a_mirrored_topic_is_listed_and_not_touched() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("connect-sink", 5)
        rig.commit("connect-sink", 5, topic="other")
        rig.commit("connect-elsewhere", 5, topic="other")
        rig.source_member("connect-live")
        rig.run()
        await rig.synced("g")
        await rig.until("they are known", lambda: len(rig.manager.excluded_readers()) == 2)
        groups = rig.controller.image.link_groups(LINK)
        live, sink = [one for one in group_summaries(groups, rig.manager) if one.state is GroupState.EXCLUDED]
        assert (live.group, live.source_members, live.protocol) == ("connect-live", 1, "consumer")
        assert (sink.group, sink.topics, sink.unmirrored) == ("connect-sink", ["orders"], ["other"])
        assert "groups_exclude has the pattern connect-.*; nothing holds it" in (sink.reason or "")
        assert groups_status(groups, rig.manager).states == {GroupState.GATED: 1, GroupState.EXCLUDED: 2}
        assert groups_status(groups, rig.manager).groups == 1
        await rig.manager.look()
        assert list(rig.controller.image.groups) == [(LINK, "g")]
        assert not {"connect-sink", "connect-live"} & (
            rig.at_target.groups.keys() | rig.at_target.offsets.committed.keys()
        )


async def test_a_group_is_told_as_excluded_only_while_it_is() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        every = rig.settings.rules.include
        rig.manager.follow(GroupSettings(GroupRules(every, (re.compile("g"),)), 0.05))
        await rig.until("it is let go", lambda: (LINK, "g") not in rig.controller.image.groups)
        await rig.until("and told", lambda: [one.group for one in rig.manager.excluded_readers()] == ["g"])
        rig.manager.follow(GroupSettings(GroupRules(every, ()), 0.05))
        await rig.phase("g", GroupPhase.GATED)
        assert rig.manager.excluded_readers() == []
        rig.manager.follow(GroupSettings(GroupRules((), ()), 0.05))  # a link without groups names none
        await rig.until("none at all", lambda: not rig.controller.image.groups)
        assert rig.manager.excluded_readers() == []


async def test_every_promote_and_a_name_given_by_hand_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("connect-sink", 5)
        rig.run()
        await rig.synced("g")
        await rig.until("it is known", lambda: bool(rig.manager.excluded_readers()))
        asked = service(rig)
        listed = {one.group: one.state for one in await asked.list_groups(LINK)}
        assert listed == {"g": GroupState.GATED, "connect-sink": GroupState.EXCLUDED}
        told = r"group connect-sink \(groups_exclude has the pattern connect-\.\*\) not held"
        (warning,) = (await asked.promote_groups(LINK, PromoteGroupsRequest(all=True), dry_run=True)).warnings
        assert re.match(told, warning)
        named = await asked.promote_groups(LINK, PromoteGroupsRequest(groups=["g"]), dry_run=True)
        assert named.warnings == []
        request = PromoteGroupsRequest(groups=["connect-sink"], force=True)
        with pytest.raises(IllegalState, match="connect-sink is not held by link old: groups_exclude has"):
            await asked.promote_groups(LINK, request, dry_run=False)
        with pytest.raises(GroupNotFound):
            await asked.describe_group(LINK, "nobody")
        await rig.controller.decide(
            lambda image: ([replace(image.groups[LINK, "g"], phase=GroupPhase.PROMOTED)], None)
        )
        with pytest.raises(IllegalState, match=f"no group to promote; {told}"):
            await asked.promote_groups(LINK, PromoteGroupsRequest(all=True), dry_run=True)
        # The plan of its topic, without all that it says about other things.
        summary = SimpleNamespace(state=MirrorState.ACTIVE, lag=0, reason=None)
        monkeypatch.setattr(view, "mirror_summary", lambda *_: summary)
        monkeypatch.setattr(preflight, "check_mirror_rights", _nothing)
        monkeypatch.setattr("linker.service.promote_plans.who_may_not", _nothing)
        monkeypatch.setattr(SidecarService, "_still_closed", lambda *_: [])
        monkeypatch.setattr(SidecarService, "_producers", _no_producers)
        for part in (
            "_grown",
            "_late_replicas",
            "_refused_configs",
            "_configs",
            "_as_doctor_says",
            "_open_transactions",
        ):
            monkeypatch.setattr(SidecarService, part, _nothing)
        plan = await asked.plan_promote(LINK, PromoteRequest(topics=["orders"]))
        assert any(re.match(told, line) for line in plan.warnings)
        assert rig.manager.excluded_readers(["elsewhere"]) == []


async def _nothing(*_: object) -> list[str]:
    return []


async def _no_producers(*_: object) -> tuple[list[str], list[str]]:
    return [], []


async def test_doctor_names_five_of_them_in_one_line() -> None:
    async with Rig() as rig:
        for number in range(7):
            rig.commit(f"_q{number}", 1)
        rig.commit("billing", 1)
        rig.commit("_elsewhere", 1, topic="other")
        rig.source_member("_q6")
        found = [
            one
            for one in await check_groups(rig.clusters[0], ["orders"], DEFAULTS)
            if "not held" in one.detail
        ]
        (line,) = found
        assert line.result is CheckResult.WARN
        assert line.detail.startswith("groups _q6 (groups_exclude has the pattern _.*), _q0 (")
        assert ", _q3 (groups_exclude has the pattern _.*) and 2 more not held" in line.detail
        assert "billing" not in line.detail
        assert not kinds.excluded_checks(Listing(), DEFAULTS, {}, {}, ["orders"])


class Counting:
    """A source with very many groups: what was asked about which."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails: set[str] = set()

    async def describe(self, names: list[str], *, timeout: float) -> tuple[dict[str, Any], dict[str, str]]:
        return {}, {}

    async def offsets(self, names: list[str], *, timeout: float) -> Offsets:
        self.asked += names
        answer = Offsets({name: {TopicPartition("orders", 0): None} for name in names})  # type: ignore[dict-item]
        answer.failed.update(dict.fromkeys(self.fails & set(names), "NOT_COORDINATOR"))
        return answer


def listing(*names: str, state: str = "Empty") -> Listing:
    return Listing({name: ListedGroup(name, "consumer", state, GroupProtocol.CLASSIC) for name in names})


async def test_a_look_asks_about_a_limited_number_of_them() -> None:
    source: Any = Counting()
    known = ExcludedGroups()
    many = listing(*(f"connect-sink-{number:05}" for number in range(250)))
    many.groups.update(listing(KSQL, state="Stable").groups)
    sizes = []
    for now in (0.0, 5.0, 10.0, 15.0):
        before = len(source.asked)
        await known.look(source, many, DEFAULTS, timeout=1, now=now)
        sizes.append(len(source.asked) - before)
    assert sizes == [100, 100, 51, 0]  # and none again within a minute
    assert KSQL in source.asked[:100]  # those with members before those that may be over
    assert len(set(source.asked)) == len(known.reading(["orders"])) == 251
    await known.look(source, many, DEFAULTS, timeout=1, now=61.0)
    assert len(source.asked) == 351
    await known.look(source, listing(KSQL), DEFAULTS, timeout=1, now=62.0)
    assert [one.group for one in known.reading(["orders"])] == [KSQL]


async def test_what_a_console_consumer_leaves_behind_is_not_told_of() -> None:
    known = ExcludedGroups()
    names = ("console-consumer-7", "console-consumer-8", "console-consumer-mine")
    known._seen = {
        name: Excluded(name, "why", GroupProtocol.CLASSIC, frozenset({"orders"}), members)
        for name, members in zip(names, (0, 1, 0), strict=True)
    }
    assert [one.group for one in known.reading(["orders"])] == ["console-consumer-8", "console-consumer-mine"]
    assert known.why("console-consumer-7") is not None, "who names it hears why it is not held"


async def test_a_silent_broker_proves_nothing_and_a_failure_is_told() -> None:
    source: Any = Counting()
    known = ExcludedGroups()
    await known.look(source, listing("_a", "_b"), DEFAULTS, timeout=1, now=0.0)
    away = listing("_a")
    away.silent[2] = "timed out"
    source.fails = {"_a"}
    await known.look(source, away, DEFAULTS, timeout=1, now=100.0)
    assert [one.group for one in known.reading(["orders"])] == ["_a", "_b"]
    assert known.trouble == {"group _a": "NOT_COORDINATOR"}
    source.fails = set()
    await known.look(source, listing("_a"), DEFAULTS, timeout=1, now=200.0)
    assert ([one.group for one in known.reading(["orders"])], known.trouble) == (["_a"], {})


async def test_streams_and_share_groups_that_are_left_out_are_told_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def read_by(*_: object, **__: object) -> OtherKinds:
        view = GroupView(KSQL, "Empty", GroupProtocol.STREAMS, topics=frozenset({"orders"}))
        return OtherKinds(views={KSQL: view})

    monkeypatch.setattr(other_kinds, "read_by", read_by)
    source: Any = Counting()
    known = ExcludedGroups()
    found = Listing({KSQL: ListedGroup(KSQL, "streams", "Stable", GroupProtocol.STREAMS)})
    found.groups["connect-cluster"] = ListedGroup(
        "connect-cluster", "connect", "Stable", GroupProtocol.CLASSIC
    )
    await known.look(source, found, DEFAULTS, timeout=1, now=0.0)
    (one,) = known.reading(["orders"])
    assert (one.group, one.protocol) == (KSQL, GroupProtocol.STREAMS)
    assert in_one_line([one]).startswith(f"group {KSQL} (groups_exclude has the pattern _.*) not held: ")
