"""How answers are printed: aligned tables, JSON or YAML on stdout, notes on stderr. Live views: watch.py."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from linker.cli.layout import GAP, blocks, fit, hanging, wrapped

if TYPE_CHECKING:
    from pydantic import BaseModel

_COLOURS = {
    "FAILED": "31",
    "FAIL": "31",
    "ABANDONED": "31",
    "SOURCE_UNAVAILABLE": "31",
    "WARN": "33",
    "LINKING": "33",
    "PAUSED": "33",
    "PROMOTING": "36",
    "SWITCHING": "36",
    "ACTIVE": "32",
    "PROMOTED": "32",
    "OK": "32",
    "AWAY": "31",
    "FENCED": "33",
    "STARTING": "33",
    "DRAINING": "36",
    "LEAVING": "36",
    "RUNNING": "32",
}


#: All control characters but ends of lines and our own colours.
_FOREIGN = re.compile(
    r"(?!\x1b\[(?:0|3[1236])m)"
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_NARROWEST = 40

#: Exit code of a command that was left by Ctrl-C while what it watched goes on, as a shell has it: it is not done.
INTERRUPTED = 130


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def one_line(text: str) -> str:
    """Text of a broker or a server as it may go to a terminal: one line, no control characters."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())


def emit(answer: BaseModel | Sequence[BaseModel], form: Format, table: Callable[[], str]) -> None:
    if form is Format.TABLE:
        # Each table has its texts in one line; this is for one that has not.
        text = _FOREIGN.sub(" ", table())
    else:
        plain: Any = (
            [item.model_dump(mode="json") for item in answer]
            if isinstance(answer, Sequence)
            else answer.model_dump(mode="json")
        )
        if form is Format.JSON:
            text = json.dumps(plain, indent=2)
        else:
            import yaml

            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True).rstrip("\n")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    sys.stderr.write("\n".join(hanging("", one_line(text), width, indent=2)) + "\n")
    sys.stderr.flush()


def complain(text: str) -> None:
    """Why a command ends with an exit code that is not 0."""
    sys.stderr.write(f"linker: {one_line(text)}\n")
    sys.stderr.flush()


def terminal_width() -> int | None:
    """None: stdout is no terminal, and lines are as long as they are."""
    return max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def columns(headers: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "none") -> str:
    """Left-aligned text, numbers to the right; None is a dash, because it is not 0. On a terminal nothing is wider than it:
    long cells are wrapped, long names lose their middle, and where no table fits each row is a block."""
    table = [list(row) for row in rows]
    if not table:
        return empty
    texts = [[cell(value) for value in row] for row in table]
    screen = terminal_width()
    widths = fit(headers, texts, screen)
    if widths is None:
        return "\n".join(blocks(headers, texts, screen or _NARROWEST))
    right = [
        all(isinstance(row[place], (int, float)) or row[place] is None for row in table)
        for place in range(len(headers))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(cells, widths, right, strict=True)
        )
        return (" " * GAP).join(coloured(text) for text in padded).rstrip()

    lines = [line(list(headers))]
    for row in texts:
        cells = [wrapped(text, width) for text, width in zip(row, widths, strict=True)]
        lines += [
            line([parts[at] if at < len(parts) else "" for parts in cells])
            for at in range(max(map(len, cells)))
        ]
    return "\n".join(lines)


def coloured(text: str) -> str:
    """A state in its colour, on a terminal."""
    colour = _COLOURS.get(text.strip())
    return text if colour is None or not sys.stdout.isatty() else f"\x1b[{colour}m{text}\x1b[0m"


def pairs(items: Iterable[tuple[str, object]]) -> str:
    """`name: value` lines, aligned."""
    listed = [(name, cell(value)) for name, value in items]
    width = max(len(name) for name, _ in listed) + 1
    return "\n".join(
        line
        for name, value in listed
        for line in hanging(f"{name + ':':<{width}}  ", value, terminal_width())
    )


def prose(lines: Iterable[str]) -> str:
    """Sentences, wrapped between words on a terminal."""
    screen = terminal_width()
    return "\n".join(part for line in lines for part in hanging("", one_line(line), screen, indent=2))


def cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return one_line(",".join(map(str, value))) or "-"
    return one_line(str(value))


def duration(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 120 else f"{minutes} min {rest} s"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
