"""Evidence for tests: one that proves equality, to be changed by each test in one place."""

from __future__ import annotations

from typing import Any

from validator.compare.facts import Finding, FindingKind
from validator.evidence.model import ClusterFacts, Evidence, PartitionEvidence, ReplicaEvidence

DIGEST = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2


def replica(broker_id: int = 1, **changes: Any) -> ReplicaEvidence:
    fields = {
        "broker_id": broker_id,
        "start": 0,
        "through": 100,
        "end": 100,
        "batches": 10,
        "records": 100,
        "bytes": 5000,
        "source_digest": DIGEST,
        "digest": DIGEST,
    }
    return ReplicaEvidence(**{**fields, **changes})


def partition(
    *replicas: ReplicaEvidence, topic: str = "orders", index: int = 0, **changes: Any
) -> PartitionEvidence:
    fields = {"topic": topic, "partition": index, "start": 0, "end": 100, "replicas": replicas}
    return PartitionEvidence(**{**fields, **changes})


def evidence(*partitions: PartitionEvidence, **changes: Any) -> Evidence:
    fields = {
        "link": "east",
        "promote": "p-1",
        "source": ClusterFacts(name="east"),
        "target": ClusterFacts(name="west"),
        "started_ms": 1_700_000_000_000,
        "partitions": partitions,
    }
    return Evidence(**{**fields, **changes})


def finding(kind: FindingKind = FindingKind.MISSING, offset: int = 7, detail: str = "not there") -> Finding:
    return Finding(kind=kind, offset=offset, detail=detail)
