"""Names of topics that cannot be mirrored: Kafka's own, and those that the target would take for another topic's."""

from __future__ import annotations

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
