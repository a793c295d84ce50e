"""Results of the validator as JSON and back: of a partition, and the evidence of a promote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any

from controller.json_fields import fields_of, int_of, list_of, optional, str_of, typed
from controller.state import (
    EvidenceStatus,
    JsonValue,
    MissingRecords,
    PartitionValidation,
    PromoteEvidence,
    ReplicaValidation,
    ValidationMismatch,
)


def encode(validation: PartitionValidation) -> dict[str, JsonValue]:
    """The value stored for a partition."""
    mismatch = validation.mismatch
    return {
        "replicas": [_plain(replica) for replica in validation.replicas],
        "mismatch": None if mismatch is None else _plain(mismatch),
    }


def decode(link: str, topic: str, partition: int, fields: Mapping[str, Any]) -> PartitionValidation:
    """The results; KeyError, TypeError or ValueError for a value that `encode` cannot have written."""
    mismatch = fields["mismatch"]
    return PartitionValidation(
        link=link,
        topic=topic,
        partition=partition,
        replicas=tuple(_decode_replica(fields_of(replica)) for replica in list_of(fields, "replicas")),
        mismatch=None if mismatch is None else _decode_mismatch(fields_of(mismatch)),
    )


def _decode_replica(fields: Mapping[str, Any]) -> ReplicaValidation:
    return ReplicaValidation(
        broker_id=int_of(fields, "broker_id"),
        start=int_of(fields, "start"),
        through=int_of(fields, "through"),
        batches=int_of(fields, "batches"),
        records=int_of(fields, "records"),
        bytes=int_of(fields, "bytes"),
        digest=str_of(fields, "digest"),
        source_digest=str_of(fields, "source_digest"),
        lawful={str(k): int(v) for k, v in fields["lawful"].items()},
        missing=_decode_missing(fields.get("missing")),  # older state has none
        at=int_of(fields, "at"),
    )


def _decode_missing(value: JsonValue) -> MissingRecords | None:
    if value is None:
        return None
    fields = fields_of(value)
    return MissingRecords(
        start=int_of(fields, "start"),
        end=int_of(fields, "end"),
        batches=int_of(fields, "batches"),
        records=int_of(fields, "records"),
        exact=typed(fields, "exact", bool),
        why=str_of(fields, "why"),
    )


def _decode_mismatch(fields: Mapping[str, Any]) -> ValidationMismatch:
    return ValidationMismatch(
        broker_id=int_of(fields, "broker_id"),
        offset=int_of(fields, "offset"),
        kind=str_of(fields, "kind"),
        detail=str_of(fields, "detail"),
        source=optional(fields, "source", str),
        replica=optional(fields, "replica", str),
        at=int_of(fields, "at"),
    )


def encode_evidence(evidence: PromoteEvidence) -> dict[str, JsonValue]:
    """The evidence inside a promote's value."""
    return _plain(evidence)


def decode_evidence(fields: Mapping[str, Any]) -> PromoteEvidence:
    """As `decode`, for the evidence of a promote."""
    return PromoteEvidence(
        status=EvidenceStatus(fields["status"]),
        replicas=int_of(fields, "replicas"),
        batches=int_of(fields, "batches"),
        records=int_of(fields, "records"),
        bytes=int_of(fields, "bytes"),
        mismatches=int_of(fields, "mismatches"),
        missing_records=int_of(fields, "missing_records") if "missing_records" in fields else 0,
        trouble=optional(fields, "trouble", str),
        html=optional(fields, "html", str),
        json=optional(fields, "json", str),
        parquet=optional(fields, "parquet", str),
        ended_at=optional(fields, "ended_at", int),
    )


def _plain(
    value: ReplicaValidation | MissingRecords | ValidationMismatch | PromoteEvidence,
) -> dict[str, JsonValue]:
    """The fields by their names; enums are strings already."""
    return {
        field.name: dict(found)
        if isinstance(found := getattr(value, field.name), Mapping)
        else _plain(found)
        if isinstance(found, MissingRecords)
        else found
        for field in dataclass_fields(value)
        if field.name != "missing" or getattr(value, field.name) is not None
    }
