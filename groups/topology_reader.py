"""The topology of a streams group, read from its coordinator's partition of __consumer_offsets.

The record stands there since the group's first member joined, and is replaced only with the group, so the partition is read
from its start. Its batches are searched as bytes; only those that name the group are looked into.
"""

from __future__ import annotations

import asyncio
import struct
import time

from groups.gates.base import GateRefused
from groups.gates.topology import StreamsTopology, from_record
from groups.group_reader import PURPOSE, GroupReader
from wire.errors import BrokerError, LinkerError, MalformedFrame, RequestTimedOut
from wire.frames.batch import iter_batch_headers, iter_records
from wire.frames.error_codes import TOPIC_AUTHORIZATION_FAILED
from wire.frames.fetch_request import FetchPartition, FetchRequest
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

OFFSETS_TOPIC = "__consumer_offsets"
_TOPOLOGY = 23  # CoordinatorRecordType.STREAMS_GROUP_TOPOLOGY
_VERSION = 12  # of Fetch: the newest that names topics
_BYTES = 4 << 20
_CALL_TIMEOUT = 10.0


async def read(reader: GroupReader, group: str, *, timeout: float) -> StreamsTopology:
    """GateRefused if the cluster does not let us read it; LinkerError if it cannot be read now, or is not there."""
    reader.check()
    deadline = time.monotonic() + timeout
    cluster = reader.cluster
    await cluster.refresh((OFFSETS_TOPIC,), timeout=_CALL_TIMEOUT)
    topic = cluster.topics.get(OFFSETS_TOPIC)
    if topic is None or topic.error or not topic.partitions:
        raise _refused(reader, group, 0 if topic is None else topic.error, "metadata")
    tp = TopicPartition(OFFSETS_TOPIC, java_hash(group) % len(topic.partitions))
    ends = {}
    for timestamp in (-2, -1):
        answer = (await cluster.list_offsets({tp: timestamp}, timeout=_CALL_TIMEOUT))[tp]
        if answer.error:
            raise _refused(reader, group, answer.error, "list_offsets")
        ends[timestamp] = answer.offset
    at, end = ends[-2], ends[-1]
    key = _key(group)
    found: bytes | None = None
    while at < end:
        if time.monotonic() > deadline:
            raise RequestTimedOut(
                f"cluster {cluster.name}: {OFFSETS_TOPIC}-{tp.partition} was read up to {at} of {end} only within "
                f"{timeout:g} s",
                sent=True,
                api="fetch",
            )
        node = cluster.leader(tp)
        if node is None:
            raise BrokerError(5, api="fetch", topic_partition=tp)  # LEADER_NOT_AVAILABLE
        wanted = FetchPartition(tp.partition, -1, at, -1, -1, _BYTES)
        request = FetchRequest(_VERSION, max_bytes=_BYTES, topics=[(tp.topic, [wanted])])
        frame, response = await cluster.fetch(node.id, request, timeout=_CALL_TIMEOUT, purpose=PURPOSE)
        data = response.partitions[0] if response.partitions else None
        if code := response.error or (0 if data is None else data.error):
            raise _refused(reader, group, code, "fetch")
        if data is None:
            raise MalformedFrame("an answer without the partition", api="fetch", topic_partition=tp)
        buf = bytes(frame[data.records_start : data.records_end])
        values, after = _values(buf, key, at)
        if after == at:
            raise MalformedFrame("no whole batch in an answer", api="fetch", topic_partition=tp, offset=at)
        found, at = values[-1] if values else found, after
        await asyncio.sleep(0)
    if found is None:
        raise LinkerError(
            f"group {shown_id(group)}: {OFFSETS_TOPIC}-{tp.partition} of {cluster.name} has no topology of it"
        )
    return from_record(found)


def _refused(reader: GroupReader, group: str, code: int, api: str) -> LinkerError:
    name = reader.cluster.name
    if code == TOPIC_AUTHORIZATION_FAILED:
        return GateRefused(
            group,
            f"its topology, which the gate's member has to bring, stands in {OFFSETS_TOPIC} of {name}, and the principal "
            f"there lacks the right READ on Topic {OFFSETS_TOPIC}; grant it with kafka-acls.sh --add --operation Read "
            f"--operation Describe --topic {OFFSETS_TOPIC}",
        )
    return BrokerError(code or 3, message=f"{OFFSETS_TOPIC} of {name}", api=api)


def _key(group: str) -> bytes:
    name = group.encode()
    return struct.pack(">hh", _TOPOLOGY, len(name)) + name


def _values(buf: bytes, key: bytes, at: int) -> tuple[list[bytes | None], int]:
    """The values of the key in these batches, from an offset on (None: removed), and the offset after them."""
    found: list[bytes | None] = []
    for header in iter_batch_headers(buf, 0, len(buf)):
        last = header.base_offset + header.last_offset_delta
        if last < at:
            continue
        at = last + 1
        if header.compression or buf.find(key, header.position, header.end) >= 0:
            found += [
                None if record.value is None else bytes(record.value)
                for record in iter_records(buf, header)
                if record.key is not None and bytes(record.key) == key
            ]
    return found, at


def java_hash(text: str) -> int:
    """Decides which partition of __consumer_offsets has a group: Utils.abs(String.hashCode())."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code if code < 1 << 31 else ((1 << 32) - code) & 0x7FFFFFFF
