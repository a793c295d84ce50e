"""The evidence as a Parquet file: one row per replica, so that many promotes fit one table.

Facts of the promote as a whole are repeated in every row where one would group by them (link, promote, verdict), and
stand complete in the file's metadata under `kafka-linker.evidence`, as JSON without partitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from validator.evidence.model import Evidence, PartitionEvidence, ReplicaEvidence, TopicEvidence
from validator.evidence.verdict import replica_verdict, verdict_of

METADATA_KEY = b"kafka-linker.evidence"
ROWS_PER_GROUP = 10_000
_INT, _INT32, _TEXT, _BOOL = pa.int64(), pa.int32(), pa.string(), pa.bool_()
_TIME = pa.timestamp("ms", tz="UTC")

_BATCH = pa.struct(
    [(name, _INT) for name in ("base_offset", "last_offset", "records", "size", "crc", "crc_computed")]
    + [("attributes", _INT32), ("codec", _TEXT), ("producer_id", _INT), ("producer_epoch", _INT32)]
    + [("base_sequence", _INT32), ("max_timestamp", _INT)]
)
_FINDING = pa.struct(
    [("kind", _TEXT), ("offset", _INT), ("detail", _TEXT), ("source", _BATCH), ("replica", _BATCH)]
)
_SAMPLE = pa.struct(
    [
        *((name, _INT) for name in ("at_ms", "source_end", "lag")),
        ("bytes_per_second", pa.float64()),
        ("validated", _INT),
    ]
)


class _Row(NamedTuple):
    """One replica with what it belongs to."""

    evidence: Evidence
    topic: TopicEvidence | None
    partition: PartitionEvidence
    replica: ReplicaEvidence
    verdict: str
    reason: str | None


def _of_topic(name: str) -> Callable[[_Row], Any]:
    return lambda row: None if row.topic is None else getattr(row.topic, name)


def _missing(name: str, none: int | None = None) -> Callable[[_Row], Any]:
    return lambda row: none if row.replica.missing is None else getattr(row.replica.missing, name)


def _samples(row: _Row) -> list[dict[str, Any]]:
    return [
        sample.model_dump(exclude={"validated"}) | {"validated": sample.validated.get(row.replica.broker_id)}
        for sample in row.partition.samples
    ]


# Name, type and value of each column.
_COLUMNS: tuple[tuple[str, pa.DataType, Callable[[_Row], Any]], ...] = (
    ("link", _TEXT, attrgetter("evidence.link")),
    ("promote", _TEXT, attrgetter("evidence.promote")),
    ("verdict", _TEXT, attrgetter("verdict")),
    ("reason", _TEXT, attrgetter("reason")),
    ("topic", _TEXT, attrgetter("partition.topic")),
    ("partition", _INT32, attrgetter("partition.partition")),
    ("source_topic", _TEXT, _of_topic("source_topic")),
    ("source_topic_id", _TEXT, _of_topic("source_topic_id")),
    ("target_topic_id", _TEXT, _of_topic("target_topic_id")),
    ("compacted", _BOOL, _of_topic("compacted")),
    ("broker_id", _INT32, attrgetter("replica.broker_id")),
    ("start", _INT, attrgetter("replica.start")),
    ("through", _INT, attrgetter("replica.through")),
    ("source_end", _INT, attrgetter("partition.end")),
    ("replica_end", _INT, attrgetter("replica.end")),
    ("handed_over", _TIME, attrgetter("partition.handed_over_ms")),
    ("validated", _TIME, attrgetter("replica.validated_ms")),
    ("batches", _INT, attrgetter("replica.batches")),
    ("records", _INT, attrgetter("replica.records")),
    ("bytes", _INT, attrgetter("replica.bytes")),
    ("source_digest", _TEXT, attrgetter("replica.source_digest")),
    ("digest", _TEXT, attrgetter("replica.digest")),
    ("tail_equal", _BOOL, attrgetter("replica.tail_equal")),
    ("findings_count", _INT, lambda row: max(row.replica.findings_count, len(row.replica.findings))),
    (
        "findings",
        pa.list_(_FINDING),
        lambda row: [one.model_dump(mode="json") for one in row.replica.findings],
    ),
    ("lawful", pa.map_(_TEXT, _INT), lambda row: list(row.replica.lawful.items())),
    ("source_start", _INT, attrgetter("partition.source_start")),
    ("replica_start", _INT, attrgetter("replica.log_start")),
    ("proved_from", _INT, attrgetter("replica.proved_from")),
    ("missing_from", _INT, _missing("start")),
    ("missing_to", _INT, _missing("end")),
    ("missing_batches", _INT, _missing("batches", 0)),
    ("missing_records", _INT, _missing("records", 0)),
    ("missing_exact", _BOOL, _missing("exact")),
    ("missing_why", _TEXT, _missing("why")),
    ("samples", pa.list_(_SAMPLE), _samples),
)
_NEVER_NULL = {"link", "verdict", "topic", "partition", "broker_id", "start"}
SCHEMA = pa.schema([pa.field(name, kind, nullable=name not in _NEVER_NULL) for name, kind, _ in _COLUMNS])


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
            for replica in partition.replicas:
                row = _Row(evidence, topic, partition, replica, *replica_verdict(partition, replica))
                rows.append({name: value(row) for name, _, value in _COLUMNS})
            if len(rows) >= ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))
                rows = []
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))
