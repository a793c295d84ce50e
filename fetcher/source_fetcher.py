"""One connection to one source node and the fetch session on it. At most one fetch is in flight.

The cycle runs on callbacks, without a task switch: answer in -> windows filled -> next request out ->
followers woken. So while followers take what is there, the source already works on what comes next. A lane
whose window is full is forgotten from the session until there is room again.

A source's broker looks at every partition of a session for every fetch, and so many fetches are made as partitions
get records. So where there are many, those that get none are asked for by a fetcher of their own, the quiet sibling
of the busy one: the busy session stays as small as what moves. A lane changes over when the one that takes it sends
its next request, never before, and is part of the other's poll until then; an answer that the other one still has under
way for it is dropped.

Not here: which node serves a lane, and what an error means for the partition (manager.py, error_table.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from typing import Protocol

from fetcher.budget import Charge, MemoryBudget
from fetcher.lane import Lane
from fetcher.mirror_partition import MirrorPartition
from fetcher.source_session import PartitionKey, SourceSession
from fetcher.throttle import Throttle
from fetcher.window import WindowChunk
from wire.batch import Walk, patch_batches
from wire.buffers import size_below
from wire.connection import Connection
from wire.errors import MalformedFrame, WireError
from wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_fetch_request,
    parse_fetch_response,
)
from wire.framing import SCRATCH_MAX
from wire.types import Node

MIN_VERSION, MAX_VERSION, FIRST_ID_VERSION = 12, 17, 13
_SHORTEST_POLL_MS, _LONGEST_SHORT_POLL_MS = 5, 50
# The most bytes beside records in a fetch answer: of all, of a partition, of a topic by id and by name (FetchResponse).
_HEADERS, _PARTITION_HEADERS, _ID, _NAME = 64, 48, 24, 260


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Sizes and times of source fetches; Kafka's own defaults for a replica fetcher where it has them."""

    max_bytes: int = 8 << 20
    partition_bytes: int = 1 << 20
    max_wait_ms: int = 500
    request_timeout: float = 30.0
    reconnect_backoff: tuple[float, float] = (0.1, 5.0)
    #: A partition without records for that long (seconds) is for the quiet fetcher, if the busy one has more than
    #: `busy_partitions` of them.
    quiet_after: float = 5.0
    busy_partitions: int = 32


class FetcherOwner(Protocol):
    """Decides what a fetcher only notices."""

    def partition_error(self, lane: Lane, fetcher: SourceFetcher, code: int) -> None: ...

    def partition_malformed(self, lane: Lane, fetcher: SourceFetcher, error: MalformedFrame) -> None: ...

    def diverged(self, lane: Lane, fetcher: SourceFetcher, epoch: int, end_offset: int) -> None: ...

    def preferred_replica(self, lane: Lane, fetcher: SourceFetcher, node_id: int) -> None: ...

    def connection_failed(self, fetcher: SourceFetcher, error: WireError) -> None: ...

    def request_bytes(self) -> int:
        """How much one fetch may bring just now, so that all fetchers fit into the budget."""

    def memory_short(self, size: int) -> bool:
        """Try to make room; True if it is worth asking the budget again."""

    def sibling(self, fetcher: SourceFetcher) -> SourceFetcher | None:
        """The quiet fetcher of a busy one and the other way round; None when nothing is begun any more."""


def sibling_slot(slot: int) -> int:
    """Quiet fetchers have the slots below 0."""
    return -1 - slot


class SourceFetcher:
    def __init__(
        self,
        node: Node,
        slot: int,
        owner: FetcherOwner,
        budget: MemoryBudget,
        limits: FetchLimits,
        *,
        open_connection: Callable[[Node], Awaitable[Connection]],
        client_id: str,
        rack: str,
        throttle: Throttle | None = None,
    ) -> None:
        self.node = node
        self.slot = slot
        self.lanes: dict[PartitionKey, Lane] = {}
        self.connected = False
        self.requests = 0
        self._owner = owner
        self._budget = budget
        self._limits = limits
        self._open_connection = open_connection
        self._client_id = client_id
        self._rack = rack
        self._throttle = throttle
        self._rackless: set[Lane] = set()
        self._session = SourceSession()
        self._connection: Connection | None = None
        self._version = MAX_VERSION
        self._by_id = True
        self._keys_stale = False
        self._generations: dict[PartitionKey, int] = {}
        self._touched: set[Lane] = set()
        #: Asked for, and nothing heard of their source's end since their mirrors were paused.
        self._unheard: set[Lane] = set()
        self._full: set[Lane] = set()
        #: Lanes of the sibling that are to change over with the next request.
        self._offered: set[Lane] = set()
        self._looked_at = 0.0
        self._answered_at = 0.0
        self._short_poll_ms = _SHORTEST_POLL_MS
        self._scheduled = False
        self._not_before = 0.0
        self._reserved = 0
        self._short_of_memory = False
        self._deadline: float | None = None
        self._stopped = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<SourceFetcher node {self.node.id} slot {self.slot}, {len(self.lanes)} partitions>"

    # --- partitions
    # ----------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        return self.slot < 0

    def holds(self, mirror: MirrorPartition) -> bool:
        """Whether another lane of the partition is here or with the sibling: a session can hold a partition only once."""
        return any(
            lane.fetcher is not None
            and lane.fetcher.node.id == self.node.id
            and lane.fetcher.slot in (self.slot, sibling_slot(self.slot))
            for lane in mirror.lanes
        )

    def add(self, lane: Lane) -> None:
        self._adopt(lane)
        self.touch(lane)

    def _adopt(self, lane: Lane) -> None:
        lane.fetcher = self
        self.lanes[self._key(lane.mirror)] = lane
        self._keys_stale |= self._by_id and lane.mirror.spec.source_topic_id is None
        if lane.leader_only:
            self._rackless.add(lane)
        self._touched.add(lane)

    def remove(self, lane: Lane) -> None:
        """Forget a lane; an answer for it that is still under way will be dropped."""
        key = self._key(lane.mirror)
        if self.lanes.get(key) is lane:
            del self.lanes[key]
            self._generations.pop(key, None)
            self._session.drop(key)
        self._touched.discard(lane)
        self._unheard.discard(lane)
        self._full.discard(lane)
        self._rackless.discard(lane)
        if lane.fetcher is self:
            lane.fetcher = None

    def touch(self, lane: Lane) -> None:
        """Something about the lane changed: look at it before the next request, and send that soon."""
        self._touched.add(lane)
        self._schedule()
        self._note_life(lane, self._loop.time())

    def _note_life(self, lane: Lane, now: float) -> None:
        lane.active_at = now
        if self.quiet and (busy := self._owner.sibling(self)) is not None:
            busy.offer(lane)

    def offer(self, lane: Lane) -> None:
        """Take a lane of the sibling with the next request, if it is still there and still belongs here then."""
        self._offered.add(lane)
        self._schedule()

    def _take_over(self, now: float) -> None:
        for lane in self._offered:
            other = lane.fetcher
            if other is None or other.node != self.node or other.slot != sibling_slot(self.slot):
                continue
            if self._key(lane.mirror) not in self.lanes and (not self.quiet or self._is_idle(lane, now)):
                other.remove(lane)
                self._adopt(lane)
        self._offered.clear()

    def _is_idle(self, lane: Lane, now: float) -> bool:
        # A lane that is full, or waits after an error, is not asked for at all: its turn may come any moment.
        return lane.wants_data and now - lane.active_at >= self._limits.quiet_after

    def _part_with_idle(self, now: float) -> None:
        """Now and then, offer the quiet sibling what does not move."""
        if self.quiet or len(self.lanes) <= self._limits.busy_partitions:
            return
        if now - self._looked_at < self._limits.quiet_after / 5:
            return
        self._looked_at = now
        idle = [lane for lane in self.lanes.values() if self._is_idle(lane, now)]
        if idle and (quiet := self._owner.sibling(self)) is not None:
            for lane in idle:
                quiet.offer(lane)

    def _key(self, mirror: MirrorPartition) -> PartitionKey:
        spec = mirror.spec
        topic_id = spec.source_topic_id if self._by_id else None
        return (spec.topic if topic_id is None else topic_id, spec.partition)

    def _rekey(self) -> None:
        """Names or ids, for the whole session: ids if the source has them for every partition."""
        self._keys_stale = False
        by_id = self._version >= FIRST_ID_VERSION and all(
            lane.mirror.spec.source_topic_id is not None for lane in self.lanes.values()
        )
        if by_id == self._by_id and all(key == self._key(lane.mirror) for key, lane in self.lanes.items()):
            return
        self._by_id = by_id
        lanes = list(self.lanes.values())
        self.lanes = {self._key(lane.mirror): lane for lane in lanes}
        self._forget_session()

    def _forget_session(self) -> None:
        self._session = SourceSession()
        self._generations.clear()
        self._touched.update(self.lanes.values())

    # --- connection
    # ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep a connection open until cancelled. Failures are reported and retried with a growing pause."""
        first, last = self._limits.reconnect_backoff
        pause = first
        try:
            while True:
                started = self._loop.time()
                try:
                    await self._run_connection()
                except WireError as error:
                    self._owner.connection_failed(self, error)
                if self._loop.time() - started > 10 * last:
                    pause = first
                await asyncio.sleep(pause)
                pause = min(pause * 2, last)
        finally:
            self._stopped = True
            self._disconnected()

    async def _run_connection(self) -> None:
        connection = await self._open_connection(self.node)
        try:
            self._version = connection.pick_version("fetch", max_version=MAX_VERSION)
            if self._version < MIN_VERSION:
                raise MalformedFrame(
                    "the source is too old: Fetch version 12 (Kafka 2.7) is the least",
                    api="fetch",
                    version=self._version,
                    peer=connection.peer,
                )
            self._connection = connection
            self.connected = True
            self._forget_session()
            self._rekey()
            self._schedule()
            await connection.closed_event.wait()
            reason = connection.channel.closed_reason
            raise WireError(
                f"connection to the source ended: {reason or 'closed by the peer'}", peer=connection.peer
            )
        finally:
            connection.close()
            self._disconnected()

    def _disconnected(self) -> None:
        self._connection = None
        self.connected = False
        self._deadline = None
        self._budget.forget_waiter(self._schedule)
        self._give_back()
        if self._session.in_flight:
            self._session.failed(connection_lost=True)

    def check_deadline(self, now: float) -> None:
        """Called now and then: a node that does not answer is as good as dead."""
        if self._deadline is not None and now > self._deadline and self._connection is not None:
            self._connection.channel.close(
                MalformedFrame(f"no answer to a fetch within {self._limits.request_timeout:g} s", api="fetch")
            )

    def check_memory(self) -> None:
        """Called now and then: windows grow idle without an event, so nobody else may ever ask for them again."""
        if self._short_of_memory:
            self._schedule()

    # --- requests
    # ------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._send_scheduled)

    def _send_scheduled(self) -> None:
        self._scheduled = False
        self._send()

    def _send(self) -> None:
        connection = self._connection
        session = self._session
        if connection is None or session.in_flight or connection.closed:
            return
        now = self._loop.time()
        delay = self._not_before - now
        if self._throttle is not None and len(session):
            delay = max(delay, self._throttle.delay())
        if delay > 0:
            self._scheduled = True
            self._loop.call_later(delay, self._send_scheduled)
            return
        if self._offered:
            self._take_over(now)
        self._part_with_idle(now)
        if self._keys_stale:
            self._rekey()
            session = self._session
        self._apply_touched()
        wanted = len(session)
        if not wanted:
            return
        # Of the quiet ones hardly any has something: what they may bring is set aside as long as the poll lasts.
        share = self._limits.partition_bytes * (1 if self.quiet else wanted)
        size = min(self._limits.max_bytes, share, self._owner.request_bytes())
        if self._throttle is not None:
            size = self._throttle.fetch_size(size)
        # The answer has headers too, and it is received into a buffer of one of the pool's sizes.
        size = size_below(size)
        self._short_of_memory = not self._reserve(size)
        if self._short_of_memory:
            self._budget.when_released(self._schedule)
            return
        request = session.next_request()
        if request is None:
            self._give_back()
            return
        max_wait = self._limits.max_wait_ms
        if self._full:
            # A window may get room any moment, and a long poll for the idle ones would keep it waiting.
            max_wait = min(self._short_poll_ms, max_wait)
            self._short_poll_ms = min(self._short_poll_ms * 2, _LONGEST_SHORT_POLL_MS)
        else:
            self._short_poll_ms = _SHORTEST_POLL_MS
        correlation_id = connection.next_correlation_id()
        version = self._version if self._by_id else MIN_VERSION
        frame = encode_fetch_request(
            version,
            correlation_id,
            self._client_id,
            FetchRequest(
                version=version,
                max_wait_ms=max_wait,
                min_bytes=1,
                max_bytes=max(size - _HEADERS - wanted * self._partition_headers(), size // 2),
                session_id=request.session_id,
                session_epoch=request.session_epoch,
                topics=request.topics,
                forgotten=request.forgotten,
                # With a rack the leader would send these lanes away again.
                rack_id="" if self._rackless else self._rack,
            ),
        )
        self._deadline = now + max_wait / 1000 + self._limits.request_timeout
        self.requests += 1
        try:
            connection.channel.send(correlation_id, [frame], self._on_reply)
        except WireError:
            # The connection closed under us; run() notices and reports it.
            session.failed(connection_lost=True)
            self._give_back()

    def _partition_headers(self) -> int:
        """The most that an answer's headers take per partition, the topic's counted with each."""
        return _PARTITION_HEADERS + (_ID if self._by_id else _NAME)

    def _apply_touched(self) -> None:
        session = self._session
        for lane in self._touched:
            if lane.fetcher is not self:
                continue
            key = self._key(lane.mirror)
            if lane.wants_data:
                self._full.discard(lane)
                mirror = lane.mirror
                session.want(
                    key,
                    FetchPartition(
                        mirror.spec.partition,
                        mirror.source_leader_epoch,
                        lane.position,
                        lane.last_epoch,
                        -1,
                        self._limits.partition_bytes,
                    ),
                )
                self._generations[key] = lane.generation
                if not mirror.end_known:
                    self._unheard.add(lane)
            else:
                session.drop(key)
                if lane.full:
                    self._full.add(lane)
                else:
                    self._full.discard(lane)
        self._touched.clear()

    def _reserve(self, size: int) -> bool:
        if not self._budget.try_reserve(size) and not (
            self._owner.memory_short(size) and self._budget.try_reserve(size)
        ):
            return False
        self._reserved = size
        return True

    def _give_back(self) -> None:
        reserved, self._reserved = self._reserved, 0
        if reserved:
            self._budget.release(reserved)

    # --- answers
    # -------------------------------------------------------------------------------------------------

    def _on_reply(self, reply: memoryview | WireError) -> None:
        self._deadline = None
        self._answered_at = self._loop.time()
        if isinstance(reply, WireError):
            self._give_back()
            self._session.failed(connection_lost=True)
            return
        if self._throttle is not None:
            self._throttle.spent(len(reply))
        version = self._version if self._by_id else MIN_VERSION
        try:
            response = parse_fetch_response(reply, version)
        except MalformedFrame:
            self._give_back()
            self._session.failed(connection_lost=True)
            raise  # the channel closes itself with this as the reason
        changed = self._take(response, reply)
        if response.throttle_ms > 0:
            self._not_before = self._answered_at + response.throttle_ms / 1000
        self._send()
        for mirror in changed:
            mirror.notify()

    def _take(self, response: FetchResponse, frame: memoryview) -> list[MirrorPartition]:
        """Put an answer's batches into the windows; returns the partitions whose followers should know."""
        asked = self._session.asked
        charge: Charge | None = None
        changed: list[MirrorPartition] = []
        if not self._session.answered(response.error, response.session_id):
            self._give_back()
            self._touched.update(self.lanes.values())
            if response.error not in (70, 71, 106):
                self._not_before = self._answered_at + 0.1
            return changed
        # The reservation becomes the real charge; nothing else runs in between.
        self._give_back()
        try:
            for part in response.partitions:
                key = (part.key, part.index)
                lane = self.lanes.get(key)
                sent = asked(key)
                if lane is None or sent is None or self._generations.get(key) != lane.generation:
                    continue
                if sent.fetch_offset != lane.position:
                    continue
                if part.error or part.diverging is not None or part.preferred_read_replica >= 0:
                    self._take_trouble(lane, part)
                    if part.error or part.diverging is not None:
                        continue
                mirror = lane.mirror
                news = mirror.note_answer(part.high_watermark, part.last_stable_offset, part.log_start_offset)
                if part.records_end > part.records_start:
                    if charge is None:
                        charge = self._charge(frame)
                    news = self._take_records(lane, part, frame, charge) or news
                else:
                    lane.failures = 0
                if mirror.trouble is not None and not lane.failures:
                    mirror.source_fine()
                if news:
                    changed.append(mirror)
            if self._unheard:
                self._take_silence({(part.key, part.index) for part in response.partitions})
        finally:
            if charge is not None:
                charge.drop()
        return changed

    def _take_silence(self, named: Set[PartitionKey]) -> None:
        """What an answer of a session does not name ends where it did (KIP-227)."""
        for lane in tuple(self._unheard):
            mirror, key = lane.mirror, self._key(lane.mirror)
            asked = self._session.asked(key) is not None and self._generations.get(key) == lane.generation
            if asked and key not in named:
                mirror.note_silence()
            if mirror.end_known:
                self._unheard.discard(lane)

    def _charge(self, frame: memoryview) -> Charge:
        """Large frames have a buffer of their own, which may be longer than they are; small ones are
        copied.
        """
        size = len(frame)
        if size > SCRATCH_MAX:
            size = max(size, memoryview(frame.obj).nbytes)
        return Charge(self._budget, size)

    def _take_records(self, lane: Lane, part: FetchedPartition, frame: memoryview, charge: Charge) -> bool:
        spec = lane.mirror.spec
        start, end = part.records_start, part.records_end
        if len(frame) <= SCRATCH_MAX:
            # A small frame shares its buffer with others: a copy keeps one idle partition from pinning
            # them all.
            frame = memoryview(bytearray(frame[start:end]))
            start, end = 0, len(frame)
        chunk_bytes = min(self._limits.partition_bytes, spec.segment_bytes)
        try:
            walk: Walk = patch_batches(frame, start, end, spec.session_epoch, chunk_bytes, lane.last_epoch)
            chunks = [
                WindowChunk(base, following, frame[first:last], last - first, charge)
                for first, last, base, following in walk.chunks
                if following > lane.position
            ]
        except MalformedFrame as error:
            self._owner.partition_malformed(lane, self, error)
            return False
        if not chunks:
            return False
        mirror = lane.mirror
        if walk.largest > spec.segment_bytes:
            # Given to a follower it would fail the partition there, until a new leader epoch and without a word.
            mirror.fail(
                f"the source has a batch of {walk.largest} bytes in {mirror.tp} after offset {lane.position}, the target's "
                f"segment.bytes is {spec.segment_bytes}: no follower could append it; raise segment.bytes of the topic at "
                "the target, then mirror resume --restart"
            )
            return False
        mirror.batches_fetched += walk.batches
        if walk.largest > mirror.largest_batch:
            mirror.largest_batch = walk.largest
        lane.failures = 0
        mirror.add_chunks(lane, chunks, walk.epochs, part.high_watermark)
        self._touched.add(lane)
        self._note_life(lane, self._answered_at)
        self._short_poll_ms = _SHORTEST_POLL_MS
        return True

    def _take_trouble(self, lane: Lane, part: FetchedPartition) -> None:
        if part.error:
            self._owner.partition_error(lane, self, part.error)
        elif part.diverging is not None:
            self._owner.diverged(lane, self, *part.diverging)
        else:
            self._owner.preferred_replica(lane, self, part.preferred_read_replica)
