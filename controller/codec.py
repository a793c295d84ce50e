"""Entities to JSON values and back. Strict: a value that this version does not understand is CorruptState with its path.

Values do not repeat the names that the path holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from controller import keys
from controller.errors import CorruptState, InvalidName
from controller.groups import GateRecord
from controller.json_fields import Fields
from controller.mirror_group import GroupOffset, MirrorGroup
from controller.proof import PartitionValidation
from controller.state import (
    CarriedAcls,
    Entity,
    JsonValue,
    Link,
    MirrorPartition,
    MirrorTopic,
    ProducerIdFloor,
    PromoteJob,
    SidecarIdentity,
)

# With each entity, the fields that its path holds; a group's gate and offsets have forms of their own, too.
_FORMS: dict[type, Fields[Entity]] = {
    Link: Fields(Link, "name"),
    MirrorTopic: Fields(MirrorTopic, "link", "topic"),
    MirrorPartition: Fields(MirrorPartition, "link", "topic", "partition"),
    PartitionValidation: Fields(PartitionValidation, "link", "topic", "partition"),
    ProducerIdFloor: Fields(ProducerIdFloor, "link"),
    PromoteJob: Fields(PromoteJob, "link", "id"),
    SidecarIdentity: Fields(SidecarIdentity, "broker_id"),
    CarriedAcls: Fields(CarriedAcls, "link", "resource"),
    MirrorGroup: Fields(MirrorGroup, "link", "group", "gate_state", "offsets"),
}
_GATE = Fields(GateRecord, "group")


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
        case CarriedAcls():
            return keys.carried_acls(entity.link, entity.resource)


def encode(entity: Entity) -> dict[str, JsonValue]:
    """The value stored at `path_of(entity)`."""
    value = _FORMS[type(entity)].write(entity)
    if isinstance(entity, MirrorGroup):
        value["gate_state"] = None if entity.gate_state is None else encode_gate(entity.gate_state)
        value["offsets"] = _encode_offsets(entity.offsets)
    return value


def decode(path: str, value: JsonValue) -> Entity | None:
    """The entity stored at a path; None for a path without an entity (such as /controller_epoch)."""
    try:
        match keys.split(path):
            case ("links", link):
                return _FORMS[Link].read(value, name=link)
            case ("links", link, "mirrors", topic):
                return _FORMS[MirrorTopic].read(value, link=link, topic=topic)
            case ("links", link, "mirrors", topic, index, "state"):
                return _FORMS[MirrorPartition].read(value, link=link, topic=topic, partition=int(index))
            case ("links", link, "mirrors", topic, index, "validation"):
                return _FORMS[PartitionValidation].read(value, link=link, topic=topic, partition=int(index))
            case ("links", link, "producer_ids"):
                return _FORMS[ProducerIdFloor].read(value, link=link)
            case ("links", link, "promotes", job_id):
                return _FORMS[PromoteJob].read(value, link=link, id=int(job_id))
            case ("links", link, "groups", segment):
                return _decode_group(link, keys.group_name(segment), value)
            case ("links", link, "acls", segment):
                return _FORMS[CarriedAcls].read(value, link=link, resource=keys.acl_resource(segment))
            case ("sidecars", "identities", broker_id):
                return _FORMS[SidecarIdentity].read(value, broker_id=int(broker_id))
            case _:
                return None
    except (KeyError, ValueError, TypeError, AttributeError, InvalidName) as error:
        raise CorruptState(f"the state store's {path} cannot be read: {error!r}") from error


def encode_gate(record: GateRecord) -> dict[str, JsonValue]:
    """The record without the group's name, which the path holds."""
    return _GATE.write(record)


def decode_gate(group: str, value: JsonValue) -> GateRecord:
    """The record; KeyError, TypeError or ValueError for any other value."""
    return _GATE.read(value, group=group)


def _decode_group(link: str, name: str, value: Any) -> Entity:
    gate, offsets = value["gate_state"], value["offsets"]
    return _FORMS[MirrorGroup].read(
        value,
        link=link,
        group=name,
        gate_state=None if gate is None else decode_gate(name, gate),
        offsets=tuple(_decode_offsets(offsets)),
    )


def _encode_offsets(offsets: Iterable[GroupOffset]) -> dict[str, list[list[int | str]]]:
    """Offsets by topic: a group may have thousands of partitions, and the node is written with every step."""
    by_topic: dict[str, list[list[int | str]]] = {}
    for one in offsets:
        by_topic.setdefault(one.topic, []).append(list(one[1:] if one.metadata else one[1:3]))
    return by_topic


def _decode_offsets(by_topic: dict[str, list[Any]]) -> Iterable[GroupOffset]:
    for topic, entries in by_topic.items():
        for partition, offset, *metadata in entries:
            if (type(partition), type(offset), *map(type, metadata)) not in ((int, int), (int, int, str)):
                raise TypeError(f"{topic}: no offset is {[partition, offset, *metadata]!r}")
            yield GroupOffset(topic, partition, offset, *metadata)
