"""Doctor on groups of the source that are not held: streams groups, share groups, ids that cannot be kept, and those that
the link's patterns leave out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from admin.models import Check, CheckResult
from controller.decide.groups import GroupRules
from controller.judge.group_gates import CONSUMER_GROUPS, unheld
from groups import other_kinds
from groups.excluded import Excluded, candidates, in_one_line
from groups.group_ids import why_not
from groups.group_reader import GroupReader
from groups.other_kinds import OtherKinds
from groups.views import CONSUMERS, GroupView, Listing
from linker.checks.preflight import TIMEOUT
from wire.errors import LinkerError
from wire.shown_id import shown_id


def held(listing: Listing) -> list[str]:
    """Groups that a gate can hold."""
    return [
        name
        for name, one in listing.groups.items()
        if one.protocol_type in CONSUMERS and one.protocol in CONSUMER_GROUPS and why_not(name) is None
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


def excluded_checks(
    listing: Listing,
    rules: GroupRules,
    views: Mapping[str, GroupView],
    committed: Mapping[str, Collection[str]],
    topics: Collection[str],
) -> list[Check]:
    """One line for the groups that read one of the topics and that the link's patterns leave out."""
    found = []
    for name, why in candidates(listing, rules).items():
        view, protocol = views.get(name), listing.groups[name].protocol
        reads = {*committed.get(name, ()), *(() if view is None else view.topics)}
        if protocol is not None and not reads.isdisjoint(topics):
            members = 0 if view is None else len(view.members)
            found.append(Excluded(name, why, protocol, frozenset(reads), members))
    if not found:
        return []
    return [
        Check(
            name="groups",
            result=CheckResult.WARN,
            detail=in_one_line(sorted(found, key=lambda one: (not one.members, one.group))),
            remedy="take those that are to be moved into groups_include and out of groups_exclude; see "
            'docs/moving-consumers.md, "Groups that the patterns leave out"',
        )
    ]


async def unheld_checks(reader: GroupReader, listing: Listing, topics: Collection[str]) -> list[Check]:
    """A line for each streams and share group that reads one of the topics, or may."""
    others = {
        name: one
        for name, one in listing.groups.items()
        if one.protocol is not None and unheld(one.protocol) is not None
    }
    try:
        answer = await other_kinds.read_by(reader, others, timeout=TIMEOUT)
    except LinkerError as error:
        answer = OtherKinds(failed=dict.fromkeys(others, str(error)))
    lines = []
    for name, one in sorted(others.items()):
        reads = sorted(answer.topics(name) & set(topics))
        if one.protocol is None or (not reads and name not in answer.failed):
            continue
        which = f"reads {', '.join(reads)}" if reads else f"may read them ({answer.failed[name]})"
        lines.append(
            Check(
                name="groups",
                result=CheckResult.WARN,
                detail=f"group {shown_id(name)} {which}: {unheld(one.protocol)}",
                remedy='see docs/moving-consumers.md, "Groups that cannot be held"',
            )
        )
    return lines
