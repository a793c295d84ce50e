"""`linker mirror sync`, `switch` and `finish`: the other cluster becomes the owner of topics, in either direction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from linker.cli import promote_tables, tables
from linker.cli.follow import watched
from linker.cli.link import validated
from linker.cli.options import (
    Asking,
    BatchPartitions,
    DryRun,
    FenceTimeout,
    LinkOption,
    NoWait,
    Topics,
    TransactionTimeout,
    Validation,
    Yes,
    ask_first,
    chosen,
    given,
    whoever_asks,
)
from linker.cli.output import note
from linker.cli.promote_progress import begun
from wire.errors import LinkerError

if TYPE_CHECKING:
    from admin.client import AdminClient

_POLL = 0.2


def sync(
    ask: Asking,
    link: LinkOption,
    topics: Topics = None,
    all_: Annotated[bool, typer.Option("--all", help="All mirrors of the link that are not over.")] = False,
    off: Annotated[
        bool, typer.Option("--off", help="End it: the link brokers leave the replicas at the source.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Follow topics as an in-sync replica of the cluster that owns them.

    That cluster then acknowledges acks=all only once every replica of the mirror has the records. A switch needs it.
    """
    from admin.models import SyncRequest

    request = validated(SyncRequest, **chosen(topics, all_), off=off)
    ask.answer(lambda client: client.sync_mirrors(link, request, dry_run=dry_run), tables.change)


def switch(
    ask: Asking,
    link: LinkOption,
    topics: Topics = None,
    all_: Annotated[bool, typer.Option("--all", help="All topics of the link.")] = False,
    fence_timeout_ms: FenceTimeout = None,
    batch_partitions: BatchPartitions = None,
    validation: Validation = None,
    abort_open_transactions: Annotated[
        bool,
        typer.Option(
            "--abort-open-transactions",
            help="Abort transactions that stay open for too long; their producers are fenced.",
        ),
    ] = False,
    transaction_timeout_ms: TransactionTimeout = None,
    sync_timeout_ms: Annotated[
        int,
        typer.Option(
            "--sync-timeout-ms", metavar="MS", min=0, help="Longest time until all of them are in sync."
        ),
    ] = 60_000,
    no_wait: NoWait = False,
    dry_run: DryRun = False,
) -> None:
    """Switch topics to the other cluster, or back: no client is restarted, nothing is lost.

    Clients of the cluster that is left go on through the sidecar. That cluster follows the other one, so that a switch back
    is possible at any time. Topics that are not in sync yet are synced first (linker mirror sync).
    """
    from admin.models import PromoteRequest

    options = given(
        fence_timeout_ms=fence_timeout_ms,
        batch_partitions=batch_partitions,
        validation=validation,
        transaction_timeout_ms=transaction_timeout_ms,
        abort_open_transactions=abort_open_transactions,
    )
    request = validated(PromoteRequest, **chosen(topics, all_), options=options, requested_by=whoever_asks())
    with ask.client() as client:
        if dry_run:
            ask.planned(client.plan_switch(link, request), promote_tables.plan)
        client.plan_switch(link, request)  # what is refused is refused before anything is changed
        with watched(
            None,
            f"nothing is switched yet; the topics go on getting in sync, see linker mirror list --link {link}",
        ):
            _sync(client, link, topics or [], all_, sync_timeout_ms / 1000)
        begun(ask, client, "switch", client.switch_mirrors(link, request), no_wait=no_wait)


def finish(
    ask: Asking,
    link: LinkOption,
    topics: Topics = None,
    all_: Annotated[bool, typer.Option("--all", help="All topics of the link that were switched.")] = False,
    delete_source_topics: Annotated[
        bool,
        typer.Option("--delete-source-topics", help="Delete them at the source; else they are closed there."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """End the switch of topics for good: the target keeps them.

    At the source they stay as they are, and no producer can write to them (max.message.bytes=0), or they are deleted.
    """
    from admin.models import FinishRequest

    request = validated(FinishRequest, **chosen(topics, all_), delete_source_topics=delete_source_topics)
    question = f"End the switch of {'all topics' if all_ else ', '.join(topics or [])} of link {link}? There is no way back"
    with ask.client() as client:
        if not (dry_run or yes):
            ask_first(question)
        result = client.finish_mirrors(link, request, dry_run=dry_run)
    ask.show(result, tables.change)


def _sync(client: AdminClient, link: str, topics: Sequence[str], all_: bool, timeout: float) -> None:
    """Until all of them are in sync."""
    from admin.models import SyncRequest, SyncState

    begun = client.sync_mirrors(link, SyncRequest(topics=list(topics), all=all_))
    named = {action.resource for action in begun.actions}  # of all mirrors, those that are not over
    deadline = time.monotonic() + timeout
    told = -1
    while True:
        waiting = [
            one
            for one in client.list_mirrors(link)
            if one.topic in named and one.sync is not SyncState.IN_SYNC
        ]
        if not waiting:
            return
        if len(waiting) != told:
            told = len(waiting)
            note(f"waiting until {told} topics are in sync ({waiting[0].topic} is {waiting[0].sync})")
        if time.monotonic() > deadline:
            raise LinkerError(
                f"{told} topics are not in sync within {timeout:g} s: linker mirror describe {waiting[0].topic} --link "
                f"{link} says why; sync goes on, so try again, or end it (linker mirror sync --off)"
            )
        time.sleep(_POLL)
