"""Following something until it is over: lines for logs and pipes, a redrawn line, or a screen; all on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

import typer

from linker.cli.output import INTERRUPTED, duration, note, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from admin.client import AdminError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

#: A reading in one line, and what of it is a step: only a change of that is said at once.
Said = tuple[object, str]


class View(Protocol[T_contra]):
    def show(self, one: T_contra) -> None: ...

    def lost(self, error: AdminError) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lines(Generic[T]):
    """A line per step. While nothing but numbers change, one every few seconds, if at all."""

    def __init__(
        self,
        told: Callable[[T], Said],
        *,
        every: float = math.inf,
        timed: bool = False,
        redrawn: bool = False,
        again: str = "waiting for the sidecar to return",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timed`: with the time since the beginning. `redrawn`: on a terminal, one line in place of many."""
        self._told = told
        self._every = every
        self._timed = timed
        self._live = redrawn and sys.stderr.isatty()
        self._again = again
        self._clock = clock
        self._began = clock()
        self._last: Said = (None, "")
        self._said_at = -math.inf
        self._away = False

    def show(self, one: T) -> None:
        self._away = False
        now = self._clock()
        step, text = said = self._told(one)
        if step == self._last[0] and (text == self._last[1] or now - self._said_at < self._every):
            return
        self._last, self._said_at = said, now
        self._say(f"{text}; after {duration(round((now - self._began) * 1000))}" if self._timed else text)

    def lost(self, error: AdminError) -> None:
        if not self._away:
            self._say(f"{error}; {self._again}")
        self._away = True

    def _say(self, text: str) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{one_line(text)}")
            sys.stderr.flush()
        else:
            note(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


class Screen(Generic[T]):
    """The last reading, drawn anew with each one."""

    def __init__(self, render: Callable[[T, str], RenderableType]) -> None:
        """`render` gets a reading, and why there is no newer one."""
        from rich.console import Console
        from rich.live import Live

        self.live = Live(console=Console(stderr=True), refresh_per_second=8, transient=True)
        self._render = render
        self._one: T | None = None

    def show(self, one: T) -> None:
        self._one = one
        self.live.update(self._render(one, ""), refresh=True)

    def lost(self, error: AdminError) -> None:
        from rich.text import Text

        trouble = f"{error}; waiting for the sidecar to return"
        drawn = (
            Text(one_line(trouble), style="yellow") if self._one is None else self._render(self._one, trouble)
        )
        self.live.update(drawn, refresh=True)

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.live.stop()


def view_of(lines: Callable[[], Lines[T]], render: Callable[[T, str], RenderableType]) -> View[T]:
    """A screen on a terminal, lines elsewhere."""
    return Screen(render) if sys.stderr.isatty() else lines()


@contextmanager
def watched(view: View[Any] | None, goes_on: str) -> Iterator[None]:
    """Ctrl-C ends the watching, with exit code 130, and not the thing that is watched."""
    try:
        if view is None:
            yield
        else:
            with view:
                yield
    except KeyboardInterrupt:
        note(goes_on)
        raise typer.Exit(INTERRUPTED) from None
