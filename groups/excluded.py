"""Groups of the source that the link's patterns leave out although they read mirrored topics: reported, never touched.

No gate holds such a group on the target and its offsets are not copied. If it is moved like the others, it begins
where its configuration says. The default patterns leave out sink connectors and ksqlDB's queries, which read like any
other group.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import inf

from controller.decide.groups import GroupRules
from controller.judge.group_gates import CONSUMER_GROUPS
from controller.mirror_group import GroupProtocol
from groups import other_kinds
from groups.group_ids import why_not
from groups.group_reader import GroupReader
from groups.views import CONSUMERS, ListedGroup, Listing
from wire.shown_id import listed, shown_id

_AT_ONCE = 100  # groups that one look asks about: a request or two per coordinator, whatever the cluster has
_AGAIN = 60.0  # seconds until a group is asked about again
_MOST_NAMED = 5
_CONSEQUENCE = (
    "nothing holds it on the target and its offsets are not brought over: started there it begins at offsets that it has "
    "there already, else where auto.offset.reset says"
)


@dataclass(frozen=True, slots=True)
class Excluded:
    """A group that the patterns leave out, with the topics that it reads."""

    group: str
    why: str  # which pattern
    protocol: GroupProtocol
    topics: frozenset[str]
    members: int | None = None

    @property
    def reason(self) -> str:
        return f"{self.why}; {_CONSEQUENCE}"


def why_excluded(rules: GroupRules, name: str) -> str | None:
    """The pattern that leaves out a group of this id; None if the group is taken, or could not be anyway."""
    if why_not(name) is not None:
        return None
    for pattern in rules.exclude:
        if pattern.fullmatch(name):
            return f"groups_exclude has the pattern {pattern.pattern}"
    if any(pattern.fullmatch(name) for pattern in rules.include):
        return None
    if not rules.include:
        return "groups_include is empty"
    return f"groups_include has no pattern for it ({', '.join(one.pattern for one in rules.include)})"


def candidates(listing: Listing, rules: GroupRules) -> dict[str, str]:
    """Consumer groups of every kind that the patterns leave out, with the pattern."""
    return {
        name: why
        for name, one in listing.groups.items()
        if one.protocol is not None
        and (one.protocol not in CONSUMER_GROUPS or one.protocol_type in CONSUMERS)
        and (why := why_excluded(rules, name)) is not None
    }


def in_one_line(found: Collection[Excluded]) -> str:
    """For a person about to move consumers: the first groups by name, each with its pattern."""
    named = listed((f"{shown_id(one.group)} ({one.why})" for one in found), _MOST_NAMED)
    which, it = ("groups", "them") if len(found) > 1 else ("group", "it")
    return (
        f"{which} {named} not held: the link's options leave {it} out, no offsets are brought over, and a "
        "member that is started on the target begins where its configuration says"
    )


_ONE_RUN = re.compile(r"console-consumer-\d+")


class ExcludedGroups:
    """All such groups as far as known; each look asks about a limited number of them."""

    def __init__(self) -> None:
        self._seen: dict[str, Excluded] = {}
        self._asked: dict[str, float] = {}
        #: Why some of them could not be looked at.
        self._failed: dict[str, str] = {}

    def reading(self, topics: Collection[str]) -> list[Excluded]:
        """Groups that read one of the topics, those with members first. Groups of kafka-console-consumer are left out:
        each run makes a new one, which is never started again."""
        wanted = set(topics)
        found = [
            one
            for one in self._seen.values()
            if not wanted.isdisjoint(one.topics) and (one.members or not _ONE_RUN.fullmatch(one.group))
        ]
        return sorted(found, key=lambda one: (not one.members, one.group))

    def why(self, name: str) -> str | None:
        """The reason why this group is not held, if it is an excluded one."""
        return None if (one := self._seen.get(name)) is None else one.reason

    @property
    def trouble(self) -> dict[str, str]:
        return {f"group {shown_id(name)}": why for name, why in self._failed.items()}

    async def look(
        self,
        source: GroupReader,
        listing: Listing,
        rules: GroupRules,
        *,
        timeout: float,
        now: float | None = None,
    ) -> None:
        """Ask about the groups with the oldest answers."""
        now = time.monotonic() if now is None else now
        # A link without groups is not used to move groups.
        there = candidates(listing, rules) if rules.include else {}
        self._forget(there, listing, rules)
        due = [name for name in there if now - self._asked.get(name, -inf) >= _AGAIN]
        due.sort(key=lambda name: (self._asked.get(name, -inf), _is_empty(listing.groups[name]), name))
        some = {name: listing.groups[name] for name in due[:_AT_ONCE]}
        if not some:
            return
        topics, members, failed = await read_by(source, some, timeout=timeout)
        for name, one in some.items():
            self._asked[name] = now
            self._failed.pop(name, None)
            if name in failed:
                self._failed[name] = failed[name]
            elif one.protocol is not None:
                self._seen[name] = Excluded(
                    name, there[name], one.protocol, topics.get(name, frozenset()), members.get(name)
                )

    def _forget(self, there: Mapping[str, str], listing: Listing, rules: GroupRules) -> None:
        """Forget groups that are taken now and groups that the source no longer has. A silent broker proves nothing."""
        for name in self._asked.keys() - there.keys():
            if listing.silent and name not in listing.groups and why_excluded(rules, name) is not None:
                continue
            del self._asked[name]
            self._seen.pop(name, None)
            self._failed.pop(name, None)
        for name, one in self._seen.items():
            if name in there and there[name] != one.why:
                self._seen[name] = replace(one, why=there[name])


async def read_by(
    source: GroupReader, groups: Mapping[str, ListedGroup], *, timeout: float
) -> tuple[dict[str, frozenset[str]], dict[str, int], dict[str, str]]:
    """Topics read by the groups, their numbers of members, and the reason where this is unknown."""
    held = [name for name, one in groups.items() if one.protocol in CONSUMER_GROUPS]
    others = {name: one for name, one in groups.items() if one.protocol not in CONSUMER_GROUPS}
    views, failed = await source.describe(
        [name for name in held if not _is_empty(groups[name])], timeout=timeout
    )
    offsets = await source.offsets(held, timeout=timeout)
    failed = {**failed, **offsets.failed}
    topics = {
        name: (views[name].topics if name in views else frozenset[str]())
        | {tp.topic for tp in offsets.found.get(name, ())}
        for name in held
        if name not in failed
    }
    members = {name: len(views[name].members) if name in views else 0 for name in topics}
    if others:
        answer = await other_kinds.read_by(source, others, timeout=timeout)
        for name in others:
            if name not in answer.failed or answer.topics(name):
                topics[name] = answer.topics(name)
                members[name] = len(answer.views[name].members) if name in answer.views else 0
        failed.update((name, why) for name, why in answer.failed.items() if name not in topics)
    return topics, members, failed


def _is_empty(listed: ListedGroup) -> bool:
    return listed.state in ("Empty", "Dead")
