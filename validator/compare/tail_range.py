"""The batches behind a watermark, at the source and on each replica, compared by their checksums inside a fence.

The last batch alone (`tail`) shows that two logs end with the same write; what lies between the watermark of the Spark
runs and the end is compared here batch by batch, as far as few bytes and little time go: one Fetch per broker and
round, and a partition whose rest does not fit is left to the run after the hand-over. The CRC of every batch of a
replica is computed from its bytes.

"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from validator.compare.tail import NOTHING, TailBatch
from validator.read.fetching import fetch_once, fetch_request
from wire.client.cluster import Cluster
from wire.frames.batch import iter_batch_headers
from wire.frames.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Rest:
    """A broker's part of [start, end): its batches, and those of them whose bytes do not match their CRC."""

    batches: tuple[TailBatch, ...]
    corrupt: tuple[TailBatch, ...]


async def read_rests(
    cluster: Cluster,
    node_id: int,
    spans: Mapping[TopicPartition, tuple[int, int]],
    *,
    max_bytes: int,
    timeout: float,
) -> dict[TopicPartition, Rest]:
    """The batches of each [start, end) as broker `node_id` serves them; start is where a batch begins.

    A partition is left out if more than its share of `max_bytes` would have to be read, if it was not there within
    `timeout` (seconds), or if the broker refuses it. Raises ConnectionLost and whatever else a call raises.
    """
    share = max(1, max_bytes // max(1, len(spans)))
    at = {tp: start for tp, (start, end) in spans.items() if start < end}
    found: dict[TopicPartition, list[TailBatch]] = {tp: [] for tp in at}
    corrupt: dict[TopicPartition, list[TailBatch]] = {tp: [] for tp in at}
    used = dict.fromkeys(at, 0)
    whole: dict[TopicPartition, Rest] = {
        tp: Rest((), ()) for tp, (start, end) in spans.items() if start >= end
    }
    deadline = asyncio.get_running_loop().time() + timeout
    while at:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            break
        frame, answers = await fetch_once(cluster, node_id, fetch_request(at, max_bytes, share), timeout=left)
        moved = False
        for tp, data in answers:
            if tp not in at:
                continue
            if data.error:
                del at[tp]
                continue
            end = spans[tp][1]
            for header in iter_batch_headers(frame, data.records_start, data.records_end):
                if header.next_offset <= at[tp] or header.base_offset >= end:
                    continue
                batch = TailBatch(header.base_offset, header.last_offset, header.size, header.crc)
                found[tp].append(batch)
                if not header.crc_ok(frame):
                    corrupt[tp].append(batch)
                at[tp] = header.next_offset
                used[tp] += header.size
                moved = True
            if at[tp] >= end:
                whole[tp] = Rest(tuple(found[tp]), tuple(corrupt[tp]))
                del at[tp]
            elif used[tp] >= share:
                del at[tp]
        if not moved:
            await asyncio.sleep(min(0.005, max(left, 0)))
    return whole


def compare_rests(
    source: Mapping[TopicPartition, Rest], replica: Mapping[TopicPartition, Rest], broker_id: int
) -> dict[TopicPartition, str]:
    """The first difference of each partition that was read whole on both sides. The text does not name the partition."""
    differing: dict[TopicPartition, str] = {}
    for tp in source.keys() & replica.keys():
        ours, theirs = source[tp].batches, replica[tp]
        if theirs.corrupt:
            first = theirs.corrupt[0]
            differing[tp] = (
                f"broker {broker_id}'s batch at offset {first.base_offset} does not match its CRC {first.crc:08x}"
            )
        elif ours != theirs.batches:
            pairs = zip(ours, theirs.batches, strict=False)
            index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs.batches)))
            here = ours[index] if index < len(ours) else NOTHING
            there = theirs.batches[index] if index < len(theirs.batches) else NOTHING
            differing[tp] = f"the source has {here}, broker {broker_id} has {there}"
    return differing
