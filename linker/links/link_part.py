"""All parts of one link work with these: its two clusters, the controller's state, and who is in the fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from linker.membership import TargetCluster
from wire.client.cluster import Cluster
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True)
class LinkContext:
    """Of one link."""

    link: str
    source: Cluster
    target: TargetCluster
    controller: LinkController
    #: Broker ids of all sidecars in the cluster that its mirrors lie in.
    link_brokers: Callable[[], frozenset[int]]
    #: Of this process, while it is the link controller.
    fleet_controller: Callable[[], FleetController | None] = lambda: None
    #: Whether none of the source's own brokers leads a partition that link brokers follow there as in-sync replicas.
    without_owner: Callable[[TopicPartition], bool] = lambda _tp: False


class LinkPart:
    """A part of a link; it has what it works with at hand."""

    def __init__(self, context: LinkContext) -> None:
        self._link = context.link
        self._source = context.source
        self._target = context.target
        self._controller = context.controller
        self._link_brokers = context.link_brokers
        self._fleet_controller = context.fleet_controller
        self._without_owner = context.without_owner

    @property
    def _decides(self) -> bool:
        """Whether this sidecar is the link controller."""
        return self._fleet_controller() is not None
