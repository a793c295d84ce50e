"""Properties as Java reads them: `key=value`, `key: value` or `key value`, escapes, lines continued by a backslash."""

from __future__ import annotations

import re

_PAIR = re.compile(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def java_properties(text: str) -> dict[str, str]:
    """In the order of the file; of a key that is given twice the last value counts, as for Java."""
    found: dict[str, str] = {}
    pending: str | None = None
    for raw in [*re.split(r"\r\n|\n|\r", text), ""]:
        line = raw.lstrip(" \t\f")
        if pending is None and line[:1] in ("", "#", "!"):
            continue
        line = (pending or "") + line
        pending = line[:-1] if (len(line) - len(line.rstrip("\\"))) % 2 else None
        if pending is None and (pair := _PAIR.fullmatch(line)):
            found[_unescaped(pair[1])] = _unescaped(pair[2])
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda one: chr(int(one[1][1:], 16)) if len(one[1]) == 5 else _LETTERS.get(one[1], one[1]), text
    )
