"""Following a promote or a failover until it is over: a live table on a terminal, lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import typer

from linker.cli.output import INTERRUPTED, Format, complain, duration, emit, note, one_line, size
from linker.cli.promote_tables import job as job_table
from linker.cli.validate import bad_evidence

if TYPE_CHECKING:
    from rich.console import RenderableType

    from admin.client import AdminClient, AdminError
    from admin.models import PromoteJobStatus

_EVERY = 5.0  # seconds between lines that differ in numbers only
_STEPS = ("CATCHING_UP", "FENCED", "ALIGNED", "VALIDATED", "HANDED_OVER", "PROMOTED")
_FAILOVER_STEPS = (*_STEPS[1:-1], "FAILED_OVER")


class _View(Protocol):
    def show(self, job: PromoteJobStatus) -> None: ...

    def lost(self, error: AdminError) -> None: ...


class FollowLines:
    """One line per change, for logs and pipes; while nothing but numbers change, one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._last: tuple[object, ...] = ()
        self._text = ""
        self._said = -_EVERY
        self._away = False

    def show(self, job: PromoteJobStatus) -> None:
        self._away = False
        now = self._clock()
        proving = _proving(job)
        lags = [topic.lag for topic in job.topics]
        known = [lag for lag in lags if lag is not None]
        behind = f", lag {sum(known)}" if len(known) == len(lags) and known else ""
        # Why it waits is what the validator does, as soon as it does something.
        reason = f" ({job.reason})" if job.reason and not proving else ""
        text = f"{job.phase}{behind}{reason}{proving}"
        step = (
            job.phase,
            None if job.validation is None else job.validation.waiting_for,
            bool(job.reason),
            *((topic.topic, topic.phase) for topic in job.topics),
        )
        if step == self._last and (text == self._text or now - self._said < _EVERY):
            return
        self._last, self._text, self._said = step, text, now
        note(f"promote {job.id}: {text}; after {duration(round((now - self._began) * 1000))}")

    def lost(self, error: AdminError) -> None:
        if not self._away:
            note(f"{error}; waiting for the sidecar to return")
        self._away = True


class FollowTable:
    """The same as a table that is redrawn."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)
        self._note = ""
        self._job: PromoteJobStatus | None = None
        self._began = time.monotonic()

    def show(self, job: PromoteJobStatus) -> None:
        self._job, self._note = job, ""
        self.live.update(self._render(job))

    def lost(self, error: AdminError) -> None:
        self._note = f"{error}; waiting for the sidecar to return"
        if self._job is not None:
            self.live.update(self._render(self._job))

    def _render(self, job: PromoteJobStatus) -> RenderableType:
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
        spent_all = duration(round((time.monotonic() - self._began) * 1000))
        parts: list[RenderableType] = [
            Text(one_line(f"promote {job.id} of link {job.link}, {spent_all}")),
            steps,
            table,
        ]
        proving = _proving(job).removeprefix("; ")
        if proving:
            parts.append(Text(one_line(proving), style="cyan"))
        if self._note or (job.reason and not proving):
            parts.append(Text(one_line(self._note or job.reason or ""), style="yellow"))
        return Group(*parts)


def _proving(job: PromoteJobStatus) -> str:
    """What the validator does for it at the moment, with numbers that move."""
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


def follow(client: AdminClient, promote_id: str, form: Format) -> None:
    """Wait for the end and print the job; exit code 1 if it was abandoned, or is not proved as it had to be. Ctrl-C only
    stops the watching, with exit code 130."""
    view: _View
    screen: AbstractContextManager[object]
    if sys.stderr.isatty():
        view = live = FollowTable()
        screen = live.live
    else:
        view = FollowLines()
        screen = nullcontext()
    try:
        with screen:
            job = client.follow_promote(promote_id, view.show, lost=view.lost)
    except KeyboardInterrupt:
        note(
            f"promote {promote_id} goes on; follow it again with: linker mirror promote --attach {promote_id}"
        )
        raise typer.Exit(INTERRUPTED) from None
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
                f"promote {job.id} is done, but not all of it is proved, as its validation, require, asks: "
                f"{found.reason}; look at that before the source is given up"
            )
            raise typer.Exit(1)
        note(f"warning: not all of promote {job.id} is proved: {found.reason}")
    if abandoned:
        complain(f"promote {job.id} was abandoned: {job.reason or 'no reason given'}")
        raise typer.Exit(1)
