"""How long producers were kept waiting, kept from run to run in build/fleet/figures.json; `make fleet-figures` shows them.

A figure is the longest time without an acknowledgement, of any producer on any partition. Bounds are loose unless
LINKER_FLEET_GOALS is set, which says that the machine has nothing else to do.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from lab.workload.history import Ack, History

FILE = Path(__file__).parents[2] / "build" / "fleet" / "figures.json"
STRICT = bool(os.environ.get("LINKER_FLEET_GOALS"))
_BEFORE = 0.5  # the ack before the event is the gap's beginning


class Goal(NamedTuple):
    """Seconds."""

    what: str
    quiet: float
    busy: float


GOALS = {
    "usual": Goal("nothing happens", 1.0, 30.0),
    "crash": Goal("a leader is killed", 3.0, 45.0),
    "crash_of_head": Goal("the link controller is killed, a leader too", 7.0, 60.0),
    "drain": Goal("leadership is taken from a sidecar that drains", 0.3, 30.0),
    "drained_restart": Goal("the drained sidecar is started anew and leads again", 0.3, 30.0),
    "target_controller": Goal("the target's controller stands still for 8 s", 1.0, 30.0),
    "restart": Goal("the only sidecar is killed and started again", 2.0, 45.0),
}


def gaps(acks: Iterable[Ack], since: float, until: float) -> dict[int, float]:
    """By partition: the longest time without an ack of one of its producers, the time since the last one included."""
    moments: dict[tuple[int, str], list[float]] = defaultdict(list)
    for ack in acks:
        if since - _BEFORE <= ack.time <= until:
            moments[ack.partition.partition, ack.producer].append(ack.time)
    longest: dict[int, float] = {}
    for (partition, _), times in moments.items():
        times = [*sorted(times), until]
        most = max((after - before for before, after in pairwise(times)), default=0.0)
        longest[partition] = round(max(most, longest.get(partition, 0.0)), 3)
    return dict(sorted(longest.items()))


def figure(
    name: str, history: History, since: float, until: float, more: Mapping[str, object] | None = None
) -> float:
    """Measure, write down and hold to the goal; seconds."""
    found = gaps(history.acks, since, until)
    assert found, f"{name}: nothing was acknowledged between {since} and {until}"
    worst = max(found.values())
    goal = GOALS[name]
    _write(
        name,
        {
            "what": goal.what,
            "seconds": worst,
            "goal": goal.quiet,
            "by_partition": found,
            "load": [round(load, 1) for load in os.getloadavg()],
            **(more or {}),
        },
    )
    limit = goal.quiet if STRICT else goal.busy
    assert worst <= limit, (
        f"{goal.what}: {worst:.2f} s without an ack, at most {limit:g} s are allowed: {found}"
    )
    return worst


def _write(name: str, entry: Mapping[str, object]) -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    known = _read()
    known[name] = dict(entry)
    beside = FILE.with_suffix(".new")
    beside.write_text(json.dumps(known, indent=2) + "\n")
    beside.replace(FILE)


def _read() -> dict[str, dict[str, object]]:
    try:
        found = json.loads(FILE.read_text())
    except FileNotFoundError:
        return {}
    assert isinstance(found, dict), FILE
    return found


def table(figures: Mapping[str, Mapping[str, object]]) -> str:
    """For people."""
    lines = [f"{'longest pause of a producer when':56}{'seconds':>9}{'goal':>7}  load"]
    for name in GOALS:
        if name in figures:
            one = figures[name]
            load = one["load"]
            assert isinstance(load, list)
            lines.append(f"{one['what']!s:56}{one['seconds']!s:>9}{one['goal']!s:>7}  {load[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table(_read()) + "\n")
