"""Groups that no gate can hold, and ids that are easily missed: listed, named and never passed over."""

from __future__ import annotations

import re

import pytest

from admin.models import GroupsStatus
from controller.decide.unheld_groups import unheld_readers
from controller.group_phases import GroupPhase
from controller.mirror_group import GroupProtocol
from groups import discovery, other_kinds
from groups.group_ids import left_out_ids
from groups.views import GroupView, ListedGroup, Listing, protocol_of
from linker.checks import group_kinds as kinds
from linker.cli.group_tables import in_one_line
from linker.links.group_options import group_settings
from linker.service import group_status
from tests.fakes.groups import OtherGroup, OtherKinds
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_promote
from wire.shown_id import shown_id

REFUSED = {GroupProtocol.STREAMS: "KIP-1071", GroupProtocol.SHARE: "KIP-932"}


def listing_of(rig: Rig, monkeypatch: pytest.MonkeyPatch, listed: ListedGroup) -> None:
    """The source lists it as well."""
    known = rig.tools.source.list_groups

    async def list_groups(*, timeout: float) -> Listing:
        answer = await known(timeout=timeout)
        answer.groups[listed.group] = listed
        return answer

    monkeypatch.setattr(rig.tools.source, "list_groups", list_groups)


@pytest.mark.parametrize("protocol", REFUSED)
async def test_a_group_of_another_kind_is_listed_with_the_reason_and_named_by_every_promote(
    protocol: GroupProtocol,
) -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        OtherKinds(rig.at_source).groups["other"] = OtherGroup(protocol, ("orders",), members={"m": "app"})
        rig.run()
        await rig.synced("g")
        other = await rig.phase("other", GroupPhase.REFUSED)
        assert REFUSED[protocol] in (other.reason or "")
        summary = group_status.group_summary(other, rig.manager)
        assert (summary.state, summary.protocol, summary.gate, summary.source_members) == (
            "REFUSED",
            protocol.value,
            "none",
            1,
        )
        (named,) = unheld_readers(rig.controller.image, LINK, ["orders"])
        assert named.startswith(f"{protocol} group other reads orders: ")
        assert not unheld_readers(rig.controller.image, LINK, ["elsewhere"])
        await rig.manager.look()  # nor is it taken for one whose reason is over
        rig.run_of("other").retry_at = 0
        await rig.manager.look()
        assert rig.group("other").phase is GroupPhase.REFUSED
        assert "other" not in rig.at_target.groups
        await begin_promote(rig, "g")
        await rig.phase("g", GroupPhase.PROMOTED)


def test_kinds_are_told_by_their_names() -> None:
    assert protocol_of("Streams") is GroupProtocol.STREAMS
    assert protocol_of("share") is GroupProtocol.SHARE
    assert protocol_of(None) is GroupProtocol.CLASSIC
    assert protocol_of("of tomorrow") is None


def test_an_id_with_a_line_break_is_taken_by_a_pattern_for_everything() -> None:
    rules = group_settings({}).rules
    assert all(
        rules.takes(name) for name in ("a\nb", "\n", "a\tb", " a ", "a/b", "..", "%2F", "#", "x\u2028y")
    )
    assert not group_settings({"groups_exclude": "test-.*"}).rules.takes("test-\nx")


@pytest.mark.parametrize(
    ("name", "why"), [("", "is empty"), ("x" * 256, "256 bytes"), ("\u00e9" * 200, "400 bytes")]
)
async def test_an_id_that_cannot_be_kept_is_named_as_left_out(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        listing_of(rig, monkeypatch, ListedGroup(name, "consumer", "Empty", GroupProtocol.CLASSIC))
        rig.run()
        await rig.synced("g")
        assert (LINK, name) not in rig.controller.image.groups
        shown = group_status.groups_status(rig.controller.image.link_groups(LINK), rig.manager)
        (line,) = shown.left_out
        assert why in line
        assert f"; left out: {line}" in in_one_line(shown)


def test_what_the_patterns_do_not_take_is_not_left_out() -> None:
    rules = group_settings({"groups_include": "a.*"}).rules
    assert left_out_ids(["b" * 300, "a" * 300, ""], rules).keys() == {"a" * 300}
    assert in_one_line(GroupsStatus()) == "none"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("billing", "billing"),
        ("of one", "of one"),
        ("gr\u00fcn", "gr\u00fcn"),
        ("", '""'),
        (" a", '" a"'),
        ("a ", '"a "'),
        ("a  b", '"a  b"'),
        ("a\tb", '"a\\tb"'),
        ("a\nb", '"a\\nb"'),
        ("a\x1b[31m", '"a\\u001b[31m"'),
        ("a\u200bb", '"a\\u200bb"'),
        ('"a"', '"\\"a\\""'),
    ],
)
def test_an_id_is_shown_so_that_it_cannot_be_taken_for_another_one(name: str, shown: str) -> None:
    assert shown_id(name) == shown


async def test_doctor_names_what_cannot_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_by(*_: object, **__: object) -> other_kinds.OtherKinds:
        reads = {"s": "orders", "far": "elsewhere"}
        views = {
            name: GroupView(name, "Stable", GroupProtocol.STREAMS, topics=frozenset({topic}))
            for name, topic in reads.items()
        }
        return other_kinds.OtherKinds(views, failed={"dark": "GROUP_AUTHORIZATION_FAILED"})

    monkeypatch.setattr(other_kinds, "read_by", read_by)
    listing = Listing(
        {
            name: ListedGroup(name, kind.value, "Stable", kind)
            for name, kind in (
                ("s", GroupProtocol.STREAMS),
                ("far", GroupProtocol.STREAMS),
                ("dark", GroupProtocol.SHARE),
                ("", GroupProtocol.CLASSIC),
                ("consumer", GroupProtocol.CONSUMER),
            )
        }
    )
    lines = [one.detail for one in await kinds.unheld_checks(object(), listing, ["orders"])]  # type: ignore[arg-type]
    assert [re.split(": (?:while )?a ", line)[0] for line in lines] == [
        "group dark may read them (GROUP_AUTHORIZATION_FAILED)",
        "group s reads orders",
    ]
    assert [one.detail[:23] for one in kinds.left_out_checks(listing)] == ['group "" is left out: i']
    assert kinds.held(listing) == ["consumer"]
    assert discovery.other_kinds is other_kinds
