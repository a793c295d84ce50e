"""Topic names, group ids and the like as they are shown to people, quoted where they could mislead."""

from __future__ import annotations

import json


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
