"""DescribeCluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request

# ALTER, ALTER_CONFIGS, CLUSTER_ACTION, CREATE, DESCRIBE, ... : everything Kafka knows for a cluster
ALL_CLUSTER_OPERATIONS = 0x1FA0


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    cluster = broker.cluster
    return {
        "error_code": request.forced_error,
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {"broker_id": node.id, "host": node.host, "port": node.port, "rack": cluster.racks.get(node.id)}
            for node in cluster.brokers.values()
            if node.running
        ],
        "cluster_authorized_operations": (
            ALL_CLUSTER_OPERATIONS if cluster.cluster_operations is None else cluster.cluster_operations
        ),
    }
