"""How the demonstration shows where it is: a live line on a terminal, one line per phase elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text


class Phase:
    """The step that runs now; `detail` may be set as often as one likes."""

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.detail = ""
        self.started = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started


class Progress:
    """Phases one after the other; `ticker` says what the clients are doing meanwhile."""

    def __init__(self, console: Console, ticker: Callable[[], str] = lambda: "") -> None:
        self.phases_ms: dict[str, int] = {}
        self.ticker = ticker
        self._console = console
        self._phase: Phase | None = None
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Everything inside is shown; on a terminal with a live part at the bottom."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self._render, console=self._console, refresh_per_second=8, transient=True
        ) as self._live:
            yield

    @contextmanager
    def phase(self, name: str, title: str) -> Iterator[Phase]:
        """One phase; its time goes into the report even if it fails."""
        phase = Phase(name, title)
        self._phase = phase
        if self._live is not None:
            self._live.refresh()
        if not self._console.is_terminal:
            self._console.print(Text(f"... {title}"))
        ok = False
        try:
            yield phase
            ok = True
        finally:
            self._phase = None
            self.phases_ms[name] = round(phase.elapsed * 1000)
            mark, style = ("ok ", "green") if ok else ("!! ", "bold red")
            line = Text(mark, style=style)
            line.append(f"{title:<44}", style="default")
            line.append(f"{phase.elapsed:7.1f} s", style="cyan")
            if phase.detail:
                line.append(f"  {phase.detail}", style="dim")
            self._console.print(line, soft_wrap=True)

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(Text(f"    {line}"), soft_wrap=True)

    def _render(self) -> RenderableType:
        phase = self._phase
        if phase is None:
            return Text("")
        text = Text(f"{phase.title}  {phase.elapsed:.1f} s")
        if phase.detail:
            text.append(f"  {phase.detail}", style="dim")
        self._spinner.update(text=text)
        ticker = self.ticker()
        return Group(self._spinner, Text(f"  {ticker}", style="dim")) if ticker else self._spinner
