"""How wide text is laid out for a terminal: which columns give way, where cells are wrapped, and blocks where no table fits.
Pure; without a width nothing is wrapped, so that a pipe gets a line per row.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

GAP = 2
_TEXT = 32  # a column of sentences is not made narrower
_NAME = 20  # nor one of names
_INDENT = 2


def fit(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[int] | None:
    """Widths of the columns: as wide as they need if that fits, else the widest give way. None: no table fits."""
    natural = [max(len(header), *(len(row[at]) for row in rows)) for at, header in enumerate(headers)]
    over = sum(natural) + GAP * (len(headers) - 1) - (width or 0)
    if width is None or over <= 0:
        return natural
    least = [
        min(natural[at], max(len(header), _TEXT if any(" " in row[at] for row in rows) else _NAME))
        for at, header in enumerate(headers)
    ]
    widths = list(natural)
    while over > 0:
        # The widest of those that can give way, down to the next one.
        give = [at for at in range(len(widths)) if widths[at] > least[at]]
        if not give:
            return None
        at = max(give, key=lambda place: widths[place])
        others = [widths[place] for place in give if widths[place] < widths[at]]
        step = min(over, widths[at] - max(least[at], max(others, default=0)))
        widths[at] -= max(1, step)
        over -= max(1, step)
    return widths


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a cell: sentences between words, a name that is too long without its middle."""
    if len(text) <= width:
        return [text]
    if " " not in text:
        return [shortened(text, width)]
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def shortened(name: str, width: int) -> str:
    """Its two ends, which tell names apart that are made by a rule."""
    if len(name) <= width:
        return name
    if width < 6:
        return name[:width]
    tail = (width - 2) // 2
    return f"{name[: width - 2 - tail]}..{name[-tail:]}"


def blocks(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Where no table fits: each row as `HEADER value` one after the other; sentences on lines of their own."""
    lines: list[str] = []
    for row in rows:
        current = ""
        first = True
        for header, value in zip(headers, row, strict=True):
            if value == "-":
                continue
            margin = "" if first else " " * _INDENT
            item = f"{header} {value}"
            flows = " " not in value or len(value) < _TEXT
            if current and flows and len(current) + GAP + len(item) <= width:
                current += f"{' ' * GAP}{item}"
                continue
            if current:
                lines.append(current)
            first, current = False, ""
            margin = margin if not lines or margin else ""
            if len(margin) + len(item) <= width:
                current = margin + item
            elif " " in value:
                lines += hanging(margin, item, width, indent=len(margin) + _INDENT)
            else:
                current = f"{margin}{header} {shortened(value, width - len(margin) - len(header) - 1)}"
        if current:
            lines.append(current)
    return lines


def hanging(prefix: str, text: str, width: int | None, *, indent: int | None = None) -> list[str]:
    """`prefix` and the text; lines after the first are indented as far as the text, or as told."""
    if width is None:
        return [f"{prefix}{text}".rstrip()]
    margin = " " * min(len(prefix) if indent is None else indent, width // 2)
    return textwrap.wrap(
        f"{prefix}{text}",
        width,
        subsequent_indent=margin,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    ) or [prefix.rstrip()]
