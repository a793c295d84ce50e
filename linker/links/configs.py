"""Topic and broker configs, read from a cluster's brokers (DescribeConfigs).

controller.plan.topic_configs decides which of them matter and are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from sys import intern  # thousands of topics have the same names and values
from typing import NamedTuple

from controller.plan.topic_configs import SEVERAL, with_timestamp_bounds
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from wire.frames.types import BROKER_RESOURCE, TOPIC_RESOURCE
from wire.together import together

_NOT_ALLOWED = frozenset({TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED})
_DYNAMIC_TOPIC_CONFIG = 1  # DescribeConfigsResponse.ConfigSource

_PATIENCE = 1.0  # with one broker that hangs, while others answer
_MINUTE, _HOUR = 60 * 1000, 60 * 60 * 1000
#: Topic config -> the broker configs that are its default, the first that is set counts, with what makes them the topic
#: config's unit (`ServerTopicConfigSynonyms`).
BROKER_DEFAULTS: Mapping[str, Sequence[tuple[str, int]]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.type": (("compression.type", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.difference.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE),
        ("log.retention.hours", _HOUR),
    ),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", _HOUR)),
}


_DEFAULT_KEYS = frozenset(name for candidates in BROKER_DEFAULTS.values() for name, _ in candidates)


class ConfigsNotAllowed(LinkerError):
    """The principal lacks DESCRIBE_CONFIGS; the message names the ACL."""

    def __init__(self, cluster: str, resource_type: int, name: str) -> None:
        resource, flag = (
            ("Cluster", "--cluster")
            if resource_type == BROKER_RESOURCE
            else (f"topic {name}", f"--topic {name}")
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
    found, refused = await topic_configs_each(cluster, topics, timeout=timeout)
    for error in refused.values():
        raise error
    return found


async def topic_configs_each(
    cluster: Cluster, topics: Collection[str], *, timeout: float, keys: Collection[str] | None = None
) -> tuple[dict[str, TopicConfigs], dict[str, LinkerError]]:
    """(configs of each topic that can be had, why those of the others cannot); `keys`: only these configs."""
    found: dict[str, TopicConfigs] = {}
    answers, refused = await _describe_each(cluster, TOPIC_RESOURCE, topics, None, timeout, keys)
    for name, configs in answers.items():
        effective = {
            intern(config.name): intern(config.value) for config in configs if config.value is not None
        }
        overrides = {
            intern(config.name): intern(config.value)
            for config in configs
            if int(config.config_source) == _DYNAMIC_TOPIC_CONFIG and config.value is not None
        }
        found[name] = TopicConfigs(effective, overrides)
    return found, refused


async def topic_defaults(cluster: Cluster, brokers: Collection[int], *, timeout: float) -> dict[str, str]:
    """The values of a topic of this cluster on which nothing is set: every broker goes by its own file. Where they
    differ all values are there, parted by SEVERAL, in the order of the brokers. A broker that does not answer is
    left out; the last one's error, if none does."""
    answers: dict[int, dict[str, str]] = {}
    trouble: list[LinkerError] = []

    async def ask(broker: int, patience: float) -> None:
        try:
            answer = await _describe(cluster, BROKER_RESOURCE, [str(broker)], broker, patience, _DEFAULT_KEYS)
        except ConfigsNotAllowed:
            raise
        except LinkerError as error:
            trouble.append(error)
            return
        values = {config.name: config.value for configs in answer.values() for config in configs}
        answers[broker] = with_timestamp_bounds(defaults_of(values))

    await together(ask(broker, min(timeout, _PATIENCE)) for broker in sorted(brokers))
    if not answers:
        await together(ask(broker, timeout) for broker in sorted(brokers))
    if not answers and trouble:
        raise trouble[-1]
    return {
        name: SEVERAL.join(dict.fromkeys(one[name] for _, one in sorted(answers.items()) if name in one))
        for name in sorted({name for one in answers.values() for name in one})
    }


def defaults_of(broker_configs: Mapping[str, str | None]) -> dict[str, str]:
    """One broker's configs as those of a topic without overrides."""
    found: dict[str, str] = {}
    for topic_name, candidates in BROKER_DEFAULTS.items():
        for broker_name, factor in candidates:
            value = broker_configs.get(broker_name)
            if value is not None and value != "":
                found[topic_name] = value if factor == 1 else _scaled(value, factor)
                break
    if found.get("retention.ms", "0").startswith("-"):
        found["retention.ms"] = "-1"  # any negative time is for ever (`KafkaConfig.logRetentionTimeMillis`)
    return found


def _scaled(value: str, factor: int) -> str:
    try:
        return str(int(value) * factor)
    except ValueError:
        return value


async def broker_config(cluster: Cluster, broker: int, name: str, *, timeout: float) -> str | None:
    """A config of one broker as that broker tells it; None if it has none of that name."""
    return (await broker_configs(cluster, broker, [name], timeout=timeout)).get(name)


async def broker_configs(
    cluster: Cluster, broker: int, names: Collection[str], *, timeout: float
) -> dict[str, str]:
    """These configs of one broker as that broker tells them, those that have a value."""
    answer = await _describe(cluster, BROKER_RESOURCE, [str(broker)], broker, timeout, names)
    return {
        one.name: one.value
        for configs in answer.values()
        for one in configs
        if one.name in names and one.value is not None
    }


async def topic_config_each(
    cluster: Cluster, topics: Collection[str], name: str, *, node_id: int, timeout: float
) -> tuple[dict[str, str | None], dict[str, LinkerError]]:
    """One config of each topic as this broker tells it, None where it has none of that name; and why others are not told."""
    found, refused = await _describe_each(cluster, TOPIC_RESOURCE, topics, node_id, timeout, [name])
    values = {
        topic: next((one.value for one in configs if one.name == name), None)
        for topic, configs in found.items()
    }
    return values, refused


async def _describe(
    cluster: Cluster,
    resource_type: int,
    names: Collection[str],
    node_id: int | None,
    timeout: float,
    keys: Collection[str] | None = None,
) -> dict[str, list]:  # type: ignore[type-arg]  # kio's config entries differ by version
    found, refused = await _describe_each(cluster, resource_type, names, node_id, timeout, keys)
    for error in refused.values():
        raise error
    return found


async def _describe_each(
    cluster: Cluster,
    resource_type: int,
    names: Collection[str],
    node_id: int | None,
    timeout: float,
    keys: Collection[str] | None = None,
) -> tuple[dict[str, list], dict[str, LinkerError]]:  # type: ignore[type-arg]
    response = await cluster.call(
        "describe_configs",
        {
            "resources": [
                {
                    "resource_type": resource_type,
                    "resource_name": name,
                    "configuration_keys": None if keys is None else sorted(keys),
                }
                for name in names
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
        node_id=node_id,
        timeout=timeout,
    )
    found = {}
    refused: dict[str, LinkerError] = {}
    for result in response.results:
        if int(result.error_code) in _NOT_ALLOWED:
            name = result.resource_name
            there = cluster.topic_names.there(name) if resource_type == TOPIC_RESOURCE else name
            refused[name] = ConfigsNotAllowed(cluster.name, resource_type, there)
        elif int(result.error_code):
            refused[result.resource_name] = BrokerError(
                int(result.error_code),
                message=f"{cluster.name} does not tell the configs of {result.resource_name}",
                api="describe_configs",
            )
        else:
            found[result.resource_name] = list(result.configs)
    return found, refused
