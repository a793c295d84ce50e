"""Reads spans of logs from the brokers that hold them, as Arrow batches of headers.

Each replica is asked itself: a stock follower, in the ISR or not, serves a consumer's Fetch up to its high watermark
when it is sent there directly with an empty rack (KIP-392). Fetch v12 is the newest that names topics; ids differ
between the clusters. The next answer is on its way while one is looked at; two answers are the memory it takes.

Lives here: fetching, retries, leaders that move. Not here: how much of a span is asked for (reading.py), which spans there
are (ranges.py), what they mean (verdict.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import pyarrow as pa

from validator.compare.columns import MOVED, UNREADABLE, ArrowBuilder, HeaderBlock
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.fetching import FETCH_VERSION
from validator.read.reading import ReadAnswer, SpanReading
from validator.read.spans import LEADER, Span, SpanCursor, Walked
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.retry import NodeKind, passing
from wire.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionLost,
    RequestTimedOut,
    WireError,
    error_name,
)
from wire.frames.error_codes import CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE, UNKNOWN_SERVER_ERROR
from wire.frames.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    encode_fetch_request,
    parse_fetch_response,
)
from wire.frames.types import TopicPartition, format_address
from wire.together import retrieved

FETCH_BYTES = 8 << 20
"""Of one answer. Kafka exceeds it for one batch that is larger."""
PARTITIONS_PER_FETCH = 64
ROWS_PER_BATCH = 16_384
MAX_WAIT_MS = 500
CALL_TIMEOUT = 30.0
STALL_SECONDS = 30.0
"""Without any progress a read is given up after this long: Spark then tries the task elsewhere."""

BROKEN_AFTER = 3  # times that a broker says it cannot read its own file


def read_arrow(
    endpoint: ClusterEndpoint,
    spans: Sequence[Span],
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """The batches of the spans, which are read in order; those of one node together. Raises SideFailed."""
    with asyncio.Runner() as runner:
        batches = SpanReader(endpoint, spans, columns).batches()
        try:
            while (batch := runner.run(_next(batches))) is not None:
                yield batch
        finally:
            runner.run(_close(batches))


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)


async def _close(batches: AsyncIterator[pa.RecordBatch]) -> None:
    await batches.aclose()  # type: ignore[attr-defined]  # it is an async generator


class Marker(NamedTuple):
    """Something at an offset that is no batch: `kind` is UNREADABLE or MOVED, `note` says why."""

    span: Span
    kind: int
    offset: int
    note: str


class Piece(NamedTuple):
    """One answer's batches by span, and what ended there."""

    blocks: list[HeaderBlock]
    markers: list[Marker]


class SpanReader:
    """One task's reading from one cluster: as Arrow batches with `columns`, or piece by piece."""

    def __init__(
        self,
        endpoint: ClusterEndpoint,
        spans: Sequence[Span],
        columns: Sequence[str] = (),
        *,
        fetch_bytes: int = FETCH_BYTES,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self._endpoint = endpoint
        self._left = [SpanReading(SpanCursor(span)) for span in spans if span.start < span.end]
        self._columns = columns
        self._fetch_bytes = fetch_bytes
        self._stall = stall_seconds
        self._progress_at = time.monotonic()
        self._markers: list[Marker] = []

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Arrow batches of about ROWS_PER_BATCH rows."""
        if not self._left:
            return
        builder = ArrowBuilder(self._columns)
        async with self._endpoint.cluster() as cluster, aclosing(self.pieces(cluster)) as pieces:
            async for piece in pieces:
                while piece.blocks:
                    builder.add(piece.blocks.pop())
                for marker in piece.markers:
                    builder.add_marker(marker.span, marker.kind, marker.offset, marker.note)
                if builder.rows >= ROWS_PER_BATCH:
                    yield builder.take()
        if builder.rows:
            yield builder.take()

    async def pieces(self, cluster: Cluster) -> AsyncGenerator[Piece]:
        """The pieces of each answer, over a connected cluster. A piece's blocks look into the answer's buffer: take from
        them what is wanted and let them go. The next answer is asked for before a piece is handed out."""
        if not self._left:
            return
        self._progress_at = time.monotonic()
        await self._locate(cluster)
        following: asyncio.Future[ReadAnswer] | None = None
        try:
            answer = await self._ask(cluster)
            while True:
                taken = answer.take()
                trouble = self._note(answer, taken)
                if any(walked.positions or walked.broken for _, walked in taken):
                    self._progress_at = time.monotonic()
                elif time.monotonic() - self._progress_at > self._stall:
                    raise self._stalled(cluster, trouble or "it has nothing there")
                self._left = [reading for reading in self._left if not reading.cursor.done]
                if self._left and not trouble:
                    following = self._send_next(cluster, answer.connection)
                piece = Piece(
                    [
                        HeaderBlock(reading.cursor.span, answer.frame, walked.positions, walked.follows)
                        for reading, walked in taken
                        if walked.positions
                    ],
                    self._markers,
                )
                self._markers = []
                del answer, taken
                handed = time.monotonic()
                yield piece
                del piece
                self._progress_at += time.monotonic() - handed  # the broker was not what took that long
                self._left = [reading for reading in self._left if not reading.cursor.done]
                if not self._left:
                    return
                if trouble:
                    await self._relocate(cluster, trouble)
                asked, following = following, None
                answer = await self._ask(cluster, asked)
        finally:
            if following is not None:
                following.cancel()

    def skip(self, range_id: int) -> None:
        """Nobody wants to see the rest of a range."""
        for reading in self._left:
            if reading.cursor.span.range_id == range_id:
                reading.cursor.done = True

    # --- asking ---------------------------------------------------------------------------------------------

    async def _ask(self, cluster: Cluster, sent: asyncio.Future[ReadAnswer] | None = None) -> ReadAnswer:
        """The next answer; tried again on a new connection until nothing has moved for too long."""
        while True:
            try:
                if sent is None:
                    node = self._left[0].node
                    connection = await cluster.connection(node if node >= 0 else None, purpose="validate")
                    sent = self._send(connection, self._wanted(node))
                return await self._within(sent)
            except AuthenticationFailed as error:
                raise self._endpoint.failed(error, self._address(cluster)) from error
            except (ConnectionLost, BrokerError, WireError) as error:
                sent = None
                if time.monotonic() - self._progress_at > self._stall:
                    raise self._stalled(cluster, error) from error
                await asyncio.sleep(0.2)
                await self._locate(cluster)

    async def _within(self, sent: asyncio.Future[ReadAnswer]) -> ReadAnswer:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                return await sent
        except TimeoutError:
            raise RequestTimedOut(
                f"no answer within {CALL_TIMEOUT:g} s", sent=True, api="fetch", version=FETCH_VERSION
            ) from None

    def _send_next(self, cluster: Cluster, connection: Connection) -> asyncio.Future[ReadAnswer] | None:
        node = self._left[0].node
        known = cluster.nodes.get(node)
        if connection.closed or known is None or connection.peer != format_address(known.host, known.port):
            return None
        return self._send(connection, self._wanted(node))

    def _wanted(self, node: int) -> list[SpanReading]:
        wanted = [reading for reading in self._left if reading.node == node]
        return wanted[:PARTITIONS_PER_FETCH]

    def _send(self, connection: Connection, wanted: Sequence[SpanReading]) -> asyncio.Future[ReadAnswer]:
        by_topic: dict[str, dict[int, SpanReading]] = {}
        for reading in wanted:
            # two spans of one partition are read one after the other
            by_topic.setdefault(reading.cursor.span.topic, {}).setdefault(
                reading.cursor.span.partition, reading
            )
        asked = {
            (topic, index): reading for topic, parts in by_topic.items() for index, reading in parts.items()
        }
        share = max(self._fetch_bytes // max(len(asked), 1), 1)
        request = FetchRequest(
            version=FETCH_VERSION,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max([self._fetch_bytes, *(reading.at_least for reading in asked.values())]),
            session_epoch=-1,
            topics=[
                (
                    topic,
                    [
                        FetchPartition(index, -1, reading.cursor.fetch_offset, -1, -1, reading.limit(share))
                        for index, reading in parts.items()
                    ],
                )
                for topic, parts in by_topic.items()
            ],
        )
        reply: asyncio.Future[ReadAnswer] = asyncio.get_running_loop().create_future()
        reply.add_done_callback(retrieved)  # an answer nobody waits for any more is no bug to report

        def on_reply(result: memoryview | WireError) -> None:
            if reply.done():
                return
            if isinstance(result, WireError):
                result.api, result.version, result.peer = "fetch", FETCH_VERSION, connection.peer
                reply.set_exception(result)
                return
            try:
                response = parse_fetch_response(result, FETCH_VERSION)
                if response.error:
                    raise BrokerError(
                        response.error, api="fetch", version=FETCH_VERSION, peer=connection.peer
                    )
                if connection.names is not None:
                    response = connection.names.fetch_answer(response)
                reply.set_result(ReadAnswer(connection, result, response.partitions, asked))
            except WireError as error:
                error.peer = connection.peer
                reply.set_exception(error)

        if connection.names is not None:
            request = connection.names.fetch_request(request)
        correlation_id = connection.next_correlation_id()
        frame = encode_fetch_request(FETCH_VERSION, correlation_id, connection.client_id, request)
        connection.channel.send(correlation_id, [frame], on_reply)
        return reply

    # --- answers --------------------------------------------------------------------------------------------

    def _note(self, answer: ReadAnswer, taken: Sequence[tuple[SpanReading, Walked]]) -> str | None:
        """Markers for what cannot be read; the error that asks for another leader or some patience, if any."""
        trouble = None
        for reading, walked in taken:
            if walked.broken is not None:
                self._end(reading, UNREADABLE, f"{walked.broken} in the answer of {answer.connection.peer}")
        for part in answer.partitions:
            asked = answer.asked.get((str(part.key), part.index))
            if asked is None or not part.error or asked.cursor.done:
                continue
            name = error_name(part.error)
            if part.error == OFFSET_OUT_OF_RANGE:
                self._end(asked, MOVED, f"{answer.connection.peer} has no offset {asked.cursor.fetch_offset}")
            elif part.error in (CORRUPT_MESSAGE, UNKNOWN_SERVER_ERROR):
                asked.refused += 1
                trouble = name
                if asked.refused >= BROKEN_AFTER:
                    self._end(asked, UNREADABLE, f"{answer.connection.peer} cannot read its own log: {name}")
            elif passing(NodeKind.LEADER, part.error):
                trouble = name
            else:
                raise SideFailed(
                    self._endpoint.side, answer.connection.peer, str(self._broker_error(part, asked))
                )
        return trouble

    def _end(self, reading: SpanReading, marker: int, note: str) -> None:
        self._markers.append(Marker(reading.cursor.span, marker, reading.cursor.position, note))
        reading.cursor.done = True

    def _broker_error(self, part: FetchedPartition, reading: SpanReading) -> BrokerError:
        span = reading.cursor.span
        return BrokerError(
            part.error,
            api="fetch",
            version=FETCH_VERSION,
            topic_partition=TopicPartition(span.topic, span.partition),
            offset=reading.cursor.fetch_offset,
        )

    # --- nodes ----------------------------------------------------------------------------------------------

    async def _relocate(self, cluster: Cluster, trouble: str) -> None:
        if time.monotonic() - self._progress_at > self._stall:
            raise self._stalled(cluster, trouble)
        await asyncio.sleep(0.2)
        await self._locate(cluster)

    async def _locate(self, cluster: Cluster) -> None:
        """Which node to ask for each span: the named broker, or the present leader."""
        try:
            await cluster.refresh({reading.cursor.span.topic for reading in self._left})
        except AuthenticationFailed as error:
            raise self._endpoint.failed(error) from error
        except WireError as error:
            if time.monotonic() - self._progress_at > self._stall:
                raise self._endpoint.failed(error) from error
        for reading in self._left:
            span = reading.cursor.span
            if span.node != LEADER:
                reading.node = span.node
                continue
            leader = cluster.leader(TopicPartition(span.topic, span.partition))
            reading.node = leader.id if leader is not None else LEADER
        self._left.sort(key=lambda reading: reading.node)

    def _address(self, cluster: Cluster) -> str | None:
        node = cluster.nodes.get(self._left[0].node) if self._left else None
        return None if node is None else format_address(node.host, node.port)

    def _stalled(self, cluster: Cluster, error: WireError | str) -> SideFailed:
        span = self._left[0].cursor.span
        return SideFailed(
            self._endpoint.side,
            (error.peer if isinstance(error, WireError) else None) or self._address(cluster),
            f"{span.topic}-{span.partition} could not be read from "
            f"{'its leader' if span.node == LEADER else f'broker {span.node}'} at offset"
            f" {self._left[0].cursor.position} for {self._stall:g} s: {error}",
        )
