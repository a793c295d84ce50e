"""Membership in the target cluster: the sidecar as a broker of a KRaft cluster.

`TargetCluster` (cluster.py) composes the parts: the channel to the active controller, the replayed metadata
log, registration with heartbeats, and the operations a link broker asks of the controller. Nothing here
serves followers or clients.
"""

from linker.target.alter_partition import AlterPartitionItem
from linker.target.cluster import TargetCluster
from linker.target.controller_channel import ControllerChannel
from linker.target.discovery import ActiveController
from linker.target.errors import (
    BrokerIdTaken,
    ClusterIdChanged,
    ControllerUnreachable,
    MetadataLogFailed,
    MissingRight,
    OperationFailed,
    RegistrationRefused,
    StillHosting,
    TargetError,
    TargetUnsupported,
)
from linker.target.identity import AdvertisedListener, Identity
from linker.target.metadata_log import MetadataLog
from linker.target.operations import TargetOperations
from linker.target.registration import Registration

__all__ = [
    "ActiveController",
    "AdvertisedListener",
    "AlterPartitionItem",
    "BrokerIdTaken",
    "ClusterIdChanged",
    "ControllerChannel",
    "ControllerUnreachable",
    "Identity",
    "MetadataLog",
    "MetadataLogFailed",
    "MissingRight",
    "OperationFailed",
    "Registration",
    "RegistrationRefused",
    "StillHosting",
    "TargetCluster",
    "TargetError",
    "TargetOperations",
    "TargetUnsupported",
]
