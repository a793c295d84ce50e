"""Records of gates to JSON values and back. Strict: a value that this version does not understand is an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from controller.groups import (
    ClassicMember,
    ConsumerMember,
    GateKind,
    GateRecord,
    GateStage,
    PendingTransaction,
)
from controller.state import JsonValue


def encode_gate(record: GateRecord) -> dict[str, JsonValue]:
    """The record without the group's name, which the path holds."""
    return {
        "kind": record.kind.value,
        "stage": record.stage.value,
        "consumer": _part(record.consumer),
        "classic": _part(record.classic),
        "transaction": _part(record.transaction),
    }


def _part(part: ConsumerMember | ClassicMember | PendingTransaction | None) -> JsonValue:
    if part is None:
        return None
    values = dataclasses.asdict(part)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def decode_gate(group: str, value: JsonValue) -> GateRecord:
    """The record; KeyError, TypeError or ValueError for any other value."""
    fields = _fields(value)
    consumer, classic, transaction = fields["consumer"], fields["classic"], fields["transaction"]
    return GateRecord(
        group=group,
        kind=GateKind(fields["kind"]),
        stage=GateStage(fields["stage"]),
        consumer=None if consumer is None else _consumer(_fields(consumer)),
        classic=None if classic is None else _classic(_fields(classic)),
        transaction=None if transaction is None else _transaction(_fields(transaction)),
    )


def _consumer(fields: Mapping[str, Any]) -> ConsumerMember:
    return ConsumerMember(
        member_id=_typed(fields["member_id"], str),
        member_epoch=_typed(fields["member_epoch"], int),
        topics=_names(fields["topics"]),
    )


def _classic(fields: Mapping[str, Any]) -> ClassicMember:
    return ClassicMember(
        member_id=_typed(fields["member_id"], str),
        generation=_typed(fields["generation"], int),
        protocols=_names(fields["protocols"]),
        protocol=_typed(fields["protocol"], str),
    )


def _transaction(fields: Mapping[str, Any]) -> PendingTransaction:
    first, second = _names(fields["transactional_ids"])
    current = _typed(fields["current"], int)
    if current not in (0, 1):
        raise ValueError(f"current is {current}")
    return PendingTransaction(
        transactional_ids=(first, second),
        current=current,
        producer_id=_typed(fields["producer_id"], int),
        producer_epoch=_typed(fields["producer_epoch"], int),
    )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(_typed(name, str) for name in _typed(value, list))


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", _typed(value, dict))


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value
