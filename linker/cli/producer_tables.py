"""Producers at the source, as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns, duration

if TYPE_CHECKING:
    from admin.models import SourceProducer


def source_producers(found: Iterable[SourceProducer]) -> str:
    return columns(
        ("TOPIC", "PARTITION", "PRODUCER", "EPOCH", "TRANSACTIONAL ID", "LAST WRITE", "OPEN SINCE", "MOVED"),
        [
            (
                *(p.topic, p.partition, p.producer_id, p.producer_epoch, p.transactional_id),
                None if p.last_write_ms is None else f"{duration(p.last_write_ms)} ago",
                None if p.open_since_offset is None else f"offset {p.open_since_offset}",
                "no" if p.direct else "yes",
            )
            for p in found
        ],
    )
