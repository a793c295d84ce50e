"""A Kafka cluster in memory on real loopback sockets, for tests only.

`FakeCluster` holds topics and nodes; `FakeBroker` is one node's socket. One module per api answers requests
the way Kafka's broker does; `Fault` makes an answer go wrong. What is not modelled: replication between the
nodes (all replicas of a partition share one log), groups, ACLs, compaction.
"""

from tests.fakes.batches import BatchInfo, build_batch, control_batch, parse_batches, values_of
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster, FakePartition, FakeTopic
from tests.fakes.faults import Fault
from tests.fakes.log import FakeLog

__all__ = [
    "BatchInfo",
    "FakeBroker",
    "FakeCluster",
    "FakeLog",
    "FakePartition",
    "FakeTopic",
    "Fault",
    "build_batch",
    "control_batch",
    "parse_batches",
    "values_of",
]
