"""Marks of copies by their reports, for those that have no copies but only reports of them."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.progress import CopyReport
from wire.frames.types import TopicPartition


def substance(copy: CopyReport) -> tuple[object, ...]:
    """All but the times: two reports with the same substance say the same of the copy."""
    return (
        copy.leader_epoch,
        copy.loaded,
        copy.high_watermark,
        copy.log_start_offset,
        copy.end_known,
        copy.heard,
        tuple(
            (id_, one.fetch_offset, one.broker_epoch, tuple(offset for offset, _ in one.restarts))
            for id_, one in copy.followers.items()
        ),
        copy.failed,
        copy.trouble,
        copy.bytes_fetched,
        copy.bytes_served,
        copy.forwarded,
        copy.acked_end,
    )


def marks_of(copies: Iterable[CopyReport]) -> dict[str, dict[TopicPartition, int]]:
    found: dict[str, dict[TopicPartition, int]] = {}
    for copy in copies:
        found.setdefault(copy.link, {})[copy.tp] = hash(substance(copy))
    return found
