"""InitProducerId: ids from one counter per cluster (`cluster.producer_ids`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    if request.forced_error:
        return {"error_code": request.forced_error, "producer_id": -1, "producer_epoch": -1}
    return {"error_code": 0, "producer_id": next(broker.cluster.producer_ids), "producer_epoch": 0}
