"""Mirrored groups to JSON values and back; strict, as `codec`, which calls it.

Offsets are kept by topic: a group may have thousands of partitions, and the node is written with every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.gate_codec import decode_gate, encode_gate
from controller.group_phases import GroupPhase
from controller.groups import GateKind
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
        "gate_state": None if group.gate_state is None else encode_gate(group.gate_state),
        "move": None if group.move is None else _encode_move(group.move),
        "offsets": _encode_offsets(group.offsets),
        "since": group.since,
    }


def decode(link: str, name: str, fields: Mapping[str, Any]) -> MirrorGroup:
    """The group; KeyError, TypeError or ValueError for a value that `encode` cannot have written."""
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
        gate_state=None if gate_state is None else decode_gate(name, gate_state),
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
