"""`linker validate LINK [TOPIC]...`, `linker validate status`, `linker validate report`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from linker.cli import promote_tables, tables, validation_tables
from linker.cli.follow import Lines, Said, view_of
from linker.cli.link import validated
from linker.cli.options import Asking, NoWait, asking, usage
from linker.cli.output import Format, complain, emit, note, one_line, size
from validator.mode import Mode

if TYPE_CHECKING:
    from rich.console import RenderableType

    from admin.client import AdminClient
    from admin.models import PromoteJobStatus
    from admin.validation_models import ValidationRun

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


class _LinkOrCommand(TyperGroup):
    """A word that is none of its commands is the name of a link."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Options first, as in `linker validate --mode records east`.
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    help="Prove that source and target hold the same: linker validate LINK [TOPIC]...",
    no_args_is_help=True,
    cls=_LinkOrCommand,
)

LinkArgument = Annotated[str, typer.Argument(metavar="LINK", help="Name of the link.", show_default=False)]


def interval_ms(text: str) -> int:
    """500ms, 30s, 5m, 1h."""
    found = re.fullmatch(r"(\d+)(ms|s|m|min|h)", text.strip(), re.ASCII)
    if found is None:
        raise usage(f"--interval {text}: give a number with its unit, as 30s, 5m or 1h")
    return int(found.group(1)) * _UNITS[found.group(2)]


@asking(app, "run")
def run(
    ask: Asking,
    link: LinkArgument,
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="Only these; default: all mirrors.", show_default=False),
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", help="batches: bytes and checksums; records: record by record.")
    ] = Mode.BATCHES,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on for good, through restarts, until --stop.")
    ] = False,
    interval: Annotated[
        str | None,
        typer.Option(
            "--interval",
            metavar="TIME",
            help="Time between two continuous runs, as 30s; default: as configured.",
        ),
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the continuous validation of the link.")] = False,
    no_wait: NoWait = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="With --continuous or --stop: check, say what would be done, change nothing."
        ),
    ] = False,
) -> None:
    """Compare every replica of the link's mirrors with the source, from where it was compared last.

    Of topics that were switched: every replica at the source with the target's leader, in a run of its own; -o json is a
    list then.
    `linker validate LINK` is the same as `linker validate run LINK`. Follows the run until it is done; Ctrl-C cancels it,
    and what is proved by then stays proved. Exit code 1 if anything differs or could not be compared.
    """
    from admin.validation_models import ContinuousValidationRequest, StartValidationRequest

    if continuous and stop:
        raise usage("--continuous and --stop contradict each other")
    if interval is not None and not continuous:
        raise usage("--interval goes with --continuous")
    if (continuous or stop) and (topics or mode is not Mode.BATCHES or no_wait):
        raise usage(
            "a continuous validation covers the whole link, by batches: no topics, --mode or --no-wait"
        )
    with ask.client() as client:
        if continuous or stop:
            wanted = validated(
                ContinuousValidationRequest,
                enabled=continuous,
                interval_ms=None if interval is None else interval_ms(interval),
            )
            result = client.continue_validation(link, wanted, dry_run=dry_run)
            ask.show(result, tables.change)
            return
        if dry_run:
            raise usage("--dry-run goes with --continuous and --stop; a run changes no mirror that is equal")
        runs = []
        for chosen in [topics] if topics else _by_direction(client, link):
            request = validated(StartValidationRequest, topics=chosen, all=not chosen, mode=mode.value)
            one = client.start_validation(link, request)
            if not no_wait:
                note(f"validation {one.id} started")
                one = _ended(client, one.id)
            runs.append(one)
            if one.state == "CANCELLED":
                break
        if no_wait:
            _show(runs, ask.output)
        elif not _told_all(runs, ask.output):
            raise typer.Exit(1)


def _by_direction(client: AdminClient, link: str) -> list[list[str]]:
    """One run of all mirrors, or two where a part of the topics was switched."""
    found: dict[str, list[str]] = {}
    for one in client.list_mirrors(link):
        found.setdefault(one.direction, []).append(one.topic)
    return list(found.values()) if len(found) > 1 else [[]]


@asking(app, "attach")
def attach(
    ask: Asking,
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run.", show_default=False)],
) -> None:
    """Follow a run that was started before; Ctrl-C cancels it."""
    with ask.client() as client:
        if not _told_all([_ended(client, run_id)], ask.output):
            raise typer.Exit(1)


@asking(app, "status")
def status(ask: Asking, link: LinkArgument) -> None:
    """Show what is proved of a link, the validator process and the last runs."""
    ask.answer(lambda client: client.validation(link), validation_tables.description)


@asking(app, "report")
def report(
    ask: Asking,
    promote: Annotated[
        str | None,
        typer.Argument(metavar="[PROMOTE]", help="Id of a promote; default: all.", show_default=False),
    ] = None,
) -> None:
    """Show the evidence of promotes: what was proved, and where the page, the JSON and the Parquet files are.

    Exit code 1 if PROMOTE is not proved: it differs, lacks more than was accepted, is incomplete, was abandoned or not
    validated, or is not over yet. The verdict stands in the evidence: logs that were cleaned are not called equal there.
    Without PROMOTE: if one of those shown differs, or lacks more than was accepted.
    """
    with ask.client() as client:
        if promote is not None:
            job = client.describe_promote(promote)
            ask.show(job, promote_tables.job)
            _fail_at(why_not_proved(job))
            return
        found = [one for link in client.list_links() for one in client.list_promotes(link.name)]
    ask.show(found, validation_tables.evidence)
    _fail_at(*(bad_evidence(job) for job in found))


def _fail_at(*reasons: str | None) -> None:
    """A line for each reason, and exit code 1 if there is one."""
    told = [reason for reason in reasons if reason is not None]
    for reason in told:
        complain(f"{reason}")
    if told:
        raise typer.Exit(1)


def bad_evidence(job: PromoteJobStatus) -> str | None:
    """One loud line if what was promoted differs, or lacks more than was accepted; None if all is well or not asked for."""
    found = job.validation
    if found is not None and not found.mismatches and found.missing_records > job.accept_missing:
        return (
            f"promote {job.id}: {found.missing_records} records of the source are not at the target, because replicas start "
            f"later ({job.accept_missing} were accepted); see {found.html or 'linker validate report'} before the source is "
            "given up"
        )
    if found is None or not found.mismatches:
        return None
    return (
        f"promote {job.id}: {found.mismatches} replicas DIFFER from what the source held at the hand-over; see "
        f"{found.html or 'linker validate report'} before the source is given up"
    )


def why_not_proved(job: PromoteJobStatus) -> str | None:
    """One line why the evidence proves nothing of what was promoted; None if it does. Its verdict says how much."""
    found = job.validation
    if (bad := bad_evidence(job)) is not None:
        return bad
    if job.phase == "ABANDONED":
        return f"promote {job.id} was abandoned, it proves nothing: {job.reason or 'no reason given'}"
    if found is None or (found.state is None and job.phase.final):
        return f"nothing of promote {job.id} is proved: it was not validated"
    if found.state == "INCOMPLETE":
        return f"not all of promote {job.id} is proved: {found.reason or 'no reason given'}"
    if found.state != "CLOSED":
        return f"promote {job.id} is not proved yet: it, or its last validation, is under way"
    if not found.replicas:
        return f"nothing of promote {job.id} is proved: no replica was compared"
    return None


# --- following ---------------------------------------------------------------------------------------------------


def _step(run: ValidationRun) -> Said:
    done = None if run.progress is None else run.progress.partitions_done
    return (run.state, done, run.mismatches), f"validation {run.id}: {_told(run)}"


def drawn(run: ValidationRun, trouble: str) -> RenderableType:
    """A bar."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    tasks = None if run.progress is None else run.progress.tasks
    bar = ProgressBar(
        total=tasks, completed=0 if run.progress is None else run.progress.tasks_done, pulse=not tasks
    )
    style = "yellow" if trouble else "bold red" if run.mismatches else ""
    lines = Table.grid()
    for line in (Text(f"validation {run.id}"), bar, Text(one_line(trouble or _told(run)), style=style)):
        lines.add_row(line)
    return lines


def _told(run: ValidationRun) -> str:
    parts = [str(run.state)]
    if run.progress is not None:
        parts.append(f"{run.progress.partitions_done} of {run.progress.partitions} partitions")
        parts.append(
            f"{run.progress.tasks_done} of {run.progress.tasks} tasks, {size(run.progress.bytes)} read"
        )
    if run.mismatches:
        parts.append(f"{run.mismatches} replicas DIFFER")
    return one_line(", ".join(parts) + (f" ({run.reason})" if run.reason else ""))


def _ended(client: AdminClient, run_id: str) -> ValidationRun:
    """Wait for its end; Ctrl-C cancels it."""
    from admin.client import poll

    view = view_of(lambda: Lines(_step), drawn)

    def over(run: ValidationRun) -> bool:
        view.show(run)
        return run.state.final

    def ended() -> ValidationRun:
        return poll(
            lambda: client.describe_validation(run_id),
            over,
            lost=view.lost,
            goes_on=f"validation {run_id} goes on",
        )

    with view:
        try:
            return ended()
        except KeyboardInterrupt:
            client.cancel_validation(run_id)
            return ended()


def _show(runs: Sequence[ValidationRun], form: Format) -> None:
    """One document: of one run, or a list."""
    answer = runs[0] if len(runs) == 1 else runs
    emit(answer, form, lambda: "\n\n".join(map(validation_tables.run, runs)))


def _told_all(runs: Sequence[ValidationRun], form: Format) -> bool:
    """Print them. Whether all was compared, and is equal."""
    _show(runs, form)
    bad = [one for one in runs if not _is_well(one)]
    return not bad


def _is_well(one: ValidationRun) -> bool:
    """If not, one line why."""
    if one.mismatches:
        complain(f"{one.mismatches} replicas differ from the source")
    elif one.state != "DONE":
        complain(f"validation {one.id} is {one.state}: {one.reason or 'no reason given'}")
    elif one.left_out:
        complain(f"not everything was compared: {one.left_out[0]}")
    else:
        return True
    return False
