"""Following a promote or a failover until it is over: a live table on a terminal, lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import typer

from linker.cli.output import INTERRUPTED, Format, complain, duration, emit, note, one_line
from linker.cli.tables import job as job_table
from linker.cli.validate import bad_evidence

if TYPE_CHECKING:
    from rich.console import RenderableType

    from linker.admin.client import AdminClient, AdminError
    from linker.admin.models import PromoteJob

_STEPS = ("CATCHING_UP", "FENCED", "ALIGNED", "VALIDATED", "HANDED_OVER", "PROMOTED")
_FAILOVER_STEPS = (*_STEPS[1:-1], "FAILED_OVER")


class _View(Protocol):
    def show(self, job: PromoteJob) -> None: ...

    def lost(self, error: AdminError) -> None: ...


class Lines:
    """One line per change, for logs and pipes."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()
        self._away = False

    def show(self, job: PromoteJob) -> None:
        self._away = False
        now = (
            job.phase,
            job.reason,
            _proving(job),
            *((topic.topic, topic.phase, topic.reason) for topic in job.topics),
        )
        if now == self._last:
            return
        self._last = now
        lags = [topic.lag for topic in job.topics]
        known = [lag for lag in lags if lag is not None]
        behind = f", lag {sum(known)}" if len(known) == len(lags) and known else ""
        note(
            f"promote {job.id}: {job.phase}{behind}"
            + (f" ({job.reason})" if job.reason else "")
            + _proving(job)
        )

    def lost(self, error: AdminError) -> None:
        if not self._away:
            note(f"{error}; waiting for the sidecar to return")
        self._away = True


class Live:
    """The same as a table that is redrawn."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.live = RichLive(console=Console(stderr=True), refresh_per_second=8, transient=True)
        self._note = ""
        self._job: PromoteJob | None = None

    def show(self, job: PromoteJob) -> None:
        self._job, self._note = job, ""
        self.live.update(self._render(job))

    def lost(self, error: AdminError) -> None:
        self._note = f"{error}; waiting for the sidecar to return"
        if self._job is not None:
            self.live.update(self._render(self._job))

    def _render(self, job: PromoteJob) -> RenderableType:
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
            table.add_column(header)
        for topic in job.topics:
            lag = "-" if topic.lag is None else str(topic.lag)
            # Text, because plain strings would be read as markup.
            cells = (topic.topic, str(topic.phase), str(topic.partitions), lag, topic.reason or "")
            table.add_row(*(Text(one_line(text)) for text in cells))
        parts: list[RenderableType] = [Text(one_line(f"promote {job.id} of link {job.link}")), steps, table]
        if _proving(job):
            parts.append(Text(one_line(_proving(job).removeprefix("; ")), style="cyan"))
        if job.reason or self._note:
            parts.append(Text(one_line(self._note or job.reason or ""), style="yellow"))
        return Group(*parts)


def _proving(job: PromoteJob) -> str:
    """What the validator does for it at the moment."""
    found = job.validation
    if found is None or not (found.state == "PENDING" or (found.state is None and found.progress)):
        return ""
    told = "; the last validation, with exact ends" if found.state == "PENDING" else "; validation"
    if found.progress is not None:
        told += f": {found.progress.partitions_done} of {found.progress.partitions} partitions"
    return told


def follow(client: AdminClient, promote_id: str, form: Format) -> None:
    """Wait for the end and print the job; exit code 1 if it was abandoned, or is not proved as it had to be. Ctrl-C only
    stops the watching, with exit code 130."""
    view: _View
    screen: AbstractContextManager[object]
    if sys.stderr.isatty():
        view = live = Live()
        screen = live.live
    else:
        view = Lines()
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
