"""`linker mirror restore`: a source that has come back after a failover, or was left by a promote, follows the target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from linker.cli.follow import watched
from linker.cli.link import validated
from linker.cli.options import Asking, DryRun, LinkOption, Yes, ask_first, chosen
from linker.cli.output import columns, note, prose
from wire.errors import LinkerError

if TYPE_CHECKING:
    from admin.client import AdminClient
    from admin.models import RestorePlan

_POLL = 0.5


def restore(
    ask: Asking,
    link: LinkOption,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...", help="Topics that were failed over or promoted.", show_default=False
        ),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All topics of the link that were failed over (not the promoted).")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Restore although the source has other records than the target below the take-over.",
        ),
    ] = False,
    abandon: Annotated[
        bool,
        typer.Option("--abandon", help="End a restore that waits: the source's brokers keep what they have."),
    ] = False,
    yes: Yes = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Start it and return.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Have a source that has come back after a failover, or was left by a promote, follow the target.

    Its records beyond the take-over are written to files at the sidecar (exports.dir), then its brokers truncate them. The
    topics are as after a switch: clients of the source go on through the sidecar, and linker mirror switch goes back.
    """
    from admin.models import RestoreRequest

    request = validated(RestoreRequest, **chosen(topics, all_), force=force, abandon=abandon)
    with ask.client() as client:
        if dry_run:
            ask.planned(client.plan_restore(link, request), planned)
        if abandon:
            ask.show(client.restore_mirrors(link, request), table)
            return
        what = "all topics" if all_ else ", ".join(topics or [])
        question = f"Truncate the source of {what} of link {link} to where the target took over?"
        if not yes:
            ask_first(question)
        begun = client.restore_mirrors(link, request)
        if no_wait:
            ask.show(begun, table)
            return
        names = list(dict.fromkeys(one.topic for one in begun.partitions))
        with watched(None, f"the restore goes on; see linker mirror list --link {link}"):
            done = _follow(client, link, names)
        ask.show(done, table)


def _follow(client: AdminClient, link: str, topics: list[str]) -> RestorePlan:
    """Until all of them are restored. The sidecar goes on with it whether or not somebody waits."""
    from admin.models import RestoreRequest, RestoreState

    told = ""
    while True:
        plan = client.plan_restore(link, RestoreRequest(topics=topics))
        waiting = [one for one in plan.partitions if one.state is not RestoreState.RESTORED]
        if not waiting and not plan.blockers:
            return plan
        given_up = [one for one in waiting if one.state in (RestoreState.FAILED_OVER, RestoreState.PROMOTED)]
        if given_up or not waiting:
            why = given_up[0].reason if given_up else "; ".join(plan.blockers)
            raise LinkerError(f"the source is not restored: {why}")
        if (said := f"{waiting[0].topic}: {waiting[0].reason}") != told:
            note(told := said)
        time.sleep(_POLL)


def table(one: RestorePlan) -> str:
    return columns(
        (
            "TOPIC",
            "PARTITION",
            "STATE",
            "TOOK OVER AT",
            "AGREED UP TO",
            "SOURCE END",
            "RECORDS BEYOND",
            "FILE",
            "NOTE",
        ),
        [
            (
                *(p.topic, p.partition, p.state, p.end, p.agreed, p.source_end),
                "not known" if p.records is None else p.records,
                *(p.file, p.reason),
            )
            for p in one.partitions
        ],
        empty="no partitions",
    )


def planned(one: RestorePlan) -> str:
    lines = [f"blocked: {line}" for line in one.blockers] + [f"warning: {line}" for line in one.warnings]
    end = "a restore would be refused now" if one.blockers else "a restore could start now"
    return "\n".join([table(one), prose([*lines, f"{end}; nothing was changed (--dry-run)"])])
