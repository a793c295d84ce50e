"""One Kafka cluster: metadata, leaders, calls that are retried.

Metadata requests of concurrent callers are merged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from wire.backoff import Backoff
from wire.client.cluster_connections import ClusterConnections
from wire.client.cluster_metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from wire.client.connection import Connection
from wire.client.retry import NodeKind, until_answered
from wire.client.security import ClientSecurity
from wire.client.topic_names import TopicNames
from wire.errors import (
    ClusterUnreachable,
    ConnectionLost,
    LocalProtocolError,
    MalformedFrame,
    RequestTimedOut,
    WireError,
)
from wire.frames import list_offsets
from wire.frames.fetch import FetchRequest, FetchResponse
from wire.frames.list_offsets import OffsetResult
from wire.frames.types import Node, TopicPartition
from wire.together import retrieved

__all__ = ["Cluster", "OffsetResult", "PartitionMetadata", "TopicMetadata"]

_T = TypeVar("_T")

REFRESH_INTERVAL = 0.05
_METADATA_MAX_VERSION = 12
# A node that swallows packets must not use up a caller's whole deadline while other nodes are alive.
CONNECT_TIMEOUT = 10.0
# Repeating one of these after its outcome is unknown changes nothing.
_IDEMPOTENT = frozenset(
    {
        "api_versions",
        "fetch_snapshot",
        "find_coordinator",
        "list_offsets",
        "metadata",
        "offset_fetch",
        "offset_for_leader_epoch",
    }
)


class Cluster:
    """A cluster under the name that people know it by. Call `connect` first and `close` last."""

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[tuple[str, int]],
        security: ClientSecurity,
        client_id: str,
        rack: str | None = None,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        connection_options: Mapping[str, Any] | None = None,
        topic_prefix: str = "",
    ) -> None:
        """`topic_prefix`: its topics are known to callers under this prefix and their own name."""
        self.name = name
        self.bootstrap = list(bootstrap)
        self.security = security
        self.client_id = client_id
        self.rack = rack
        self.topic_names = TopicNames(topic_prefix)
        self.metadata = ClusterMetadata()
        self._connect_timeout = connect_timeout
        self._connections = ClusterConnections(
            name,
            security,
            client_id,
            connect_timeout,
            {**(connection_options or {}), **({"names": self.topic_names} if topic_prefix else {})},
        )
        self._round: _RefreshRound | None = None
        self._rounds: set[asyncio.Task[None]] = set()
        self._last_refresh = 0.0
        #: Brokers that are not asked for what any broker can tell: this very process is one of some clusters.
        self.not_asked: Callable[[], Collection[int]] = tuple

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str | None:
        return self.metadata.cluster_id

    @property
    def controller_id(self) -> int:
        return self.metadata.controller_id

    @property
    def nodes(self) -> dict[int, Node]:
        return self.metadata.nodes

    @property
    def topics(self) -> dict[str, TopicMetadata]:
        return self.metadata.topics

    def leader(self, tp: TopicPartition) -> Node | None:
        """The partition's leader as far as known; None asks for a refresh."""
        return self.metadata.leader(tp)

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The leader epoch that goes with `leader`; -1 where it is not known (brokers before 2.1)."""
        topic = self.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        return -1 if partition is None else partition.leader_epoch

    def learn_leader(
        self, tp: TopicPartition, leader: int, leader_epoch: int, node: Node | None = None
    ) -> bool:
        """Take a newer leader from an answer's CurrentLeader (and NodeEndpoints); whether it was news."""
        return self.metadata.learn_leader(tp, leader, leader_epoch, node)

    # --- which cluster it is --------------------------------------------------------------------------------

    def expect(self, cluster_id: str | None) -> None:
        """Use only addresses that answer with this cluster id; None: with the id that is answered first."""
        self._connections.identity.expected = cluster_id

    @property
    def foreign(self) -> dict[str, str]:
        """The addresses that answered for another cluster lately, with a sentence about each."""
        return self._connections.identity.foreign()

    @property
    def hung_up(self) -> dict[str, str]:
        """The addresses that lately took a connection and ended it at once, with the error."""
        return self._connections.hung_up()

    # --- metadata -------------------------------------------------------------------------------------------

    async def connect(self, *, timeout: float = 30.0) -> None:
        """Learn cluster id, nodes and controller; ClusterUnreachable names every address tried."""
        answer = await self._with_deadline(self._ask_metadata(()), timeout)
        self.metadata.apply(answer, all_topics=False)
        if self.cluster_id is not None:
            self.expect(self.cluster_id)

    async def refresh(self, topics: Iterable[str] | None = None, *, timeout: float = 30.0) -> None:
        """Ask for the given topics (None: all), merged with the requests of other callers."""
        if self._connections.closed:
            raise self._connections.closing()
        if self._round is None:
            self._round = _RefreshRound()
            self._round.task = asyncio.get_running_loop().create_task(self._run_round(self._round))
            self._rounds.add(self._round.task)
            self._round.task.add_done_callback(self._rounds.discard)
        current = self._round
        current.want(topics)
        await self._with_deadline(asyncio.shield(current.done), timeout)

    async def _run_round(self, current: _RefreshRound) -> None:
        try:
            await asyncio.sleep(max(0.0, self._last_refresh + REFRESH_INTERVAL - time.monotonic()))
            self._round = None  # from here on others start the next round
            self._last_refresh = time.monotonic()
            names = current.names
            answer = await self._ask_metadata(None if names is None else sorted(names))
            self.metadata.apply(answer, all_topics=names is None)
        except asyncio.CancelledError:
            current.fail(self._connections.closing())
            raise
        except WireError as error:
            current.fail(error)
        except Exception as error:
            current.fail(LocalProtocolError(f"metadata of cluster {self.name}: {error!r}"))
        else:
            if not current.done.done():
                current.done.set_result(None)
        finally:
            if self._round is current:
                self._round = None

    async def _ask_metadata(self, topics: Sequence[str] | None) -> Any:
        fields = {
            "topics": None if topics is None else [{"name": name} for name in topics],
            "allow_auto_topic_creation": False,
        }
        tried: list[tuple[str, WireError]] = []
        for _ in range(3):  # a cached connection may turn out to be dead
            connection = await self.connection(None, purpose="metadata")
            try:
                answer = await connection.call(
                    "metadata", fields, timeout=self._connect_timeout, max_version=_METADATA_MAX_VERSION
                )
                # Another cluster may be behind the address by now with the connection still open (a proxy).
                self._connections.identity.check(connection, getattr(answer, "cluster_id", None))
                if topics is not None and len(answer.topics) > len(topics):
                    raise MalformedFrame(
                        f"{len(answer.topics)} topics are told where {len(topics)} were asked for",
                        api="metadata",
                        peer=connection.peer,
                    )
                self._connections.move_on(self._askable(), "metadata")
                return answer
            except ConnectionLost as error:
                tried.append((connection.peer, error))
        raise self._connections.unreachable(tried)

    async def _with_deadline(self, work: Any, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                return await work
        except TimeoutError:
            raise RequestTimedOut(
                f"cluster {self.name} gave no metadata within {timeout:g} s", sent=True, api="metadata"
            ) from None

    # --- connections ----------------------------------------------------------------------------------------

    async def connection(self, node_id: int | None, *, purpose: str = "default") -> Connection:
        """A cached connection to the node (None: to any that is alive). It is shared: closing it closes it for all."""
        if node_id is None:
            return await self._connections.to_any(self._askable(), self.bootstrap, purpose)
        node = await self._node(node_id)
        return await self._connections.to(node_id, node.host, node.port, purpose)

    def _askable(self) -> list[Node]:
        but = self.not_asked()
        return [node for node in self.nodes.values() if node.id not in but]

    def connected(self, node_id: int, *, purpose: str = "default") -> Connection | None:
        """The cached connection to the node; None if `connection` would have to open one."""
        node = self.nodes.get(node_id)
        return None if node is None else self._connections.connected(node, purpose)

    async def open_connection(
        self, node: Node | int, *, alloc: Callable[[int], bytearray] | None = None
    ) -> Connection:
        """A connection for this caller alone, who closes it. `alloc`: gives the buffers of large answers."""
        if isinstance(node, int):
            node = await self._node(node)
        return await self._connections.open(node.host, node.port, alloc=alloc)

    async def _node(self, node_id: int) -> Node:
        if node_id not in self.nodes:
            await self.refresh(())
        try:
            return self.nodes[node_id]
        except KeyError:
            raise ClusterUnreachable(f"cluster {self.name} has no live node {node_id}") from None

    # --- calls ----------------------------------------------------------------------------------------------

    async def call(
        self,
        api: str,
        fields: Mapping[str, object],
        *,
        node_id: int | None = None,
        timeout: float,
        version: int | None = None,
        purpose: str = "default",
    ) -> Any:
        """One answer from a node. Retries until `timeout` if the request was certainly not carried out, or is idempotent."""
        return await self._try(
            api,
            version,
            lambda connection, left: connection.call(api, fields, timeout=left, version=version),
            node_id=node_id,
            timeout=timeout,
            purpose=purpose,
        )

    async def fetch(
        self, node_id: int, request: FetchRequest, *, timeout: float, purpose: str = "default"
    ) -> tuple[memoryview, FetchResponse]:
        """A Fetch, retried as in `call`. The answer is not decoded field by field."""
        return await self._try(
            "fetch",
            request.version,
            lambda connection, left: connection.fetch(request, timeout=left),
            node_id=node_id,
            timeout=timeout,
            purpose=purpose,
        )

    async def _try(
        self,
        api: str,
        version: int | None,
        use: Callable[[Connection, float], Awaitable[_T]],
        *,
        node_id: int | None,
        timeout: float,
        purpose: str,
    ) -> _T:
        deadline = time.monotonic() + timeout
        repeatable = api in _IDEMPOTENT or api.startswith(("describe_", "list_"))

        async def once() -> _T:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    connection = await self.connection(node_id, purpose=purpose)
            except TimeoutError:
                raise RequestTimedOut(
                    f"cluster {self.name}: no connection within {timeout:g} s",
                    sent=False,
                    api=api,
                    version=version,
                ) from None
            return await use(connection, max(deadline - time.monotonic(), 0.001))

        return await until_answered(
            NodeKind.LEADER,
            once,
            deadline=deadline,
            backoff=Backoff(0.05, 1.0),
            again=lambda error: repeatable or not (isinstance(error, ConnectionLost) and error.sent),
        )

    async def list_offsets(
        self,
        tps: Mapping[TopicPartition, int],
        *,
        replica_id: int = -1,
        isolation_level: int = 0,
        timeout: float = 30.0,
    ) -> dict[TopicPartition, OffsetResult]:
        """Offsets by timestamp (-1 latest, -2 earliest, ...), each from its leader; see list_offsets.py."""
        return await list_offsets.list_offsets(
            self, tps, replica_id=replica_id, isolation_level=isolation_level, timeout=timeout
        )

    # --- life -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close every cached connection and cancel requests that are under way."""
        await self._connections.close(self._rounds)


class _RefreshRound:
    """One metadata request that is being collected, and the callers that wait for it."""

    def __init__(self) -> None:
        self.names: set[str] | None = set()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(retrieved)
        self.task: asyncio.Task[None] | None = None

    def want(self, topics: Iterable[str] | None) -> None:
        if topics is None:
            self.names = None
        elif self.names is not None:
            self.names.update(topics)

    def fail(self, error: WireError) -> None:
        if not self.done.done():
            self.done.set_exception(error)
