"""Following a sidecar that drains or leaves: a line that is redrawn on a terminal, lines elsewhere; on stderr."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from linker.cli.follow import Lines, watched
from linker.cli.output import complain, note

if TYPE_CHECKING:
    from admin.client import AdminClient, AdminError
    from admin.models import SidecarDescription

_MOST_NAMED = 5
_GONE = 3.0
_FEW = 200  # may all have gone between two readings


class _GivenUp(Exception):
    """Why the following ends before its time; exit code 1."""


class _Ended(Exception):
    """The sidecar that was asked has ended."""


def drained(client: AdminClient, sidecar_id: int, timeout: float) -> SidecarDescription:
    """Wait until it leads nothing; exit code 1 when the time is over. Ctrl-C only ends the watching."""

    def over(one: SidecarDescription) -> bool:
        if not one.draining and not one.leaving:
            raise _GivenUp(
                f"sidecar {sidecar_id} no longer drains: it was started anew, or somebody undid it"
            )
        return one.leading_partitions == 0 and not one.staying

    return _followed(
        client,
        sidecar_id,
        timeout,
        over,
        lambda one: f"sidecar {sidecar_id} leads {one.leading_partitions} partitions{_first(one)}",
        late=(f"is not drained within {timeout:g} s", "drains"),
        goes_on=f"sidecar {sidecar_id} goes on draining; undo it with: linker sidecar drain {sidecar_id} --undo",
    )


def left(client: AdminClient, sidecar_id: int, timeout: float) -> None:
    """Wait until nobody knows it any more; exit code 1 when the time is over, or if it leaves no more."""
    from admin.client import AdminError

    silent_since: float | None = None

    def over(one: SidecarDescription) -> bool:
        nonlocal silent_since
        silent_since = None
        if not one.leaving:
            raise _GivenUp(f"sidecar {sidecar_id} no longer leaves: it was started anew")
        return False

    def lost(error: AdminError, last: SidecarDescription | None) -> None:
        nonlocal silent_since
        now = time.monotonic()
        silent_since = now if silent_since is None else silent_since
        if error.unreachable and _may_have_ended(last) and now - silent_since > _GONE:
            raise _Ended

    try:
        _followed(
            client,
            sidecar_id,
            timeout,
            over,
            lambda one: (
                f"sidecar {sidecar_id}: {one.staying_partitions} partitions still need it{_first(one)}"
                if one.staying_partitions
                else f"sidecar {sidecar_id} unregisters, and its lease ends"
            ),
            late=(f"has not left within {timeout:g} s", "leaves"),
            goes_on=f"sidecar {sidecar_id} goes on leaving; look at it with: linker sidecar list",
            lost=lost,
        )
    except AdminError as error:
        if error.status != 404:
            raise
    except _Ended:
        note(
            f"the sidecar at {client.url} has ended, as it does when it has left; ask another one whether sidecar "
            f"{sidecar_id} is still there"
        )


def _followed(
    client: AdminClient,
    sidecar_id: int,
    timeout: float,
    over: Callable[[SidecarDescription], bool],
    told: Callable[[SidecarDescription], str],
    *,
    late: tuple[str, str],
    goes_on: str,
    lost: Callable[[AdminError, SidecarDescription | None], None] = lambda _error, _last: None,
) -> SidecarDescription:
    from admin.client import poll

    deadline = time.monotonic() + timeout
    view: Lines[SidecarDescription] = Lines(
        lambda one: (told(one), told(one)), redrawn=True, again="asked again"
    )
    last: SidecarDescription | None = None

    def look_at_the_clock() -> None:
        if time.monotonic() >= deadline:
            raise _GivenUp(_late(sidecar_id, last, *late))

    def seen(one: SidecarDescription) -> bool:
        nonlocal last
        last = one
        if over(one):
            return True
        view.show(one)
        look_at_the_clock()
        return False

    def away(error: AdminError) -> None:
        lost(error, last)
        view.lost(error)
        look_at_the_clock()

    try:
        with watched(view, goes_on):
            return poll(
                lambda: client.describe_sidecar(sidecar_id),
                seen,
                lost=away,
                goes_on=goes_on,
                unreachable_for=math.inf,
            )
    except _GivenUp as reason:
        complain(str(reason))
        raise typer.Exit(1) from None


def _may_have_ended(one: SidecarDescription | None) -> bool:
    """A sidecar that leaves ends when nothing needs it any more, and may be the one that was asked."""
    return one is not None and one.leaving and one.staying_partitions < _FEW


def _first(one: SidecarDescription) -> str:
    stuck = [p for p in one.staying if p.reason is not None]
    return f" ({stuck[0].topic}-{stuck[0].partition}: {stuck[0].reason})" if stuck else ""


def _late(sidecar_id: int, one: SidecarDescription | None, what: str, goes_on: str) -> str:
    staying = [] if one is None else one.staying
    named = ", ".join(
        f"{p.topic}-{p.partition}" + (f" ({p.reason})" if p.reason else "") for p in staying[:_MOST_NAMED]
    )
    if one is not None and one.staying_partitions > _MOST_NAMED:
        named += f" and {one.staying_partitions - _MOST_NAMED} more"
    return f"sidecar {sidecar_id} {what} and still {goes_on}" + (f": {named}" if named else "")
