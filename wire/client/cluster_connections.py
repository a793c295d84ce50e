"""The connections to a cluster's nodes, kept per node and purpose, and opened again after they died."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wire.client.cluster_identity import ClusterIdentity
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import (
    AuthenticationFailed,
    ClusterUnreachable,
    ConnectionLost,
    HungUp,
    WireError,
    WrongCluster,
)
from wire.frames.types import Node, format_address

_TOLD_FOR = 600.0  # seconds


class ClusterConnections:
    """The connections to one cluster, all with the same security and client id."""

    def __init__(
        self,
        name: str,
        security: ClientSecurity,
        client_id: str,
        connect_timeout: float,
        options: Mapping[str, Any],
    ) -> None:
        self._name = name
        self._security = security
        self._client_id = client_id
        self._connect_timeout = connect_timeout
        self._options = dict(options)
        self.identity = ClusterIdentity(name)
        # Key: (node id or bootstrap address, purpose). A task may be shared by callers, so none of them owns
        # it.
        self._connections: dict[tuple[int | str, str], Connection] = {}
        self._opening: dict[tuple[int | str, str], asyncio.Task[Connection]] = {}
        self._stale: list[Connection] = []  # replaced; closed when their last answer is there
        self._hung_up: dict[str, tuple[float, str]] = {}
        self.closed = False

    def connected(self, node: Node, purpose: str) -> Connection | None:
        """The kept connection to the node; None if `to` would have to open one."""
        return None if self.closed else self._kept((node.id, purpose), node.host, node.port)

    async def to(self, key: int | str, host: str, port: int, purpose: str) -> Connection:
        """The kept connection, or a new one. It is shared: closing it closes it for all."""
        if self.closed:
            raise self.closing()
        place = (key, purpose)
        kept = self._kept(place, host, port)
        if kept is not None:
            return kept
        stale = self._connections.pop(place, None)
        if stale is not None:
            self._stale.append(stale)
        self._close_stale()
        opening = self._opening.get(place)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open_kept(place, host, port))
            self._opening[place] = opening
            # after all callers were cancelled an error is no bug to report
            opening.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # by close(), not by our caller's wish
                raise self.closing() from None
            raise

    async def to_any(
        self, nodes: Iterable[Node], bootstrap: Sequence[tuple[str, int]], purpose: str
    ) -> Connection:
        """A connection to any node that answers, a kept one first."""
        for (_, kept), connection in self._connections.items():
            if kept == purpose and _usable(connection):
                return connection
        places: list[tuple[int | str, str, int]] = [(n.id, n.host, n.port) for n in nodes]
        random.shuffle(places)
        known = {(host, port) for _, host, port in places}
        places += [(format_address(h, p), h, p) for h, p in bootstrap if (h, p) not in known]
        tried: list[tuple[str, WireError]] = []
        refused: AuthenticationFailed | None = None
        for key, host, port in places:
            try:
                return await self.to(key, host, port, purpose)
            except AuthenticationFailed as error:
                refused = AuthenticationFailed(f"cluster {self._name}: {error.message}", peer=error.peer)
                if self.identity.expected is None:
                    raise refused from error
                # This cluster has accepted us before: the address may belong to another cluster by now.
                tried.append((format_address(host, port), error))
            except WireError as error:
                tried.append((format_address(host, port), error))
        if refused is not None:
            raise refused
        raise self.unreachable(tried)

    def hung_up(self) -> dict[str, str]:
        """The addresses that lately took a connection and ended it at once, with the error."""
        oldest = time.monotonic() - _TOLD_FOR
        return {address: error for address, (seen, error) in self._hung_up.items() if seen > oldest}

    async def open(
        self, host: str, port: int, *, alloc: Callable[[int], bytearray] | None = None
    ) -> Connection:
        """A connection for this caller alone, who closes it. It certainly leads to this cluster."""
        options = self._options if alloc is None else {**self._options, "alloc": alloc}
        try:
            connection = await Connection.open(
                host,
                port,
                self._security,
                client_id=self._client_id,
                timeout=self._connect_timeout,
                **options,
            )
        except HungUp as error:
            self._hung_up[format_address(host, port)] = (time.monotonic(), str(error))
            raise
        await self.identity.verify(connection, self._connect_timeout)
        return connection

    def unreachable(self, tried: Sequence[tuple[str, WireError]]) -> ClusterUnreachable:
        reasons = "; ".join(
            error.message if isinstance(error, WrongCluster) else f"{address}: {error.message}"
            for address, error in tried
        )
        return ClusterUnreachable(
            f"cluster {self._name} cannot be reached: {reasons or 'no address is known'}"
        )

    def closing(self) -> ConnectionLost:
        return ConnectionLost(f"cluster {self._name} is closed", sent=False)

    async def close(self, others: Iterable[asyncio.Task[Any]] = ()) -> None:
        """Close every kept connection, and cancel attempts to connect and the tasks in `others`."""
        self.closed = True
        tasks = [*others, *self._opening.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connections, self._connections = [*self._connections.values(), *self._stale], {}
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.closed_event.wait()

    def _close_stale(self) -> None:
        for connection in [one for one in self._stale if one.closed or not one.channel.in_flight]:
            connection.close()
            self._stale.remove(connection)

    def _kept(self, place: tuple[int | str, str], host: str, port: int) -> Connection | None:
        kept = self._connections.get(place)
        if kept is None or kept.peer != format_address(host, port) or not _usable(kept):
            return None
        return kept

    async def _open_kept(self, place: tuple[int | str, str], host: str, port: int) -> Connection:
        try:
            connection = await self.open(host, port)
            self._connections[place] = connection
            return connection
        finally:
            self._opening.pop(place, None)


def _usable(connection: Connection) -> bool:
    # A peer that limits sessions cuts us off when one expires; a new connection is made a little before.
    return not connection.closed and not connection.ageing


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
