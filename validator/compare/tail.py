"""The last batch of a partition, at the source and on each target replica, compared by its checksum.

Inside the fence of a promote there is no time to read a log again, but the last batch says much for its few bytes: its
base offset, last offset, size and CRC are equal on two logs only if both end with the same write. A real follower serves a
consumer's Fetch up to its high watermark even while it is outside the ISR (KIP-392), so each replica is asked itself.

"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from validator.read.fetching import FETCH_VERSION, fetch_once, fetch_request
from wire.client.cluster import Cluster
from wire.errors import BrokerError, MalformedFrame
from wire.frames.batch import iter_batch_headers
from wire.frames.error_codes import OFFSET_OUT_OF_RANGE
from wire.frames.fetch import FetchedPartition
from wire.frames.list_offsets import EARLIEST, list_at
from wire.frames.types import TopicPartition

PARTITION_MAX_BYTES = 16 * 1024 * 1024
REQUEST_MAX_BYTES = 64 * 1024 * 1024
NOTHING = "nothing"  # where another log has a batch, for people


@dataclass(frozen=True, slots=True)
class TailBatch:
    """The identity of the last batch of a log. Offsets are absolute, `size` in bytes with the batch's 12-byte prefix."""

    base_offset: int
    last_offset: int
    size: int
    crc: int

    def __str__(self) -> str:
        return f"the batch of offsets {self.base_offset} to {self.last_offset} ({self.size} bytes, CRC {self.crc:08x})"


@dataclass(frozen=True, slots=True)
class TailMismatch:
    """Two logs whose last batches differ; None means that the log holds nothing at that offset. The text is shown behind
    the partition's name."""

    topic_partition: TopicPartition
    broker_id: int
    source: TailBatch | None
    replica: TailBatch | None

    def __str__(self) -> str:
        source, replica = self.source or NOTHING, self.replica or NOTHING
        return f"the source ends with {source}, broker {self.broker_id} with {replica}"


async def read_tails(
    cluster: Cluster, node_id: int, ends: Mapping[TopicPartition, int], *, timeout: float
) -> dict[TopicPartition, TailBatch | None]:
    """The last batch before each end offset as broker `node_id` holds it.

    A replica whose high watermark has not reached the end yet answers without the batch; it is asked again until
    `timeout` (seconds) is over, and then reported as None. A partition of which this broker has nothing any more, because
    its log starts at the end, is left out: whether that is to be borne is not the tail's question.

    Raises BrokerError (with topic, partition and offset) for any answer but "not there", ConnectionLost.
    """
    left = {tp: end for tp, end in ends.items() if end > 0}
    found: dict[TopicPartition, TailBatch | None] = dict.fromkeys(left)
    deadline = asyncio.get_running_loop().time() + timeout
    while left:
        remaining = deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            break
        progressed = await _ask(cluster, node_id, left, found, timeout=remaining)
        if not progressed:
            await asyncio.sleep(min(0.005, remaining))
    return found


async def _ask(
    cluster: Cluster,
    node_id: int,
    left: dict[TopicPartition, int],
    found: dict[TopicPartition, TailBatch | None],
    *,
    timeout: float,
) -> bool:
    frame, answers = await fetch_once(
        cluster,
        node_id,
        fetch_request({tp: end - 1 for tp, end in left.items()}, REQUEST_MAX_BYTES, PARTITION_MAX_BYTES),
        timeout=timeout,
    )
    progressed = False
    beyond = [tp for tp, data in answers if data.error == OFFSET_OUT_OF_RANGE and tp in left]
    for tp in await _emptied(cluster, node_id, beyond, left, timeout=timeout):
        del left[tp]
        del found[tp]
        progressed = True
    for tp, data in answers:
        end = left.get(tp)
        if end is None:
            continue
        if data.error and data.error != OFFSET_OUT_OF_RANGE:
            raise BrokerError(
                data.error,
                message=f"broker {node_id} of {cluster.name} did not show its last batch",
                api="fetch",
                version=FETCH_VERSION,
                topic_partition=tp,
                offset=end - 1,
            )
        tail = _last_batch(frame, data, end, tp)
        if tail is not None:
            found[tp] = tail
            del left[tp]
            progressed = True
        elif not data.error and data.log_start_offset >= end:
            del left[tp]  # everything was deleted here: nothing to compare
            del found[tp]
            progressed = True
    return progressed


async def _emptied(
    cluster: Cluster,
    node_id: int,
    tps: Collection[TopicPartition],
    ends: Mapping[TopicPartition, int],
    *,
    timeout: float,
) -> list[TopicPartition]:
    """Those whose log on this broker starts at their end or behind it: a replica that has not come so far answers to the
    same fetch with the same code."""
    if not tps:
        return []
    starts = await list_at(cluster, node_id, dict.fromkeys(tps, EARLIEST), timeout=timeout)
    return [tp for tp in tps if tp in starts and not starts[tp].error and starts[tp].offset >= ends[tp]]


def _last_batch(frame: memoryview, data: FetchedPartition, end: int, tp: TopicPartition) -> TailBatch | None:
    tail: TailBatch | None = None
    for header in iter_batch_headers(frame, data.records_start, data.records_end):
        if header.base_offset >= end:
            break
        tail = TailBatch(header.base_offset, header.last_offset, header.size, header.crc)
    if tail is not None and tail.last_offset >= end:
        raise MalformedFrame("a batch spans the log's end", api="fetch", topic_partition=tp, offset=end - 1)
    return tail


def compare_tails(
    source: Mapping[TopicPartition, TailBatch | None],
    replica: Mapping[TopicPartition, TailBatch | None],
    broker_id: int,
) -> list[TailMismatch]:
    """Every partition whose last batch differs. One that is empty on either side was not compared: of a replica that starts
    so late controller.judge.late_starts judges."""
    return [
        TailMismatch(tp, broker_id, source[tp], replica[tp])
        for tp in source.keys() & replica.keys()
        if source[tp] != replica[tp]
    ]
