"""Serving the target's stock followers: Fetch with sessions and long polls. ListOffsets and
OffsetForLeaderEpoch are in follower_offsets.py, what a partition answers is decided in follower_answers.py.

One follower thread has one fetch in flight. It is answered at once when there is something to tell, else
it waits for a change or its max_wait; however many partitions change in one turn of the event loop, it is
woken once. A mirror that is just being added, or asks the source where it ends, is waited for as well: an error
would cost its follower `replica.fetch.backoff.ms`, a second as Kafka comes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from fetcher.budget import Charge
from fetcher.doubts import AskEnds, Doubts
from fetcher.follower_answers import FollowerAnswer, FollowerAnswers, Switching
from fetcher.follower_offsets import FollowerOffsets
from fetcher.follower_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FollowerFetchSession,
    SessionCache,
    SessionPartition,
)
from fetcher.partition_copy import PartitionCopy
from wire.frames.error_codes import FETCH_SESSION_ID_NOT_FOUND, NOT_LEADER_OR_FOLLOWER
from wire.frames.fetch import FetchPartitionResult, FetchRequest, TopicKey, encode_fetch_response
from wire.frames.offset_requests import OffsetsRequest
from wire.metadata.image import ClusterImage
from wire.server.listener import Exchange, ServerConnection

FIRST_ID_VERSION = 13
_FIRST_WITH_EPOCHS = 12
_CONNECTION_KEY = "fetcher.follower"
_LONGEST_WAIT = 30.0
_SESSIONS = 1000
_MAX_RESPONSE_BYTES = 16 << 20
# At most, of a fetch that would wait as long for records: how long a partition that is just coming is waited for.
_PATIENCE = 1.0
# The same for one that a switch is about to make ours: longer than the fetch would wait, if need be.
_HOLD = 5.0
_LOOK_AGAIN = 0.1
# Timers compare with the time at which the loop's turn began, which is a little behind the clock.
_A_MOMENT = 0.02

Directory = Callable[[TopicKey, int], PartitionCopy | None]


class _ConnectionState:
    """State of a follower's connection: buffers of the answer on its way, and the fetch that waits."""

    __slots__ = ("charges", "waiting")

    def __init__(self) -> None:
        self.charges: list[Charge] = []
        self.waiting: _Waiting | None = None

    def drop_charges(self) -> None:
        charges, self.charges = self.charges, []
        for charge in charges:
            charge.drop()


class _Waiting:
    """A fetch that nothing could be told yet."""

    __slots__ = ("exchange", "full", "patient", "request", "scheduled", "session", "state", "timer")

    def __init__(
        self,
        exchange: Exchange,
        request: FetchRequest,
        session: FollowerFetchSession,
        full: bool,
        state: _ConnectionState,
    ) -> None:
        self.exchange = exchange
        self.request = request
        self.session = session
        self.full = full
        self.state = state
        self.timer: asyncio.TimerHandle | None = None
        self.scheduled = False
        #: For a partition that is just coming.
        self.patient = False


class FollowerServer:
    """Answers follower requests (replica ids from 0 up); consumers are the router's."""

    def __init__(
        self,
        directory: Directory,
        image: Callable[[], ClusterImage],
        broker_id: int,
        *,
        ends: AskEnds | None = None,
        switching: Switching = lambda _topic, _index: False,
    ) -> None:
        """ends: asks the target's brokers where their logs begin and end. switching: whether a switch is about to make a
        partition ours."""
        self.sessions = SessionCache(_SESSIONS)
        self._doubts = None if ends is None else Doubts(ends)
        self._answers = FollowerAnswers(directory, image, broker_id, self._doubts, switching)
        self._offsets = FollowerOffsets(self._answers)

    # --- requests

    def handle_fetch(self, exchange: Exchange, request: FetchRequest) -> None:
        """Answer now or later; every exchange gets exactly one answer."""
        now = time.monotonic()
        state = self._connection_state(exchange.connection)
        # The follower asks again, so what it was sent last has arrived.
        state.drop_charges()
        if state.waiting is not None:
            self._finish(state.waiting, forced=True)
        by_id = request.version >= FIRST_ID_VERSION
        known = self._answers.knows(request.replica_id, request.replica_epoch)
        full = request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        if not full:
            found = self.sessions.find(request, by_id) if known else FETCH_SESSION_ID_NOT_FOUND
            if isinstance(found, int):
                self._reply(exchange, request, [], state, error=found)
                return
            session = found
            session.advance_epoch()
        else:
            if request.session_id:
                self.sessions.remove(request.session_id)
            if not known:
                self._refuse(exchange, request, state)
                return
            created = None
            if request.session_epoch == INITIAL_EPOCH and any(partitions for _, partitions in request.topics):
                created = self.sessions.create(request.replica_id, by_id, now)
            session = created or FollowerFetchSession(0, request.replica_id, by_id, now)
        session.connection = exchange.connection
        session.last_used = now
        session.replica_epoch = request.replica_epoch
        session.tells_epochs = request.version >= _FIRST_WITH_EPOCHS
        # Without a session every fetch names every partition: one that never comes would hold up all others each time.
        patient_until = now + min(request.max_wait_ms / 1000, _PATIENCE) if session.id else now
        for partition in session.update(request):
            partition.patient_until = patient_until
            partition.hold_until = now + _HOLD if session.id else now
            self._answers.note_fetch(partition, now)
        if not full and not session.partitions:
            self.sessions.remove(session.id)
            self._reply(exchange, request, [], state)
            return
        waiting = _Waiting(exchange, request, session, full, state)
        if not self._try_answer(waiting, now, last_chance=request.max_wait_ms <= 0):
            self._wait(waiting)

    def handle_list_offsets(self, exchange: Exchange, request: OffsetsRequest) -> None:
        self._offsets.list_offsets(exchange, request)

    def handle_offset_for_leader_epoch(self, exchange: Exchange, request: OffsetsRequest) -> None:
        self._offsets.offset_for_leader_epoch(exchange, request)

    def mirror_added(self, mirror: PartitionCopy) -> None:
        """Followers learn of a new mirror as early as we do, and may have asked already."""
        for session in self.sessions.all():
            session.added(mirror)

    def close(self) -> None:
        """Forget all sessions; waiting fetches are answered with what there is."""
        if self._doubts is not None:
            self._doubts.close()
        for session in self.sessions.all():
            self.sessions.remove(session.id)

    # --- waiting

    def _wait(self, waiting: _Waiting) -> None:
        loop = asyncio.get_running_loop()
        waiting.state.waiting = waiting
        delay = min(waiting.request.max_wait_ms / 1000, _LONGEST_WAIT)
        waiting.timer = loop.call_later(delay, self._finish, waiting)

        def wake() -> None:
            if not waiting.scheduled:
                waiting.scheduled = True
                loop.call_soon(self._woken, waiting)

        waiting.session.wake = wake
        if waiting.patient and delay > _PATIENCE:
            # A follower that is refused after all hears it then, not when its own time is over.
            loop.call_later(_PATIENCE + _A_MOMENT, wake)

    def _woken(self, waiting: _Waiting) -> None:
        waiting.scheduled = False
        if waiting.state.waiting is waiting:
            self._try_answer(waiting, time.monotonic(), last_chance=False)

    def _finish(self, waiting: _Waiting, *, forced: bool = False) -> None:
        """Time is up (or the follower asks again, `forced`): answer with what there is."""
        if waiting.state.waiting is not waiting:
            return
        if not self._try_answer(waiting, time.monotonic(), last_chance=True, forced=forced):
            waiting.timer = asyncio.get_running_loop().call_later(_LOOK_AGAIN, self._finish, waiting)

    def _stop_waiting(self, waiting: _Waiting) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
            waiting.timer = None
        if waiting.state.waiting is waiting:
            waiting.state.waiting = None
        waiting.session.wake = None

    # --- answers

    def _try_answer(self, waiting: _Waiting, now: float, *, last_chance: bool, forced: bool = False) -> bool:
        session = waiting.session
        request = waiting.request
        room = min(request.max_bytes, _MAX_RESPONSE_BYTES)
        told: list[tuple[SessionPartition, FollowerAnswer]] = []
        size = 0
        urgent = last_chance
        quiet: list[SessionPartition] = []
        for partition in list(session.partitions.values()) if waiting.full else list(session.dirty):
            if size >= room and not waiting.full:
                break
            answer = self._answers.answer(partition, max(room - size, 0), now, first=size == 0)
            if answer.passing and (not last_chance or (answer.held and not forced)):
                waiting.patient = True
                if waiting.full:
                    return False  # an answer without a session before it has to name every partition
                continue
            if answer.tell or waiting.full:
                told.append((partition, answer))
                size += answer.result.size
            elif not answer.again:
                quiet.append(partition)
            urgent = urgent or answer.now
        if not urgent or (size < request.min_bytes and not last_chance and not _more_than_data(told)):
            return False
        for partition in quiet:
            session.dirty.pop(partition, None)
        self._stop_waiting(waiting)
        for partition, answer in told:
            self._answers.note_told(partition, answer)
            if answer.again:
                session.next_turn(partition)
            else:
                session.dirty.pop(partition, None)
            for charge in answer.charges:
                charge.hold()
                waiting.state.charges.append(charge)
        results = [(partition.key, answer.result) for partition, answer in told]
        if not session.id:
            self._let_go(session)
        self._reply(waiting.exchange, request, results, waiting.state, session_id=session.id)
        return True

    def _reply(
        self,
        exchange: Exchange,
        request: FetchRequest,
        results: Sequence[tuple[TopicKey, FetchPartitionResult]],
        state: _ConnectionState,
        *,
        error: int = 0,
        session_id: int = 0,
    ) -> None:
        topics: dict[TopicKey, list[FetchPartitionResult]] = {}
        for key, result in results:
            topics.setdefault(key, []).append(result)
        buffers, _ = encode_fetch_response(
            request.version,
            exchange.header.correlation_id,
            list(topics.items()),
            error=error,
            session_id=session_id,
        )
        if exchange.connection.closed:
            state.drop_charges()
        exchange.reply(buffers)

    def _refuse(self, exchange: Exchange, request: FetchRequest, state: _ConnectionState) -> None:
        """Nobody we know by that id and epoch (our metadata may be behind): a retriable error for every
        partition.
        """
        results = [
            (key, FetchPartitionResult(partition.index, NOT_LEADER_OR_FOLLOWER))
            for key, partitions in request.topics
            for partition in partitions
        ]
        self._reply(exchange, request, results, state)

    # --- connections

    def _connection_state(self, connection: ServerConnection) -> _ConnectionState:
        state = connection.local.get(_CONNECTION_KEY)
        if isinstance(state, _ConnectionState):
            return state
        state = _ConnectionState()
        connection.local[_CONNECTION_KEY] = state
        connection.add_close_callback(lambda: self._connection_closed(connection, state))
        return state

    def _connection_closed(self, connection: ServerConnection, state: _ConnectionState) -> None:
        if state.waiting is not None:
            session = state.waiting.session
            self._stop_waiting(state.waiting)
            if not session.id:
                session.close()
        state.drop_charges()
        for session in self.sessions.all():
            if session.connection is connection:
                self._leave(session)
                self.sessions.remove(session.id)

    def _leave(self, session: FollowerFetchSession) -> None:
        """Windows need not wait for this follower until it is back."""
        for partition in session.partitions.values():
            mirror, progress = partition.mirror, partition.progress
            if mirror is not None and progress is not None and progress.session is session:
                progress.session = None
                mirror.follower_gone(session.replica_id)

    @staticmethod
    def _let_go(session: FollowerFetchSession) -> None:
        """A fetch without a session ends with its answer; the windows keep the follower's place."""
        for partition in session.partitions.values():
            if partition.progress is not None and partition.progress.session is session:
                partition.progress.session = None
        session.close()


def _more_than_data(told: Sequence[tuple[SessionPartition, FollowerAnswer]]) -> bool:
    """Whether an answer below min_bytes is due all the same."""
    return any(answer.now and not answer.result.size for _, answer in told)
