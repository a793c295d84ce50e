"""Who coordinates what on the target, and requests to it: one pipelined connection per coordinator for all groups.

A broker works on one request of a connection at a time and answers in order, so a request that waits there
(JoinGroup: until a rebalance is complete) would hold up every other group. Those go over connections of their own, of
which there are few. Everything sent here may be repeated without harm, so a lost answer is asked for again.

Does not live here: what an answer means for a gate.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from linker.groups.gates import codes
from wire.cluster import Cluster
from wire.connection import Connection
from wire.errors import BrokerError, ClusterUnreachable, ConnectionLost, LinkerError, RequestTimedOut

CALL_TIMEOUT = 10.0
IN_FLIGHT = 32
WAITING_CONNECTIONS = 16
_LOOKUP_GATHER = 0.005  # seconds in which lookups are gathered into one request
_LOOKUP_MAX_KEYS = 500
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
        self._nodes: dict[tuple[KeyType, str], int] = {}
        self._lanes: dict[int, asyncio.Semaphore] = {}
        self._waiting_slots: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(waiting_connections)):
            self._waiting_slots.put_nowait(slot)
        self._lookups: dict[KeyType, _Lookup] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def known(self, kind: KeyType, key: str) -> int | None:
        """The node that was last seen to coordinate `key`."""
        return self._nodes.get((kind, key))

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
        pause = _FIRST_PAUSE
        while True:
            try:
                answer = await self._try(kind, key, api, fields, version, max_version, waits_for, deadline)
            except (ConnectionLost, ClusterUnreachable) as error:
                self._nodes.pop((kind, key), None)
                last: LinkerError = error
            else:
                busy = next(
                    (c for c in codes.CODES[api](answer) if c in codes.MOVED or c in codes.BUSY), None
                )
                if busy is None:
                    return answer
                if busy in codes.MOVED:
                    self._nodes.pop((kind, key), None)
                last = BrokerError(busy, message=f"coordinator of {key}", api=api, peer=self.cluster.name)
            if time.monotonic() + pause >= deadline:
                raise last
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)

    async def _try(
        self,
        kind: KeyType,
        key: str,
        api: str,
        fields: Mapping[str, object],
        version: int | None,
        max_version: int | None,
        waits_for: float | None,
        deadline: float,
    ) -> Any:
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                node = await self.find(kind, key)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: no coordinator of {key}", sent=False, api="find_coordinator"
            ) from None
        if waits_for is not None:
            return await self._try_waiting(node, api, fields, version, max_version, waits_for, deadline)
        lane = self._lanes.setdefault(node, asyncio.Semaphore(self._in_flight))
        try:
            async with asyncio.timeout(max(0.001, deadline - time.monotonic())):
                await lane.acquire()
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
                    connection.close()  # or the next group would wait behind the answer nobody wants
        finally:
            self._waiting_slots.put_nowait(slot)

    async def _connection(self, node: int, purpose: str, deadline: float) -> Connection:
        try:
            async with asyncio.timeout(max(0.001, min(self._call_timeout, deadline - time.monotonic()))):
                return await self.cluster.connection(node, purpose=purpose)
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.cluster.name}: no connection to coordinator {node}", sent=False
            ) from None

    # --- lookups --------------------------------------------------------------------------------------------

    async def find(self, kind: KeyType, key: str) -> int:
        """The node that coordinates `key`; lookups of many callers are one request.

        FindCoordinator creates `__consumer_offsets` (or `__transaction_state`) where it is missing; until it is
        there the answer is COORDINATOR_NOT_AVAILABLE. Raises BrokerError, MissingGroupRight.
        """
        known = self._nodes.get((kind, key))
        if known is not None:
            return known
        lookup = self._lookups.get(kind)
        if lookup is None or len(lookup.found) >= _LOOKUP_MAX_KEYS:
            lookup = self._lookups[kind] = _Lookup()
            task = asyncio.get_running_loop().create_task(self._look_up(kind, lookup))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        found = lookup.want(key)
        code_or_node = await asyncio.shield(found)
        if code_or_node < 0:
            code = -code_or_node
            if code in codes.MOVED or code in codes.BUSY:
                raise ClusterUnreachable(
                    f"cluster {self.cluster.name}: no coordinator of {key} yet", api="find_coordinator"
                )
            codes.check(code, "find_coordinator", key, resource=key)
        self._nodes[kind, key] = code_or_node
        return code_or_node

    async def _look_up(self, kind: KeyType, lookup: _Lookup) -> None:
        try:
            await asyncio.sleep(_LOOKUP_GATHER)
            if self._lookups.get(kind) is lookup:
                del self._lookups[kind]  # from here on others start the next one
            for key, answer in (await self._ask(kind, list(lookup.found))).items():
                lookup.answer(key, answer)
            lookup.fail(
                ClusterUnreachable(f"cluster {self.cluster.name} left coordinators out of its answer")
            )
        except asyncio.CancelledError:
            lookup.fail(ConnectionLost(f"cluster {self.cluster.name} is closed", sent=False))
            raise
        except LinkerError as error:
            lookup.fail(error)
        except Exception as error:  # a bug, told to whoever waits instead of to nobody
            lookup.fail(LinkerError(f"looking for coordinators of cluster {self.cluster.name}: {error!r}"))
        finally:
            if self._lookups.get(kind) is lookup:
                del self._lookups[kind]

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


class _Lookup:
    """One FindCoordinator request in the making, and everybody who waits for it."""

    def __init__(self) -> None:
        self.found: dict[str, asyncio.Future[int]] = {}

    def want(self, key: str) -> asyncio.Future[int]:
        if key not in self.found:
            self.found[key] = asyncio.get_running_loop().create_future()
            self.found[key].add_done_callback(_retrieve)
        return self.found[key]

    def answer(self, key: str, code_or_node: int) -> None:
        future = self.found.get(key)
        if future is not None and not future.done():
            future.set_result(code_or_node)

    def fail(self, error: LinkerError) -> None:
        for future in self.found.values():
            if not future.done():
                future.set_exception(error)


def _retrieve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()
