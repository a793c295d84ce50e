"""Group ids that cannot be kept, and the reason.

Kafka takes every text as a group id, from the empty one to 32,767 bytes, line breaks included.
"""

from __future__ import annotations

from collections.abc import Iterable

from controller.decide.groups import GroupRules
from controller.keys import MAX_GROUP_BYTES


def left_out_ids(names: Iterable[str], rules: GroupRules) -> dict[str, str]:
    """Ids that the link's patterns match and that are left out all the same, with the reason."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if (why := why_not(name)) is not None and rules.matches(name):
            found[name] = why
    return found


def why_not(name: str) -> str | None:
    """Why a group of this id is not mirrored, whatever the patterns say."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if size == 0:
        return (
            "its id is empty: no consumer of today can join such a group, only commits by hand belong to it"
        )
    if size > MAX_GROUP_BYTES:
        return f"its id has {size} bytes, and the state store takes {MAX_GROUP_BYTES}: rename it before it is moved"
    return None
