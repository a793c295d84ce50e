"""DescribeConfigs: what the test gave a topic, as topic-level configs, or a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request

UNKNOWN_TOPIC_OR_PARTITION = 3
TOPIC, BROKER = 2, 4
SOURCE_TOPIC = 1
SOURCE_DEFAULT = 5

STATIC_BROKER_CONFIG = 4
BROKER_DEFAULTS = {"replica.fetch.backoff.ms": "1000"}
DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "unclean.leader.election.enable": "false",
}


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    return {"results": [_result(broker, request, resource) for resource in request.entity.resources]}


def _result(broker: FakeBroker, request: Request, resource: Any) -> Mapping[str, object]:
    base = {
        "error_code": request.forced_error,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": (),
    }
    if not request.forced_error and resource.resource_type == BROKER:
        own = {**BROKER_DEFAULTS, **broker.cluster.broker_configs.get(int(resource.resource_name or -1), {})}
        return {
            **base,
            "configs": [
                {"name": name, "value": value, "config_source": STATIC_BROKER_CONFIG}
                for name, value in own.items()
            ],
        }
    if request.forced_error or resource.resource_type != TOPIC:
        return base
    topic = broker.cluster.topics.get(resource.resource_name)
    if topic is None:
        return {**base, "error_code": UNKNOWN_TOPIC_OR_PARTITION}
    values = {**DEFAULTS, **topic.configs}
    return {
        **base,
        "configs": [
            {
                "name": name,
                "value": value,
                "config_source": SOURCE_TOPIC if name in topic.configs else SOURCE_DEFAULT,
            }
            for name, value in values.items()
            if resource.configuration_keys is None or name in resource.configuration_keys
        ],
    }
