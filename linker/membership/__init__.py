"""Membership in the target cluster: the sidecar as a broker of a KRaft cluster.

- `cluster`: TargetCluster, which puts the parts together
- `controller_channel`: requests to the active controller, over one connection per purpose
- `discovery`: finds the active controller by asking the controllers, or the target's brokers
- `errors`: errors of the membership, each one line that says what to do
- `hosting`: how a broker leaves the target: the partitions that keep it there, and its unregistration
- `identity`: the sidecar's identity in the target, and the features it registers with
- `inter_broker`: the listeners on which a cluster's brokers talk to each other
- `internal_topics`: makes the target create Kafka's own topics before a link broker could be given them
- `metadata_log`: follows the target's metadata log as an observer, and replays it into a ClusterImage
- `operations`: requests of a link broker to the controller: reassignments, ISRs, brokers, elections, producer ids
- `producer_id_blocks`: moves the target's producer id allocator (AllocateProducerIds, KIP-730)
- `quorum`: the quorum as the controllers' answers show it: its epoch, its leader, its cluster
- `raft_requests`: Fetch and FetchSnapshot requests for the metadata partition, as an observer sends them
- `refusals`: explains why the target does not accept this sidecar as a broker
- `registration`: the life of a broker of the target: registration, heartbeats, leaving
- `snapshots`: reads a snapshot of the metadata log from the active controller (FetchSnapshot, KIP-630)
- `topic_operations`: requests of a link broker to the controller about topics and their configs
- `uncommitted`: the end of the metadata log that is fetched but not committed
- `versions`: the API versions that a controller must have
- `watched_image`: an image of a cluster, and those who wait for its changes
"""

from linker.membership.cluster import TargetCluster
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

__all__ = [
    "AdvertisedListener",
    "BrokerIdTaken",
    "ClusterIdChanged",
    "ControllerUnreachable",
    "Identity",
    "MetadataLogFailed",
    "MissingRight",
    "OperationFailed",
    "RegistrationRefused",
    "StillHosting",
    "TargetCluster",
    "TargetError",
    "TargetUnsupported",
]
