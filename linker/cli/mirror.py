"""`linker mirror ...`"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from linker.cli import promote_tables, tables
from linker.cli.failover import failover
from linker.cli.link import validated
from linker.cli.options import (
    Asking,
    AsOwnTopic,
    BatchPartitions,
    DryRun,
    FenceTimeout,
    LinkOption,
    NamedLink,
    NoWait,
    OfLink,
    TopicArgument,
    TransactionTimeout,
    Validation,
    Yes,
    alone,
    asking,
    can_ask,
    chosen,
    confirm,
    given,
    links_of,
    usage,
    whoever_asks,
)
from linker.cli.output import note
from linker.cli.promote_progress import begun, follow
from linker.cli.reassign import reassign
from linker.cli.restore import restore
from linker.cli.switch import finish, switch, sync

if TYPE_CHECKING:
    from admin.models import ChangeResult

app = typer.Typer(help="Mirror topics of a link.", no_args_is_help=True)


def show_plan(plan: ChangeResult) -> None:
    """On stderr, above the question."""
    for line in tables.change_lines(plan):
        note(line)


def start_of(text: str) -> str:
    """earliest, latest and epoch milliseconds as they are; a date and time with a zone as milliseconds."""
    if text in ("earliest", "latest") or text.isdigit():
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise usage(
            f"--start {text}: give earliest, latest, epoch milliseconds or 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise usage(f"--start {text}: say the time zone, e.g. {text}Z")
    if moment < datetime(1970, 1, 1, tzinfo=UTC):
        raise usage(f"--start {text} is before 1970")
    return str(round(moment.timestamp() * 1000))


@asking(app, "create")
def create(
    ask: Asking,
    link: LinkOption,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics of the source.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All topics that the source has now, except Kafka's own.")
    ] = False,
    include: Annotated[
        str,
        typer.Option(
            "--include", metavar="RE", help="Topics that the source has now and whose whole name matches."
        ),
    ] = "",
    exclude: Annotated[
        str, typer.Option("--exclude", metavar="RE", help="Topics that --all or --include leave out.")
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="WHEN",
            help="earliest, latest, or a time: epoch milliseconds or ISO 8601 with zone.",
        ),
    ] = "earliest",
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            help="Replicas of the target topic; default: as at the source.",
        ),
    ] = None,
    config_from_target: Annotated[
        list[str] | None,
        typer.Option(
            "--config-from-target",
            metavar="CONFIG",
            help="Topic config that keeps the target's own value, for example retention.ms; repeatable.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Mirror topics of the link's source: all of those named, or none; or those that match a pattern. The link's option
    topics_include mirrors topics that are made later."""
    from admin.models import CreateMirrorsRequest

    if every and include:
        raise usage("--all includes every topic: leave out --include, or --all")
    request = validated(
        CreateMirrorsRequest,
        topics=topics or [],
        include=".*" if every else include,
        exclude=exclude,
        start=start_of(start),
        replication_factor=replication_factor,
        configs_from_target=config_from_target or [],
    )
    ask.answer(lambda client: client.create_mirrors(link, request, dry_run=dry_run), tables.change)


@asking(app, "list")
def list_(
    ask: Asking,
    link: OfLink = None,
) -> None:
    """List mirror topics with their state and lag."""
    with ask.client() as client:
        names = links_of(client, link)
        found = [mirror for name in names for mirror in client.list_mirrors(name)]
        links = [one for one in client.list_links() if one.name in names]
    ask.show(found, lambda found: "\n\n".join([tables.mirrors(found), *tables.not_mirrored(links)]))


@asking(app, "describe")
def describe(ask: Asking, topic: TopicArgument, link: LinkOption) -> None:
    """Show one mirror topic, partition by partition."""
    ask.answer(lambda client: client.describe_mirror(link, topic), tables.mirror)


@asking(app, "pause")
def pause(ask: Asking, topic: TopicArgument, link: LinkOption, dry_run: DryRun = False) -> None:
    """Stop reading from the source until `resume`; produces are still forwarded."""
    ask.answer(lambda client: client.pause_mirror(link, topic, dry_run=dry_run), tables.change)


@asking(app, "resume")
def resume(
    ask: Asking,
    topic: TopicArgument,
    link: LinkOption,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Begin a FAILED mirror again at the source's present log start; its copies are dropped.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nothing is asked.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Go on with a paused mirror where it stopped, or begin a failed one again (--restart)."""
    with ask.client() as client:
        if restart and not (dry_run or yes) and sys.stdin.isatty():
            show_plan(client.resume_mirror(link, topic, restart=True, dry_run=True))
            confirm(f"Begin mirror {topic} of link {link} again?")
        result = client.resume_mirror(link, topic, restart=restart, dry_run=dry_run)
    ask.show(result, tables.change)


@asking(app, "repair")
def repair(
    ask: Asking,
    topic: TopicArgument,
    link: LinkOption,
    drop_target_records: Annotated[
        bool,
        typer.Option(
            "--drop-target-records",
            help="Repair also if a real broker may have led it meanwhile; records that it took are truncated.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Have the link broker lead partitions again that nobody leads at the target, with the copies that are there."""
    with ask.client() as client:
        result = client.repair_mirror(link, topic, drop_target_records=drop_target_records, dry_run=dry_run)
    ask.show(result, tables.change)


@asking(app, "promote")
def promote(
    ask: Asking,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics to promote.", show_default=False)
    ] = None,
    link: NamedLink = None,
    all_: Annotated[bool, typer.Option("--all", help="All mirrors of the link.")] = False,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag",
            metavar="OFFSETS",
            min=0,
            help="Hold writes when no partition lags by more offsets; default: 10000.",
        ),
    ] = None,
    catch_up_timeout_ms: Annotated[
        int | None,
        typer.Option(
            "--catch-up-timeout-ms", metavar="MS", min=0, help="Longest time to catch up; default: 600000."
        ),
    ] = None,
    fence_timeout_ms: FenceTimeout = None,
    batch_partitions: BatchPartitions = None,
    accept_missing: Annotated[
        int | None,
        typer.Option(
            "--accept-missing",
            metavar="RECORDS",
            min=0,
            help="Most records, in all, that may be left behind where replicas start later than the source; default: 0.",
        ),
    ] = None,
    validation: Validation = None,
    transaction_timeout_ms: TransactionTimeout = None,
    abort_open_transactions: Annotated[
        bool,
        typer.Option(
            "--abort-open-transactions",
            help="Abort transactions that stay open for longer than that, at the source; their producers are fenced.",
        ),
    ] = False,
    fence_source: Annotated[
        bool,
        typer.Option(
            "--fence-source",
            help="From the fence on the source refuses writes, by an ACL; needs an authorizer there.",
        ),
    ] = False,
    as_own_topic: AsOwnTopic = False,
    no_wait: NoWait = False,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="ID", help="Follow a promote that was started before.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Make the target the owner of topics: nothing lost, no client restarted.

    Follows the promote until it is done and its evidence is written; Ctrl-C stops the watching, not the promote.
    """
    from admin.models import PromoteRequest

    options = given(
        max_lag=max_lag,
        catch_up_timeout_ms=catch_up_timeout_ms,
        fence_timeout_ms=fence_timeout_ms,
        batch_partitions=batch_partitions,
        accept_missing=accept_missing,
        validation=validation,
        transaction_timeout_ms=transaction_timeout_ms,
        abort_open_transactions=abort_open_transactions,
        fence_source=fence_source,
        as_own_topic=as_own_topic,
    )
    if attach is not None:
        alone("--attach", topics=topics, link=link, all=all_, **options, dry_run=dry_run, no_wait=no_wait)
        with ask.client() as client:
            follow(client, attach, ask.output)
        return
    if link is None:
        raise usage("which link? Give --link")
    request = validated(PromoteRequest, **chosen(topics, all_), options=options, requested_by=whoever_asks())
    with ask.client() as client:
        if dry_run:
            ask.planned(client.plan_promote(link, request), promote_tables.plan)
        begun(ask, client, "promote", client.promote(link, request), no_wait=no_wait)


asking(app, "failover")(failover)
asking(app, "reassign")(reassign)
asking(app, "sync")(sync)
asking(app, "switch")(switch)
asking(app, "restore")(restore)
asking(app, "finish")(finish)


@asking(app, "delete")
def delete(
    ask: Asking,
    topic: TopicArgument,
    link: LinkOption,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Do not ask, and refuse unless the topic is promoted.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Delete although acknowledged records exist at the target alone, or the source still refuses writes "
            "because of an abandoned promote --fence-source; --dry-run says which.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Stop mirroring a topic and delete the target topic; a promoted topic's data is never deleted."""
    question = f"Delete mirror {topic} of link {link} and, unless promoted, its target topic?"
    with ask.client() as client:
        if not (dry_run or keep_data or yes):
            can_ask(question)
            show_plan(client.delete_mirror(link, topic, force=force, dry_run=True))
            confirm(question)
        result = client.delete_mirror(link, topic, keep_data=keep_data, force=force, dry_run=dry_run)
    ask.show(result, tables.change)
