"""The way to the active controller: finds it, keeps one connection per purpose, follows it when it moves.

Here is no knowledge of what the requests mean; only which answers say "not the active controller" and whether
a request may be sent again. Discovery follows Kafka's `MetadataNodeManager`/`QuorumInfo`: brokers forward
DescribeQuorum to the active controller (KIP-595; node endpoints since v2 of KIP-853), and a controller
answers it only while it is the leader of the quorum (`KafkaRaftClient.handleDescribeQuorumRequest`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from linker.target.errors import ControllerUnreachable, MissingRight, TargetUnsupported, check_error
from wire.cluster import Cluster
from wire.connection import Connection
from wire.errors import (
    AuthenticationFailed,
    ConnectionLost,
    LinkerError,
    MalformedFrame,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)
from wire.security import ClientSecurity
from wire.types import format_address

log = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
NOT_CONTROLLER = 41
NOT_LEADER_OR_FOLLOWER = 6
_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_PROBE_TIMEOUT = 3.0

Fields = Mapping[str, object] | Callable[[], Mapping[str, object]]


@dataclasses.dataclass(frozen=True, slots=True)
class ActiveController:
    """The controller that leads the metadata quorum, as far as known."""

    id: int
    host: str
    port: int
    epoch: int

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


class ControllerChannel:
    """Requests to whichever controller is active.

    Each purpose ("heartbeat", "metadata", "admin") has its own connection, because answers on one connection
    come in order: a metadata Fetch that waits must not hold back a heartbeat.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        security: ClientSecurity,
        bootstrap: Iterable[tuple[str, int]] = (),
        listener_name: str | None = None,
        client_id: str = "kafka-linker",
        own_broker_id: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._security = security
        self._bootstrap = list(bootstrap)
        self._listener_name = listener_name
        self._client_id = client_id
        self._own_broker_id = own_broker_id
        self._known: dict[int, tuple[str, int]] = {}
        self._active: ActiveController | None = None
        self._highest_epoch = -1
        self._connections: dict[str, tuple[ActiveController, Connection]] = {}
        self._discovery = asyncio.Lock()
        self._opening: dict[str, asyncio.Lock] = {}
        self._closed = False

    @property
    def cluster_name(self) -> str:
        return self._cluster.name

    @property
    def active(self) -> ActiveController | None:
        """The active controller last seen; None while it is looked for."""
        return self._active

    # --- finding it -----------------------------------------------------------------------------------------

    async def discover(self, timeout: float) -> ActiveController:
        """The active controller; at the deadline ControllerUnreachable with every reason collected."""
        deadline = time.monotonic() + timeout
        async with self._discovery:
            backoff = _BACKOFF_FIRST
            while True:
                if self._active is not None:
                    return self._active
                tried: dict[str, str] = {}
                found = await self._try_controllers(tried, deadline)
                if found is None and not self._bootstrap:
                    found = await self._try_brokers(tried, deadline)
                if found is not None and found.epoch < self._highest_epoch:
                    tried[f"controller {found.id}"] = f"leads only the older epoch {found.epoch}"
                elif found is not None:
                    self._adopt(found)
                    return found
                if time.monotonic() + backoff >= deadline:
                    reasons = "; ".join(f"{where}: {why}" for where, why in tried.items())
                    raise ControllerUnreachable(
                        f"{self.cluster_name}: no active controller found within {timeout:.0f} s ({reasons})"
                    )
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, _BACKOFF_MAX)

    def moved(self, stale: ActiveController | None, *, leader_id: int = -1, epoch: int = -1) -> None:
        """Somebody learned that `stale` is not active any more; an answer may have named the new leader.

        Leaders are named with their epoch, and an older epoch never replaces a newer one (QuorumState's
        rule), so a controller that was cut off cannot pull us back.
        """
        if stale is not None and self._active is not None and self._active != stale:
            return  # already on another one
        if leader_id in self._known and epoch > self._highest_epoch:
            host, port = self._known[leader_id]
            self._adopt(ActiveController(leader_id, host, port, epoch))
        else:
            self._active = None

    def _adopt(self, found: ActiveController) -> None:
        log.info(
            "active controller is %d at %s, epoch %d",
            found.id,
            found.address,
            found.epoch,
        )
        self._active = found
        self._highest_epoch = max(self._highest_epoch, found.epoch)
        self._known[found.id] = (found.host, found.port)

    async def _try_controllers(self, tried: dict[str, str], deadline: float) -> ActiveController | None:
        addresses = list(dict.fromkeys([*self._known.values(), *self._bootstrap]))
        if not addresses:
            return None

        async def probe(host: str, port: int) -> ActiveController | None:
            where = f"controller {format_address(host, port)}"
            try:
                return await self._ask_controller(host, port, deadline)
            except (AuthenticationFailed, MissingRight, TargetUnsupported):
                raise
            except LinkerError as error:
                tried[where] = str(error)
                return None

        # Asked at the same time, and the first leader wins: one that hangs must not hide the others.
        tasks = [asyncio.ensure_future(probe(*address)) for address in addresses]
        found: list[ActiveController] = []
        refusals: list[LinkerError] = []
        try:
            for next_answer in asyncio.as_completed(tasks):
                try:
                    answer = await next_answer
                except LinkerError as error:
                    refusals.append(error)
                    continue
                if answer is None:
                    continue
                if answer.epoch >= self._highest_epoch:
                    return answer
                # A leader that was cut off still thinks it leads; somebody else may lead a newer epoch.
                found.append(answer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not found and refusals:
            raise refusals[0]
        return max(found, key=lambda controller: controller.epoch, default=None)

    async def _ask_controller(self, host: str, port: int, deadline: float) -> ActiveController | None:
        timeout = _remaining(deadline, _PROBE_TIMEOUT)
        connection = await Connection.open(
            host, port, self._security, client_id=self._client_id, timeout=timeout
        )
        try:
            response = await connection.call(
                "describe_quorum", _DESCRIBE_QUORUM, timeout=_remaining(deadline, _PROBE_TIMEOUT)
            )
        finally:
            await _end(connection)
        partition = self._quorum_partition(response)
        self._learn_nodes(response)
        code = int(partition.error_code)
        if code == NOT_LEADER_OR_FOLLOWER:
            raise WireError("is not the active controller", peer=connection.peer)
        check_error(code, "describe_quorum", self.cluster_name, getattr(partition, "error_message", None))
        # Only the leader answers, so the address just asked is the leader's.
        self._known[partition.leader_id] = (host, port)
        return ActiveController(partition.leader_id, host, port, partition.leader_epoch)

    async def _try_brokers(self, tried: dict[str, str], deadline: float) -> ActiveController | None:
        # Never ourselves: the question would only travel in a circle. None is any node of the bootstrap list.
        others: list[int | None] = [node for node in self._cluster.nodes if node != self._own_broker_id]
        random.shuffle(others)
        for node_id in others or [None]:
            try:
                found = await self._ask_broker(node_id, tried, deadline)
            except (AuthenticationFailed, MissingRight, TargetUnsupported):
                raise
            except LinkerError as error:
                tried["the brokers" if node_id is None else f"broker {node_id}"] = str(error)
                continue
            if found is not None:
                return found
        return None

    async def _ask_broker(
        self, node_id: int | None, tried: dict[str, str], deadline: float
    ) -> ActiveController | None:
        connection = await self._cluster.connection(node_id, purpose="quorum")
        if connection.api_range("describe_quorum") is None:
            raise TargetUnsupported(
                f"{self.cluster_name} runs in ZooKeeper mode: a link broker can only join a KRaft cluster; "
                "migrate the target to KRaft first"
            )
        response = await connection.call(
            "describe_quorum", _DESCRIBE_QUORUM, timeout=_remaining(deadline, _PROBE_TIMEOUT)
        )
        partition = self._quorum_partition(response)
        check_error(int(partition.error_code), "describe_quorum", self.cluster_name)
        self._learn_nodes(response)
        if partition.leader_id not in self._known:
            if not getattr(response, "nodes", ()):
                raise TargetUnsupported(
                    f"{self.cluster_name} does not tell its controllers' addresses (older than Kafka 3.9); "
                    "set controller.quorum.bootstrap.servers in the target section"
                )
            tried[f"broker {connection.peer}"] = (
                f"the address of controller {partition.leader_id} is not listed"
            )
            return None
        host, port = self._known[partition.leader_id]
        return ActiveController(partition.leader_id, host, port, partition.leader_epoch)

    def _quorum_partition(self, response: Any) -> Any:
        check_error(
            int(response.error_code),
            "describe_quorum",
            self.cluster_name,
            getattr(response, "error_message", None),
        )
        if not response.topics or not response.topics[0].partitions:
            raise WireError("DescribeQuorum answered without the metadata partition", api="describe_quorum")
        return response.topics[0].partitions[0]

    def _learn_nodes(self, response: Any) -> None:
        for node in getattr(response, "nodes", ()):
            listeners = {listener.name: listener for listener in node.listeners}
            chosen = listeners.get(self._listener_name) if self._listener_name else None
            if chosen is None and node.listeners and not self._listener_name:
                chosen = node.listeners[0]
            if chosen is not None:
                self._known[node.node_id] = (chosen.host, chosen.port)

    # --- talking to it --------------------------------------------------------------------------------------

    async def connection(self, purpose: str, *, timeout: float) -> tuple[ActiveController, Connection]:
        """The purpose's connection to the active controller, opened if need be."""
        deadline = time.monotonic() + timeout
        lock = self._opening.setdefault(purpose, asyncio.Lock())
        async with lock:
            while True:
                self._check_open()
                active = self._active or await self.discover(_remaining(deadline, timeout))
                current = self._connections.get(purpose)
                if current is not None:
                    if current[0] == active and not current[1].closed:
                        return current
                    del self._connections[purpose]
                    current[1].close()
                try:
                    connection = await self._open(active, _remaining(deadline, _PROBE_TIMEOUT))
                except (AuthenticationFailed, UnsupportedApi):
                    raise
                except WireError as error:
                    self.moved(active)
                    if time.monotonic() + _BACKOFF_FIRST >= deadline:
                        raise ControllerUnreachable(
                            f"{self.cluster_name}: the controller at {active.address} cannot be reached: "
                            f"{error}"
                        ) from error
                    await asyncio.sleep(_BACKOFF_FIRST)
                    continue
                try:
                    self._check_open()
                except ConnectionLost:
                    await _end(connection)
                    raise
                self._connections[purpose] = (active, connection)
                return active, connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("the channel to the controller is closed", sent=False)

    async def open_connection(self, *, timeout: float) -> Connection:
        """A connection of the caller's own to the active controller."""
        deadline = time.monotonic() + timeout
        active = self._active or await self.discover(timeout)
        return await self._open(active, _remaining(deadline, timeout))

    async def _open(self, active: ActiveController, timeout: float) -> Connection:
        return await Connection.open(
            active.host, active.port, self._security, client_id=self._client_id, timeout=timeout
        )

    async def call(
        self,
        api: str,
        fields: Fields,
        *,
        timeout: float,
        purpose: str = "admin",
        idempotent: bool = False,
        version: int | None = None,
        max_version: int | None = None,
    ) -> Any:
        """Send to the active controller and return its answer.

        `fields` may be a function: it is called right before the request is sent (and again before it is sent
        again), for requests whose epochs must be the newest known.

        A request that was surely not carried out is repeated until the deadline. One that may have been
        carried out is repeated only if `idempotent`; else ConnectionLost(sent=True) is raised and the caller
        settles the outcome from the metadata log. NOT_CONTROLLER counts as "may have been": a controller that
        resigns fails the writes it has appended but not yet committed with NotControllerException, and the
        next leader may commit them (`QuorumController.renounce`).
        """
        deadline = time.monotonic() + timeout
        backoff = _BACKOFF_FIRST
        while True:
            active, connection = await self.connection(purpose, timeout=_remaining(deadline, timeout))
            # From here to the write inside call() nothing awaits: a function sees the image of the send time.
            values = fields() if callable(fields) else fields
            try:
                response = await connection.call(
                    api,
                    values,
                    timeout=_remaining(deadline, timeout),
                    version=version,
                    max_version=max_version,
                )
            except ConnectionLost as error:
                self.moved(active)
                if (error.sent and not idempotent) or time.monotonic() + backoff >= deadline:
                    raise
            except MalformedFrame as error:
                # An answer nobody can read says nothing about what was done.
                connection.close()
                raise ConnectionLost(
                    f"the controller's answer cannot be read: {error.message}",
                    sent=True,
                    api=api,
                    peer=active.address,
                ) from error
            else:
                if not _says_not_controller(response):
                    return response
                self.moved(active)
                if not idempotent or time.monotonic() + backoff >= deadline:
                    raise ConnectionLost(
                        "the controller resigned while it handled the request",
                        sent=True,
                        api=api,
                        peer=active.address,
                    )
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, _BACKOFF_MAX)

    async def close(self) -> None:
        self._closed = True
        connections, self._connections = self._connections, {}
        for _, connection in connections.values():
            await _end(connection)


_DESCRIBE_QUORUM: dict[str, object] = {
    "topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
}


async def _end(connection: Connection) -> None:
    connection.close()
    try:
        async with asyncio.timeout(1.0):
            await connection.closed_event.wait()
    except TimeoutError:
        log.debug("the connection to %s is slow to close", connection.peer)


def _remaining(deadline: float, most: float) -> float:
    """The time for the next step; a deadline that has passed is an error here, not a step of no length."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise RequestTimedOut("no time is left to reach the active controller", sent=False)
    return min(most, left)


def _says_not_controller(value: Any) -> bool:
    """Whether any error code in the answer is NOT_CONTROLLER: some apis carry it per topic or partition."""
    if isinstance(value, tuple):
        return any(_says_not_controller(item) for item in value)
    if not dataclasses.is_dataclass(value):
        return False
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if field.name == "error_code":
            if int(inner) == NOT_CONTROLLER:
                return True
        elif _says_not_controller(inner):
            return True
    return False
