"""Following a promote or a failover until it is over, and its exit code."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import typer

from linker.cli.follow import Lines, Said, view_of, watched
from linker.cli.options import Asking
from linker.cli.output import Format, complain, duration, emit, note, one_line, size
from linker.cli.promote_tables import job as job_table
from linker.cli.validate import bad_evidence

if TYPE_CHECKING:
    from rich.console import RenderableType

    from admin.client import AdminClient
    from admin.models import PromoteJobStatus

_EVERY = 5.0  # seconds between lines that differ in numbers only
_STEPS = ("CATCHING_UP", "FENCED", "ALIGNED", "VALIDATED", "HANDED_OVER", "PROMOTED")
_FAILOVER_STEPS = (*_STEPS[1:-1], "FAILED_OVER")


def promote_lines(clock: Callable[[], float] = time.monotonic) -> Lines[PromoteJobStatus]:
    return Lines(told, every=_EVERY, timed=True, clock=clock)


def told(job: PromoteJobStatus) -> Said:
    proving = _proving(job)
    lags = [topic.lag for topic in job.topics]
    known = [lag for lag in lags if lag is not None]
    behind = f", lag {sum(known)}" if len(known) == len(lags) and known else ""
    # The validator's work says why it waits, as soon as there is some.
    reason = f" ({job.reason})" if job.reason and not proving else ""
    step = (
        job.phase,
        None if job.validation is None else job.validation.waiting_for,
        bool(job.reason),
        *((topic.topic, topic.phase) for topic in job.topics),
    )
    return step, f"promote {job.id}: {job.phase}{behind}{reason}{proving}"


def drawn(began: float, job: PromoteJobStatus, trouble: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    way = _STEPS if job.failover is None else _FAILOVER_STEPS
    reached = way.index(job.phase) if job.phase in way else -1
    steps = Text()
    for place, name in enumerate(way):
        spent = next((duration(ms) for phase, ms in job.phases_ms.items() if phase == name), None)
        style = "green" if place < reached else "bold cyan" if place == reached else "dim"
        steps.append(f"{name}{f' {spent}' if spent else ''}", style=style)
        steps.append("  " if place < len(way) - 1 else "", style="dim")
    table = Table(box=None, pad_edge=False)
    for header in ("TOPIC", "PHASE", "PARTITIONS", "LAG", "REASON"):
        table.add_column(header, overflow="fold" if header == "REASON" else "ellipsis")
    for topic in job.topics:
        lag = "-" if topic.lag is None else str(topic.lag)
        # Text, because plain strings would be read as markup.
        cells = (topic.topic, str(topic.phase), str(topic.partitions), lag, topic.reason or "")
        table.add_row(*(Text(one_line(text)) for text in cells))
    spent_all = duration(round((time.monotonic() - began) * 1000))
    parts: list[RenderableType] = [
        Text(one_line(f"promote {job.id} of link {job.link}, {spent_all}")),
        steps,
        table,
    ]
    proving = _proving(job).removeprefix("; ")
    if proving:
        parts.append(Text(one_line(proving), style="cyan"))
    if trouble or (job.reason and not proving):
        parts.append(Text(one_line(trouble or job.reason or ""), style="yellow"))
    return Group(*parts)


def _proving(job: PromoteJobStatus) -> str:
    """The validator's work for it at the moment, with numbers that move."""
    found = job.validation
    if found is None or found.final:
        return ""
    if found.waiting_for is not None:
        note_of_time = " (usually 10 to 30 s)" if found.waiting_for == "Spark starts" else ""
        return f"; validation: {found.waiting_for}{note_of_time}"
    if found.progress is None:
        return "; the last validation, with exact ends" if found.state == "PENDING" else ""
    now = found.progress
    told = "; the last validation, with exact ends" if found.state == "PENDING" else "; validation"
    return (
        f"{told}: {now.partitions_done} of {now.partitions} partitions, {now.tasks_done} of {now.tasks} tasks, "
        f"{size(now.bytes)} in {now.batches} batches read"
    )


def begun(ask: Asking, client: AdminClient, kind: str, job: PromoteJobStatus, *, no_wait: bool) -> None:
    """Follow a job that was just started, or print it alone."""
    if no_wait:
        ask.show(job, job_table)
        return
    note(f"{kind} {job.id} started")
    follow(client, job.id, ask.output)


def follow(client: AdminClient, promote_id: str, form: Format) -> None:
    """Wait for the end and print the job; exit code 1 if it was abandoned, or is not proved as it had to be."""
    view = view_of(promote_lines, partial(drawn, time.monotonic()))
    goes_on = (
        f"promote {promote_id} goes on; follow it again with: linker mirror promote --attach {promote_id}"
    )
    with watched(view, goes_on):
        job = client.follow_promote(promote_id, view.show, lost=view.lost)
    emit(job, form, lambda: job_table(job))
    for warning in job.warnings:
        note(f"warning: {warning}")
    bad = bad_evidence(job)
    if bad is not None:
        complain(f"{bad}")
        raise typer.Exit(1)
    found, abandoned = job.validation, job.phase == "ABANDONED"
    if found is not None and found.state == "INCOMPLETE":
        if found.policy == "require" and not abandoned:
            # It cannot be undone, but whoever required a proof has none to give the source up by.
            complain(
                f"promote {job.id} is done, but not all of it is proved, as its validation policy, require, asks: "
                f"{found.reason}; look at that before the source is given up"
            )
            raise typer.Exit(1)
        note(f"warning: not all of promote {job.id} is proved: {found.reason}")
    if abandoned:
        complain(f"promote {job.id} was abandoned: {job.reason or 'no reason given'}")
        raise typer.Exit(1)
