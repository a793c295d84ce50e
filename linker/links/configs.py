"""Topic and broker configs as a cluster's brokers tell them (DescribeConfigs).

Which of them matter, and what is copied, is controller.topic_configs' business.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from wire.cluster import Cluster
from wire.error_codes import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from wire.errors import BrokerError, LinkerError

_TOPIC, _BROKER = 2, 4
_NOT_ALLOWED = frozenset({TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED})
_DYNAMIC_TOPIC_CONFIG = 1  # DescribeConfigsResponse.ConfigSource

#: Topic config -> the broker config that is its default (ServerTopicConfigSynonyms).
BROKER_DEFAULTS = {
    "segment.bytes": "log.segment.bytes",
    "max.message.bytes": "message.max.bytes",
    "min.insync.replicas": "min.insync.replicas",
    "cleanup.policy": "log.cleanup.policy",
    "retention.bytes": "log.retention.bytes",
}


class ConfigsNotAllowed(LinkerError):
    """The principal lacks DESCRIBE_CONFIGS; the message names the ACL."""

    def __init__(self, cluster: str, resource_type: int, name: str) -> None:
        resource, flag = (
            ("Cluster", "--cluster") if resource_type == _BROKER else (f"topic {name}", f"--topic {name}")
        )
        super().__init__(
            f"{cluster}: the principal lacks the right DESCRIBE_CONFIGS on {resource}; grant it with kafka-acls.sh --add "
            f"--allow-principal 'User:<principal>' --operation DescribeConfigs {flag}"
        )


class TopicConfigs(NamedTuple):
    """`effective` has every value, `overrides` those set on the topic itself."""

    effective: dict[str, str]
    overrides: dict[str, str]


async def topic_configs(
    cluster: Cluster, topics: Collection[str], *, timeout: float
) -> dict[str, TopicConfigs]:
    """Configs of each topic. Where one cannot be had the error names the topic."""
    found: dict[str, TopicConfigs] = {}
    for name, configs in (await _describe(cluster, _TOPIC, topics, None, timeout)).items():
        effective = {config.name: config.value for config in configs if config.value is not None}
        overrides = {
            config.name: config.value
            for config in configs
            if int(config.config_source) == _DYNAMIC_TOPIC_CONFIG and config.value is not None
        }
        found[name] = TopicConfigs(effective, overrides)
    return found


async def topic_defaults(cluster: Cluster, broker: int, *, timeout: float) -> dict[str, str]:
    """What a topic of this cluster has where nothing is set on it, as one broker tells it."""
    answer = await _describe(cluster, _BROKER, [str(broker)], broker, timeout)
    values = {config.name: config.value for configs in answer.values() for config in configs}
    return {
        topic_name: values[broker_name]
        for topic_name, broker_name in BROKER_DEFAULTS.items()
        if values.get(broker_name) is not None
    }


async def broker_config(cluster: Cluster, broker: int, name: str, *, timeout: float) -> str | None:
    """A config of one broker as that broker tells it; None if it has none of that name."""
    answer = await _describe(cluster, _BROKER, [str(broker)], broker, timeout)
    return next((one.value for configs in answer.values() for one in configs if one.name == name), None)


async def _describe(
    cluster: Cluster, resource_type: int, names: Collection[str], node_id: int | None, timeout: float
) -> dict[str, list]:  # type: ignore[type-arg]  # kio's config entries differ by version
    response = await cluster.call(
        "describe_configs",
        {
            "resources": [
                {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
                for name in names
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
        node_id=node_id,
        timeout=timeout,
    )
    for result in response.results:
        if int(result.error_code) in _NOT_ALLOWED:
            raise ConfigsNotAllowed(cluster.name, resource_type, result.resource_name)
        if int(result.error_code):
            raise BrokerError(
                int(result.error_code),
                message=f"{cluster.name} does not tell the configs of {result.resource_name}",
                api="describe_configs",
            )
    return {result.resource_name: list(result.configs) for result in response.results}
