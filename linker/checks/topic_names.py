"""Names of topics that cannot be mirrored: Kafka's own, and those that the target would take for another topic's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

#: Kafka's own state. Other names that begin with `__` are of whoever chose them (Debezium's heartbeats, Connect's topics).
INTERNAL = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)


def is_internal(topic: str, ours: Collection[str] = ()) -> bool:
    """`ours`: topics that sidecars keep for themselves."""
    return topic in INTERNAL or topic in ours


#: MirrorMaker 2's own topics (`ReplicationPolicy`), with whatever separator it was given.
_MIRRORMAKERS_OWN = re.compile(
    r"mm2-(configs|offsets|status|offset-syncs)[^a-zA-Z0-9].*internal|.+[^a-zA-Z0-9]checkpoints[^a-zA-Z0-9]internal"
    r"|(.+\.)?heartbeats"
)
_OF_AN_ALIAS = re.compile(
    r"(?P<alias>.+)(?P<separator>[^a-zA-Z0-9])(checkpoints(?P=separator)internal|heartbeats)"
)


def mirrormaker_prefixes(topics: Iterable[str]) -> frozenset[str]:
    """How names of MirrorMaker 2's copies begin, where it copies to the cluster with these topics: it keeps a topic for
    checkpoints of each cluster, and a copy of that cluster's heartbeats, under the cluster's alias."""
    found = set()
    for topic in topics:
        match = _OF_AN_ALIAS.fullmatch(topic)
        if match is not None and (match["separator"] == "." or not topic.endswith("heartbeats")):
            found.add(match["alias"] + match["separator"])
    return frozenset(found)


def is_mirrormakers(topic: str) -> bool:
    """Whether MirrorMaker 2 keeps it for itself."""
    return _MIRRORMAKERS_OWN.fullmatch(topic) is not None


def collisions(topics: Sequence[str], there: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ in `.` and `_` only, of which a cluster takes one, as metrics could not tell them apart;
    `there` are the topics that it has."""
    found: list[tuple[str, str]] = []
    known: dict[str, str] = {}
    for name in there:
        known.setdefault(_metric_name(name), name)
    for name in topics:
        other = known.setdefault(_metric_name(name), name)
        if other != name:
            found.append((name, other))
    return found


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")
