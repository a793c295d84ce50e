"""An id that somebody else has chosen, shown so that it cannot be taken for another one."""

from __future__ import annotations

import json


def shown_id(name: str) -> str:
    """As it may go to a person: a plain id as it is; one with blanks at its ends, control characters or nothing in it
    quoted, with escapes for what cannot be seen."""
    plain = (
        bool(name)
        and name.isprintable()
        and name == name.strip()
        and "  " not in name
        and name[0] not in "\"'"
    )
    return name if plain else json.dumps(name, ensure_ascii=not name.isprintable())
