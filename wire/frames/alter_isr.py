"""AlterPartition v0 and v1 (AlterIsr, Kafka 2.7 to 3.2), which name topics where later versions have ids."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from wire.frames.primitives import (
    INT32,
    compact_string,
    read_array_count,
    read_name,
    skip_tags,
    uvarint,
)
from wire.schema.fast_messages import Message, Messages

#: The first version that names topics by their ids.
FIRST_WITH_IDS: Final = 2

_HEAD = struct.Struct(">iq")  # broker id, broker epoch
_ANSWER = struct.Struct(">ih")  # throttle time, error
_PARTITION = struct.Struct(">ihii")  # partition, error, leader, leader epoch


class AlteredPartition(NamedTuple):
    partition_index: int
    error_code: int


class AlteredTopic(NamedTuple):
    topic_name: str
    partitions: list[AlteredPartition]


class AlterIsrAnswer(NamedTuple):
    error_code: int
    topics: list[AlteredTopic]


def _request(fields: Mapping[str, Any], *, recovery: bool) -> bytearray:
    out = bytearray(_HEAD.pack(fields["broker_id"], fields["broker_epoch"]))
    out += uvarint(len(fields["topics"]) + 1)
    for topic in fields["topics"]:
        out += compact_string(topic["topic_name"])
        out += uvarint(len(topic["partitions"]) + 1)
        for one in topic["partitions"]:
            isr = one["new_isr"]
            out += struct.pack(">ii", one["partition_index"], one["leader_epoch"])
            out += uvarint(len(isr) + 1) + struct.pack(f">{len(isr)}i", *isr)
            if recovery:
                out += struct.pack(">b", one["leader_recovery_state"])
            out += INT32.pack(one["partition_epoch"]) + b"\0"
        out += b"\0"
    return out + b"\0"


def _answer(data: bytes, pos: int, *, recovery: bool) -> tuple[AlterIsrAnswer, int]:
    _, error = _ANSWER.unpack_from(data, pos)
    count, pos = read_array_count(data, pos + _ANSWER.size, 3)
    topics: list[AlteredTopic] = []
    for _ in range(count):
        name, pos = read_name(data, pos)
        inner, pos = read_array_count(data, pos, 20)
        partitions: list[AlteredPartition] = []
        for _ in range(inner):
            index, code, _, _ = _PARTITION.unpack_from(data, pos)
            isr, pos = read_array_count(data, pos + _PARTITION.size, 4)
            pos = skip_tags(data, pos + 4 * isr + (5 if recovery else 4))
            partitions.append(AlteredPartition(index, code))
        topics.append(AlteredTopic(name, partitions))
        pos = skip_tags(data, pos)
    return AlterIsrAnswer(error, topics), skip_tags(data, pos)


_FIELDS = frozenset({"broker_id", "broker_epoch", "topics"})
MESSAGES: Messages = {
    ("alter_partition", version): Message(
        _FIELDS, partial(_request, recovery=version == 1), partial(_answer, recovery=version == 1)
    )
    for version in (0, 1)
}
