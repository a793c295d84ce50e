"""Both kinds of step of a replica plan in their order, as the balancer takes them over its rounds."""

from __future__ import annotations

from collections.abc import Sequence

from controller.cluster_view import PartitionView
from controller.plan.replicas import LiveBrokers, Step, leader_step, members_step


def next_step(
    partition: PartitionView, wanted: Sequence[int], targets: Sequence[int], brokers: LiveBrokers
) -> Step | None:
    """The next step towards the wanted link brokers, the first of them leading; None: as wanted, or waiting."""
    return members_step(partition, wanted, targets, brokers) or leader_step(
        partition, wanted, targets, brokers
    )
