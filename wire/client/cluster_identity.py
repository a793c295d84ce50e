"""The cluster id that an address answers with, checked on every new connection.

An address that was reused, a DNS name or a load balancer may lead to another cluster. Each connection is checked before its
first use, because most answers and all writes name topics and partitions only, which the other cluster may have as well.
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

_TOLD_FOR = 600.0  # seconds since the last attempt to use such an address
_NO_TOPICS = {"topics": [], "allow_auto_topic_creation": False}
_MAX_VERSION = 12


class ClusterIdentity:
    """The id that every address of a cluster has to answer with, and the addresses that do not."""

    def __init__(self, name: str) -> None:
        self._name = name
        #: None while it is not known: then the first answer is accepted.
        self.expected: str | None = None
        self._foreign: dict[str, tuple[float, WrongCluster]] = {}

    def foreign(self) -> dict[str, str]:
        """The addresses that answered for another cluster lately, with a sentence about each."""
        oldest = time.monotonic() - _TOLD_FOR
        return {address: error.message for address, (seen, error) in self._foreign.items() if seen > oldest}

    async def verify(self, connection: Connection, timeout: float) -> None:
        """Close the connection and raise WrongCluster if it leads to another cluster than the expected one."""
        if self.expected is None:
            return
        try:
            self.check(connection, await ask(connection, timeout))
        except BaseException:
            connection.close()
            raise

    def check(self, connection: Connection, answered: str | None) -> None:
        """Judge the id of one answer. A broker without an id (before Kafka 0.10.1) is accepted."""
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
    """The cluster id that each address answers with, or its error; all are asked at once."""

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
