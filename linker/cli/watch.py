"""`linker status --watch`: the status redrawn in place, with rates between two readings."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from linker.cli.output import duration, note, one_line, size

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from admin.client import AdminClient, AdminError
    from admin.models import LinkStatus, Status

_STYLES = {
    "FAILED": "bold red",
    "SOURCE_UNAVAILABLE": "red",
    "LINKING": "yellow",
    "PAUSED": "yellow",
    "PROMOTING": "cyan",
    "SWITCHING": "cyan",
    "ACTIVE": "green",
    "PROMOTED": "green",
}


_LONGEST_NAME = 40


def rates(now: LinkStatus, before: LinkStatus | None, seconds: float) -> tuple[str, str, str]:
    """Fetched, served and forwarded per second; a dash without a reading to compare with."""
    if before is None or seconds <= 0:
        return "-", "-", "-"
    fetched = now.traffic.fetched_bytes - before.traffic.fetched_bytes
    served = now.traffic.served_bytes - before.traffic.served_bytes
    produces = now.traffic.forwarded_produces - before.traffic.forwarded_produces
    if min(fetched, served, produces) < 0:  # the sidecar was restarted in between
        return "-", "-", "-"
    return f"{size(fetched / seconds)}/s", f"{size(served / seconds)}/s", f"{produces / seconds:.0f}/s"


def render(now: Status, before: Status | None, trouble: str = "", *, max_mirrors: int = 40) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    seconds = 0.0 if before is None else (now.at - before.at).total_seconds()
    earlier = {} if before is None else {link.name: link for link in before.links}
    head = Text.assemble(
        ("Kafka Linker ", "bold"),
        f"{now.version}  sidecar {now.sidecar.id} {now.sidecar.state}  target {now.target_cluster_id}  ",
        (str(now.state), _STYLES.get(now.state, "")),
        f"  leads {now.sidecar.leading_partitions}  windows {size(now.window_bytes)}",
        f"  {now.at:%H:%M:%S}",
    )
    parts: list[RenderableType] = [head]
    if now.fleet is not None:
        from linker.cli.fleet_tables import fleet

        parts.append(Text(f"fleet: {fleet(now.fleet)}", style="yellow" if now.fleet.away else ""))
    parts += [Text(one_line(task.trouble), style="yellow") for task in now.tasks if not task.well]
    if trouble:
        parts.append(Text(one_line(trouble), style="red"))

    links = _table(
        "LINK",
        "STATE",
        "MIRRORS",
        "PARTITIONS>",
        "LAG>",
        "TIME LAG>",
        "FORWARDING",
        "FETCHED>",
        "SERVED>",
        "FORWARDED>",
        "ERRORS>",
    )
    for link in now.links:
        speed = rates(link, earlier.get(link.name), seconds)
        _row(
            links,
            link.name,
            link.state,
            link.mirrors,
            link.partitions,
            link.lag,
            duration(link.lag_ms),
            "on" if link.forwarding.enabled else "off",
            *speed,
            link.traffic.forward_errors,
        )
    if now.links:
        parts.append(links)
    elif not trouble:  # of an API that is gone nothing is known
        parts.append(Text("no links yet: linker link create", style="dim"))
    for link in now.links:
        if link.reason:
            parts.append(Text(f"{link.name}: {one_line(link.reason)}", style="yellow"))
        if not link.forwarding.enabled:
            reason = one_line(link.forwarding.reason or "no reason given")
            parts.append(Text(f"{link.name}: produces are not forwarded: {reason}", style="yellow"))
        if link.groups.groups or link.groups.reason:
            from linker.cli.group_tables import in_one_line

            parts.append(Text(f"{link.name}: groups: {one_line(in_one_line(link.groups))}"))

    found = [mirror for link in now.links for mirror in link.mirror_list]
    if found:
        from admin.models import SEVERITY
        from linker.cli.tables import eta

        # Mirrors that need a look come first, and stay visible when there are more than fit.
        found.sort(key=lambda mirror: (-SEVERITY.index(mirror.state), -(mirror.lag or 0), mirror.topic))
        mirrors = _table("TOPIC", "STATE", "PARTITIONS>", "LAG>", "TIME LAG>", "ETA>", "REASON")
        for mirror in found[:max_mirrors]:
            _row(
                mirrors,
                mirror.topic,
                mirror.state,
                mirror.partitions,
                mirror.lag,
                duration(mirror.lag_ms),
                eta(mirror.copying),
                mirror.reason,
            )
        parts += [Text(""), mirrors]
        if len(found) > max_mirrors:
            parts.append(Text(f"and {len(found) - max_mirrors} more: linker mirror list", style="dim"))
    for job in now.promotes:
        spent = "  ".join(f"{phase} {duration(ms)}" for phase, ms in job.phases_ms.items())
        reason = f"  ({one_line(job.reason)})" if job.reason else ""
        parts.append(Text(f"\npromote {job.id} of {job.link}: {job.phase}{reason}\n{spent}", style="cyan"))
    return Group(*parts)


def _table(*headers: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=False)
    for header in headers:
        table.add_column(
            header.rstrip(">"),
            justify="right" if header.endswith(">") else "left",
            overflow="fold" if header == "REASON" else "ellipsis",
            # A name of 249 characters must not squeeze the numbers beside it.
            max_width=_LONGEST_NAME if header in ("TOPIC", "LINK") else None,
        )
    return table


def _row(table: Table, *cells: object) -> None:
    from rich.text import Text

    # Text, because plain strings would be read as markup.
    texts = ["-" if cell is None else one_line(str(cell)) for cell in cells]
    table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in texts))


def watch(client: AdminClient, interval: float) -> None:
    """Redraw until Ctrl-C. Without a terminal: a line per reading, so that it can be piped."""
    from rich.console import Console
    from rich.live import Live

    readings = [client.status()]  # an API that is not there at all is an error, one that goes away is shown
    if not sys.stdout.isatty():
        _line(readings[0])
        _poll(client, interval, _line, lambda error: note(str(error)))
        return
    console = Console()

    def draw(trouble: str = "") -> None:
        *before, now = readings[-2:]
        shown = render(now, before[0] if before else None, trouble, max_mirrors=max(5, console.height - 14))
        live.update(shown, refresh=True)

    def show(now: Status) -> None:
        readings[:] = [readings[-1], now]
        draw()

    def lost(error: AdminError) -> None:
        draw(
            f"{error}. The sidecar has ended, as it does after `linker sidecar leave`, or cannot be reached; "
            f"below is what it said at {readings[-1].at:%H:%M:%S} UTC. Ctrl-C ends this"
        )

    with Live(render(readings[0], None), console=console, auto_refresh=False, screen=True) as live:
        _poll(client, interval, show, lost)


def _poll(
    client: AdminClient, interval: float, show: Callable[[Status], None], lost: Callable[[AdminError], None]
) -> None:
    from admin.client import poll

    def seen(now: Status) -> bool:
        show(now)
        return False

    time.sleep(interval)
    poll(
        client.status,
        seen,
        lost=lost,
        goes_on="",
        interval=interval,
        unreachable_for=math.inf,
        tolerated=lambda _error: True,
    )


def _line(now: Status) -> None:
    for link in now.links:
        lag = "-" if link.lag is None else link.lag
        sys.stdout.write(
            f"{now.at.isoformat()} {link.name} {link.state} mirrors={link.mirrors} lag={lag} "
            f"forwarded={link.traffic.forwarded_produces}\n"
        )
    sys.stdout.flush()
