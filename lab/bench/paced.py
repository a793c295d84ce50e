"""A producer at a steady rate over raw Produce requests, which notes how long each answer took.

Latency counts from the moment that a request was *due*, so a producer that is held up does not hide what it did not
send. Acknowledged offsets are noted: afterwards the log must hold exactly those batches, in that order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from lab.bench.cluster import BenchError, nap
from lab.bench.load import ANSWER_TIMEOUT, VERSION
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.errors import WireError
from wire.frames.produce import encode_produce_request, parse_produce_response
from wire.frames.types import TopicPartition

RETRIED = (6, 19)  # NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS: nothing was written
RETRY_PAUSE = 0.1
LATE = 0.002  # a request that is due this soon is not waited for


class PacedProducer:
    """`acks=all`, one connection per partition, partitions in turn."""

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, batch: bytes, bytes_per_second: float
    ) -> None:
        self.latencies: list[tuple[float, float]] = []  # (when it was due, seconds until its answer)
        self.acked: dict[int, list[int]] = {index: [] for index in range(partitions)}  # base offsets
        self.retries = 0
        self._cluster = cluster
        self._topic = topic
        self._batch = memoryview(batch)
        self._interval = len(batch) / bytes_per_second
        self._connections: list[Connection] = []
        self._failure: Exception | None = None
        self._open = 0
        self._stopping = False

    def between(self, began: float, ended: float) -> list[float]:
        """Latencies in ms of the requests that were due in that time (time.monotonic)."""
        return [1000 * taken for due, taken in self.latencies if began <= due < ended]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PacedProducer]:
        """Producing while the block runs; every answer is in when it ends."""
        await self._cluster.refresh([self._topic], timeout=10)
        task: asyncio.Task[None] | None = None
        try:
            for index in self.acked:
                leader = self._cluster.leader(TopicPartition(self._topic, index))
                if leader is None:
                    raise BenchError(f"{self._topic}-{index} has no leader")
                self._connections.append(await self._cluster.open_connection(leader))
            await self._first()
            task = asyncio.create_task(self._run())
            yield self
            self._stopping = True
            await task
            if self._failure is not None:
                raise self._failure
        finally:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
            for connection in self._connections:
                connection.close()

    async def _first(self) -> None:
        """One request to each partition, not counted: a new link forwards nothing before its producer ids are safe."""
        for partition in self.acked:
            self._send(partition, time.monotonic())
        await self._answered()
        if self._failure is not None:
            raise self._failure
        self.latencies.clear()
        self.retries = 0

    async def _run(self) -> None:
        due = time.monotonic()
        number = 0
        while not self._stopping and self._failure is None:
            ahead = due - time.monotonic()
            if ahead > LATE:
                await asyncio.sleep(ahead)
            self._send(number % len(self._connections), due)
            number += 1
            due += self._interval
            if number % 64 == 0:
                await asyncio.sleep(0)  # however late it is, answers are read
        await self._answered()

    async def _answered(self) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while self._open and self._failure is None:
            await nap(deadline, f"{self._open} produces to {self._topic} were never answered", 0.005)

    def _again(self, partition: int, due: float) -> None:
        self._open -= 1
        if self._failure is None:
            self._send(partition, due)

    def _send(self, partition: int, due: float) -> None:
        connection = self._connections[partition]

        def on_reply(reply: memoryview | WireError) -> None:
            self._open -= 1
            if isinstance(reply, WireError):
                self._failure = self._failure or reply
                return
            result = parse_produce_response(reply, VERSION).topics[0][1][0]
            if result.error in RETRIED and time.monotonic() - due < ANSWER_TIMEOUT:
                # As any client does: nothing was written, so it asks again, and the time counts.
                self.retries += 1
                self._open += 1
                asyncio.get_running_loop().call_later(RETRY_PAUSE, self._again, partition, due)
                return
            if result.error:
                self._failure = BenchError(f"a produce to {self._topic}-{partition}: error {result.error}")
                return
            self.latencies.append((due, time.monotonic() - due))
            self.acked[partition].append(result.base_offset)

        correlation_id = connection.next_correlation_id()
        topics = [(self._topic, [(partition, self._batch)])]
        buffers = encode_produce_request(VERSION, correlation_id, "bench-paced", None, -1, 30_000, topics)
        self._open += 1
        try:
            connection.channel.send(correlation_id, buffers, on_reply)
        except WireError as error:
            self._open -= 1
            self._failure = self._failure or error


def out_of_order(acked: dict[int, list[int]], records: int) -> list[str]:
    """Faults in the offsets that the only producer of a topic was given: each batch must follow the last."""
    problems = []
    for partition, offsets in acked.items():
        for before, after in pairwise(offsets):
            if after - before != records:
                problems.append(f"partition {partition}: offset {after} was acknowledged after {before}")
                break
    return problems
