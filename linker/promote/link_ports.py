"""Builds the ports of a promote or a failover out of the parts of a link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from linker.links.copies import CopyView
from linker.links.replica_starts import ReplicaStarts
from linker.links.source_writers import SourceWriters
from linker.membership import TargetCluster
from linker.promote.failover import TakeOverPorts
from linker.promote.failover_ports import make_take_over_ports
from linker.promote.fleet_ports import ListedSourceEnds, fleet_progress, make_promote_ports
from linker.promote.ports import Grow, PromotePorts, ReplicaProgress, SwitchFence
from linker.promote.source_fence import AclSourceFence
from linker.promote.taken_source import TakenSource
from linker.validation.promote import PromoteProof
from linker.validation.runner import LinkValidator
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


class LinkPorts:
    """Of one link. promote() and take_over() make their ports anew each time, on the link controller alone."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        source: Cluster,
        target: TargetCluster,
        fleet_controller: Callable[[], FleetController | None],
        link_brokers: Callable[[], frozenset[int]],
        *,
        validation: LinkValidator,
        copy: Callable[[TopicPartition], CopyView | None],
        targets: Callable[[TopicPartition], tuple[int, ...]],
        starts: ReplicaStarts,
        grow: Grow,
        switch: Callable[[], SwitchFence | None],
        sidecar_of: Callable[[int], int],
    ) -> None:
        """`targets`: the real brokers that are to hold a partition. `switch`: the fence of a job that is a switch.
        `sidecar_of`: the id of the sidecar that is this broker of the mirrors' cluster."""
        self._switch = switch
        self._sidecar_of = sidecar_of
        self._starts = starts
        self._grow = grow
        self._link = link
        self._controller = controller
        self._source = source
        self._target = target
        self._fleet_controller = fleet_controller
        self._link_brokers = link_brokers
        self._validation = validation
        self._copy = copy
        self._targets = targets
        self._taken = TakenSource(link, lambda: controller.image, source)
        self.source_ends = ListedSourceEnds(source, self._taken)
        self.writers = SourceWriters(source, self._producer_id_floor, self._producer_id_ceiling)
        self.source_fence = AclSourceFence(source)

    def promote(self) -> PromotePorts:
        """LinkerError if this sidecar is not the link controller."""
        ports = make_promote_ports(
            self._link,
            self._ruling(),
            self._source,
            self.source_ends,
            self._target,
            self._link_brokers,
            self._promote_validation(),
            self._validation.book.note_tail,
            self._taken.reader,
            self._sidecar_of,
        )
        return replace(
            ports,
            producers=self.writers,
            growth=self._grow,
            source_topics=self.source_ends,
            replica_starts=self._starts,
            source_fence=self.source_fence,
            switch=self._switch(),
        )

    def progress(self) -> ReplicaProgress | None:
        """How far the replicas are; None if this sidecar is not the link controller."""
        fleet_controller = self._fleet_controller()
        if fleet_controller is None:
            return None
        return fleet_progress(self._link, fleet_controller, self._target, self._sidecar_of)[0]

    def take_over(self) -> TakeOverPorts:
        """LinkerError if this sidecar is not the link controller."""
        fleet_controller = self._ruling()
        return make_take_over_ports(
            self._link, fleet_controller, self.promote(), self._target, self._link_brokers
        )

    def unproved(self, tp: TopicPartition) -> str | None:
        """The part of a partition that the validator has to prove before a promote may hold its producers."""
        found = self._promote_validation().unproved([tp]).get(tp)
        return None if found is None else found.reason

    def _ruling(self) -> FleetController:
        fleet_controller = self._fleet_controller()
        if fleet_controller is None:
            raise LinkerError("this sidecar is not the link controller")
        return fleet_controller

    def _promote_validation(self) -> PromoteProof:
        distance = self._validation.validator.config.max_distance
        return PromoteProof(self._validation, self._controller, self._copy, self._targets, distance)

    def _producer_id_floor(self) -> int | None:
        found = self._controller.image.floors.get(self._link)
        return None if found is None else found.floor

    def _producer_id_ceiling(self) -> int | None:
        found = self._controller.image.floors.get(self._link)
        return None if found is None else found.ceiling
