"""`linker topology` for people: the clusters, numbered, and the ways that topics come, by those numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linker.cli.layout import shortened
from linker.cli.output import columns, pairs

if TYPE_CHECKING:
    from admin.models import TopicWay, Topology, UpstreamCluster

_ADDRESS = 22  # characters of a bootstrap server: whole cluster ids leave no more on a screen of 100 columns


def topology(found: Topology) -> str:
    numbers = {one.cluster_id: str(number) for number, one in enumerate(found.clusters, 1)}
    numbers[found.target_cluster_id] = "here"
    clusters = columns(
        ("#", "CLUSTER", "HOPS", "LINK", "BOOTSTRAP", "STATE", "LAG", "TOPICS", "BACK"),
        [_cluster(numbers[one.cluster_id], one) for one in found.clusters],
        empty="no links",
    )
    parts = [pairs([("here", found.target_cluster_id)]), clusters]
    if found.ways:
        parts.append(
            columns(
                ("WAY", "LINK", "TOPICS", "PARTITIONS", "LAG", "STATES"),
                [_way(numbers, one) for one in found.ways],
            )
        )
    troubles = [(one.link, one.reason) for one in found.clusters if one.reason]
    if troubles:
        parts.append(columns(("LINK", "REASON"), troubles))
    return "\n\n".join(parts)


def _cluster(number: str, one: UpstreamCluster) -> tuple[object, ...]:
    first, *others = (one.bootstrap_servers or "").split(",")
    first = shortened(first.strip(), _ADDRESS)
    state = "NO ANSWER" if one.answers is False else one.state
    return (
        *(number, one.cluster_id, one.hops, one.link),
        *(f"{first},+{len(others)}" if others else first or None, state),
        *(one.lag, one.topics, one.back),
    )


def _way(numbers: dict[str, str], one: TopicWay) -> tuple[object, ...]:
    states = ", ".join(f"{count} {state}" for state, count in one.states.items())
    way = " -> ".join(numbers.get(cluster, "?") for cluster in one.clusters)
    return (way, one.link, one.topics, one.partitions, one.lag, states)
