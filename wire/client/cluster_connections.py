"""The connections to a cluster's nodes, kept per node and purpose, and opened again after they died."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from wire.client.cluster_identity import ClusterIdentity
from wire.client.connection import Connection
from wire.client.kept_connections import KeptConnections
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
#: Seconds that one node is asked for whatever any node can tell.
_SAME_NODE = 15.0


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
        self._kept = KeptConnections(self.open, self.closing)
        self._hung_up: dict[str, tuple[float, str]] = {}
        #: By purpose: since when the present node is asked, and the attempt to connect to the next one.
        self._moves: dict[str, tuple[float, asyncio.Task[None] | None]] = {}

    @property
    def closed(self) -> bool:
        return self._kept.closed

    def connected(self, node: Node, purpose: str) -> Connection | None:
        """The kept connection to the node; None if `to` would have to open one."""
        return self._kept.connected(node.id, node.host, node.port, purpose)

    async def to(self, key: int | str, host: str, port: int, purpose: str) -> Connection:
        """The kept connection, or a new one. It is shared: closing it closes it for all."""
        return await self._kept.to(key, host, port, purpose)

    async def to_any(
        self, nodes: Iterable[Node], bootstrap: Sequence[tuple[str, int]], purpose: str
    ) -> Connection:
        """A connection to any node that answers, a kept one first."""
        if (kept := self._kept.any_for(purpose)) is not None:
            return kept
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

    def move_on(self, nodes: Iterable[Node], purpose: str) -> None:
        """Have another one of the nodes asked by `to_any` after a while. One that is cut off from its controller goes on
        answering, with what it knew before. The present connection serves until the next one is there."""
        now = time.monotonic()
        since, under_way = self._moves.setdefault(purpose, (now, None))
        if now - since < _SAME_NODE or (under_way is not None and not under_way.done()):
            return
        present = self._kept.any_for(purpose)
        others = [n for n in nodes if present is None or present.peer != format_address(n.host, n.port)]
        task = None
        if others:
            task = asyncio.get_running_loop().create_task(self._move(random.choice(others), purpose))
        self._moves[purpose] = now, task

    async def _move(self, node: Node, purpose: str) -> None:
        with contextlib.suppress(WireError):  # it is tried again, with another one maybe
            await self.to(node.id, node.host, node.port, purpose)
            self._kept.retire_others(node.id, purpose)

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
        moves = [task for _, task in self._moves.values() if task is not None]
        await self._kept.close([*others, *moves])
