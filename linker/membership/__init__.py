"""Membership in the target cluster: the sidecar as a broker of a KRaft cluster.

- `alter_partition`: the AlterPartition request, built from the image with the epochs it has at that moment
- `cluster`: membership put together
- `controller_channel`: the way to the active controller: finds it, keeps one connection per purpose, follows it when
  it moves
- `discovery`: who is the active controller: asked of the controllers themselves, or of the target's brokers
- `errors`: errors of the membership in the target cluster, each one line that says what to do
- `hosting`: which partitions need a broker: what keeps a link broker from leaving the target
- `identity`: who the sidecar is in the target, and what it offers when it registers
- `inter_broker`: on which listeners the target's brokers talk to each other, as they say themselves: followers come
  in there only
- `internal_topics`: kafka's own topics at a target that might otherwise place them on a link broker
- `metadata_log`: the target's metadata log, followed as an observer and replayed into a ClusterImage
- `operations`: what a link broker asks of the target's controller: replicas, ISR changes, brokers, elections,
  producer ids
- `producer_id_blocks`: moving the target's producer id allocator: AllocateProducerIds over several connections at
  once (KIP-730)
- `quorum`: what the answers of the controllers say of their quorum: its epoch, who leads it, and whether it is the
  cluster's
- `raft_requests`: fetch and FetchSnapshot of the metadata partition, as an observer sends them
- `refusals`: what it means that the target does not take this sidecar for a broker, in words that say what to do
- `registration`: being a broker of the target: identity, registration, heartbeats, leaving
- `topic_operations`: topics of the target and their configs, as a link broker asks its controller for them
- `uncommitted`: the end of the metadata log that is fetched but not committed
- `versions`: what a controller must offer for a link broker to live in its cluster
"""

from linker.membership.alter_partition import AlterPartitionItem
from linker.membership.cluster import TargetCluster
from linker.membership.controller_channel import ControllerChannel
from linker.membership.discovery import ActiveController
from linker.membership.errors import (
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
from linker.membership.identity import AdvertisedListener, Identity
from linker.membership.metadata_log import MetadataLog
from linker.membership.operations import TargetOperations
from linker.membership.registration import Registration

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
