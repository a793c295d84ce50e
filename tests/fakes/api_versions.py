"""ApiVersions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wire.schema import codec

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    cluster = broker.cluster
    keys = []
    for api in cluster.handlers:
        offered = cluster.api_range(api)
        if offered is not None:
            keys.append({"api_key": codec.api_key(api), "min_version": offered[0], "max_version": offered[1]})
    # v3 leaves out features whose minimum is 0, as Kafka does
    supported = [
        {"name": name, "min_version": low, "max_version": high}
        for name, (low, high) in cluster.supported_features.items()
        if low > 0 or request.version >= 4
    ]
    return {
        "error_code": request.forced_error,
        "api_keys": sorted(keys, key=lambda item: item["api_key"]),
        "supported_features": supported,
        "finalized_features_epoch": 1,
        "finalized_features": [
            {"name": name, "min_version_level": low, "max_version_level": high}
            for name, (low, high) in cluster.finalized_features.items()
        ],
    }
