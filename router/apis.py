"""Decides who answers each kind of request, the sidecar or a real broker: one row for every api key of Kafka 4.3.

Clients address a request to a broker for a reason. Where any broker's answer is as good, one real broker's is given. Where
the question is about this broker, or about a partition that it leads, no other one may answer in its name: it would be
counted twice, refused as misaddressed, or tried again for ever.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Answerer(Enum):
    """The side that answers."""

    SERVED = "served here"
    ADDRESSED = (
        "answered here, as a broker that has nothing; what is about other things goes to a real broker"
    )
    ANY_BROKER = "passed to a real broker: it knows, or passes it on to the controller, or names who does"
    REFUSED = "the connection is closed, as a broker does: it is for controllers or for brokers of long ago"


_SERVED: Final = frozenset(
    {
        0,  # Produce
        1,  # Fetch
        2,  # ListOffsets
        17,  # SaslHandshake
        18,  # ApiVersions
        23,  # OffsetForLeaderEpoch
        27,  # WriteTxnMarkers
        36,  # SaslAuthenticate
    }
)

LIST_GROUPS: Final = 16
DELETE_RECORDS: Final = 21
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35
INCREMENTAL_ALTER_CONFIGS: Final = 44
DESCRIBE_PRODUCERS: Final = 61
LIST_TRANSACTIONS: Final = 66
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79

ABOUT_THE_BROKER: Final = frozenset(
    {
        LIST_GROUPS,
        DESCRIBE_CONFIGS,
        ALTER_CONFIGS,
        ALTER_REPLICA_LOG_DIRS,
        DESCRIBE_LOG_DIRS,
        INCREMENTAL_ALTER_CONFIGS,
        LIST_TRANSACTIONS,
    }
)
TO_A_LEADER: Final = frozenset({DELETE_RECORDS, DESCRIBE_PRODUCERS, SHARE_FETCH, SHARE_ACKNOWLEDGE})

#: Answered where the cluster is run by ZooKeeper.
OF_A_CONTROLLER: Final = frozenset(range(4, 7))  # LeaderAndIsr, StopReplica, UpdateMetadata
REFUSED: Final = frozenset(
    {
        *OF_A_CONTROLLER,
        7,  # ControlledShutdown: before KRaft
        *range(52, 55),  # Vote, BeginQuorumEpoch, EndQuorumEpoch
        56,  # AlterPartition
        58,  # Envelope
        59,  # FetchSnapshot
        62,  # BrokerRegistration
        63,  # BrokerHeartbeat
        67,  # AllocateProducerIds
        70,  # ControllerRegistration
        73,  # AssignReplicasToDirs
        82,  # UpdateRaftVoter
    }
)

# By reason, for whoever changes it.
_ANY_BROKER: Final = frozenset(
    {
        # Out of the metadata, which all brokers have.
        3,  # Metadata
        29,  # DescribeAcls
        41,  # DescribeDelegationToken
        48,  # DescribeClientQuotas
        50,  # DescribeUserScramCredentials
        60,  # DescribeCluster
        74,  # ListConfigResources
        75,  # DescribeTopicPartitions
        # A broker passes it on to the controller.
        19,  # CreateTopics
        20,  # DeleteTopics
        30,  # CreateAcls
        31,  # DeleteAcls
        37,  # CreatePartitions
        38,  # CreateDelegationToken
        39,  # RenewDelegationToken
        40,  # ExpireDelegationToken
        43,  # ElectLeaders
        45,  # AlterPartitionReassignments
        46,  # ListPartitionReassignments
        49,  # AlterClientQuotas
        51,  # AlterUserScramCredentials
        55,  # DescribeQuorum
        57,  # UpdateFeatures
        64,  # UnregisterBroker
        80,  # AddRaftVoter
        81,  # RemoveRaftVoter
        # Of a coordinator, which this broker never is: a real broker is it, or says NOT_COORDINATOR.
        8,  # OffsetCommit
        9,  # OffsetFetch
        10,  # FindCoordinator
        11,  # JoinGroup
        12,  # Heartbeat
        13,  # LeaveGroup
        14,  # SyncGroup
        15,  # DescribeGroups
        22,  # InitProducerId; without a transactional id any broker's ids are as good
        24,  # AddPartitionsToTxn
        25,  # AddOffsetsToTxn
        26,  # EndTxn
        28,  # TxnOffsetCommit
        42,  # DeleteGroups
        47,  # OffsetDelete
        65,  # DescribeTransactions
        68,  # ConsumerGroupHeartbeat
        69,  # ConsumerGroupDescribe
        76,  # ShareGroupHeartbeat
        77,  # ShareGroupDescribe
        83,  # InitializeShareGroupState
        84,  # ReadShareGroupState
        85,  # WriteShareGroupState
        86,  # DeleteShareGroupState
        87,  # ReadShareGroupStateSummary
        88,  # StreamsGroupHeartbeat
        89,  # StreamsGroupDescribe
        90,  # DescribeShareGroupOffsets
        91,  # AlterShareGroupOffsets
        92,  # DeleteShareGroupOffsets
        # Of whoever was asked first; a client that comes to another broker begins again.
        71,  # GetTelemetrySubscriptions
        72,  # PushTelemetry
    }
)

DECIDED: Final[dict[int, Answerer]] = {
    **dict.fromkeys(_SERVED, Answerer.SERVED),
    **dict.fromkeys(ABOUT_THE_BROKER | TO_A_LEADER, Answerer.ADDRESSED),
    **dict.fromkeys(REFUSED, Answerer.REFUSED),
    **dict.fromkeys(_ANY_BROKER, Answerer.ANY_BROKER),
}
