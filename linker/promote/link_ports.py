"""Builds the ports of a promote or a failover out of the parts of a link."""

from __future__ import annotations

from collections.abc import Callable

from controller.decide.validations import watermark
from fleet.fleet_controller import FleetController
from linker.links.link_part import LinkContext, LinkPart
from linker.links.replica_starts import ReplicaStarts
from linker.links.source_writers import SourceWriters
from linker.promote.failover import FailoverPorts
from linker.promote.failover_ports import make_failover_ports
from linker.promote.fleet_ports import (
    FleetConfigs,
    FleetFence,
    ListedSourceEnds,
    TargetHandOver,
    fleet_progress,
)
from linker.promote.ports import Grow, PromotePorts, ReplicaProgress, SwitchFence
from linker.promote.source_fence import AclSourceFence
from linker.promote.tail_batches import TailBatches
from linker.promote.taken_source import TakenSource
from linker.validation.promote import PromoteProof
from linker.validation.runner import LinkValidator
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


class LinkPorts(LinkPart):
    """Of one link. promote() and failover() make their ports anew each time, on the link controller alone."""

    def __init__(
        self,
        context: LinkContext,
        *,
        validation: LinkValidator,
        targets: Callable[[TopicPartition], tuple[int, ...]],
        starts: ReplicaStarts,
        grow: Grow,
        switch: Callable[[], SwitchFence | None],
        sidecar_of: Callable[[int], int],
    ) -> None:
        """`targets`: the real brokers that are to hold a partition. `switch`: the fence of a job that is a switch.
        `sidecar_of`: the id of the sidecar that is this broker of the mirrors' cluster."""
        super().__init__(context)
        self._switch = switch
        self._sidecar_of = sidecar_of
        self._starts = starts
        self._grow = grow
        self._validation = validation
        self._targets = targets
        self._taken = TakenSource(self._link, lambda: self._controller.image, self._source)
        self.source_ends = ListedSourceEnds(self._source, self._taken)
        self.writers = SourceWriters(self._source, self._producer_id_floor, self._producer_id_ceiling)
        self.source_fence = AclSourceFence(self._source)

    def promote(self) -> PromotePorts:
        """LinkerError if this sidecar is not the link controller."""
        fleet_controller = self._ruling()
        state = fleet_controller.controller
        progress, targets = fleet_progress(self._link, fleet_controller, self._target, self._sidecar_of)
        return PromotePorts(
            fencer=FleetFence(self._link, fleet_controller, self._source, self._target, self._link_brokers),
            progress=progress,
            source_ends=self.source_ends,
            tail_check=TailBatches(
                self._source,
                self._target,
                progress.log_start,
                targets,
                lambda tp, broker: watermark(state.image, self._link, tp, broker),
                lambda topic: (
                    (mirror := state.image.mirrors.get((self._link, topic))) is None
                    or "compact" in mirror.copied_configs.get("cleanup.policy", "")
                ),
                self._validation.book.note_tail,
                self._taken.reader,
            ),
            hand_over=TargetHandOver(self._target, self._link_brokers),
            configs=FleetConfigs(self._target),
            validation=self._promote_validation(),
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

    def failover(self) -> FailoverPorts:
        """LinkerError if this sidecar is not the link controller."""
        fleet_controller = self._ruling()
        return make_failover_ports(
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
        return PromoteProof(self._validation, self._targets, distance)

    def _producer_id_floor(self) -> int | None:
        found = self._controller.image.floors.get(self._link)
        return None if found is None else found.floor

    def _producer_id_ceiling(self) -> int | None:
        found = self._controller.image.floors.get(self._link)
        return None if found is None else found.ceiling
