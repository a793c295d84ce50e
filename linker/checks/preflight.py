"""Checks before a change: `create` refuses on the first fatal finding, `doctor` shows them all.

Only questions are asked here: nothing is created, changed or remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from controller.plan.topic_configs import (
    ConfigDifference,
    ConfigPlan,
    compare_effective,
    plan_configs,
    strictest,
)
from linker.links.configs import TopicConfigs, topic_configs, topic_defaults
from wire.client.cluster import Cluster
from wire.errors import ConnectionLost, LinkerError, error_name
from wire.frames.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import AclRight
from wire.shown_id import listed

TIMEOUT = 15.0
_ANSWER_TIMEOUT, _ANSWER_PAUSE = 4.0, 0.1  # of one broker, where another one can be asked
_NEWS_TIMEOUT, _NEWS_PAUSE = 1.5, 0.1  # for a topic that was made a moment ago to be known to all brokers
_NOT_TOLD = -(1 << 31)

#: api -> least version the source must speak: Fetch v12 detects a source that lost data, Produce v9 is forwarded.
SOURCE_NEEDS = {"fetch": 12, "produce": 9, "list_offsets": 4, "metadata": 9, "init_producer_id": 2}


class Target(Protocol):
    """A target, member of it or not."""

    @property
    def cluster(self) -> Cluster: ...


class PreflightFinding(NamedTuple):
    """One check. `remedy` says what to do; a fatal finding refuses the change."""

    name: str
    fatal: bool
    detail: str
    remedy: str | None = None


class SourceTopic(NamedTuple):
    """A topic of the source as a mirror will need it."""

    name: str
    topic_id: bytes | None
    partitions: int
    replication_factor: int
    configs: TopicConfigs
    plan: ConfigPlan  # from the source alone, until `plan_topics` has seen the target
    defaults: Mapping[str, str] = MappingProxyType({})  # the target's, where nothing is set on a topic


async def check_source(source: Cluster, target: Target) -> list[PreflightFinding]:
    """Versions and identity of a source that was reached."""
    findings: list[PreflightFinding] = []
    if source.cluster_id == target.cluster.cluster_id:
        findings.append(
            PreflightFinding("clusters", True, f"source and target are the same cluster {source.cluster_id}")
        )
    for node in sorted(source.nodes):
        connection = await source.connection(node)
        for api, needed in SOURCE_NEEDS.items():
            offered = connection.api_range(api)
            if offered is None or offered[1] < needed:
                have = "lacks it" if offered is None else f"has up to v{offered[1]}"
                findings.append(
                    PreflightFinding(
                        "source version",
                        True,
                        f"the source is too old: {api} v{needed} is needed, broker {node} {have}",
                        "a source of Kafka 2.8 or later is needed",
                    )
                )
    return findings


async def check_target_rights(target: Target) -> list[PreflightFinding]:
    """The sidecar's rights on the target, as a broker of it tells them (KIP-430)."""
    operations = await cluster_operations(target.cluster)
    needed = (
        AclRight.CLUSTER_ACTION,
        AclRight.ALTER,
        AclRight.CREATE,
        AclRight.DESCRIBE,
        AclRight.DESCRIBE_CONFIGS,
    )
    return [lacks("target rights", one, of="sidecar") for one in needed if not allowed(operations, one)]


_NOT_FATAL = {
    AclRight.WRITE: ": a promote lets producers wait longer than it has to",
    AclRight.ALTER: ": partitions that are added at the source cannot be added there",
}


async def check_mirror_rights(target: Target, topics: Collection[str]) -> list[PreflightFinding]:
    """The sidecar's rights on mirror topics, which exist. Without some rights a promote would end half way; for the
    others the finding says what does not work without them."""
    response = await describe_topics(target.cluster, topics)
    return [
        lacks("target rights", right, topic.name, of="sidecar", fatal=right not in _NOT_FATAL)
        for topic in response.topics
        for right in (
            AclRight.READ,
            AclRight.DESCRIBE_CONFIGS,
            AclRight.ALTER_CONFIGS,
            AclRight.WRITE,
            AclRight.ALTER,
        )
        if forbidden(topic, right)
    ]


def forbidden(topic: Any, right: AclRight) -> bool:
    """Of a topic in an answer of `describe_topics`."""
    code = int(topic.error_code)
    return code == TOPIC_AUTHORIZATION_FAILED or (
        not code and not allowed(int(topic.topic_authorized_operations), right)
    )


def lacks(
    check: str, right: AclRight, topic: str | None = None, *, of: str = "link", fatal: bool = True
) -> PreflightFinding:
    """The principal `of` the link or the sidecar lacks a right at its cluster: on a topic, or on Cluster."""
    cluster = "source" if of == "link" else "target"
    resource, flag = ("Cluster", "--cluster") if topic is None else (f"topic {topic}", f"--topic {topic}")
    return PreflightFinding(
        check,
        fatal,
        f"the {of}'s principal lacks {right.name} on {resource} at the {cluster}"
        + ("" if fatal else _NOT_FATAL[right]),
        f"kafka-acls.sh --add --allow-principal 'User:<{of}>' --operation {right.flag} {flag}",
    )


async def describe_topics(cluster: Cluster, topics: Collection[str]) -> Any:
    return await _ask_any(
        cluster,
        "metadata",
        {
            "topics": [{"name": topic} for topic in topics],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
        },
        max_version=12,
    )


async def _ask_any(
    cluster: Cluster, api: str, fields: Mapping[str, object], *, max_version: int | None = None
) -> Any:
    """Ask a question that every broker can answer. A broker that hangs is given up for another one while there is time."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        left = max(0.001, deadline - time.monotonic())
        try:
            version = None
            if max_version is not None:
                version = (await cluster.connection(None)).pick_version(api, max_version=max_version)
            return await cluster.call(api, fields, timeout=min(_ANSWER_TIMEOUT, left), version=version)
        except ConnectionLost:
            if time.monotonic() + _ANSWER_PAUSE >= deadline:
                raise
        await asyncio.sleep(_ANSWER_PAUSE)


class SeenTopic(NamedTuple):
    """A topic that is at the source now."""

    topic_id: bytes | None  # None: the source is too old for ids
    partitions: int


async def seen_source_topics(source: Cluster, topics: Sequence[str]) -> dict[str, SeenTopic]:
    """Those of the topics that exist and that the link's principal may see."""
    response = await describe_topics(source, topics)
    return {
        str(topic.name): SeenTopic(_topic_id(topic), len(topic.partitions))
        for topic in response.topics
        if not int(topic.error_code)
    }


async def read_source_topics(
    source: Cluster, topics: Sequence[str]
) -> tuple[dict[str, SourceTopic], list[str], list[PreflightFinding]]:
    """(topics that exist, names that do not, findings about rights)."""
    response = await describe_topics(source, topics)
    missing: list[str] = []
    findings: list[PreflightFinding] = []
    described = {}
    names = source.topic_names
    # Nothing is ever written to a topic that has another name here.
    needed = [
        AclRight.READ,
        *([] if names.prefix else [AclRight.WRITE]),
        AclRight.DESCRIBE,
        AclRight.DESCRIBE_CONFIGS,
    ]
    for topic in response.topics:
        name = str(topic.name)
        code = int(topic.error_code)
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            missing.append(name)
        elif code:
            findings.append(
                PreflightFinding(
                    "source rights",
                    True,
                    f"topic {names.there(name)} at the source: {error_name(code)}",
                    f"grant DESCRIBE on topic {names.there(name)} to the link's principal",
                )
            )
        else:
            described[name] = topic
            operations = int(topic.topic_authorized_operations)
            findings += [
                lacks("source rights", right, names.there(name))
                for right in needed
                if not allowed(operations, right)
            ]
    if missing or any(finding.fatal for finding in findings):
        return {}, missing, findings
    configs = await topic_configs(source, list(described), timeout=TIMEOUT)
    found = {}
    for name, topic in described.items():
        found[name] = SourceTopic(
            name,
            _topic_id(topic),
            len(topic.partitions),
            max((len(partition.replica_nodes) for partition in topic.partitions), default=1),
            configs[name],
            plan_configs(configs[name].overrides, configs[name].effective),
        )
    return found, missing, findings


async def read_new_topics(
    source: Cluster, topics: Sequence[str]
) -> tuple[dict[str, SourceTopic], list[str], list[PreflightFinding]]:
    """As `read_source_topics`, for topics that ought to be there. Brokers hear of a new topic one after the other, so
    "it does not exist" is believed only after asking again."""
    deadline = time.monotonic() + _NEWS_TIMEOUT
    while True:
        found, missing, findings = await read_source_topics(source, topics)
        if not missing or time.monotonic() >= deadline:
            return found, missing, findings
        await asyncio.sleep(_NEWS_PAUSE)


def _topic_id(topic: Any) -> bytes | None:
    topic_id = getattr(topic, "topic_id", None)
    return None if topic_id is None else bytes(topic_id.bytes)


async def cluster_operations(cluster: Cluster) -> int:
    """The principal's rights on Cluster, as a broker tells them: a set of bits, for `allowed`."""
    answer = await _ask_any(cluster, "describe_cluster", {"include_cluster_authorized_operations": True})
    return int(answer.cluster_authorized_operations)


def allowed(operations: int, right: AclRight) -> bool:
    """A broker without an authorizer may leave the set out; then everything is allowed."""
    return operations == _NOT_TOLD or bool(operations >> right & 1)


async def plan_topics(
    target: Target,
    topics: Mapping[str, SourceTopic],
    brokers: Collection[int],
    from_target: Mapping[str, Collection[str]],
) -> dict[str, SourceTopic]:
    """The topics with the configs that their mirrors get at this target. `brokers`: its real ones that are there;
    `from_target`: by topic, configs whose value is to be the target's own."""
    return plan_with(await topic_defaults(target.cluster, brokers, timeout=TIMEOUT), topics, from_target)


def plan_with(
    defaults: Mapping[str, str],
    topics: Mapping[str, SourceTopic],
    from_target: Mapping[str, Collection[str]],
) -> dict[str, SourceTopic]:
    """`plan_topics` where the target's defaults are known."""
    return {
        name: topic._replace(
            defaults=defaults,
            plan=plan_configs(
                topic.configs.overrides, topic.configs.effective, defaults, from_target.get(name, ())
            ),
        )
        for name, topic in topics.items()
    }


def check_configs(
    topics: Mapping[str, SourceTopic], replication_factors: Mapping[str, int]
) -> list[PreflightFinding]:
    """Effective configs of planned topics (`plan_topics`) that would stop the mirror, and what is not carried over."""
    findings: list[PreflightFinding] = []
    for name, topic in topics.items():
        effective = {**strictest(topic.defaults), **topic.plan.create}
        largest = largest_possible_batch(topic.configs.effective)
        segment = _number(effective.get("segment.bytes"))
        if largest is not None and segment is not None and largest > segment:
            findings.append(
                PreflightFinding(
                    "segment.bytes",
                    True,
                    f"topic {name}: a batch of the source may have {largest} bytes, but the target's segment.bytes is "
                    f"{segment}: no follower could append it",
                    f"set segment.bytes on the source topic, or log.segment.bytes at the target, to {largest} or more",
                )
            )
        compared = compare_effective(
            name, topic.configs.effective, effective, replication_factor=replication_factors.get(name)
        )
        findings += [
            PreflightFinding(found.config, found.fatal, found.message)
            for found in compared
            if found.config != "segment.bytes"
        ]
        findings += [
            PreflightFinding(config, False, f"topic {name}: {config} is not copied: {why}")
            for config, why in topic.plan.skipped.items()
        ]
        findings += [
            PreflightFinding(config, False, f"topic {name}: {config} {what}")
            for config, what in topic.plan.adjusted.items()
        ]
    return findings


def config_differences(topics: Mapping[str, SourceTopic]) -> list[PreflightFinding]:
    """Where source and target, left alone, would not do the same, and what is done about it: a line for each, with all the
    topics that it is true of."""
    alike: dict[ConfigDifference, list[str]] = {}
    for name in sorted(topics):
        for difference in topics[name].plan.differences:
            alike.setdefault(difference, []).append(name)
    return [
        PreflightFinding(
            difference.config,
            False,
            f"{'topic' if len(names) == 1 else 'topics'} {listed(names)}: {difference.said}",
        )
        for difference, names in sorted(alike.items())
    ]


def largest_possible_batch(configs: Mapping[str, str]) -> int | None:
    """The source cannot have appended a larger batch: it must pass max.message.bytes and fit a segment."""
    limits = [
        number
        for name in ("max.message.bytes", "segment.bytes")
        if (number := _number(configs.get(name))) is not None
    ]
    return min(limits, default=None)


def refuse(findings: Collection[PreflightFinding]) -> None:
    """Raise the fatal ones as one line."""
    fatal = [finding for finding in findings if finding.fatal]
    if fatal:
        first = fatal[0]
        more = f" (and {len(fatal) - 1} more findings; see linker doctor)" if len(fatal) > 1 else ""
        raise PreflightError(f"{first.detail}{f'; {first.remedy}' if first.remedy else ''}{more}")


class PreflightError(LinkerError):
    """The clusters do not allow what was asked for; nothing was changed."""


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
