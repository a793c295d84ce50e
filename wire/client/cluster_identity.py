"""Which cluster an address answers for: an address that was reused, a DNS name or a load balancer may lead to another one.

Each connection is asked before it is used for anything, because most answers and all writes name topics and partitions only,
which another cluster may have as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import ClusterUnreachable, WireError, WrongCluster
from wire.frames.types import format_address

log = logging.getLogger(__name__)

_TOLD_FOR = 600.0  # seconds; whoever still comes by such an address renews it
_NO_TOPICS = {"topics": [], "allow_auto_topic_creation": False}
_MAX_VERSION = 12


class ClusterIdentity:
    """The id that every address of a cluster has to answer with, and the addresses that do not."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: None while it is not known: then whatever answers first is believed.
        self.expected: str | None = None
        self._foreign: dict[str, tuple[float, WrongCluster]] = {}

    def foreign(self) -> dict[str, str]:
        """The addresses that answered for another cluster lately, with a sentence about each."""
        oldest = time.monotonic() - _TOLD_FOR
        return {address: error.message for address, (seen, error) in self._foreign.items() if seen > oldest}

    async def verify(self, connection: Connection, timeout: float) -> None:
        """WrongCluster, and the connection is closed, if it leads to another cluster than the expected one."""
        if self.expected is None:
            return
        try:
            self.check(connection, await ask(connection, timeout))
        except BaseException:
            connection.close()
            raise

    def check(self, connection: Connection, answered: str | None) -> None:
        """What one answer said. A broker that tells no id is believed, as one before Kafka 0.10.1."""
        address = connection.peer
        if answered is None or self.expected is None or answered == self.expected:
            if self._foreign.pop(address, None) is not None:
                log.info("cluster %s: %s answers for it again", self._name, address)
            return
        error = WrongCluster(
            f"address {address} answers for cluster {answered}, expected {self.expected}", sent=False
        )
        if address not in self._foreign:
            log.error("cluster %s: %s; it is not used", self._name, error)
        self._foreign[address] = (time.monotonic(), error)
        connection.channel.close(error)
        raise error


async def ask(connection: Connection, timeout: float) -> str | None:
    """The id of the cluster that a connection leads to."""
    answer: Any = await connection.call("metadata", _NO_TOPICS, timeout=timeout, max_version=_MAX_VERSION)
    return getattr(answer, "cluster_id", None)


async def survey(
    bootstrap: Sequence[tuple[str, int]], security: ClientSecurity, client_id: str, timeout: float
) -> dict[str, str | WireError | None]:
    """What each address answers for, or why it does not answer; all of them are asked at once."""

    async def one(host: str, port: int) -> str | WireError | None:
        try:
            connection = await Connection.open(host, port, security, client_id=client_id, timeout=timeout)
            try:
                return await ask(connection, timeout)
            finally:
                connection.close()
        except WireError as error:
            return error
        except TimeoutError as error:
            return ClusterUnreachable(str(error) or "no answer")

    found = await asyncio.gather(*(one(host, port) for host, port in bootstrap))
    return dict(zip((format_address(host, port) for host, port in bootstrap), found, strict=True))
