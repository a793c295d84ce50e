"""Coordinators of the target: one pipelined connection each, shared by all groups.

A broker works on one request of a connection at a time and answers in order, so a request that waits there (JoinGroup:
until a rebalance is complete) would hold up every other group. Those few requests use connections of their own.
Everything sent here may be repeated without harm, so a request without an answer is sent again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Generic, TypeVar

from groups.gates import codes
from groups.places import Places
from wire.backoff import Backoff
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.errors import BrokerError, ClusterUnreachable, ConnectionLost, LinkerError, RequestTimedOut

T = TypeVar("T")

CALL_TIMEOUT = 10.0
IN_FLIGHT = 32
WAITING_CONNECTIONS = 16
_GATHER = 0.005  # seconds in which lookups, or describes, are gathered into one request
_LOOKUP_MAX_KEYS = 500
_DESCRIBE_MAX_GROUPS = 200  # some ten milliseconds of decoding
_DESCRIBED_BY = {"consumer_group_describe": "group_ids", "describe_groups": "groups"}
_FIRST_PAUSE = 0.05
_LAST_PAUSE = 1.0


class KeyType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """The coordinators of one target cluster; `close` when the link ends."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        call_timeout: float = CALL_TIMEOUT,
        in_flight: int = IN_FLIGHT,
        waiting_connections: int = WAITING_CONNECTIONS,
    ) -> None:
        self.cluster = cluster
        self._call_timeout = call_timeout
        self._in_flight = in_flight
        self._places = {kind: Places() for kind in KeyType}
        self._lanes: dict[int, asyncio.Semaphore] = {}
        self._waiting_slots: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(waiting_connections)):
            self._waiting_slots.put_nowait(slot)
        self._lookups: dict[KeyType, _Gathered[int]] = {}
        self._describes: dict[tuple[int, str], _Gathered[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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

        return await self._settled(kind, key, api, ask, codes.CODES[api], deadline)

    async def describe(self, group: str, api: str, *, timeout: float) -> Any:
        """A group's part of a consumer_group_describe or describe_groups answer. Simultaneous calls for one
        coordinator share a request. Raises as `call`."""
        deadline = time.monotonic() + timeout

        async def ask(node: int) -> Any:
            return await self._described(node, group, api, deadline)

        return await self._settled(
            KeyType.GROUP, group, api, ask, lambda one: (int(one.error_code),), deadline
        )

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
        backoff = Backoff(_FIRST_PAUSE, _LAST_PAUSE)
        while True:
            try:
                answer = await ask(await self._found(kind, key, deadline))
            except (ConnectionLost, ClusterUnreachable) as error:
                self._places[kind].forget(key)
                last: LinkerError = error
            else:
                busy = next((c for c in codes_of(answer) if c in codes.MOVED or c in codes.BUSY), None)
                if busy is None:
                    return answer
                if busy in codes.MOVED:
                    self._places[kind].forget(key)
                last = BrokerError(busy, message=f"coordinator of {key}", api=api, peer=self.cluster.name)
            if backoff.over(time.monotonic(), deadline):
                raise last
            await asyncio.sleep(backoff.next())

    async def _found(self, kind: KeyType, key: str, deadline: float) -> int:
        if (known := self._places[kind].get(key)) is not None:
            return known
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                return await self.find(kind, key)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: no coordinator of {key}", sent=False, api="find_coordinator"
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

    # --- describes ------------------------------------------------------------------------------------------

    async def _described(self, node: int, group: str, api: str, deadline: float) -> Any:
        gathered = self._describes.get((node, api))
        if gathered is None or len(gathered.wanted) >= _DESCRIBE_MAX_GROUPS:
            ends = time.monotonic() + _GATHER + self._call_timeout
            gathered = self._describes[node, api] = _Gathered(ends)
            self._spawn(self._describe_gathered(node, api, gathered))
        answer = gathered.want(group)
        if gathered.deadline <= deadline:
            return await asyncio.shield(
                answer
            )  # every caller is told by then: no timer for each of thousands
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                return await asyncio.shield(answer)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: coordinator {node} did not describe {group}",
                sent=True,
                api=api,
            ) from None

    async def _describe_gathered(self, node: int, api: str, gathered: _Gathered[Any]) -> None:
        with gathered.told(f"describing groups of cluster {self.cluster.name}"):
            try:
                await asyncio.sleep(_GATHER)
            finally:
                if self._describes.get((node, api)) is gathered:
                    del self._describes[node, api]  # from here on others start the next one
            fields = {_DESCRIBED_BY[api]: list(gathered.wanted)}
            answer = await self._try(node, api, fields, None, None, gathered.deadline)
            for one in answer.groups:
                gathered.answer(one.group_id, one)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- lookups --------------------------------------------------------------------------------------------

    async def find(self, kind: KeyType, key: str) -> int:
        """The node that coordinates `key`; lookups of many callers are one request.

        FindCoordinator creates `__consumer_offsets` (or `__transaction_state`) where it is missing; until it is
        there the answer is COORDINATOR_NOT_AVAILABLE. Raises BrokerError, MissingGroupRight.
        """
        known = self._places[kind].get(key)
        if known is not None:
            return known
        lookup = self._lookups.get(kind)
        if lookup is None or len(lookup.wanted) >= _LOOKUP_MAX_KEYS:
            lookup = self._lookups[kind] = _Gathered()
            self._spawn(self._look_up(kind, lookup))
        found = lookup.want(key)
        code_or_node = await asyncio.shield(found)
        if code_or_node < 0:
            code = -code_or_node
            if code in codes.MOVED or code in codes.BUSY:
                raise ClusterUnreachable(
                    f"cluster {self.cluster.name}: no coordinator of {key} yet", api="find_coordinator"
                )
            codes.check(code, "find_coordinator", key, resource=key)
        self._places[kind].set(key, code_or_node)
        return code_or_node

    async def _look_up(self, kind: KeyType, lookup: _Gathered[int]) -> None:
        with lookup.told(f"looking for coordinators of cluster {self.cluster.name}"):
            try:
                await asyncio.sleep(_GATHER)
            finally:
                if self._lookups.get(kind) is lookup:
                    del self._lookups[kind]  # from here on others start the next one
            for key, answer in (await self._ask(kind, list(lookup.wanted))).items():
                lookup.answer(key, answer)

    async def _ask(self, kind: KeyType, keys: list[str]) -> dict[str, int]:
        connection = await self.cluster.connection(None, purpose="groups-lookup")
        if connection.pick_version("find_coordinator", max_version=5) >= 4:
            answer = await connection.call(
                "find_coordinator",
                {"key_type": int(kind), "coordinator_keys": keys},
                timeout=self._call_timeout,
                max_version=5,
            )
            return {item.key: _node_or_code(item) for item in answer.coordinators}
        found: dict[str, int] = {}
        for key in keys:  # brokers before 3.0 are asked one by one
            one = await connection.call(
                "find_coordinator",
                {"key_type": int(kind), "key": key},
                timeout=self._call_timeout,
                max_version=3,
            )
            found[key] = _node_or_code(one)
        return found

    async def close(self) -> None:
        """End lookups under way; the cluster's connections belong to the cluster."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _node_or_code(item: Any) -> int:
    code = int(item.error_code)
    return -code if code else int(item.node_id)


class _Gathered(Generic[T]):
    """One request in the making about the keys of many callers, and the callers. `deadline`: of the request, if it has
    one of its own."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.wanted: dict[str, asyncio.Future[T]] = {}

    def want(self, key: str) -> asyncio.Future[T]:
        if key not in self.wanted:
            self.wanted[key] = asyncio.get_running_loop().create_future()
            self.wanted[key].add_done_callback(_retrieve)
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


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
