"""Entities to JSON values and back. Strict: a value that this version does not understand is CorruptState with its path.

Values do not repeat the names that the path holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller import group_codec, keys, validation_codec
from controller.errors import CorruptState, InvalidName
from controller.json_fields import fields_of, int_of, list_of, optional, str_of, typed
from controller.phases import Phase
from controller.state import (
    AbortedTransaction,
    Attempt,
    Entity,
    Failover,
    JobStatus,
    JsonValue,
    Link,
    MirrorGroup,
    MirrorPartition,
    MirrorTopic,
    PartitionValidation,
    ProducerIdFloor,
    PromoteJob,
    SidecarIdentity,
    ValidationPolicy,
)
from wire.frames.types import TopicPartition, parse_topic_id, topic_id_str


def path_of(entity: Entity) -> str:
    """The path of an entity in the store."""
    match entity:
        case Link():
            return keys.link(entity.name)
        case MirrorTopic():
            return keys.mirror(entity.link, entity.topic)
        case MirrorPartition():
            return keys.partition_state(entity.link, entity.tp)
        case PartitionValidation():
            return keys.partition_validation(entity.link, entity.tp)
        case ProducerIdFloor():
            return keys.producer_ids(entity.link)
        case PromoteJob():
            return keys.promote_job(entity.link, entity.id)
        case SidecarIdentity():
            return keys.sidecar_identity(entity.broker_id)
        case MirrorGroup():
            return keys.group(entity.link, entity.group)


def encode(entity: Entity) -> dict[str, JsonValue]:
    """The value stored at `path_of(entity)`."""
    match entity:
        case Link():
            return {
                "source_cluster_id": entity.source_cluster_id,
                "properties": dict(entity.properties),
                "options": dict(entity.options),
                "created_at": entity.created_at,
            }
        case MirrorTopic():
            return {
                "topic_id": topic_id_str(entity.topic_id),
                "source_topic_id": None
                if entity.source_topic_id is None
                else topic_id_str(entity.source_topic_id),
                "partitions": entity.partitions,
                "paused": entity.paused,
                "start": entity.start,
                "target_replicas": [list(replicas) for replicas in entity.target_replicas],
                "copied_configs": dict(entity.copied_configs),
                "restore_configs": dict(entity.restore_configs),
                "configs_from_target": list(entity.configs_from_target),
                "created_at": entity.created_at,
            }
        case MirrorPartition():
            return _encode_partition(entity)
        case PartitionValidation():
            return validation_codec.encode(entity)
        case ProducerIdFloor():
            return {
                "floor": entity.floor,
                "source_seen": entity.source_seen,
                "sampled_at": entity.sampled_at,
            }
        case PromoteJob():
            return {
                "partitions": [[tp.topic, tp.partition] for tp in entity.partitions],
                "failover": entity.failover,
                "status": entity.status.value,
                "started_at": entity.started_at,
                "ended_at": entity.ended_at,
                "reason": entity.reason,
                "phases_ms": dict(entity.phases_ms),
                "validation": entity.validation.value,
                "warnings": list(entity.warnings),
                "evidence": None
                if entity.evidence is None
                else validation_codec.encode_evidence(entity.evidence),
                "source_fenced": list(entity.source_fenced),
                # Written only when set: these fields are newer than the rest, and older stores have none.
                **({"closed_for_good": list(entity.closed_for_good)} if entity.closed_for_good else {}),
                **({"accept_missing": entity.accept_missing} if entity.accept_missing else {}),
                **({} if entity.requested_by is None else {"requested_by": entity.requested_by}),
            }
        case SidecarIdentity():
            return {
                "incarnation_id": topic_id_str(entity.incarnation_id),
                "log_dir_id": topic_id_str(entity.log_dir_id),
                "broker_epoch": entity.broker_epoch,
                "cluster_id": entity.cluster_id,
                "session": entity.session,
                "lease": entity.lease,
                "draining": entity.draining,
                "leaving": entity.leaving,
            }
        case MirrorGroup():
            return group_codec.encode(entity)


def _encode_partition(state: MirrorPartition) -> dict[str, JsonValue]:
    attempt = state.attempt
    return {
        "phase": state.phase.value,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
        "controller_epoch": state.controller_epoch,
        "session_epoch": state.session_epoch,
        "start_offset": state.start_offset,
        "source_epochs": [list(entry) for entry in state.source_epochs],
        "untruncated": [list(entry) for entry in state.untruncated],
        "reason": state.reason,
        "failure": state.failure,
        "aligned_end": state.aligned_end,
        "attempt": None
        if attempt is None
        else {"leader_epoch": attempt.leader_epoch, "partition_epoch": attempt.partition_epoch},
        "failover": None if state.failover is None else _encode_failover(state.failover),
        "since": state.since,
    }


def _encode_failover(failover: Failover) -> dict[str, JsonValue]:
    return {
        "before": failover.before.value,
        "source_end": failover.source_end,
        "acked_end": failover.acked_end,
        "end": failover.end,
        "replica": failover.replica,
        "unasked": list(failover.unasked),
        "aborted": [[a.producer_id, a.producer_epoch, a.start_offset] for a in failover.aborted],
    }


def decode(path: str, value: JsonValue) -> Entity | None:
    """The entity stored at a path; None for a path without an entity (such as /controller_epoch)."""
    try:
        segments = keys.split(path)
        match segments:
            case ("links", link):
                return _decode_link(link, fields_of(value))
            case ("links", link, "mirrors", topic):
                return _decode_mirror(link, topic, fields_of(value))
            case ("links", link, "mirrors", topic, partition, "state"):
                return _decode_partition(link, topic, int(partition), fields_of(value))
            case ("links", link, "mirrors", topic, partition, "validation"):
                return validation_codec.decode(link, topic, int(partition), fields_of(value))
            case ("links", link, "producer_ids"):
                fields = fields_of(value)
                return ProducerIdFloor(
                    link=link,
                    floor=int_of(fields, "floor"),
                    source_seen=int_of(fields, "source_seen"),
                    sampled_at=int_of(fields, "sampled_at"),
                )
            case ("links", link, "promotes", job_id):
                return _decode_job(link, int(job_id), fields_of(value))
            case ("links", link, "groups", group):
                return group_codec.decode(link, keys.group_name(group), fields_of(value))
            case ("sidecars", "identities", broker_id):
                fields = fields_of(value)
                return SidecarIdentity(
                    broker_id=int(broker_id),
                    incarnation_id=parse_topic_id(str_of(fields, "incarnation_id")),
                    log_dir_id=parse_topic_id(str_of(fields, "log_dir_id")),
                    broker_epoch=int_of(fields, "broker_epoch"),
                    cluster_id=str_of(fields, "cluster_id"),
                    session=str_of(fields, "session"),
                    lease=typed(fields, "lease", float),
                    draining=typed(fields, "draining", bool),
                    leaving=typed(fields, "leaving", bool),
                )
            case _:
                return None
    except (KeyError, ValueError, TypeError, AttributeError, InvalidName) as error:
        raise CorruptState(f"the state store's {path} cannot be read: {error!r}") from error


def _decode_link(name: str, fields: Mapping[str, Any]) -> Link:
    return Link(
        name=name,
        source_cluster_id=str_of(fields, "source_cluster_id"),
        properties={str(k): str(v) for k, v in fields["properties"].items()},
        options=dict(fields["options"]),
        created_at=int_of(fields, "created_at"),
    )


def _decode_mirror(link: str, topic: str, fields: Mapping[str, Any]) -> MirrorTopic:
    source_topic_id = fields["source_topic_id"]
    return MirrorTopic(
        link=link,
        topic=topic,
        topic_id=parse_topic_id(str_of(fields, "topic_id")),
        source_topic_id=None if source_topic_id is None else parse_topic_id(source_topic_id),
        partitions=int_of(fields, "partitions"),
        paused=typed(fields, "paused", bool),
        start=str_of(fields, "start"),
        target_replicas=tuple(tuple(int(r) for r in replicas) for replicas in fields["target_replicas"]),
        copied_configs={str(k): str(v) for k, v in fields["copied_configs"].items()},
        restore_configs={str(k): None if v is None else str(v) for k, v in fields["restore_configs"].items()},
        configs_from_target=tuple(str(k) for k in fields.get("configs_from_target", ())),
        created_at=int_of(fields, "created_at"),
    )


def _decode_partition(link: str, topic: str, partition: int, fields: Mapping[str, Any]) -> MirrorPartition:
    attempt = fields["attempt"]
    return MirrorPartition(
        link=link,
        topic=topic,
        partition=partition,
        phase=Phase(fields["phase"]),
        leader=int_of(fields, "leader"),
        leader_epoch=int_of(fields, "leader_epoch"),
        isr=tuple(int(broker) for broker in fields["isr"]),
        controller_epoch=int_of(fields, "controller_epoch"),
        session_epoch=int_of(fields, "session_epoch"),
        start_offset=optional(fields, "start_offset", int),
        source_epochs=tuple((int(epoch), int(offset)) for epoch, offset in fields["source_epochs"]),
        untruncated=tuple((int(replica), int(offset)) for replica, offset in fields["untruncated"]),
        reason=optional(fields, "reason", str),
        failure=optional(fields, "failure", str),
        aligned_end=optional(fields, "aligned_end", int),
        attempt=None
        if attempt is None
        else Attempt(
            leader_epoch=int_of(attempt, "leader_epoch"), partition_epoch=int_of(attempt, "partition_epoch")
        ),
        failover=None if fields["failover"] is None else _decode_failover(fields["failover"]),
        since=int_of(fields, "since"),
    )


def _decode_failover(fields: Mapping[str, Any]) -> Failover:
    return Failover(
        before=Phase(fields["before"]),
        source_end=optional(fields, "source_end", int),
        acked_end=optional(fields, "acked_end", int),
        end=optional(fields, "end", int),
        replica=int_of(fields, "replica"),
        unasked=tuple(int(one) for one in list_of(fields, "unasked")),
        aborted=tuple(
            AbortedTransaction(producer_id=int(pid), producer_epoch=int(epoch), start_offset=int(offset))
            for pid, epoch, offset in fields["aborted"]
        ),
    )


def _decode_job(link: str, job_id: int, fields: Mapping[str, Any]) -> PromoteJob:
    return PromoteJob(
        id=job_id,
        link=link,
        partitions=tuple(TopicPartition(str(topic), int(index)) for topic, index in fields["partitions"]),
        failover=typed(fields, "failover", bool),
        status=JobStatus(fields["status"]),
        started_at=int_of(fields, "started_at"),
        ended_at=optional(fields, "ended_at", int),
        reason=optional(fields, "reason", str),
        phases_ms={str(k): float(v) for k, v in fields["phases_ms"].items()},
        validation=ValidationPolicy(fields["validation"]),
        warnings=tuple(str(warning) for warning in list_of(fields, "warnings")),
        evidence=None
        if fields["evidence"] is None
        else validation_codec.decode_evidence(fields_of(fields["evidence"])),
        source_fenced=tuple(str(topic) for topic in list_of(fields, "source_fenced")),
        closed_for_good=tuple(str(topic) for topic in list_of(fields, "closed_for_good"))
        if "closed_for_good" in fields
        else (),
        accept_missing=int_of(fields, "accept_missing") if "accept_missing" in fields else 0,
        requested_by=optional(fields, "requested_by", str) if "requested_by" in fields else None,
    )
