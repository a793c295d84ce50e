"""Kafka's own topics at a target that might otherwise place them on a link broker."""

from __future__ import annotations

import logging

from linker.target.cluster import TargetCluster
from wire.errors import LinkerError

log = logging.getLogger(__name__)

_COORDINATOR_TIMEOUT = 10.0
_COORDINATOR_TYPES = (0, 1)  # FindCoordinator: group, transaction
_CORDONING_HEARTBEAT = 2


async def create_internal_topics(target: TargetCluster, timeout: float) -> None:
    """Where no log dir can be cordoned (heartbeats before v2, KIP-1066), automatic placement may choose us. Kafka
    creates its own topics when they are first asked for: better before there is a link broker."""
    await target.channel.discover(timeout)
    _, connection = await target.channel.connection("heartbeat", timeout=timeout)
    heartbeat = connection.api_range("broker_heartbeat")
    if heartbeat is None or heartbeat[1] >= _CORDONING_HEARTBEAT:
        return
    for key_type in _COORDINATOR_TYPES:
        try:
            await target.cluster.call(
                "find_coordinator",
                {"key": "kafka-linker", "key_type": key_type, "coordinator_keys": ["kafka-linker"]},
                timeout=_COORDINATOR_TIMEOUT,
            )
        except LinkerError as error:
            log.warning("an internal topic of the target was not created beforehand: %s", error)
