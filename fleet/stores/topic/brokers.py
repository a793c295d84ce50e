"""Connections: bootstrap addresses, the leader of the topic, the transaction coordinator.

Not wire.client.cluster, which may ask any node for Metadata, and with a mirror link some nodes are link brokers: the
store must not need a link broker in order to elect one. Bootstrap addresses are real brokers; leaders and coordinators
are too, as long as the topics are not placed on a link broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fleet.stores.base import StoreError
from wire.client.connection import Connection
from wire.client.coordinators import KeyType, find_fields, places_told
from wire.client.kept_connections import KeptConnections
from wire.client.security import ClientSecurity
from wire.errors import (
    BrokerError,
    ClusterUnreachable,
    ConnectionLost,
    MalformedFrame,
    RequestTimedOut,
    error_is_retriable,
    error_name,
)
from wire.frames.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicId, format_address, topic_id_from_uuid

ATTEMPT = 5.0
"""Seconds for one connection or answer: a broker that swallows packets must not cost the whole deadline."""
PAUSE = 0.1
_METADATA_MAX_VERSION = 12

#: Errors of rights; the message says which one is missing.
RIGHTS = {
    TOPIC_AUTHORIZATION_FAILED: "READ, WRITE and DESCRIBE on topic {topic} (CREATE too if it does not exist)",
    CLUSTER_AUTHORIZATION_FAILED: "CREATE on the cluster, or create topic {topic} by hand",
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE and DESCRIBE on transactional id {transactional_id}",
}

Address = tuple[str, int]


class StoreRefused(StoreError):
    """A broker refuses a request of the store; waiting does not help."""


class StateTopic(NamedTuple):
    """The state topic as Metadata shows it."""

    topic_id: TopicId
    partitions: int
    leader: Address | None
    brokers: tuple[int, ...]
    replicas: int


class StateTopicBrokers:
    """The target cluster as the store of one topic needs it. Every call ends by its deadline (monotonic)."""

    def __init__(
        self, bootstrap: Sequence[Address], security: ClientSecurity, client_id: str, topic: str
    ) -> None:
        self.topic = topic
        self.transactional_id = f"kafka-linker-{topic}"
        self._bootstrap = list(bootstrap)
        self._security = security
        self._client_id = client_id
        self._kept = KeptConnections(self._open, lambda: ConnectionLost("the store is closed", sent=False))
        self._leader: Address | None = None
        self._coordinator: Address | None = None

    def refused(self, code: int, api: str, message: str | None = None) -> StoreRefused:
        """An error code that waiting does not help against."""
        text = f"{api}: {error_name(code)}" + (f": {message}" if message else "")
        right = RIGHTS.get(code, "").format(topic=self.topic, transactional_id=self.transactional_id)
        return StoreRefused(
            f"the state topic {self.topic}: {text}" + (f"; the linker needs {right}" if right else "")
        )

    # --- calls ----------------------------------------------------------------------------------------------

    async def ask_any(self, api: str, fields: Mapping[str, object], deadline: float, **options: Any) -> Any:
        """An answer of the first bootstrap address that gives one. Only for requests that may be repeated."""
        tried = []
        for address in list(self._bootstrap):
            try:
                answer = await self.ask(address, api, fields, deadline, **options)
                # The next question begins where this one was answered.
                self._bootstrap.sort(key=lambda other: other != address)
                return answer
            except ConnectionLost as error:
                tried.append(f"{format_address(*address)}: {error.message}")
        raise ClusterUnreachable(
            f"no broker answers ({'; '.join(tried)}): check target.bootstrap.servers and that they run"
        )

    async def ask(
        self,
        address: Address,
        api: str,
        fields: Mapping[str, object],
        deadline: float,
        *,
        max_version: int | None = None,
        purpose: str = "write",
        patience: float = ATTEMPT,
    ) -> Any:
        """One answer of one broker; ConnectionLost says by `sent` whether it may have been carried out."""
        connection = await self._connection(address, purpose, deadline)
        left = min(patience, deadline - time.monotonic())
        if left <= 0:
            raise ConnectionLost("no time left", sent=False, api=api, peer=format_address(*address))
        return await connection.call(api, fields, timeout=left, max_version=max_version)

    async def _connection(self, address: Address, purpose: str, deadline: float) -> Connection:
        left = min(ATTEMPT, deadline - time.monotonic())
        if left <= 0:
            raise ConnectionLost("no time left", sent=False, peer=format_address(*address))
        try:
            async with asyncio.timeout(left):
                return await self._kept.to(address, *address, purpose)
        except TimeoutError:
            raise RequestTimedOut(
                f"no connection within {left:g} s", sent=False, peer=format_address(*address)
            ) from None

    async def _open(self, host: str, port: int) -> Connection:
        return await Connection.open(host, port, self._security, client_id=self._client_id, timeout=ATTEMPT)

    # --- places ---------------------------------------------------------------------------------------------

    async def metadata(self, deadline: float) -> StateTopic | None:
        """The topic; None while it does not exist (or its creation has not got round)."""
        answer = await self.ask_any(
            "metadata",
            {"topics": [{"name": self.topic}], "allow_auto_topic_creation": False},
            deadline,
            max_version=_METADATA_MAX_VERSION,
        )
        nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        (topic,) = answer.topics
        code = int(topic.error_code)
        if code in RIGHTS:
            raise self.refused(code, "metadata")
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if code and not error_is_retriable(code):
            raise self.refused(code, "metadata")
        leader = next((nodes.get(p.leader_id) for p in topic.partitions if p.partition_index == 0), None)
        found = StateTopic(
            topic_id_from_uuid(getattr(topic, "topic_id", None)),
            len(topic.partitions),
            leader,
            tuple(sorted(nodes)),
            max((len(partition.replica_nodes) for partition in topic.partitions), default=0),
        )
        self._leader = leader
        return found

    async def leader(self, deadline: float) -> Address:
        """Of the topic's one partition; kept until forget_leader."""
        if self._leader is None:
            await self.metadata(deadline)
        if self._leader is None:
            raise ClusterUnreachable(f"topic {self.topic} has no leader")
        return self._leader

    @property
    def leader_known(self) -> bool:
        return self._leader is not None

    def forget_leader(self) -> None:
        self._leader = None

    async def coordinator(self, deadline: float) -> Address:
        """Of the fleet's transactional id; kept until forget_coordinator."""
        if self._coordinator is None:
            key = self.transactional_id
            answer = await self.ask_any("find_coordinator", find_fields(KeyType.TRANSACTION, [key]), deadline)
            place = places_told(answer, [key]).get(key)
            if place is None:
                raise MalformedFrame("the coordinator that was asked for is missing", api="find_coordinator")
            if place.code in RIGHTS:
                raise self.refused(place.code, "find_coordinator")
            if place.code:
                raise BrokerError(place.code, api="find_coordinator")
            self._coordinator = place.address
        return self._coordinator

    def forget_coordinator(self) -> None:
        self._coordinator = None

    # --- life -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self._kept.close()


#: Errors that a pause and another attempt may mend.
PASSING = (ConnectionLost, ClusterUnreachable, BrokerError)
