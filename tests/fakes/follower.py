"""A stock follower of the target: one fetcher thread with its own log per partition, as strict as Kafka's.

It does what AbstractFetcherThread and ReplicaFetcherThread do: incremental fetch sessions, truncation on
fetch, OFFSET_OUT_OF_RANGE by ListOffsets, a pause after an error, and a partition that *fails* (and stays
failed) on exactly the answers that fail it there. Its own code reads batches and decodes responses, not
the product's hot path.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.batches import crc_ok, parse_batches
from wire.schema import codec

OFFSET_OUT_OF_RANGE = 1
FENCED_LEADER_EPOCH = 74
FETCH_SESSION_ID_NOT_FOUND = 70


@dataclass
class FollowerLog:
    """One replica's log: raw batches with their (base, last) offsets."""

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    segment_bytes: int = 1 << 30
    batches: list[tuple[int, int, int, bytes]] = field(default_factory=list)  # base, last, epoch, bytes
    log_start: int = 0
    end: int = 0
    high_watermark: int = 0
    failed: str | None = None
    delayed_until: float = 0.0
    truncations: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    damaged: int = 0

    @property
    def key(self) -> tuple[bytes, int]:
        return self.topic_id, self.index

    @property
    def last_epoch(self) -> int:
        return self.batches[-1][2] if self.batches else -1

    def data(self) -> bytes:
        """What is above the log start; a broker removes the rest segment by segment."""
        return b"".join(batch[3] for batch in self.batches if batch[1] >= self.log_start)

    def truncate(self, offset: int) -> None:
        self.truncations.append(offset)
        while self.batches and self.batches[-1][1] >= offset:
            self.batches.pop()
        self.end = min(self.end, max(offset, self.log_start))
        if self.batches:
            self.end = min(self.end, max(self.batches[-1][1] + 1, offset))
        self.high_watermark = min(self.high_watermark, self.end)

    def start_over(self, offset: int) -> None:
        self.batches.clear()
        self.log_start = self.end = self.high_watermark = offset

    def append(self, records: bytes) -> None:
        if len(records) > self.segment_bytes:
            self.failed = f"{len(records)} bytes for a segment of {self.segment_bytes}"
            return
        for info in parse_batches(records):
            if info.leader_epoch > self.leader_epoch:
                continue  # skipped silently (KAFKA-18723)
            if info.base_offset < self.end:
                if self.end == self.log_start and info.last_offset >= self.end:
                    self.log_start = self.end = info.base_offset
                else:
                    self.failed = f"batch at {info.base_offset} while the log ends at {self.end}"
                    return
            raw = records[info.position : info.position + info.size]
            self.batches.append((info.base_offset, info.last_offset, info.leader_epoch, raw))
            self.end = info.last_offset + 1


class FakeFollower:
    """`await follower.run()` until cancelled; `restart()` loses the session and the connection, not the
    logs.
    """

    def __init__(
        self,
        port: int,
        replica_id: int,
        broker_epoch: int,
        logs: list[FollowerLog],
        *,
        version: int = 17,
        use_session: bool = True,
        max_bytes: int = 10 << 20,
        partition_bytes: int = 1 << 20,
        max_wait_ms: int = 500,
        backoff: float = 0.05,
    ) -> None:
        self.port = port
        self.replica_id = replica_id
        self.broker_epoch = broker_epoch
        self.logs = {log.key: log for log in logs}
        self.version = version
        self.use_session = use_session
        self.max_bytes = max_bytes
        self.partition_bytes = partition_bytes
        self.max_wait_ms = max_wait_ms
        self.backoff = backoff
        #: Seconds between an answer and the next fetch: a slow disk.
        self.pause = 0.0
        self.running = asyncio.Event()
        self.running.set()
        self.fetches = 0
        self.partitions_sent = 0
        self.partitions_told = 0
        self.session_errors: list[int] = []
        self.protocol_errors: list[str] = []
        self._correlation = 0
        self._writer: asyncio.StreamWriter | None = None
        self._session_id = 0
        self._epoch = 0
        self._held: dict[tuple[bytes, int], tuple[int, ...]] = {}

    def restart(self) -> None:
        """Cut the connection, as a broker restart does; the next one begins with a full fetch."""
        self._session_id = self._epoch = 0
        if self._writer is not None:
            self._writer.close()

    async def run(self) -> None:
        while True:
            try:
                await self._run_connection()
            except (OSError, asyncio.IncompleteReadError):
                self._session_id = self._epoch = 0
                await asyncio.sleep(self.backoff)

    async def _run_connection(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writer = writer
        try:
            while True:
                await self.running.wait()
                await self._fetch_once(reader, writer)
                if self.pause:
                    await asyncio.sleep(self.pause)
        finally:
            self._writer = None
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                pass

    async def _call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, api: str, version: int, fields: Any
    ) -> Any:
        self._correlation += 1
        body = codec.encode_request(
            api,
            version,
            fields,
            correlation_id=self._correlation,
            client_id=f"broker-{self.replica_id}-fetcher-0",
        )
        writer.write(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return codec.decode_response(api, version, await reader.readexactly(size))

    # --- fetch

    async def _fetch_once(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        now = asyncio.get_running_loop().time()
        ready = {key: log for key, log in self.logs.items() if not log.failed and log.delayed_until <= now}
        wanted = {
            key: (log.leader_epoch, log.end, log.last_epoch, log.log_start) for key, log in ready.items()
        }
        incremental = self._epoch > 0
        send = {k: w for k, w in wanted.items() if not incremental or self._held.get(k) != w}
        forget = [key for key in self._held if key not in wanted] if incremental else []
        if not wanted and not forget:
            await asyncio.sleep(self.backoff)
            return
        self._held = wanted
        self.fetches += 1
        self.partitions_sent += len(send)
        fields: dict[str, Any] = {
            "max_wait": self.max_wait_ms,
            "min_bytes": 1,
            "max_bytes": self.max_bytes,
            "isolation_level": 0,
            "session_id": self._session_id,
            "session_epoch": self._epoch if self.use_session else -1,
            "topics": self._topics(send),
            "forgotten_topics_data": self._forgotten(forget),
            "rack_id": "",
        }
        if self.version >= 15:
            fields["replica_state"] = {"replica_id": self.replica_id, "replica_epoch": self.broker_epoch}
        else:
            fields["replica_id"] = self.replica_id
        answer = await self._call(reader, writer, "fetch", self.version, fields)
        if int(answer.error_code):
            self.session_errors.append(int(answer.error_code))
            self._epoch = 0
            if int(answer.error_code) == FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = 0
            return
        told = self._told(answer)
        if not incremental and set(told) != set(wanted):
            self.protocol_errors.append(f"full answer with {len(told)} of {len(wanted)} partitions")
        if not set(told) <= set(wanted):
            self.protocol_errors.append("an answer names partitions that were not asked for")
        self.partitions_told += len(told)
        if not self.use_session or answer.session_id == 0:
            self._session_id = self._epoch = 0
        else:
            self._epoch = 1 if not incremental else self._epoch + 1
            self._session_id = answer.session_id
        for key, part in told.items():
            if key in wanted:
                await self._take(self.logs[key], part, reader, writer)

    def _topics(self, send: dict[tuple[bytes, int], tuple[int, ...]]) -> list[dict[str, Any]]:
        topics: dict[bytes, list[dict[str, Any]]] = {}
        for (topic_id, index), (leader_epoch, offset, last_epoch, log_start) in send.items():
            topics.setdefault(topic_id, []).append(
                {
                    "partition": index,
                    "current_leader_epoch": leader_epoch,
                    "fetch_offset": offset,
                    "last_fetched_epoch": last_epoch,
                    "log_start_offset": log_start,
                    "partition_max_bytes": self.partition_bytes,
                }
            )
        return [{**self._topic(topic_id), "partitions": parts} for topic_id, parts in topics.items()]

    def _forgotten(self, keys: list[tuple[bytes, int]]) -> list[dict[str, Any]]:
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in keys:
            topics.setdefault(topic_id, []).append(index)
        return [{**self._topic(topic_id), "partitions": parts} for topic_id, parts in topics.items()]

    def _topic(self, topic_id: bytes) -> dict[str, Any]:
        if self.version >= 13:
            return {"topic_id": topic_id}
        return {"topic": next(log.topic for log in self.logs.values() if log.topic_id == topic_id)}

    def _told(self, answer: Any) -> dict[tuple[bytes, int], Any]:
        ids = {log.topic: log.topic_id for log in self.logs.values()}
        return {
            (topic.topic_id.bytes if self.version >= 13 else ids[topic.topic], part.partition_index): part
            for topic in answer.responses
            for part in topic.partitions
        }

    async def _take(
        self, log: FollowerLog, part: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        error = int(part.error_code)
        if error == FENCED_LEADER_EPOCH:
            log.failed = "FENCED_LEADER_EPOCH for its own epoch"
        elif error == OFFSET_OUT_OF_RANGE:
            log.errors.append(error)
            await self._out_of_range(log, reader, writer)
        elif error:
            log.errors.append(error)
            log.delayed_until = asyncio.get_running_loop().time() + self.backoff
        else:
            diverging = getattr(part, "diverging_epoch", None)
            if diverging is not None and diverging.end_offset >= 0:
                log.truncate(min(diverging.end_offset, log.end))
                return
            records = bytes(part.records or b"")
            if not all(crc_ok(records, info) for info in parse_batches(records)):
                log.damaged += 1  # CorruptRecordException: the partition is delayed and asked for again
                log.delayed_until = asyncio.get_running_loop().time() + self.backoff
                return
            log.append(records)
            if log.failed:
                return
            log.high_watermark = max(log.high_watermark, min(int(part.high_watermark), log.end))
            if int(part.high_watermark) < log.high_watermark and not log.truncations:
                self.protocol_errors.append(f"high watermark went back to {part.high_watermark}")
            start = int(part.log_start_offset)
            if start > log.high_watermark:
                log.failed = f"log start offset {start} above the high watermark {log.high_watermark}"
            elif start > log.log_start:
                log.log_start = start

    async def _out_of_range(
        self, log: FollowerLog, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        latest = await self._list_offset(log, -1, reader, writer)
        if latest is None:
            return
        if latest < log.end:
            log.truncate(latest)
            return
        earliest = await self._list_offset(log, -2, reader, writer)
        if earliest is not None and earliest > log.end:
            log.start_over(earliest)

    async def _list_offset(
        self, log: FollowerLog, timestamp: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> int | None:
        answer = await self._call(
            reader,
            writer,
            "list_offsets",
            8,
            {
                "replica_id": self.replica_id,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": log.topic,
                        "partitions": [
                            {
                                "partition_index": log.index,
                                "current_leader_epoch": log.leader_epoch,
                                "timestamp": timestamp,
                            }
                        ],
                    }
                ],
            },
        )
        part = answer.topics[0].partitions[0]
        if int(part.error_code):
            log.delayed_until = asyncio.get_running_loop().time() + self.backoff
            return None
        return int(part.offset)
