"""The clusters that a sidecar's links reach, and the ways that topics come."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from admin.base import Model
from admin.models.states import MirrorState


class UpstreamCluster(Model):
    """A cluster that mirrored topics come from, or that mirrors into one of those."""

    cluster_id: str
    hops: int = Field(description="Links between it and the target, on the shortest way.")
    link: str | None = Field(
        default=None, description="The link that has it as its source; null: it is behind another one."
    )
    bootstrap_servers: str | None = Field(default=None, description="null: this sidecar has no link to it.")
    state: MirrorState | None = Field(default=None, description="State of the link.")
    answers: bool | None = Field(
        default=None, description="Whether it answered just now; null: it is not asked."
    )
    reason: str | None = Field(default=None, description="Why it did not answer, or the link's reason.")
    lag: int | None = Field(default=None, description="Lag of the link's mirrors.")
    topics: int = Field(
        default=0, description="Mirrors whose records have come through it, promoted ones apart."
    )
    back: int | None = Field(
        default=None,
        description="Topics that it has from this cluster, over any links, as far as the link may see them; null: not told.",
    )


class TopicWay(Model):
    """The topics that come the same way."""

    link: str
    clusters: list[str] = Field(description="Cluster ids from where the topics begin to the target.")
    topics: int
    partitions: int
    states: dict[MirrorState, int]
    lag: int | None = Field(default=None, description="null: not known of all of them.")


class Topology(Model):
    at: datetime
    target_cluster_id: str
    clusters: list[UpstreamCluster] = Field(description="The nearest first.")
    ways: list[TopicWay]
