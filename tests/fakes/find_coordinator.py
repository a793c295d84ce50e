"""FindCoordinator: the cluster's first running node coordinates everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    node = next(node for node in broker.cluster.brokers.values() if node.running)
    place = {"node_id": node.id, "host": node.host, "port": node.port, "error_code": request.forced_error}
    if request.version < 4:
        return place
    return {"coordinators": [{"key": key, **place} for key in request.entity.coordinator_keys]}
