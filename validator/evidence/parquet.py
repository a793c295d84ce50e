"""The evidence as a Parquet file: one row per replica, so that many promotes fit one table.

Facts of the promote as a whole are repeated in every row where one would group by them (link, promote, verdict), and
stand complete in the file's metadata under `kafka-linker.evidence`, as JSON without partitions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from validator.evidence.model import Evidence, PartitionEvidence, ReplicaEvidence
from validator.evidence.verdict import replica_verdict, verdict_of

METADATA_KEY = b"kafka-linker.evidence"
ROWS_PER_GROUP = 10_000

_BATCH = pa.struct(
    [(name, pa.int64()) for name in ("base_offset", "last_offset", "records", "size", "crc", "crc_computed")]
    + [
        ("attributes", pa.int32()),
        ("codec", pa.string()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
    ]
    + [("base_sequence", pa.int32()), ("max_timestamp", pa.int64())]
)
_FINDING = pa.struct(
    [
        ("kind", pa.string()),
        ("offset", pa.int64()),
        ("detail", pa.string()),
        ("source", _BATCH),
        ("replica", _BATCH),
    ]
)
_SAMPLE = pa.struct(
    [
        ("at_ms", pa.int64()),
        ("source_end", pa.int64()),
        ("lag", pa.int64()),
        ("bytes_per_second", pa.float64()),
        ("validated", pa.int64()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("link", pa.string(), nullable=False),
        ("promote", pa.string()),
        pa.field("verdict", pa.string(), nullable=False),
        ("reason", pa.string()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        ("source_topic_id", pa.string()),
        ("target_topic_id", pa.string()),
        ("compacted", pa.bool_()),
        pa.field("broker_id", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        ("through", pa.int64()),
        ("source_end", pa.int64()),
        ("replica_end", pa.int64()),
        ("handed_over", pa.timestamp("ms", tz="UTC")),
        ("validated", pa.timestamp("ms", tz="UTC")),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("source_digest", pa.string()),
        ("digest", pa.string()),
        ("tail_equal", pa.bool_()),
        ("findings_count", pa.int64()),
        ("findings", pa.list_(_FINDING)),
        ("lawful", pa.map_(pa.string(), pa.int64())),
        ("source_start", pa.int64()),
        ("replica_start", pa.int64()),
        ("proved_from", pa.int64()),
        ("missing_from", pa.int64()),
        ("missing_to", pa.int64()),
        ("missing_batches", pa.int64()),
        ("missing_records", pa.int64()),
        ("missing_exact", pa.bool_()),
        ("missing_why", pa.string()),
        ("samples", pa.list_(_SAMPLE)),
    ]
)


def write(evidence: Evidence, path: Path) -> None:
    """Raises OSError if the file cannot be written."""
    whole = evidence.model_dump(mode="json", exclude={"partitions"})
    whole["verdict"], whole["verdict_reason"] = verdict_of(evidence)
    metadata = {METADATA_KEY: json.dumps(whole).encode()}
    topics = {topic.topic: topic for topic in evidence.topics}
    with pq.ParquetWriter(path, SCHEMA.with_metadata(metadata), compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for partition in evidence.partitions:
            topic = topics.get(partition.topic)
            rows += [_row(evidence, partition, replica, topic) for replica in partition.replicas]
            if len(rows) >= ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))
                rows = []
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))


def _row(
    evidence: Evidence, partition: PartitionEvidence, replica: ReplicaEvidence, topic: Any
) -> dict[str, Any]:
    verdict, reason = replica_verdict(partition, replica)
    return {
        "link": evidence.link,
        "promote": evidence.promote,
        "verdict": verdict.value,
        "reason": reason,
        "topic": partition.topic,
        "partition": partition.partition,
        "source_topic_id": topic.source_topic_id if topic is not None else None,
        "target_topic_id": topic.target_topic_id if topic is not None else None,
        "compacted": topic.compacted if topic is not None else None,
        "broker_id": replica.broker_id,
        "start": replica.start,
        "through": replica.through,
        "source_end": partition.end,
        "replica_end": replica.end,
        "handed_over": partition.handed_over_ms,
        "validated": replica.validated_ms,
        "batches": replica.batches,
        "records": replica.records,
        "bytes": replica.bytes,
        "source_digest": replica.source_digest,
        "digest": replica.digest,
        "tail_equal": replica.tail_equal,
        "findings_count": max(replica.findings_count, len(replica.findings)),
        "findings": [finding.model_dump(mode="json") for finding in replica.findings],
        "lawful": list(replica.lawful.items()),
        "source_start": partition.source_start,
        "replica_start": replica.log_start,
        "proved_from": replica.proved_from,
        "missing_from": None if replica.missing is None else replica.missing.start,
        "missing_to": None if replica.missing is None else replica.missing.end,
        "missing_batches": 0 if replica.missing is None else replica.missing.batches,
        "missing_records": 0 if replica.missing is None else replica.missing.records,
        "missing_exact": None if replica.missing is None else replica.missing.exact,
        "missing_why": None if replica.missing is None else replica.missing.why,
        "samples": [
            {
                "at_ms": sample.at_ms,
                "source_end": sample.source_end,
                "lag": sample.lag,
                "bytes_per_second": sample.bytes_per_second,
                "validated": sample.validated.get(replica.broker_id),
            }
            for sample in partition.samples
        ],
    }
