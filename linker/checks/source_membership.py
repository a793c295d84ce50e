"""Whether the sidecar may become a broker of a link's source: asked before it joins, by link update and by doctor.

Only questions are asked. They go to the active controller, by the way and with the principal of a join.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.state import JsonValue
from linker.checks.preflight import (
    PreflightFinding,
    allowed,
    describe_topics,
    forbidden,
    lacks,
)
from linker.links.mirrors import read_only_by
from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import MissingRight, TargetUnsupported, check_error
from linker.membership.versions import check_versions
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.types import AclRight

NAME = "joining the source"
TIMEOUT = 10.0
#: 3.7-IV2: registrations keep the log dirs, by which the sidecars of a fleet know each other there.
LEAST_METADATA_VERSION = 17
_FEATURE = "metadata.version"
_CONTROLLERS = 2  # DescribeCluster's endpoint type (KIP-919)


def refused_by_options(options: Mapping[str, JsonValue]) -> str | None:
    """Why a link with these options does not join its source; None if it may."""
    option = read_only_by(options)
    if option is None:
        return None
    return (
        f"a link with {option} does not join its source: its mirrors are read-only, and nothing is switched to them; "
        + (
            "make a link without a prefix for what is to be switched"
            if option.startswith("prefix")
            else "set forwarding=on"
        )
    )


def no_section(link: str, broker_id: int) -> str:
    return (
        f"the configuration of sidecar {broker_id} has no section sources.{link}: give it broker.id and listeners there, "
        "and restart the sidecar"
    )


async def controller_findings(channel: ControllerChannel, cluster_id: str) -> list[PreflightFinding]:
    """Check the controllers of a source: they can be reached, are new enough, and grant the rights on Cluster."""
    try:
        active = await channel.discover(TIMEOUT)
        _, connection = await channel.connection("heartbeat", timeout=TIMEOUT)
        check_versions(connection, channel.cluster_name, active.address)
        await connection.api_versions(version=4, timeout=TIMEOUT)
        level = connection.finalized_features.get(_FEATURE, (0, 0))[1]
        if level < LEAST_METADATA_VERSION:
            return [
                fatal(
                    f"{channel.cluster_name} has finalized metadata.version {level}, and {LEAST_METADATA_VERSION} "
                    "(3.7-IV2) is the least",
                    "kafka-features.sh --bootstrap-server ... upgrade --release-version 3.9",
                )
            ]
        answer = await connection.call(
            "describe_cluster",
            {"include_cluster_authorized_operations": True, "endpoint_type": _CONTROLLERS},
            timeout=TIMEOUT,
        )
        check_error(int(answer.error_code), "alter_partition_reassignments", channel.cluster_name)
        if answer.cluster_id != cluster_id:
            return [
                fatal(
                    f"the controller at {active.address} is of cluster {answer.cluster_id}, the source is {cluster_id}",
                    "correct controller.quorum.bootstrap.servers in the link's section below sources",
                )
            ]
    except MissingRight as error:
        return [fatal(str(error))]
    except TargetUnsupported as error:
        return [fatal(str(error))]
    except LinkerError as error:
        return [
            fatal(
                f"the controllers are not reached: {error}",
                "open their port to this machine, and give controller.quorum.bootstrap.servers and controller.* security "
                "properties in the link's section below sources; where controllers are closed to all, as in managed "
                "clusters, a sidecar cannot join, and the link works without",
            )
        ]
    return cluster_rights(answer.cluster_authorized_operations)


def cluster_rights(operations: int) -> list[PreflightFinding]:
    """Those that a broker of the source needs, and that these do not allow."""
    return [
        lacks(NAME, right)
        for right in (AclRight.CLUSTER_ACTION, AclRight.ALTER)
        if not allowed(operations, right)
    ]


async def topic_findings(source: Cluster, topics: Collection[str]) -> list[PreflightFinding]:
    """The right to change configs of mirrored topics, which a switch needs for the time that it takes."""
    if not topics:
        return []
    response = await describe_topics(source, sorted(topics))
    return [
        lacks(NAME, AclRight.ALTER_CONFIGS, topic.name)
        for topic in response.topics
        if forbidden(topic, AclRight.ALTER_CONFIGS)
    ]


async def id_findings(source: Cluster, broker_id: int, link: str) -> list[PreflightFinding]:
    """A broker of the source that has our id. One that is down is not listed there: the join itself sees it."""
    answer = await source.call("describe_cluster", {}, timeout=TIMEOUT)
    return [
        fatal(
            f"broker id {broker_id} is taken at the source, by a broker at {one.host}:{one.port}",
            f"choose another one: broker.id in section sources.{link} of the configuration",
        )
        for one in answer.brokers
        if one.broker_id == broker_id
    ]


def fatal(detail: str, remedy: str | None = None) -> PreflightFinding:
    return PreflightFinding(NAME, True, detail, remedy)
