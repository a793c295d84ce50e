"""Topic names, group ids and the like as they are shown to people, quoted where they could mislead; long lists."""

from __future__ import annotations

import json
from collections.abc import Iterable


def shown_id(name: str) -> str:
    """A plain id as it is. An empty one, or one with outer blanks or control characters, is quoted and escaped."""
    plain = (
        bool(name)
        and name.isprintable()
        and name == name.strip()
        and "  " not in name
        and name[0] not in "\"'"
    )
    return name if plain else json.dumps(name, ensure_ascii=not name.isprintable())


def listed(names: Iterable[str], most: int = 5, *, apart: str = ", ", last: str = " and ") -> str:
    """`a, b and 7 more`. `apart` stands between two names, `last` before the number."""
    names = list(names)
    shown = apart.join(names[:most])
    return shown if len(names) <= most else f"{shown}{last}{len(names) - most} more"
