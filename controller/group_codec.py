"""A mirrored group, with the record of its gate, as JSON and back. Strict as `codec`, which calls it.

Offsets are kept by topic: a group may have thousands of partitions, and the node is written with every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.group_phases import GroupPhase
from controller.groups import (
    ClassicMember,
    ConsumerMember,
    GateKind,
    GateRecord,
    GateStage,
    PendingTransaction,
)
from controller.state import GroupMove, GroupOffset, GroupPolicy, GroupProtocol, JsonValue, MirrorGroup


def encode(group: MirrorGroup) -> dict[str, JsonValue]:
    """The value stored for a group."""
    return {
        "protocol": group.protocol.value,
        "gate": group.gate.value,
        "phase": group.phase.value,
        "policy": group.policy.value,
        "topics": list(group.topics),
        "unmirrored": list(group.unmirrored),
        "reason": group.reason,
        "gate_state": None if group.gate_state is None else _encode_gate(group.gate_state),
        "move": None if group.move is None else _encode_move(group.move),
        "offsets": _encode_offsets(group.offsets),
        "since": group.since,
    }


def decode(link: str, name: str, fields: Mapping[str, Any]) -> MirrorGroup:
    """Raises KeyError, TypeError or ValueError for what `encode` cannot have written."""
    gate_state, move, reason = fields["gate_state"], fields["move"], fields["reason"]
    return MirrorGroup(
        link=link,
        group=name,
        protocol=GroupProtocol(fields["protocol"]),
        gate=GateKind(fields["gate"]),
        phase=GroupPhase(fields["phase"]),
        policy=GroupPolicy(fields["policy"]),
        topics=_texts(fields["topics"]),
        unmirrored=_texts(fields["unmirrored"]),
        reason=None if reason is None else _text(reason),
        gate_state=None if gate_state is None else _decode_gate(name, gate_state),
        move=None if move is None else _decode_move(move),
        offsets=tuple(_decode_offsets(fields["offsets"])),
        since=_int(fields["since"]),
    )


def _encode_move(move: GroupMove) -> dict[str, JsonValue]:
    return {
        "asked_at": move.asked_at,
        "until": move.until,
        "force": move.force,
        "automatic": move.automatic,
    }


def _decode_move(fields: Mapping[str, Any]) -> GroupMove:
    until = fields["until"]
    return GroupMove(
        asked_at=_int(fields["asked_at"]),
        until=None if until is None else _int(until),
        force=_bool(fields["force"]),
        automatic=_bool(fields["automatic"]),
    )


def _encode_offsets(offsets: Iterable[GroupOffset]) -> dict[str, JsonValue]:
    by_topic: dict[str, list[JsonValue]] = {}
    for one in offsets:
        entry: list[JsonValue] = [one.partition, one.offset]
        by_topic.setdefault(one.topic, []).append([*entry, one.metadata] if one.metadata else entry)
    return dict(by_topic)


def _decode_offsets(fields: Mapping[str, Any]) -> Iterable[GroupOffset]:
    for topic, entries in fields.items():
        for entry in entries:
            partition, offset, *metadata = entry
            yield GroupOffset(topic, _int(partition), _int(offset), *(_text(text) for text in metadata))


def _encode_gate(gate: GateRecord) -> dict[str, JsonValue]:
    consumer, classic, transaction = gate.consumer, gate.classic, gate.transaction
    return {
        "kind": gate.kind.value,
        "stage": gate.stage.value,
        "consumer": None
        if consumer is None
        else {
            "member_id": consumer.member_id,
            "member_epoch": consumer.member_epoch,
            "topics": list(consumer.topics),
        },
        "classic": None
        if classic is None
        else {
            "member_id": classic.member_id,
            "generation": classic.generation,
            "protocols": list(classic.protocols),
            "protocol": classic.protocol,
        },
        "transaction": None
        if transaction is None
        else {
            "transactional_ids": list(transaction.transactional_ids),
            "current": transaction.current,
            "producer_id": transaction.producer_id,
            "producer_epoch": transaction.producer_epoch,
        },
    }


def _decode_gate(group: str, fields: Mapping[str, Any]) -> GateRecord:
    consumer, classic, transaction = fields["consumer"], fields["classic"], fields["transaction"]
    return GateRecord(
        group=group,
        kind=GateKind(fields["kind"]),
        stage=GateStage(fields["stage"]),
        consumer=None if consumer is None else _decode_consumer(consumer),
        classic=None if classic is None else _decode_classic(classic),
        transaction=None if transaction is None else _decode_transaction(transaction),
    )


def _decode_consumer(fields: Mapping[str, Any]) -> ConsumerMember:
    return ConsumerMember(
        member_id=_text(fields["member_id"]),
        member_epoch=_int(fields["member_epoch"]),
        topics=_texts(fields["topics"]),
    )


def _decode_classic(fields: Mapping[str, Any]) -> ClassicMember:
    return ClassicMember(
        member_id=_text(fields["member_id"]),
        generation=_int(fields["generation"]),
        protocols=_texts(fields["protocols"]),
        protocol=_text(fields["protocol"]),
    )


def _decode_transaction(fields: Mapping[str, Any]) -> PendingTransaction:
    first, second = _texts(fields["transactional_ids"])
    return PendingTransaction(
        transactional_ids=(first, second),
        current=_int(fields["current"]),
        producer_id=_int(fields["producer_id"]),
        producer_epoch=_int(fields["producer_epoch"]),
    )


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(_text(value) for value in values)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no integer")
    return value


def _bool(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is neither true nor false")
    return value
