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
from linker.cli.promote_progress import begun, follow
from linker.cli.promote_tables import failover_plan


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
            ask.planned(client.plan_failover(link, request), failover_plan)
        what = "all mirrors" if all_ else ", ".join(topics or [])
        if not yes:
            ask_first(f"Give up the source of {what} of link {link} for good?")
        begun(ask, client, "failover", client.failover(link, request), no_wait=no_wait)
