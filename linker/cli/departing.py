"""Following a sidecar that drains or leaves: a line that is redrawn on a terminal, lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NoReturn

import typer

from linker.cli.output import INTERRUPTED, complain, note, one_line

if TYPE_CHECKING:
    from admin.client import AdminClient
    from admin.models import SidecarDescription

_INTERVAL = 0.25
_MOST_NAMED = 5
_GONE = 3.0
_FEW = 200  # may all have gone between two readings


class _Progress:
    """One line. The same text is not said twice."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last = ""

    def say(self, text: str) -> None:
        text = one_line(text)
        if text == self._last:
            return
        self._last = text
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()
        else:
            note(text)

    def end(self) -> None:
        if self._live and self._last:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _look(client: AdminClient, sidecar_id: int, progress: _Progress) -> SidecarDescription | None:
    """None: nobody could tell just now (another sidecar takes over as link controller, say)."""
    from admin.client import AdminError

    try:
        return client.describe_sidecar(sidecar_id)
    except AdminError as error:
        if not (error.unreachable or error.status == 503):
            raise
        progress.say(f"{error}; asked again")
        return None


def drained(client: AdminClient, sidecar_id: int, timeout: float) -> SidecarDescription:
    """Wait until it leads nothing; exit code 1 when the time is over. Ctrl-C only ends the watching."""
    deadline = time.monotonic() + timeout
    progress = _Progress()
    one: SidecarDescription | None = None
    try:
        while True:
            one = _look(client, sidecar_id, progress) or one
            if one is not None:
                if not one.draining and not one.leaving:
                    progress.end()
                    _fail(f"sidecar {sidecar_id} drains no more: it was started anew, or somebody undid it")
                if one.leading_partitions == 0 and not one.staying:
                    progress.end()
                    return one
                progress.say(f"sidecar {sidecar_id} leads {one.leading_partitions} partitions{_first(one)}")
            if time.monotonic() >= deadline:
                progress.end()
                _late(sidecar_id, one, f"not drained within {timeout:g} s", "drains")
            time.sleep(_INTERVAL)
    except KeyboardInterrupt:
        progress.end()
        note(f"sidecar {sidecar_id} goes on draining; undo it with: linker sidecar drain {sidecar_id} --undo")
        raise typer.Exit(INTERRUPTED) from None


def left(client: AdminClient, sidecar_id: int, timeout: float) -> None:
    """Wait until nobody knows it any more; exit code 1 when the time is over, or if it leaves no more."""
    from admin.client import AdminError

    deadline = time.monotonic() + timeout
    progress = _Progress()
    one: SidecarDescription | None = None
    silent_since: float | None = None
    try:
        while True:
            try:
                one, silent_since = client.describe_sidecar(sidecar_id), None
            except AdminError as error:
                if error.status == 404:
                    progress.end()
                    return
                if not (error.unreachable or error.status == 503):
                    raise
                now = time.monotonic()
                silent_since = now if silent_since is None else silent_since
                if error.unreachable and _may_have_ended(one) and now - silent_since > _GONE:
                    progress.end()
                    note(
                        f"the sidecar at {client.url} has ended, as it does when it has left; ask another one whether "
                        f"sidecar {sidecar_id} is still there"
                    )
                    return
                progress.say(f"{error}; asked again")
            else:
                if not one.leaving:
                    progress.end()
                    _fail(f"sidecar {sidecar_id} leaves no more: it was started anew")
                progress.say(
                    f"sidecar {sidecar_id}: {one.staying_partitions} partitions still need it{_first(one)}"
                    if one.staying_partitions
                    else f"sidecar {sidecar_id}: it unregisters, and its lease ends"
                )
            if time.monotonic() >= deadline:
                progress.end()
                _late(sidecar_id, one, f"has not left within {timeout:g} s", "leaves")
            time.sleep(_INTERVAL)
    except KeyboardInterrupt:
        progress.end()
        note(f"sidecar {sidecar_id} goes on leaving; look at it with: linker sidecar list")
        raise typer.Exit(INTERRUPTED) from None


def _may_have_ended(one: SidecarDescription | None) -> bool:
    """Whoever leaves ends when nothing needs it any more, and may be the one that was asked."""
    return one is not None and one.leaving and one.staying_partitions < _FEW


def _first(one: SidecarDescription) -> str:
    stuck = [p for p in one.staying if p.reason is not None]
    return f" ({stuck[0].topic}-{stuck[0].partition}: {stuck[0].reason})" if stuck else ""


def _late(sidecar_id: int, one: SidecarDescription | None, what: str, goes_on: str) -> NoReturn:
    staying = [] if one is None else one.staying
    named = ", ".join(
        f"{p.topic}-{p.partition}" + (f" ({p.reason})" if p.reason else "") for p in staying[:_MOST_NAMED]
    )
    if one is not None and one.staying_partitions > _MOST_NAMED:
        named += f" and {one.staying_partitions - _MOST_NAMED} more"
    _fail(f"sidecar {sidecar_id} {what} and still {goes_on}" + (f": {named}" if named else ""))


def _fail(text: str) -> NoReturn:
    complain(text)
    raise typer.Exit(1)
