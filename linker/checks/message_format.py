"""Topics whose logs have records from before Kafka 0.11 (message format v0 or v1).

Brokers keep such records as they were written for as long as nothing deletes them, compacted topics for good. A follower of
today's Kafka cannot append them, and rewriting them would change what is copied byte by byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from linker.checks.preflight import PreflightFinding
from validator.read.fetching import fetch_once, fetch_request
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.list_offsets import EARLIEST
from wire.frames.types import TopicPartition
from wire.together import together_by_key

TIMEOUT = 15.0
_AT_ONCE = 200  # partitions in a request
_BYTES, _ALL_BYTES = 4 << 10, 1 << 20
_MOST_ALONE = 100  # of each broker: their first batch does not fit into a shared answer
_MAGIC = 16  # its place in a record batch, and in the entry of an older format
_CONFIG = "message.format.version"
_OLD = ("0.8", "0.9", "0.10")

_REMEDY = (
    "copy this topic with a tool that reads and writes records (MirrorMaker 2), or wait until retention, or "
    "kafka-delete-records.sh, has removed them"
)


async def check_formats(source: Cluster, topics: Mapping[str, Mapping[str, str]]) -> list[PreflightFinding]:
    """Of topics with their effective configs, as the first record of each partition shows. LinkerError if it is not
    told."""
    await source.refresh(list(topics), timeout=TIMEOUT)
    tps = [
        TopicPartition(name, index)
        for name in topics
        if (known := source.topics.get(name)) is not None
        for index, partition in known.partitions.items()
        if partition.leader >= 0
    ]
    old: dict[str, list[tuple[int, int, int]]] = {}
    for tp, (offset, magic) in (await first_formats(source, tps)).items():
        if magic < 2:
            old.setdefault(tp.topic, []).append((tp.partition, offset, magic))
    findings = [
        PreflightFinding(
            "message format",
            True,
            f"topic {name} has records of message format v{found[0][2]}, from before Kafka 0.11, at the source (partition "
            f"{found[0][0]} at offset {found[0][1]}{f', and {len(found) - 1} more' if len(found) > 1 else ''}): only v2 "
            "can be mirrored",
            _REMEDY,
        )
        for name, found in sorted(old.items())
    ]
    findings += [
        PreflightFinding(
            "message format",
            False,
            f"topic {name} has {_CONFIG}={version} at the source: unless its inter.broker.protocol.version is 3.0 or later, "
            "what is written there has a format that cannot be mirrored, and the mirror fails",
            f"set {_CONFIG} of the topic to 2.8 at the source first",
        )
        for name, configs in sorted(topics.items())
        if name not in old and (version := configs.get(_CONFIG, "")).startswith(_OLD)
    ]
    return findings


async def first_formats(
    source: Cluster, tps: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """(offset, magic) of the first record of each log that has one and shows it."""
    starts = await source.list_offsets(dict.fromkeys(tps, EARLIEST), timeout=TIMEOUT)
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, start in starts.items():
        leader = source.leader(tp)
        if leader is not None and not start.error:
            by_leader.setdefault(leader.id, {})[tp] = start.offset
    answers = await together_by_key({node: _of_node(source, node, one) for node, one in by_leader.items()})
    return {tp: found for answer in answers.values() for tp, found in answer.items()}


async def _of_node(
    source: Cluster, node: int, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    found: dict[TopicPartition, tuple[int, int]] = {}
    tps = list(starts)
    for first in range(0, len(tps), _AT_ONCE):
        await _ask(source, node, {tp: starts[tp] for tp in tps[first : first + _AT_ONCE]}, found)
    # The first batch of an answer comes whole; that of another partition only if it fits.
    for tp in [tp for tp in tps if tp not in found][:_MOST_ALONE]:
        await _ask(source, node, {tp: starts[tp]}, found)
    return found


async def _ask(
    source: Cluster,
    node: int,
    starts: Mapping[TopicPartition, int],
    found: dict[TopicPartition, tuple[int, int]],
) -> None:
    frame, parts = await fetch_once(
        source, node, fetch_request(starts, _ALL_BYTES, _BYTES), timeout=TIMEOUT, purpose="formats"
    )
    for tp, part in parts:
        if not part.error and part.records_end - part.records_start > _MAGIC:
            found[tp] = (starts[tp], frame[part.records_start + _MAGIC])


async def formats_or_not_told(
    source: Cluster, topics: Mapping[str, Mapping[str, str]]
) -> Sequence[PreflightFinding]:
    """As `check_formats`, but a source that does not answer is a warning."""
    try:
        return await check_formats(source, topics)
    except LinkerError as error:
        return [PreflightFinding("message format", False, f"not told by the source: {error}")]
