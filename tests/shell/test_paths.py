"""Names in paths: every operation of the client, with every odd text, reaches its own route and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from admin.client import AdminClient, AdminError
from admin.models import (
    DemoteGroupsRequest,
    GroupState,
    PromoteGroupsRequest,
)
from admin.routes import ROUTES
from tests.shell.conftest import Cli, Running
from tests.shell.test_cli import make
from tests.shell.test_operations import TABLE, carry_out

ODD = [
    "a\nb",
    "a\n",
    "\n",
    "a\r\nb",
    "a/b",
    "/",
    "a/",
    "//a",
    "a%2Fb",
    "%2f",
    "%",
    "%25",
    "%252F",
    "a%zz",
    ".",
    "..",
    "a/../b",
    " ",
    " a ",
    "a b+c",
    "gr\u00fcn",
    "\u65e5\u672c",
    "\U0001f600",
    "\u2028",
    "a\tb",
    "a\x00b",
    "a?dry_run=true",
    "a#b",
    "a:promote",
    "a;b&c=d",
    "a\\b",
    "x" * 255,
    "\u65e5" * 255,
]

#: Legal as a group's id and as nothing else. Unescaped, each of them would be another route.
ELSEWHERE = ["", "a/lag", "a/mirrors/orders", "a/mirrors/orders:pause", "orders:pause", "p1:cancel"]


def ending_in(*names: str) -> list[str]:
    """Operations whose path has one of these names last."""
    return [name for name, row in TABLE.items() if row.in_path and row.in_path[-1] in names]


@pytest.fixture
def client(api: Running) -> Iterator[AdminClient]:
    with AdminClient(api.url) as made:
        yield made


@pytest.fixture
def link(cli: Cli, api: Running) -> Running:
    make(cli, "orders")
    api.service.calls.clear()
    return api


def test_a_group_of_any_id_is_found(client: AdminClient, link: Running) -> None:
    for group in ODD:
        link.service.groups = {("a", group): GroupState.GATED}
        assert client.describe_group("a", group).group == group
        assert [one.group for one in client.list_groups("a")] == [group]
        client.promote_groups("a", PromoteGroupsRequest(groups=[group]))
        assert link.service.groups["a", group] is GroupState.DRAINING, group
        link.service.groups["a", group] = GroupState.PROMOTED
        client.demote_groups("a", DemoteGroupsRequest(groups=[group]))
        assert link.service.groups["a", group] is GroupState.DEMOTING, group


def test_a_group_is_not_taken_for_another(client: AdminClient, link: Running) -> None:
    for asked, there in (("a\n", "a"), ("a%2Fb", "a/b"), ("%25", "%"), (" a", "a"), ("a/", "a"), ("..", "a")):
        link.service.groups = {("a", there): GroupState.GATED}
        with pytest.raises(AdminError, match="has no group") as error:
            client.describe_group("a", asked)
        assert error.value.error_code == 40406


def test_the_path_of_a_group_may_hold_plain_slashes(client: AdminClient, link: Running) -> None:
    link.service.groups = {("a", "x/y/"): GroupState.GATED}
    answer = client._http.get("/v1/links/a/groups/x/y/")
    assert answer.json()["group"] == "x/y/"


@pytest.mark.parametrize("name", ["a\nb", "a/b", "%2F", " a ", "gr\u00fcn"])
def test_a_group_of_any_id_on_the_command_line(cli: Cli, link: Running, name: str) -> None:
    link.service.groups = {("a", name): GroupState.GATED}
    assert cli("group", "describe", name, "-l", "a").code == 0
    assert cli("group", "promote", name, "-l", "a").code == 0
    assert link.service.groups["a", name] is GroupState.PROMOTED


def test_an_id_that_nobody_has_is_shown_with_its_escapes(cli: Cli, link: Running) -> None:
    missing = cli("group", "describe", "a\nb ", "-l", "a")
    assert (missing.code, missing.err) == (1, 'linker: link a has no group "a\\nb "\n')
    assert "at least 1 character" in cli("group", "describe", "", "-l", "a").err
    assert "at most 255 characters" in cli("group", "describe", "x" * 256, "-l", "a").err
    for arguments in (("group", "describe", "\udcff", "-l", "a"), ("mirror", "lag", "-l", "a", "\udcff")):
        said = cli(*arguments)
        assert said.code != 0
        assert "internal error" not in said.err


@pytest.mark.parametrize(
    ("operations", "field", "beside"),
    [
        (ending_in("link", "group"), "link: ", {"group": "g"}),
        (ending_in("topic"), "topic: ", {"link": "a"}),
        (ending_in("run", "promote_id"), "String should match", {}),
    ],
)
def test_no_other_name_reaches_another_route(
    client: AdminClient, link: Running, operations: list[str], field: str, beside: dict[str, str]
) -> None:
    for name in [
        *ELSEWHERE,
        "a\nb",
        "a\n",
        "a%2Fb",
        "a/../b",
        " a ",
        "gr\u00fcn",
        "a?dry_run=true",
        "x" * 255,
    ]:
        for operation in operations:
            row = TABLE[operation]
            names = {one: beside.get(one, name) for one in row.in_path}
            try:
                carry_out(client, row, names)
            except AdminError as error:
                told = error
            else:
                pytest.fail(f"{operation} took {name!r}")
            assert (told.status, field in str(told)) == (400, True), (operation, name, str(told))
    assert link.service.calls == []


def test_dots_are_names(client: AdminClient, link: Running) -> None:
    for name in (".", ".."):
        with pytest.raises(AdminError, match="does not exist"):
            client.describe_link(name)
        with pytest.raises(AdminError, match="has no mirror"):
            client.delete_mirror("a", name, force=True)


def test_text_that_no_request_can_hold(client: AdminClient) -> None:
    for name in ("\udcff", "x" * 70_000):
        with pytest.raises(AdminError):
            client.describe_group("a", name)
    with pytest.raises(AdminError, match="cannot be sent"):
        client.lag("a", ["\udcff"])


def test_every_route_with_a_name_is_tried_here() -> None:
    """A route of free text has `:text` or `:rest`; Starlette's own convertors let a name break out."""
    named = [route.path for route in ROUTES if "{" in getattr(route, "path", "")]
    assert len(named) > 20
    assert all(part.endswith((":text", ":rest")) for path in named for part in _names(path)), named
    free = {name for name, row in TABLE.items() if row.in_path and row.in_path != ["sidecar_id"]}
    assert free == {*ending_in("link", "group", "topic", "run", "promote_id")}


def _names(path: str) -> list[str]:
    return [part.split("}")[0] for part in path.split("{")[1:]]
