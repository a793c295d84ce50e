"""The fetch session with one source node, on one connection. At most one fetch is in flight.

The cycle runs on callbacks, without a task switch: answer in -> windows filled -> next request out ->
followers woken. So while followers take what is there, the source already works on what comes next. A cursor
whose window is full is forgotten from the session until there is room again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fetcher.budget import Charge, MemoryBudget, Reservation
from fetcher.cursor_session import CursorSession
from fetcher.fetch_session import SESSION_ERRORS, PartitionKey
from fetcher.idle_partitions import ChangeOver, sibling_slot
from fetcher.next_send import NextSend
from fetcher.pace import Pace
from fetcher.partition_copy import PartitionCopy, PartitionCursor
from fetcher.source_connection import MAX_VERSION, MIN_VERSION, ConnectionUser, SourceConnection
from fetcher.source_owner import FetcherOwner
from fetcher.source_ports import FetchLimits
from fetcher.source_rate import LogGrowth, SourceRate
from fetcher.source_records import charge_for, take_records
from wire.client.connection import Connection
from wire.errors import MalformedFrame, WireError
from wire.frames.buffers import size_below
from wire.frames.fetch import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    encode_fetch_request,
    parse_fetch_response,
)
from wire.frames.types import Node

#: Seconds beyond a long poll's own time after which a node that has not answered is one that nobody should rely on.
_SILENT = 0.5
#: Seconds that the replicas of what came last are waited for before others are asked for without it.
_REPLICAS_WITHIN = 0.01
#: The next fetch may be put off by the link's rate for so many seconds before readers at the end of the log notice.
_FELT = 0.05


class SourceFetcher:
    def __init__(
        self,
        node: Node,
        slot: int,
        owner: FetcherOwner[SourceFetcher],
        budget: MemoryBudget,
        limits: FetchLimits,
        *,
        open_connection: Callable[[Node], Awaitable[Connection]],
        client_id: str,
        rack: str,
        rate: SourceRate | None = None,
        replica: Callable[[], tuple[int, int] | None] | None = None,
        about_to_tell: Callable[[PartitionCursor], None] = lambda _cursor: None,
    ) -> None:
        """`replica`: the broker id and epoch in the source's cluster to fetch with as a replica, if they are known.
        `about_to_tell`: called before a replica's request names the position of a cursor; it may hold the cursor."""
        self.node = node
        self.slot = slot
        self.requests = 0
        self._owner = owner
        self._budget = budget
        self._limits = limits
        self._client_id = client_id
        self._rack = rack
        self._rate = rate
        self._replica = replica
        self._about_to_tell = about_to_tell
        #: Got records with the last answer, which all replicas are about to have: worth a moment until the next request.
        self._awaited: set[PartitionCursor] = set()
        #: Read beyond what the source has told to be committed: it may tell more any moment.
        self._uncommitted: set[PartitionCursor] = set()
        self._asked = CursorSession()
        self._change_over = ChangeOver(self, owner.sibling, limits)
        self._kept = SourceConnection(
            node,
            open_connection,
            limits.reconnect_backoff,
            ConnectionUser(
                opened=self._connected,
                ended=self._disconnected,
                failed=lambda error: owner.connection_failed(self, error),
                in_flight=lambda: self._asked.in_flight,
            ),
        )
        self._connection: Connection | None = None
        self._version = MAX_VERSION
        self._answered_at = 0.0
        self._told_at = float("-inf")  # an answer that says of each cursor whether there is more
        self._pace = Pace(limits)
        self._next_send = NextSend(self._send)
        self._reserved = Reservation(budget, owner.memory_short)
        self._short_of_memory = False
        self._deadline: float | None = None
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<SourceFetcher node {self.node.id} slot {self.slot}, {len(self.cursors)} partitions>"

    # --- partitions

    @property
    def quiet(self) -> bool:
        return self.slot < 0

    @property
    def cursors(self) -> dict[PartitionKey, PartitionCursor]:
        return self._asked.cursors

    def holds(self, mirror: PartitionCopy) -> bool:
        """Whether another cursor of the partition is here or with the sibling: a session can hold a partition only once."""
        return any(
            cursor.fetcher is not None
            and cursor.fetcher.node.id == self.node.id
            and cursor.fetcher.slot in (self.slot, sibling_slot(self.slot))
            for cursor in mirror.cursors
        )

    def holds_name_of(self, mirror: PartitionCopy) -> bool:
        """Whether the session asks for a partition of that name already."""
        return self._asked.key(mirror) in self.cursors

    def add(self, cursor: PartitionCursor) -> None:
        self.adopt(cursor)
        self.touch(cursor)

    def adopt(self, cursor: PartitionCursor) -> None:
        """A cursor whose turn comes with the next request, which is about to be sent."""
        cursor.fetcher = self
        self._asked.adopt(cursor)

    def remove(self, cursor: PartitionCursor) -> None:
        """Forget a cursor; an answer for it that is still under way will be dropped."""
        self._asked.remove(cursor)
        self._uncommitted.discard(cursor)
        if cursor in self._awaited:
            self.release(cursor)
        if cursor.fetcher is self:
            cursor.fetcher = None

    def touch(self, cursor: PartitionCursor) -> None:
        """Something about the cursor changed: look at it before the next request, and send that soon."""
        self._asked.touch(cursor)
        self._next_send.soon()
        self._note_life(cursor, self._loop.time())

    def release(self, cursor: PartitionCursor) -> None:
        """All replicas have what the cursor has read: the source may be told."""
        self._asked.touch(cursor)
        self._awaited.discard(cursor)
        if not self._awaited:
            self._next_send.at_once()
            self._next_send.soon()

    def _note_life(self, cursor: PartitionCursor, now: float) -> None:
        cursor.active_at = now
        if self.quiet and (busy := self._owner.sibling(self)) is not None:
            busy.offer(cursor)

    def follows(self, cursor: PartitionCursor) -> bool:
        """Whether a new record would be here within a moment: the node is asked for the cursor and has answered lately,
        and neither memory nor the link's rate holds us back."""
        if self._connection is None or self._short_of_memory:
            return False
        if not cursor.held and not self._asked.asks_for(cursor):
            return False
        if self._rate is not None and self._rate.debt > _FELT:
            return False
        return self._loop.time() - self._told_at < self._limits.max_wait_ms / 1000 + _SILENT

    def offer(self, cursor: PartitionCursor) -> None:
        """Take a cursor of the sibling with the next request, if it is still there and still belongs here then."""
        self._change_over.offered.add(cursor)
        self._next_send.soon()

    # --- connection

    async def run(self) -> None:
        """Fetch until cancelled."""
        if self._rate is not None:
            self._rate.waiters.add(self._next_send.at_once)
        try:
            await self._kept.run()
        finally:
            self._next_send.stop()
            if self._rate is not None:
                self._rate.waiters.discard(self._next_send.at_once)
            self._disconnected()

    def _connected(self, connection: Connection, version: int) -> None:
        self._connection, self._version = connection, version
        self._asked.begin(version)
        self._next_send.soon()

    def _disconnected(self) -> None:
        self._connection = None
        self._deadline = None
        self._budget.forget_waiter(self._next_send.soon)
        self._reserved.give_back()
        self._asked.failed()

    def check_deadline(self, now: float) -> None:
        """Called now and then: a node that does not answer is as good as dead."""
        if self._deadline is not None and now > self._deadline and self._connection is not None:
            self._connection.channel.close(
                MalformedFrame(f"no answer to a fetch within {self._limits.request_timeout:g} s", api="fetch")
            )

    def check_memory(self) -> None:
        """Called now and then: windows grow idle without an event, so nobody else may ever ask for them again."""
        if self._short_of_memory:
            self._next_send.soon()

    # --- requests

    def _send(self) -> None:
        connection, asked = self._connection, self._asked
        if connection is None or asked.in_flight or connection.closed or self._kept.renewing:
            return
        now = self._loop.time()
        delay = self._pace.delay(now)
        if self._rate is not None and len(asked):
            delay = self._rate.put_off(delay)
        replica = None if self._replica is None else self._replica()
        if self._replica is not None:
            if replica is None:
                return  # who looks after it tries again
            if self._awaited:
                delay = max(delay, self._answered_at + _REPLICAS_WITHIN - now)
        if delay > 0:
            self._next_send.put_off(delay)
            return
        self._awaited.clear()
        self._change_over.take(now)
        self._change_over.part_with_idle(now)
        told = () if replica is None else tuple(asked.touched)
        for cursor in told:
            self._about_to_tell(cursor)
        asked.apply(self._version, self._limits.partition_bytes)
        if not (wanted := len(asked)):
            return
        # Hardly any of the quiet partitions has something to bring, and memory for it stays reserved as long as the
        # poll lasts.
        share = self._limits.partition_bytes * (1 if self.quiet else wanted)
        size = min(self._limits.max_bytes, share, self._owner.request_bytes())
        if self._rate is not None:
            size = self._rate.fetch_size(size)
        # The answer has headers too, and it is received into a buffer of one of the pool's sizes.
        size = size_below(size)
        self._short_of_memory = not self._reserved.take(size)
        if self._short_of_memory:
            for cursor in told:
                asked.touch(cursor)  # it is judged again when there is memory
            self._budget.when_released(self._next_send.soon)
            return
        request = asked.next_request()
        if request is None:
            self._reserved.give_back()
            return
        max_wait = self._pace.max_wait_ms(some_full=asked.some_full or bool(self._uncommitted))
        replica_id, replica_epoch = replica or (-1, -1)
        correlation_id = connection.next_correlation_id()
        version = self._version if self._asked.by_id else MIN_VERSION
        frame = encode_fetch_request(
            version,
            correlation_id,
            self._client_id,
            FetchRequest(
                version=version,
                replica_id=replica_id,
                replica_epoch=replica_epoch,
                max_wait_ms=max_wait,
                min_bytes=1,
                max_bytes=asked.records_within(size),
                session_id=request.session_id,
                session_epoch=request.session_epoch,
                topics=request.topics,
                forgotten=request.forgotten,
                # With a rack the leader would send these cursors away again.
                rack_id="" if replica or asked.some_leader_only else self._rack,
            ),
        )
        self._deadline = now + max_wait / 1000 + self._limits.request_timeout
        self.requests += 1
        self._pace.sent(now, size)
        try:
            connection.channel.send(correlation_id, [frame], self._on_reply)
        except WireError:  # the connection closed under us; run() notices and reports it
            asked.failed()
            self._reserved.give_back()

    # --- answers

    def _on_reply(self, reply: memoryview | WireError) -> None:
        self._deadline = None
        self._answered_at = self._loop.time()
        if isinstance(reply, WireError):
            self._reserved.give_back()
            self._asked.failed()
            return
        growth = self._rate.spent(len(reply)) if self._rate is not None else None
        version = self._version if self._asked.by_id else MIN_VERSION
        try:
            response = parse_fetch_response(reply, version)
        except MalformedFrame:
            self._reserved.give_back()
            self._asked.failed()
            raise  # the channel closes itself with this as the reason
        self._pace.answered(self._answered_at, len(reply), response.throttle_ms)
        changed = self._take(response, reply, growth)
        if self._kept.renewing and self._connection is not None:
            self._connection.close()
        self._send()
        for mirror in changed:
            mirror.notify()

    def _take(
        self, response: FetchResponse, frame: memoryview, growth: LogGrowth | None
    ) -> list[PartitionCopy]:
        """Put an answer's batches into the windows; returns the partitions whose followers should know."""
        charge: Charge | None = None
        changed: list[PartitionCopy] = []
        if not self._asked.answered(response.error, response.session_id):
            self._reserved.give_back()
            if response.error not in SESSION_ERRORS:
                self._pace.refused(self._answered_at)
            return changed
        if not response.throttle_ms:
            self._told_at = self._answered_at
        # The reservation becomes the real charge; nothing else runs in between.
        self._reserved.give_back()
        try:
            for part in response.partitions:
                cursor = self._asked.heard(part)
                if cursor is None:
                    continue
                if part.error or part.diverging is not None or part.preferred_read_replica >= 0:
                    self._take_trouble(cursor, part)
                    if part.error or part.diverging is not None:
                        continue
                mirror = cursor.mirror
                end, position, appended = mirror.high_watermark, cursor.position, cursor.appended
                log_start = mirror.log_start_offset
                news = mirror.note_answer(part.high_watermark, part.last_stable_offset, part.log_start_offset)
                if part.records_end > part.records_start:
                    if charge is None:
                        charge = charge_for(frame, self._budget)
                    news = self._take_records(cursor, part, frame, charge) or news
                else:
                    cursor.failures = 0
                if cursor.fed:
                    self._note_fed(cursor, log_start)
                if growth is not None:
                    growth.note(cursor, end, position, appended)
                if mirror.trouble is not None and not cursor.failures:
                    mirror.source_fine()
                if news:
                    changed.append(mirror)
            # Over its quota a client is answered without a partition: what was read for it is thrown away.
            if self._asked.some_unheard and not response.throttle_ms:
                self._asked.note_silence({(part.key, part.index) for part in response.partitions})
        finally:
            if charge is not None:
                charge.drop()
        return changed

    def _take_records(
        self, cursor: PartitionCursor, part: FetchedPartition, frame: memoryview, charge: Charge
    ) -> bool:
        try:
            if not take_records(cursor, part, frame, charge, self._limits.partition_bytes):
                return False
        except MalformedFrame as error:
            self._owner.partition_malformed(cursor, self, error)
            return False
        cursor.failures = 0
        self._asked.touch(cursor)
        cursor.woke |= self.quiet
        self._note_life(cursor, self._answered_at)
        self._pace.records_came()
        if cursor.held:
            self._awaited.add(cursor)
        return True

    def _note_fed(self, cursor: PartitionCursor, log_start: int) -> None:
        if cursor.mirror.high_watermark < cursor.position:
            self._uncommitted.add(cursor)
        else:
            self._uncommitted.discard(cursor)
        if cursor.mirror.log_start_offset != log_start:
            self._asked.touch(cursor)  # the leader is told of ours

    def _take_trouble(self, cursor: PartitionCursor, part: FetchedPartition) -> None:
        if part.error:
            self._owner.partition_error(cursor, self, part.error)
        elif part.diverging is not None:
            self._owner.diverged(cursor, self, *part.diverging)
        else:
            self._owner.preferred_replica(cursor, self, part.preferred_read_replica)
