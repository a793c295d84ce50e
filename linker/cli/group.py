"""`linker group ...`"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from linker.cli import group_tables, tables
from linker.cli.follow import watched
from linker.cli.link import validated
from linker.cli.options import (
    Asking,
    DryRun,
    LinkOption,
    OfLink,
    asking,
    links_of,
    usage,
)
from linker.cli.output import Format, complain, emit, note
from wire.shown_id import shown_id

if TYPE_CHECKING:
    from admin.client import AdminClient
    from admin.models import GroupDescription, GroupState

app = typer.Typer(help="Consumer groups of a link.", no_args_is_help=True)

_POLL = 0.5

Names = Annotated[
    list[str] | None, typer.Argument(metavar="[GROUP]...", help="Group ids.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All groups of the link that it applies to.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0,
        metavar="SECONDS",
        help="Give up when members are still there after so many seconds; default: wait for ever.",
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Begin, and return at once.")]


@asking(app, "list")
def list_(
    ask: Asking,
    link: OfLink = None,
) -> None:
    """List groups with their state, members at the source, and how far the target's offsets are."""
    with ask.client() as client:
        names = links_of(client, link)
        found = [group for name in names for group in client.list_groups(name)]
    ask.show(found, group_tables.groups)


@asking(app, "describe")
def describe(
    ask: Asking,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Group id.", show_default=False)],
    link: LinkOption,
) -> None:
    """Show one group: who is in it on both clusters, and its offsets partition by partition."""
    ask.answer(lambda client: client.describe_group(link, group), group_tables.group)


@asking(app, "promote")
def promote(
    ask: Asking,
    link: LinkOption,
    groups: Names = None,
    all_: All = False,
    timeout: Timeout = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Do not wait for members at the source, nor for a source that is dead; what is still read there is read "
            "twice. A group that is REFUSED or FAILED is taken for promoted as it stands: name the groups.",
        ),
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Promote also groups that read topics which are not mirrored.")
    ] = False,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
) -> None:
    """Let groups run on the target, exactly where they stopped at the source.

    Waits until nobody is in them at the source, and shows who still is. Ctrl-C stops the watching, not the promote.
    """
    from admin.models import GroupState, PromoteGroupsRequest

    _one_of(groups, all_)
    request = validated(
        PromoteGroupsRequest,
        groups=groups or [],
        all=all_,
        timeout_ms=None if timeout is None else round(timeout * 1000),
        force=force,
        partial=partial,
    )
    with ask.client() as client:
        result = client.promote_groups(link, request, dry_run=dry_run)
        if dry_run or no_wait:
            ask.show(result, tables.change)
            return
        for warning in result.warnings:
            note(f"warning: {warning}")
        names = [action.resource for action in result.actions]
        _follow(client, link, names, {GroupState.PROMOTED}, "promote", ask.output)


@asking(app, "demote")
def demote(
    ask: Asking,
    link: LinkOption,
    groups: Names = None,
    all_: All = False,
    timeout: Timeout = None,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
) -> None:
    """Return promoted groups to the source, with their offsets, as long as none of their topics is promoted.

    Waits until nobody is in them on the target; start the consumers at the source after it has ended.
    """
    from admin.models import DemoteGroupsRequest, GroupState

    _one_of(groups, all_)
    request = validated(
        DemoteGroupsRequest,
        groups=groups or [],
        all=all_,
        timeout_ms=None if timeout is None else round(timeout * 1000),
    )
    with ask.client() as client:
        result = client.demote_groups(link, request, dry_run=dry_run)
        if dry_run or no_wait:
            ask.show(result, tables.change)
            return
        names = [action.resource for action in result.actions]
        _follow(client, link, names, {GroupState.GATED}, "demote", ask.output)


def _one_of(groups: list[str] | None, all_: bool) -> None:
    if bool(groups) == all_:
        raise usage("give either groups or --all")


def _follow(
    client: AdminClient,
    link: str,
    names: Iterable[str],
    wanted: set[GroupState],
    what: str,
    output: Format,
) -> None:
    """Lines for each change until every group rests; exit code 1 if one of them is not where it was to go, 130 if it was
    left by Ctrl-C before."""
    from admin.client import poll

    names = list(names)
    said: dict[str, str] = {}
    found: dict[str, GroupDescription] = {}

    def look() -> None:
        for name in names:
            if name not in found or not found[name].state.at_rest:
                found[name] = client.describe_group(link, name)
                _say(found[name], said)

    with watched(None, f"the {what} goes on; see linker group list --link {link}"):
        poll(
            look,
            lambda _: all(one.state.at_rest for one in found.values()),
            lost=lambda _error: None,
            goes_on=f"the {what} goes on",
            interval=_POLL,
        )
    ended = [found[name] for name in names]
    emit(ended, output, lambda: group_tables.groups(ended))
    failed = [one for one in ended if one.state not in wanted]
    for one in failed:
        complain(f"group {shown_id(one.group)} is {one.state}: {one.reason or 'no reason given'}")
    if failed:
        raise typer.Exit(1)


def _say(one: GroupDescription, said: dict[str, str]) -> None:
    line = f"group {shown_id(one.group)}: {one.state}" + (f" ({one.reason})" if one.reason else "")
    if said.get(one.group) != line:
        said[one.group] = line
        note(line)
