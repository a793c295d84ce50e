"""Consumers that find mirrors empty until their promote, as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns

if TYPE_CHECKING:
    from admin.models import HeldReader


def held_readers(found: Iterable[tuple[str, HeldReader]]) -> list[str]:
    """By link; nothing at all where nobody is held."""
    rows = [
        (link, one.topic, one.client_id or "-", one.host, one.since.isoformat(timespec="seconds"))
        for link, one in found
    ]
    if not rows:
        return []
    return [columns(("LINK", "TOPIC", "HELD CLIENT (FINDS IT EMPTY)", "HOST", "SINCE"), rows)]
