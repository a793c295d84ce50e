"""`linker group ...` over HTTP: tables, exit codes, what is said while a promote waits; ids with any characters."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import httpx
import pytest
from pydantic import ValidationError

from admin.models import GroupState, LinkOptions, LinkOptionsUpdate, PromoteGroupsRequest, patterns
from linker.links.group_options import group_settings
from tests.shell.conftest import Cli, Running
from tests.shell.test_cli import make


def with_groups(cli: Cli, api: Running, **groups: GroupState) -> None:
    make(cli, "orders")
    api.service.groups = {("a", name): state for name, state in groups.items()}


def test_groups_are_shown(cli: Cli, api: Running) -> None:
    with_groups(cli, api, g=GroupState.GATED)
    head, row = cli("group", "list").out.splitlines()
    assert head.split()[:4] == ["LINK", "GROUP", "STATE", "AT"]
    assert row.split()[:4] == ["a", "g", "GATED", "1"]
    shown = cli("group", "describe", "g", "-l", "a").out
    assert "not mirrored" in shown
    assert "app-1" in shown
    assert "10.0.0.7" in shown
    assert json.loads(cli("group", "list", "-l", "a", "-o", "json").out)[0]["difference"] == 3
    missing = cli("group", "describe", "x", "-l", "a")
    assert (missing.code, missing.err) == (1, "linker: link a has no group x\n")


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a b", "ä?x=1#y", "%2F", "x:promote"])
def test_group_ids_of_any_text(cli: Cli, api: Running, name: str) -> None:
    with_groups(cli, api, **{name: GroupState.GATED})
    found = cli("group", "describe", name, "-l", "a", "-o", "json")
    assert (found.code, found.err) == (0, "")
    assert json.loads(found.out)["group"] == name


def test_a_promote_is_followed_to_its_end(cli: Cli, api: Running) -> None:
    with_groups(cli, api, g=GroupState.GATED, h=GroupState.GATED)
    done = cli("group", "promote", "g", "--link", "a", "--timeout", "2.5", "--partial")
    assert done.code == 0
    assert "group g: DRAINING (still in the group at the source: app-1 at 10.0.0.7 (orders-0))" in done.err
    assert done.err.rstrip().endswith("group g: PROMOTED")
    assert api.service.group_calls == ["DRAINING g {'groups': ['g'], 'timeout_ms': 2500, 'partial': True}"]
    assert api.service.groups["a", "h"] is GroupState.GATED
    dry = cli("group", "promote", "h", "-l", "a", "--dry-run")
    assert (dry.code, api.service.groups["a", "h"]) == (0, GroupState.GATED)
    assert cli("group", "promote", "h", "-l", "a", "--no-wait", "--force").code == 0
    assert api.service.groups["a", "h"] is GroupState.DRAINING
    refused = cli("group", "promote", "--all", "-l", "a")
    assert refused.code == 1
    assert "group g: it is PROMOTED" in refused.err


def test_a_promote_that_is_given_up_is_a_failure(cli: Cli, api: Running) -> None:
    with_groups(cli, api, g=GroupState.GATED)
    api.service.stays = True
    done = cli("group", "promote", "g", "-l", "a")
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith(
        "linker: group g is GATED: still in the group at the source: app-1"
    )


@pytest.mark.parametrize(
    ("command", "state"), [("promote", GroupState.GATED), ("demote", GroupState.PROMOTED)]
)
def test_ctrl_c_leaves_it_going_on_and_is_no_success(
    cli: Cli, api: Running, monkeypatch: pytest.MonkeyPatch, command: str, state: GroupState
) -> None:
    with_groups(cli, api, g=state)

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("admin.client.time", SimpleNamespace(monotonic=time.monotonic, sleep=pressed))
    left = cli("group", command, "g", "-l", "a")
    assert left.code == 130
    assert left.err.splitlines()[-1] == f"the {command} goes on; see linker group list --link a"


def test_demote(cli: Cli, api: Running) -> None:
    with_groups(cli, api, g=GroupState.PROMOTED)
    done = cli("group", "demote", "g", "-l", "a")
    assert done.code == 0
    assert api.service.groups["a", "g"] is GroupState.GATED


@pytest.mark.parametrize(
    "arguments",
    [("promote", "-l", "a"), ("promote", "g", "--all", "-l", "a"), ("promote", "g"), ("demote", "-l", "a")],
)
def test_wrong_use(cli: Cli, api: Running, arguments: tuple[str, ...]) -> None:
    with_groups(cli, api, g=GroupState.GATED)
    assert cli("group", *arguments).code == 2


def test_options_of_groups(cli: Cli, api: Running) -> None:
    make(cli)
    given = ("groups_include=orders.*,pay", "groups_promote=auto", "unpromoted_reads=hold")
    assert cli("link", "update", "a", *(part for one in given for part in ("--option", one))).code == 0
    options = json.loads(cli("link", "describe", "a", "-o", "json").out)["options"]
    assert options["groups_include"] == "orders.*,pay"
    assert options["groups_promote"] == "auto"
    assert options["groups_exclude"] == LinkOptions().groups_exclude
    wrong = cli("link", "update", "a", "--option", "groups_include=(")
    assert wrong.code == 2
    assert "in '(' a ( has no partner" in " ".join(wrong.err.split())
    assert "'*' is not a regular expression" in cli("link", "update", "a", "--option", "groups_include=*").err
    assert cli("link", "update", "a", "--option", "unpromoted_reads=maybe").code == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        (" a , b,, ", ["a", "b"]),
        ("test-[0-9]{1,3}", ["test-[0-9]{1,3}"]),
        ("x{1,},y", ["x{1,}", "y"]),
        ("(a,b|c),d", ["(a,b|c)", "d"]),
        ("((a,b),c),d", ["((a,b),c)", "d"]),
        ("[a,(],b", ["[a,(]", "b"]),
        ("[],]x,[^],]y", ["[],]x", "[^],]y"]),
        (r"[\],]x,y", [r"[\],]x", "y"]),
        (r"a\,b,c", [r"a\,b", "c"]),
        (r"a\{,b\),c\[", [r"a\{", r"b\)", r"c\["]),
        (r"a\\,b", [r"a\\", "b"]),
    ],
)
def test_a_comma_ends_a_pattern_only_outside_brackets(text: str, wanted: list[str]) -> None:
    assert patterns(text) == wanted
    assert LinkOptions(groups_include=text, unpromoted_reads_hold=text).groups_include == text


@pytest.mark.parametrize(
    ("text", "bracket"),
    [
        ("a{1,b", "{"),
        ("a,b}", "}"),
        ("(a,b", "("),
        ("a),b", ")"),
        ("[a,b", "["),
        ("[^],b", "["),
        ("a],b", "]"),
        ("(a},b)", "}"),
    ],
)
def test_a_bracket_without_a_partner_is_refused_and_says_how_to_write_it(text: str, bracket: str) -> None:
    with pytest.raises(ValidationError) as refused:
        LinkOptionsUpdate.model_validate({"groups_exclude": text})
    message = refused.value.errors()[0]["msg"]
    assert f"in {text!r} a {bracket} has no partner" in message
    assert message.endswith(f"a bracket that stands for itself is written \\{bracket}")


def test_groups_of_a_pattern_with_a_count_are_matched() -> None:
    rules = group_settings(LinkOptions(groups_exclude="test-[0-9]{1,3},_.*").model_dump()).rules
    assert [rules.takes(name) for name in ("test-12", "_x", "test-1234", "3}")] == [False, False, True, True]


def test_the_interval_of_the_validation_is_changed_elsewhere(cli: Cli, api: Running) -> None:
    make(cli)
    refused = cli("link", "update", "a", "--option", "validation_interval_ms=60000")
    assert refused.code == 2
    assert "linker validate LINK --continuous" in " ".join(refused.err.split())
    assert "linker validate LINK --continuous" in " ".join(cli("link", "update", "--help").out.split())
    with httpx.Client(base_url=api.url, trust_env=False, timeout=20, verify=False) as http:
        answer = http.patch("/v1/links/a", json={"options": {"validation_interval_ms": 60_000}})
    assert answer.status_code == 400
    assert "linker validate LINK --continuous" in answer.json()["message"]


def test_models() -> None:
    with pytest.raises(ValidationError):
        PromoteGroupsRequest(groups=["g", "g"])
    with pytest.raises(ValidationError):
        PromoteGroupsRequest(groups=[""])
    # Of those left out, one has a command of its own, which needs no restart of the link, and one is fixed.
    fixed = {"validation_interval_ms", "producer_id_margin"}
    assert set(LinkOptionsUpdate.model_fields) == set(LinkOptions.model_fields) - fixed
    with pytest.raises(ValidationError, match="fixed when a link is made"):
        LinkOptionsUpdate.model_validate({"producer_id_margin": 2_000_000})
    with pytest.raises(ValidationError):
        LinkOptions(producer_id_margin=1000)
    assert (
        LinkOptionsUpdate.model_validate({"groups_include": ""}).applied_to(LinkOptions()).groups_include
        == ""
    )
