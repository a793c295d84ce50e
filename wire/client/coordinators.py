"""Coordinators of groups and transactional ids: found for many callers at once, and called wherever they move.

A broker works on one request of a connection at a time and answers in order, so a request that waits there (JoinGroup:
until a rebalance is complete) would hold up every other group. Those few requests use connections of their own.
Everything sent here may be repeated without harm, so a request without an answer is sent again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from wire.backoff import Backoff
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.places import Places
from wire.client.retry import NodeKind, passing, until_answered
from wire.errors import BrokerError, ClusterUnreachable, ConnectionLost, LinkerError, RequestTimedOut
from wire.frames.error_codes import COORDINATOR_NOT_AVAILABLE
from wire.shown_id import shown_id
from wire.together import retrieved

T = TypeVar("T")

CALL_TIMEOUT = 10.0
IN_FLIGHT = 32
WAITING_CONNECTIONS = 16
GATHER = 0.005  # seconds in which lookups, or describes, are gathered into one request
_LOOKUP_MAX_KEYS = 500
_FIRST_BATCHED_FIND = 4  # FindCoordinator: several keys (KIP-699)
_MAX_FIND = 5
_FIRST_PAUSE = 0.05
_LAST_PAUSE = 1.0


class KeyType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class Place(NamedTuple):
    """FindCoordinator's answer for one key: a node if the code is NONE."""

    node: int
    address: tuple[str, int]
    code: int


def find_fields(kind: KeyType, keys: Sequence[str]) -> dict[str, object]:
    """FindCoordinator in every version: several keys since 4 (KIP-699), the first one before."""
    return {"key_type": int(kind), "coordinator_keys": list(keys), "key": keys[0]}


def places_told(answer: Any, keys: Sequence[str]) -> dict[str, Place]:
    """The answer in every version; one about no key is about the first."""
    listed = getattr(answer, "coordinators", None)
    found: dict[str, Place] = {}
    for one in (answer,) if listed is None else listed:
        node, code = int(one.node_id), int(one.error_code)
        place = Place(node, (one.host, one.port), code if node >= 0 else code or COORDINATOR_NOT_AVAILABLE)
        found[keys[0] if listed is None else one.key] = place
    return found


_NOWHERE = Place(-1, ("", -1), COORDINATOR_NOT_AVAILABLE)


class CoordinatorFinder:
    """Knows which node coordinates what; `close` ends lookups under way, connections belong to the cluster."""

    def __init__(
        self, cluster: Cluster, *, purpose: str = "coordinator-lookup", call_timeout: float = CALL_TIMEOUT
    ) -> None:
        self.cluster = cluster
        self._purpose = purpose
        self._call_timeout = call_timeout
        self._places = {kind: Places() for kind in KeyType}
        self._lookups: dict[KeyType, Gathered[Place]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def refused(self, code: int, key: str) -> LinkerError:
        """The error for a key that has no coordinator for good."""
        return BrokerError(code, message=f"coordinator of {shown_id(key)}", api="find_coordinator")

    def known(self, kind: KeyType, key: str) -> int | None:
        return self._places[kind].get(key)

    def forget(self, kind: KeyType, key: str) -> None:
        """Look for it again before the next request."""
        self._places[kind].forget(key)

    async def find(self, kind: KeyType, key: str) -> int:
        """The node that coordinates `key`; lookups of many callers are one request.

        FindCoordinator creates `__consumer_offsets` (or `__transaction_state`) where it is missing; until it is
        there the answer is COORDINATOR_NOT_AVAILABLE. ClusterUnreachable where there is none yet; raises `refused`.
        """
        known = self.known(kind, key)
        if known is not None:
            return known
        lookup = self._lookups.get(kind)
        if lookup is None or len(lookup.wanted) >= _LOOKUP_MAX_KEYS:
            lookup = self._lookups[kind] = Gathered()
            self._spawn(self._look_up(kind, lookup))
        place = await asyncio.shield(lookup.want(key))
        if passing(NodeKind.COORDINATOR, place.code):
            raise ClusterUnreachable(
                f"cluster {self.cluster.name}: no coordinator of {shown_id(key)} yet", api="find_coordinator"
            )
        if place.code:
            raise self.refused(place.code, key)
        return place.node

    async def _look_up(self, kind: KeyType, lookup: Gathered[Place]) -> None:
        with lookup.told(f"looking for coordinators of cluster {self.cluster.name}"):
            try:
                await asyncio.sleep(GATHER)
            finally:
                if self._lookups.get(kind) is lookup:
                    del self._lookups[kind]  # from here on others start the next one
            for key, place in (await self.ask(kind, list(lookup.wanted), self._call_timeout)).items():
                lookup.answer(key, place)

    async def locate(self, kind: KeyType, keys: Sequence[str], timeout: float) -> dict[str, Place]:
        """The place of each key, in one request; asked again where a broker is away."""
        deadline = time.monotonic() + timeout
        found = await until_answered(
            NodeKind.COORDINATOR,
            lambda: self.ask(kind, keys, max(0.001, deadline - time.monotonic())),
            deadline=deadline,
            backoff=Backoff(_FIRST_PAUSE, _LAST_PAUSE),
        )
        return {key: found.get(key, _NOWHERE) for key in keys}

    async def ask(self, kind: KeyType, keys: Sequence[str], timeout: float) -> dict[str, Place]:
        """One try of `locate`."""
        connection = await self.cluster.connection(None, purpose=self._purpose)
        batched = connection.pick_version("find_coordinator", max_version=_MAX_FIND) >= _FIRST_BATCHED_FIND
        found: dict[str, Place] = {}
        for some in [list(keys)] if batched else [[key] for key in keys]:
            answer = await connection.call(
                "find_coordinator", find_fields(kind, some), timeout=timeout, max_version=_MAX_FIND
            )
            found |= places_told(answer, some)
        for key, place in found.items():
            if not place.code:
                self._places[kind].set(key, place.node)
        return found

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End lookups under way; the cluster's connections belong to the cluster."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class CoordinatorClient(CoordinatorFinder):
    """Calls of the coordinators of one cluster; `close` when the link ends."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        call_timeout: float = CALL_TIMEOUT,
        in_flight: int = IN_FLIGHT,
        waiting_connections: int = WAITING_CONNECTIONS,
    ) -> None:
        super().__init__(cluster, purpose="groups-lookup", call_timeout=call_timeout)
        self._in_flight = in_flight
        self._lanes: dict[int, asyncio.Semaphore] = {}
        self._waiting_slots: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(waiting_connections)):
            self._waiting_slots.put_nowait(slot)

    async def call(
        self,
        kind: KeyType,
        key: str,
        api: str,
        fields: Mapping[str, object],
        *,
        timeout: float,
        version: int | None = None,
        max_version: int | None = None,
        waits_for: float | None = None,
    ) -> Any:
        """One answer from the coordinator of `key`, wherever it moves within `timeout` seconds.

        `waits_for`: the broker may keep the request for that many seconds, so it goes over a connection that
        nobody else waits for. Raises BrokerError with the coordinator's last word, or the WireError of the
        last try, once the time is over; UnsupportedApi at once.
        """
        deadline = time.monotonic() + timeout

        async def ask(node: int) -> Any:
            if waits_for is not None:
                return await self._try_waiting(node, api, fields, version, max_version, waits_for, deadline)
            return await self._try(node, api, fields, version, max_version, deadline)

        return await self._settled(kind, key, api, ask, _CODES[api], deadline)

    async def _settled(
        self,
        kind: KeyType,
        key: str,
        api: str,
        ask: Callable[[int], Awaitable[Any]],
        codes_of: Callable[[Any], Iterable[int]],
        deadline: float,
    ) -> Any:
        """An answer of the right coordinator at a time when it has one to give."""

        async def once() -> Any:
            return await ask(await self._found(kind, key, deadline))

        return await until_answered(
            NodeKind.COORDINATOR,
            once,
            deadline=deadline,
            backoff=Backoff(_FIRST_PAUSE, _LAST_PAUSE),
            codes_of=codes_of,
            refused=lambda code: BrokerError(
                code, message=f"coordinator of {shown_id(key)}", api=api, peer=self.cluster.name
            ),
            forget=lambda: self.forget(kind, key),
        )

    async def _found(self, kind: KeyType, key: str, deadline: float) -> int:
        if (known := self.known(kind, key)) is not None:
            return known
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                return await self.find(kind, key)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: no coordinator of {shown_id(key)}",
                sent=False,
                api="find_coordinator",
            ) from None

    async def _try(
        self,
        node: int,
        api: str,
        fields: Mapping[str, object],
        version: int | None,
        max_version: int | None,
        deadline: float,
    ) -> Any:
        lane = self._lanes.setdefault(node, asyncio.Semaphore(self._in_flight))
        try:
            if lane.locked():
                async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                    await lane.acquire()
            else:
                await lane.acquire()  # at once
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: too many requests wait for coordinator {node}",
                sent=False,
                api=api,
            ) from None
        try:
            connection = await self._connection(node, "groups", deadline)
            left = min(self._call_timeout, max(0.001, deadline - time.monotonic()))
            return await connection.call(api, fields, timeout=left, version=version, max_version=max_version)
        finally:
            lane.release()

    async def _try_waiting(
        self,
        node: int,
        api: str,
        fields: Mapping[str, object],
        version: int | None,
        max_version: int | None,
        waits_for: float,
        deadline: float,
    ) -> Any:
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                slot = await self._waiting_slots.get()
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: too many groups are being joined", sent=False, api=api
            ) from None
        try:
            connection = await self._connection(node, f"groups-waiting-{slot}", deadline)
            answered = False
            try:
                answer = await connection.call(
                    api, fields, timeout=waits_for, version=version, max_version=max_version
                )
                answered = True
                return answer
            finally:
                if not answered:
                    connection.close()  # or the next group would wait behind an answer without a reader
        finally:
            self._waiting_slots.put_nowait(slot)

    async def _connection(self, node: int, purpose: str, deadline: float) -> Connection:
        connection = self.cluster.connected(node, purpose=purpose)
        if connection is not None:
            return connection
        try:
            async with asyncio.timeout(max(0.001, min(self._call_timeout, deadline - time.monotonic()))):
                return await self.cluster.connection(node, purpose=purpose)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: no connection to coordinator {node}", sent=False
            ) from None


def _top(answer: Any) -> Iterable[int]:
    return (int(answer.error_code),)


def _offset_commit(answer: Any) -> Iterable[int]:
    return (int(p.error_code) for topic in answer.topics for p in topic.partitions)


def _groups(answer: Any) -> Iterable[int]:
    return (int(group.error_code) for group in answer.groups)


# Where an answer has the codes that say whether the coordinator was the right one.
_CODES: dict[str, Callable[[Any], Iterable[int]]] = {
    "add_offsets_to_txn": _top,
    "consumer_group_describe": _groups,
    "consumer_group_heartbeat": _top,
    "describe_groups": _groups,
    "end_txn": _top,
    "heartbeat": _top,
    "init_producer_id": _top,
    "join_group": _top,
    "leave_group": _top,
    "offset_commit": _offset_commit,
    "offset_fetch": _groups,
    "streams_group_describe": _groups,
    "streams_group_heartbeat": _top,
    "sync_group": _top,
    "txn_offset_commit": _offset_commit,
}


class Gathered(Generic[T]):
    """One request in the making about the keys of many callers, and the callers. `deadline`: of the request, if it has
    one of its own."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.wanted: dict[str, asyncio.Future[T]] = {}

    def want(self, key: str) -> asyncio.Future[T]:
        if key not in self.wanted:
            self.wanted[key] = asyncio.get_running_loop().create_future()
            self.wanted[key].add_done_callback(retrieved)
        return self.wanted[key]

    def answer(self, key: str, value: T) -> None:
        future = self.wanted.get(key)
        if future is not None and not future.done():
            future.set_result(value)

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """However the request ends, every caller is told."""
        try:
            yield
            self._fail(ClusterUnreachable(f"{what}: some were left out of the answer"))
        except asyncio.CancelledError:
            self._fail(ConnectionLost(f"{what}: closed", sent=False))
            raise
        except LinkerError as error:
            self._fail(error)
        except Exception as error:  # a bug: raised at the callers, not lost
            self._fail(LinkerError(f"{what}: {error!r}"))

    def _fail(self, error: LinkerError) -> None:
        for future in self.wanted.values():
            if not future.done():
                future.set_exception(error)
