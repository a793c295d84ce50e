"""Share groups (KIP-932) of the target that subscribe to a mirror: they get nothing of it before the promote."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from admin.models import Check, CheckResult
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.shown_id import listed
from wire.together import together

_TIMEOUT: Final = 5.0  # one that hangs must not keep the others' answers
_MOST: Final = 5
_DESCRIBE: Final = "share_group_describe"


async def check_share_groups(
    target: Cluster, brokers: Collection[int], topics: Collection[str]
) -> list[Check]:
    """No line if there is none, nor for a broker that does not tell: it is too old to have any, or away."""
    if not topics:
        return []
    found: dict[str, list[str]] = {}
    for one in await together(_subscribed(target, broker) for broker in brokers):
        found |= one
    return share_checks(found, topics)


def share_checks(subscribed: Mapping[str, Collection[str]], topics: Collection[str]) -> list[Check]:
    reading = {
        group: sorted(wanted)
        for group, names in subscribed.items()
        if (wanted := set(names).intersection(topics))
    }
    if not reading:
        return []
    shown = [f"{group} ({listed(reading[group], _MOST)})" for group in sorted(reading)]
    return [
        Check(
            name="share groups",
            result=CheckResult.WARN,
            detail=f"share groups of the target subscribe to mirrors: {listed(shown)}; until the promote they get "
            "no record of them, and their consumers an error (POLICY_VIOLATION)",
            remedy="read mirrors with consumer groups, and start share groups after the promote",
        )
    ]


async def _subscribed(target: Cluster, broker: int) -> dict[str, list[str]]:
    """By group, of those that this broker coordinates: a broker lists its own."""
    try:
        found = await target.call(
            "list_groups", {"types_filter": ["share"]}, node_id=broker, timeout=_TIMEOUT
        )
        names = [one.group_id for one in found.groups if getattr(one, "group_type", "").lower() == "share"]
        if not names:
            return {}
        answer = await target.call(_DESCRIBE, {"group_ids": names}, node_id=broker, timeout=_TIMEOUT)
    except LinkerError:
        return {}
    return {
        group.group_id: [topic for member in group.members for topic in member.subscribed_topic_names]
        for group in answer.groups
        if not int(group.error_code)
    }
