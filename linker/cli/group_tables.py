"""Groups as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from linker.cli.output import columns, duration, one_line, pairs
from wire.shown_id import shown_id

if TYPE_CHECKING:
    from admin.models import GroupDescription, GroupMemberStatus, GroupsStatus, GroupSummary


_MOST_TEXT = 40


def groups(found: Iterable[GroupSummary]) -> str:
    return columns(
        (
            "LINK",
            "GROUP",
            "STATE",
            "AT SOURCE",
            "TOPICS",
            "SYNC AGE",
            "DIFFERENCE",
            "GATE",
            "POLICY",
            "REASON",
        ),
        [
            (
                *(
                    g.link,
                    shown_id(g.group),
                    g.state,
                    g.source_members,
                    len(g.topics),
                    duration(g.sync_age_ms),
                ),
                *(g.difference, g.gate, g.policy, g.reason),
            )
            for g in found
        ],
        empty="no groups",
    )


def group(one: GroupDescription) -> str:
    head = pairs(
        [
            ("group", shown_id(one.group)),
            ("link", one.link),
            ("state", one.state),
            ("reason", one.reason),
            ("since", one.since.isoformat(timespec="seconds")),
            ("protocol", one.protocol),
            ("gate", one.gate),
            ("policy", one.policy),
            ("topics", ", ".join(one.topics)),
            ("not mirrored", ", ".join(one.unmirrored)),
            ("sync age", duration(one.sync_age_ms)),
            ("difference", one.difference),
            ("asked at", one.asked_at and one.asked_at.isoformat(timespec="seconds")),
            ("until", one.until and one.until.isoformat(timespec="seconds")),
            ("not held", ", ".join(one.unheld)),
        ]
    )
    parts = [
        head,
        _members("AT THE SOURCE", one.members_at_source),
        _members("ON THE TARGET", one.members_at_target),
        columns(
            ("TOPIC", "PARTITION", "AT SOURCE", "ON TARGET", "DIFFERENCE", "METADATA", "NOTE"),
            [
                (
                    *(p.topic, p.partition, p.source_offset, p.target_offset, p.difference),
                    *(beginning(p.metadata), p.note),
                )
                for p in one.partition_status
            ],
            empty="no committed offsets",
        ),
    ]
    return "\n\n".join(parts)


def _members(where: str, found: Iterable[GroupMemberStatus]) -> str:
    return columns(
        (where, "HOST", "INSTANCE", "PARTITIONS"),
        [(m.client_id, m.host, m.instance_id, ", ".join(m.partitions)) for m in found],
        empty=f"{where.lower()}: nobody",
    )


def beginning(text: str) -> str:
    """A consumer's text is for its own use and may have ten thousand characters; `-o json` has all of it."""
    if len(text) <= _MOST_TEXT:
        return one_line(text)
    return f"{one_line(text[:_MOST_TEXT])}... ({len(text):,} characters)"


def in_one_line(one: GroupsStatus) -> str:
    """For the status of a link."""
    states = ", ".join(f"{count} {state}" for state, count in one.states.items())
    age = "" if one.sync_age_ms is None else f", offsets {duration(one.sync_age_ms)} old"
    left_out = f"; left out: {'; '.join(one.left_out)}" if one.left_out else ""
    return one_line((states or "none") + age + (f" ({one.reason})" if one.reason else "") + left_out)
