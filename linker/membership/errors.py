"""Errors of the membership in the target cluster, each one line that says what to do.

`WireError`s (connections, deadlines, malformed frames, Kafka error codes) come up unchanged. This module has the errors
with a meaning of their own for membership, and the table of the rights that requests need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

from wire.client.retry import RIGHTS
from wire.errors import BrokerError, LinkerError, error_name
from wire.frames.types import TopicPartition
from wire.shown_id import listed

_MOST = 10

# From ControllerApis.scala and KafkaApis.scala: `authorizeClusterOperation` and `filterByAuthorized` in each handler.
_CLUSTER_ACTION = ("CLUSTER_ACTION", "Cluster", "--operation ClusterAction --cluster")
_ALTER = ("ALTER", "Cluster", "--operation Alter --cluster")
REQUIRED_RIGHTS: dict[str, tuple[str, str, str]] = {
    "broker_registration": _CLUSTER_ACTION,
    "broker_heartbeat": _CLUSTER_ACTION,
    "alter_partition": _CLUSTER_ACTION,
    "allocate_producer_ids": _CLUSTER_ACTION,
    "fetch": _CLUSTER_ACTION,
    "fetch_snapshot": _CLUSTER_ACTION,
    "alter_partition_reassignments": _ALTER,
    "elect_leaders": _ALTER,
    "unregister_broker": _ALTER,
    "describe_quorum": ("DESCRIBE", "Cluster", "--operation Describe --cluster"),
    "create_topics": ("CREATE", "Cluster", "--operation Create --cluster"),
    "create_partitions": ("ALTER", "Topic", "--operation Alter --topic '*'"),
    "delete_topics": ("DELETE", "Topic", "--operation Delete --topic '*'"),
    "incremental_alter_configs": ("ALTER_CONFIGS", "Topic", "--operation AlterConfigs --topic '*'"),
}


class TargetError(LinkerError):
    """Base of everything that is about membership in the target cluster."""


class MissingRight(TargetError):
    """The target refused a request because the sidecar's principal lacks a right."""

    def __init__(self, api: str, cluster: str) -> None:
        operation, resource, flags = REQUIRED_RIGHTS.get(api, ("?", "Cluster", ""))
        super().__init__(
            f"{cluster}: the sidecar's principal lacks the right {operation} on {resource} ({api} was "
            f"refused); grant it with kafka-acls.sh --add --allow-principal 'User:<sidecar>' {flags}"
        )


class TargetUnsupported(TargetError):
    """The cluster runs in ZooKeeper mode, or is too old for membership."""


class ControllerUnreachable(TargetError):
    """No active controller was found before the deadline."""


class BrokerIdTaken(TargetError):
    """A real broker, or another sidecar, is registered with our broker id."""


class ClusterIdChanged(TargetError):
    """The target is not the cluster that the stored identity belongs to."""


class RegistrationRefused(TargetError):
    """The controller refused the registration for good."""


class MetadataLogFailed(TargetError):
    """The metadata log cannot be followed any further."""


class StillHosting(TargetError):
    """Leaving was refused: partitions still name this sidecar."""

    def __init__(
        self, broker_id: int, leads: Iterable[TopicPartition], hosts: Iterable[TopicPartition]
    ) -> None:
        self.leads = sorted(leads)
        self.hosts = sorted(hosts)
        parts = []
        if self.leads:
            parts.append(f"leads {listed(list(map(str, self.leads)), _MOST)}")
        if self.hosts:
            parts.append(f"is a replica of {listed(list(map(str, self.hosts)), _MOST)}")
        super().__init__(
            f"sidecar {broker_id} cannot leave: it {' and '.join(parts)}; promote or delete these mirrors "
            "first, and reassign partitions that are no mirrors to real brokers"
        )


class OperationFailed(TargetError):
    """The controller refused an operation. `code` is the first error code, `failed` says why, by item."""

    def __init__(self, what: str, code: int, failed: dict[str, str]) -> None:
        self.code = code
        self.failed = failed
        lines = (f"{item}: {why}" for item, why in sorted(failed.items()))
        super().__init__(f"{what} failed: {listed(lines, apart='; ', last='; and ')}")


def check_error(code: int, api: str, cluster: str, message: str | None = None) -> None:
    """Raise for a top-level error code: MissingRight for an authorization failure, BrokerError otherwise."""
    if code == 0:
        return
    if code in RIGHTS:
        raise MissingRight(api, cluster)
    raise BrokerError(code, message=message, api=api, peer=cluster)


def raise_refused(
    api: str, cluster: str, what: str, failed: Mapping[str, tuple[int, str | None]]
) -> NoReturn:
    """`refusal`, raised."""
    raise refusal(api, cluster, what, failed)


def refusal(
    api: str, cluster: str, what: str, failed: Mapping[str, tuple[int, str | None]]
) -> MissingRight | OperationFailed:
    """The error to raise for refused items: MissingRight if a right is missing, OperationFailed otherwise."""
    codes = [code for code, _ in failed.values()]
    if any(code in RIGHTS for code in codes):
        return MissingRight(api, cluster)
    return OperationFailed(
        f"{cluster}: {what}",
        codes[0],
        {item: f"{error_name(code)}{f': {text}' if text else ''}" for item, (code, text) in failed.items()},
    )
