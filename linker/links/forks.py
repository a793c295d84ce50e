"""Forks: a real broker led a mirror partition without a promote, and took writes that the source lacks.

All copied batches carry E0; batches that a real leader appended carry its later leader epoch. So the fork begins where
E0 ends in that leader's log (OffsetsForLeaderEpoch, KIP-101), and its log end tells how many records exist only there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from controller.judge.hand_over import find
from controller.state import MirrorPartition
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import NOT_LEADER_OR_FOLLOWER
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage
from wire.together import together

_TIMEOUT = 5.0
_AT_ONCE = 32  # partitions: more questions would wait for each other at the brokers
_LATEST = -1


class Fork(NamedTuple):
    """`begin` to `end` (exclusive) are the offsets that `leader` took by itself. None: it did not say."""

    tp: TopicPartition
    leader: int
    begin: int | None
    end: int | None

    @property
    def records(self) -> int | None:
        """At most; control records and compaction make it fewer."""
        return None if self.begin is None or self.end is None else max(0, self.end - self.begin)

    @property
    def said(self) -> str:
        """The writes and their brokers, in one line."""
        if self.records is None:
            return f"{self.tp}: how many records broker {self.leader} took by itself is not known now"
        if not self.records:
            return f"{self.tp}: broker {self.leader} has taken no record that the source does not have"
        return (
            f"{self.tp}: broker {self.leader} has taken {self.records} records by itself, offsets {self.begin} to "
            f"{self.end}: they are nowhere else, and the source has others at these offsets"
        )


async def look(cluster: Cluster, image: ClusterImage, states: Sequence[MirrorPartition]) -> list[Fork]:
    """The forks among these partitions of the target, as the brokers that lead them now tell."""

    places = asyncio.Semaphore(_AT_ONCE)

    async def ask(state: MirrorPartition, leader: int) -> Fork:
        begin: int | None
        async with places:
            try:
                begin = await _end_of_epoch(cluster, leader, state.tp, state.session_epoch)
                ends = await cluster.list_offsets({state.tp: _LATEST}, timeout=_TIMEOUT)
                end = None if ends[state.tp].error else ends[state.tp].offset
            except LinkerError:
                begin = end = None
        return Fork(state.tp, leader, begin, end)

    led = []
    for state in states:
        partition = find(image, state.tp)
        if partition is not None and partition.leader >= 0:
            led.append((state, partition.leader))
    return await together(ask(state, leader) for state, leader in led)


async def _end_of_epoch(cluster: Cluster, leader: int, tp: TopicPartition, epoch: int) -> int:
    response = await cluster.call(
        "offset_for_leader_epoch",
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": tp.topic,
                    "partitions": [
                        {"partition": tp.partition, "current_leader_epoch": -1, "leader_epoch": epoch}
                    ],
                }
            ],
        },
        node_id=leader,
        timeout=_TIMEOUT,
    )
    for topic in response.topics:
        for partition in topic.partitions:
            if int(partition.error_code):
                raise BrokerError(
                    int(partition.error_code), api="offset_for_leader_epoch", topic_partition=tp
                )
            return int(partition.end_offset)
    raise BrokerError(NOT_LEADER_OR_FOLLOWER, api="offset_for_leader_epoch", topic_partition=tp)
