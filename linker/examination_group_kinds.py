"""Doctor on groups of the source that no gate can hold: streams groups, share groups, and ids that cannot be kept."""

from __future__ import annotations

from collections.abc import Collection

from controller.group_decisions import cannot_be_held
from linker.admin.models import Check, CheckResult
from linker.groups import other_kinds
from linker.groups.group_ids import why_not
from linker.groups.group_reader import GroupReader
from linker.groups.views import Listing
from linker.preflight import TIMEOUT
from linker.shown_id import shown_id
from wire.errors import LinkerError


def held(listing: Listing) -> list[str]:
    """Groups that a gate can hold."""
    return [
        name
        for name, one in listing.groups.items()
        if one.protocol_type in ("consumer", "")
        and one.protocol is not None
        and cannot_be_held(one.protocol) is None
        and why_not(name) is None
    ]


def left_out_checks(listing: Listing) -> list[Check]:
    """A line for each id that cannot be kept."""
    return [
        Check(
            name="groups",
            result=CheckResult.WARN,
            detail=f"group {shown_id(name)} is left out: {why}",
            remedy="give its consumers a group id that can be kept, or move them by hand",
        )
        for name in sorted(listing.groups)
        if (why := why_not(name)) is not None
    ]


async def unheld_checks(reader: GroupReader, listing: Listing, topics: Collection[str]) -> list[Check]:
    """A line for each streams and share group that reads one of the topics, or may."""
    others = {
        name: one
        for name, one in listing.groups.items()
        if one.protocol is not None and cannot_be_held(one.protocol) is not None
    }
    try:
        found, failed = await other_kinds.topics_of(reader, others, timeout=TIMEOUT)
    except LinkerError as error:
        found, failed = {}, dict.fromkeys(others, str(error))
    lines = []
    for name, one in sorted(others.items()):
        reads = sorted(found.get(name, frozenset()) & set(topics))
        if one.protocol is None or (not reads and name not in failed):
            continue
        which = f"reads {', '.join(reads)}" if reads else f"may read them ({failed[name]})"
        lines.append(
            Check(
                name="groups",
                result=CheckResult.WARN,
                detail=f"group {shown_id(name)} {which}: {cannot_be_held(one.protocol)}",
                remedy='see docs/moving-consumers.md, "Groups that cannot be held"',
            )
        )
    return lines
