"""No decision of the fleet rests on a wall clock: who reads one is known, and only writes it down for people.

Clocks of two machines may be hours apart, and one may jump. Leases, timeouts and failure detection are of monotonic
clocks; looked for here is whatever tells the time of day, in all code that decides or forwards.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Packages in which nothing tells the time of day, but for the functions below.
DECIDING = ("controller", "router", "fetcher", "linker/fleet", "linker/links", "linker/membership")
#: module: functions that may. Each is for people.
ALLOWED = {
    "fleet/link_controller.py": {"wall_clock_ms"},  # created_at, started_at and the like
    "fetcher/latency.py": {"__init__"},  # the age of records, for people
    "linker/links/heartbeats.py": {"__init__"},  # the time that a heartbeat tells, for people
    "linker/links/times.py": {"moment"},  # a stored time, for people
    "linker/links/reads.py": {
        "held_readers",
        "clients_left",
    },  # since when a reader is held, or a client asked, for people
}
#: The same of `wall_clock_ms()`: how long ago something was, as it is shown.
SHOWN_AGES = {
    "linker/links/proved.py": {"watermark"},  # since a replica was proved
    "linker/links/source_writers.py": {"look"},  # since a producer wrote to the source
}
#: What turns into text or into a stored time of an entity; never compared. Calls of wall_clock_ms are held to this.
STAMPS = {"sampled_at", "created_at", "started_at", "finished_at", "now"}
COMPARED_NEVER = STAMPS - {"now", "started_at"}  # these two are names of other things too
_TELLING = {
    "time": {"time", "time_ns", "ctime", "localtime", "gmtime", "asctime", "strftime", "mktime"},
    "datetime": {"now", "utcnow", "today", "fromtimestamp", "utcfromtimestamp"},
    "date": {"today", "fromtimestamp"},
}


def telling(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Function, what it reads, line."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, str, int]]:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            found = _tells(child)
            if found is not None:
                yield inside, found, getattr(child, "lineno", 0)
            yield from walk(child, inside)

    yield from walk(tree, "<module>")


def _tells(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if name in _TELLING.get(module, ()):
            return f"{module}.{name}"
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="datetime"), attr=kind), attr=name) if (
            name in _TELLING.get(kind, ())
        ):
            return f"datetime.{kind}.{name}"
        case ast.Attribute(attr="CLOCK_REALTIME" | "CLOCK_TAI" | "CLOCK_REALTIME_COARSE" as name):
            return name
        case ast.ImportFrom(module="time", names=names):
            taken = {one.name for one in names} & _TELLING["time"]
            return f"from time import {', '.join(sorted(taken))}" if taken else None
    return None


def sources() -> list[Path]:
    found = [path for package in DECIDING for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(found) > 60, "the packages are where they were"
    return found


def test_nothing_that_decides_reads_the_time_of_day() -> None:
    wrong = []
    for path in sources():
        name = str(path.relative_to(ROOT))
        for function, what, line in telling(ast.parse(path.read_text())):
            if function not in ALLOWED.get(name, ()):
                wrong.append(f"{name}:{line} in {function}: {what}")
    assert not wrong, "\n".join(wrong)


def test_the_wall_clock_of_the_state_only_makes_stamps() -> None:
    """`wall_clock_ms()` is called for keyword arguments with names of stamps, or for what is shown, and compared nowhere."""
    wrong = []
    for path in sources():
        tree = ast.parse(path.read_text())
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id != "wall_clock_ms":
                continue
            above: ast.AST = parents[node]
            function: ast.AST = above
            while not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                function = parents[function]
            if getattr(function, "name", "") in SHOWN_AGES.get(str(path.relative_to(ROOT)), ()):
                continue
            if not (isinstance(above, ast.keyword) and above.arg in STAMPS):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(above)}")
    assert not wrong, "\n".join(wrong)


def test_no_stamp_is_compared() -> None:
    """Nor added to anything: times of the state are shown, and decide nothing."""
    wrong = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Compare | ast.BinOp):
                continue
            sides = (
                [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node.left, node.right]
            )
            if any(isinstance(side, ast.Attribute) and side.attr in COMPARED_NEVER for side in sides):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "def f(): return time.time() + 1",
        "async def f():\n    return datetime.now(UTC)",
        "def f(): return datetime.datetime.now()",
        "from time import time_ns, sleep",
        "def f(): return time.clock_gettime(time.CLOCK_REALTIME)",
        "clock = time.time",
    ],
)
def test_the_search_finds_it(code: str) -> None:
    assert list(telling(ast.parse(code)))


def test_the_search_leaves_other_clocks_alone() -> None:
    code = "from time import monotonic, sleep\ndef f(): return time.monotonic() + loop.time()"
    assert not list(telling(ast.parse(code)))


def test_the_tests_that_shift_a_clock_do(tmp_path: Path) -> None:
    """tests/real runs sidecars this way."""
    (tmp_path / "tell.py").write_text("import sys, time; print(time.time(), time.monotonic(), *sys.argv[1:])")
    shifted = str(ROOT / "tests" / "real" / "shifted_clock.py")
    told = subprocess.run(
        [sys.executable, shifted, "7200", "-m", "tell", "a"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert 7200 <= float(told[0]) - time.time() + 60 <= 7260 + 1
    assert 0 <= time.monotonic() - float(told[1]) < 60
    assert told[2:] == ["a"]
