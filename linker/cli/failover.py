"""`linker mirror failover`: the only way out of a source that is dead."""

from __future__ import annotations

from typing import Annotated

import typer

from linker.cli.link import validated
from linker.cli.options import (
    Asking,
    AsOwnTopic,
    DryRun,
    NamedLink,
    NoWait,
    Yes,
    alone,
    ask_first,
    chosen,
    given,
    usage,
)
from linker.cli.output import note
from linker.cli.promote_progress import follow
from linker.cli.promote_tables import failover_plan
from linker.cli.promote_tables import job as job_table


def failover(
    ask: Asking,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Topics to fail over.", show_default=False),
    ] = None,
    link: NamedLink = None,
    all_: Annotated[bool, typer.Option("--all", help="All mirrors of the link.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Fail over although the source still answers.")
    ] = False,
    as_own_topic: AsOwnTopic = False,
    timeout_ms: Annotated[
        int | None,
        typer.Option(
            "--timeout-ms", metavar="MS", min=0, help="Longest time that writes are held; default: 120000."
        ),
    ] = None,
    yes: Yes = False,
    no_wait: NoWait = False,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="ID", help="Follow a failover that was started before.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Take over from a source that is dead, at what the target's replicas have.

    The source's records beyond that are lost; the answer says how many, per partition. Writes are not forwarded any more,
    even if the source returns: linker mirror restore has it follow the target then.
    """
    from admin.models import FailoverRequest

    if attach is not None:
        alone(
            "--attach",
            topics=topics,
            link=link,
            all=all_,
            force=force,
            as_own_topic=as_own_topic,
            timeout_ms=timeout_ms,
            dry_run=dry_run,
            no_wait=no_wait,
        )
        with ask.client() as client:
            follow(client, attach, ask.output)
        return
    if link is None:
        raise usage("which link? Give --link")
    request = validated(
        FailoverRequest,
        **chosen(topics, all_),
        **given(timeout_ms=timeout_ms),
        force=force,
        as_own_topic=as_own_topic,
    )
    with ask.client() as client:
        if dry_run:
            plan = client.plan_failover(link, request)
            ask.show(plan, failover_plan)
            raise typer.Exit(1 if plan.blockers else 0)
        what = "all mirrors" if all_ else ", ".join(topics or [])
        if not yes:
            ask_first(f"Give up the source of {what} of link {link} for good?")
        job = client.failover(link, request)
        if no_wait:
            ask.show(job, job_table)
            return
        note(f"failover {job.id} started")
        follow(client, job.id, ask.output)
