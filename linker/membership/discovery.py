"""Finds the active controller by asking the controllers, or the target's brokers.

Brokers forward DescribeQuorum to the active controller (KIP-595; node endpoints since v2 of KIP-853), and a controller
answers it only while it leads the quorum (`KafkaRaftClient.handleDescribeQuorumRequest`). ControllerChannel decides
when to ask, and which answer to believe.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Iterable
from typing import Any, Protocol

from linker.membership.errors import MissingRight, TargetUnsupported, check_error
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import AuthenticationFailed, LinkerError, RequestTimedOut, WireError
from wire.frames.error_codes import NOT_LEADER_OR_FOLLOWER
from wire.frames.types import format_address

log = logging.getLogger(__name__)

METADATA_TOPIC = "__cluster_metadata"
PROBE_TIMEOUT = 3.0

_DESCRIBE_QUORUM: dict[str, object] = {
    "topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
}


@dataclasses.dataclass(frozen=True, slots=True)
class ActiveController:
    """The controller that leads the metadata quorum, as an answer told."""

    id: int
    host: str
    port: int
    epoch: int

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)


class ControllerFinder(Protocol):
    """Finds the active controller. `bootstrap`: the configured addresses of controllers."""

    bootstrap: list[tuple[str, int]]
    known: dict[int, tuple[str, int]]
    #: Why all controllers that were asked last turn us away; None if one of them does not.
    refused: LinkerError | None

    async def ask_controllers(
        self, tried: dict[str, str], deadline: float, highest_epoch: int
    ) -> ActiveController | None: ...

    async def ask_brokers(self, tried: dict[str, str], deadline: float) -> ActiveController | None: ...


class QuorumFinder:
    """Knows the controllers' addresses, and learns new ones from every answer."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        security: ClientSecurity,
        bootstrap: Iterable[tuple[str, int]],
        client_id: str,
        own_broker_id: int | None,
    ) -> None:
        self._cluster = cluster
        self._security = security
        self.bootstrap = list(bootstrap)
        self._client_id = client_id
        self._own_broker_id = own_broker_id
        self.known: dict[int, tuple[str, int]] = {}
        #: All listeners of each controller: another one than it is known by may be the one for us.
        self._listeners: dict[int, list[tuple[str, int]]] = {}
        #: Why all controllers that were asked last turn us away; None if one of them does not.
        self.refused: LinkerError | None = None

    async def ask_controllers(
        self, tried: dict[str, str], deadline: float, highest_epoch: int
    ) -> ActiveController | None:
        """The first of the known controllers that leads `highest_epoch` or a newer one. One that turns us away keeps no
        other from being found: its users may differ, or its address may be another service's by now."""
        told = [address for one in self._listeners.values() for address in one]
        addresses = list(dict.fromkeys([*self.known.values(), *self.bootstrap, *told]))
        self.refused = None
        if not addresses:
            return None

        async def probe(host: str, port: int) -> ActiveController | None:
            where = f"controller {format_address(host, port)}"
            try:
                return await self._ask_controller(host, port, deadline)
            except (AuthenticationFailed, MissingRight, TargetUnsupported) as error:
                tried[where] = str(error)
                raise
            except LinkerError as error:
                tried[where] = str(error)
                return None

        # All are asked at once and the first leader wins, because a controller that hangs must not delay the others.
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
                if answer.epoch >= highest_epoch:
                    return answer
                # A leader that was cut off still thinks that it leads; another controller may lead a newer epoch.
                found.append(answer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if len(refusals) == len(addresses):
            self.refused = refusals[0]
        return max(found, key=lambda controller: controller.epoch, default=None)

    async def _ask_controller(self, host: str, port: int, deadline: float) -> ActiveController | None:
        timeout = remaining(deadline, PROBE_TIMEOUT)
        connection = await Connection.open(
            host, port, self._security, client_id=self._client_id, timeout=timeout
        )
        try:
            response = await connection.call(
                "describe_quorum", _DESCRIBE_QUORUM, timeout=remaining(deadline, PROBE_TIMEOUT)
            )
        finally:
            await end_connection(connection)
        partition = self._quorum_partition(response)
        self._learn_nodes(response)
        code = int(partition.error_code)
        if code == NOT_LEADER_OR_FOLLOWER:
            raise WireError("is not the active controller", peer=connection.peer)
        check_error(code, "describe_quorum", self._cluster.name, getattr(partition, "error_message", None))
        # Only the leader answers, so the address just asked is the leader's.
        self.known[partition.leader_id] = (host, port)
        return ActiveController(partition.leader_id, host, port, partition.leader_epoch)

    async def ask_brokers(self, tried: dict[str, str], deadline: float) -> ActiveController | None:
        """The answer of the target's brokers; each of them forwards the question to the active controller."""
        # Never ourselves, or the question would travel in a circle. None stands for any node of the bootstrap list.
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
                f"{self._cluster.name} runs in ZooKeeper mode: a target has to be migrated to KRaft first, a source is "
                "joined with zookeeper.connect in the link's section below sources"
            )
        response = await connection.call(
            "describe_quorum", _DESCRIBE_QUORUM, timeout=remaining(deadline, PROBE_TIMEOUT)
        )
        partition = self._quorum_partition(response)
        check_error(int(partition.error_code), "describe_quorum", self._cluster.name)
        self._learn_nodes(response)
        if partition.leader_id not in self.known:
            if not getattr(response, "nodes", ()):
                raise TargetUnsupported(
                    f"{self._cluster.name} does not tell its controllers' addresses (older than Kafka 3.9); "
                    "set controller.quorum.bootstrap.servers in its section of the configuration"
                )
            tried[f"broker {connection.peer}"] = (
                f"the address of controller {partition.leader_id} is not listed"
            )
            return None
        host, port = self.known[partition.leader_id]
        return ActiveController(partition.leader_id, host, port, partition.leader_epoch)

    def _quorum_partition(self, response: Any) -> Any:
        check_error(
            int(response.error_code),
            "describe_quorum",
            self._cluster.name,
            getattr(response, "error_message", None),
        )
        if not response.topics or not response.topics[0].partitions:
            raise WireError("DescribeQuorum answered without the metadata partition", api="describe_quorum")
        return response.topics[0].partitions[0]

    def _learn_nodes(self, response: Any) -> None:
        """A controller may have several listeners, in any order. It stays known by one where it may have answered."""
        for node in getattr(response, "nodes", ()):
            addresses = [(listener.host, listener.port) for listener in node.listeners]
            if addresses:
                known = self.known.get(node.node_id)
                self.known[node.node_id] = known if known in addresses else addresses[0]
                self._listeners[node.node_id] = addresses


async def end_connection(connection: Connection) -> None:
    connection.close()
    try:
        async with asyncio.timeout(1.0):
            await connection.closed_event.wait()
    except TimeoutError:
        log.debug("the connection to %s is slow to close", connection.peer)


def remaining(deadline: float, most: float) -> float:
    """The time for the next step. RequestTimedOut once the deadline has passed, so that no step gets a timeout of 0."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise RequestTimedOut("no time is left to reach the active controller", sent=False)
    return min(most, left)
