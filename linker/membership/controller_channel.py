"""Requests to the active controller, over one connection per purpose, wherever it moves.

The channel knows nothing of the requests' meaning: only which answers say "not the active controller", and whether a
request may be sent again. discovery.py finds the active controller.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from linker.membership.discovery import (
    PROBE_TIMEOUT,
    ActiveController,
    QuorumFinder,
    end_connection,
    remaining,
)
from linker.membership.errors import ControllerUnreachable, MissingRight, TargetUnsupported
from wire.backoff import Backoff
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.security import ClientSecurity
from wire.errors import (
    AuthenticationFailed,
    ConnectionLost,
    MalformedFrame,
    UnsupportedApi,
    WireError,
)
from wire.frames.error_codes import NOT_CONTROLLER

log = logging.getLogger(__name__)

_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0

Fields = Mapping[str, object] | Callable[[], Mapping[str, object]]


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
        self._client_id = client_id
        self._finder = QuorumFinder(
            cluster,
            security=security,
            bootstrap=bootstrap,
            listener_name=listener_name,
            client_id=client_id,
            own_broker_id=own_broker_id,
        )
        self._active: ActiveController | None = None
        self._highest_epoch = -1
        self._connections: dict[str, tuple[ActiveController, Connection]] = {}
        self._discovery = asyncio.Lock()
        self._opening: dict[str, asyncio.Lock] = {}
        # Their sessions end soon, and answers are under way on them.
        self._ageing: list[Connection] = []
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
            backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_MAX)
            while True:
                if self._active is not None:
                    return self._active
                tried: dict[str, str] = {}
                found = await self._finder.ask_controllers(tried, deadline, self._highest_epoch)
                if found is None:
                    found = await self._ask_brokers(tried, deadline)
                if found is not None and found.epoch < self._highest_epoch:
                    tried[f"controller {found.id}"] = f"leads only the older epoch {found.epoch}"
                elif found is not None:
                    self._adopt(found)
                    return found
                if backoff.over(time.monotonic(), deadline):
                    reasons = "; ".join(f"{where}: {why}" for where, why in tried.items())
                    raise ControllerUnreachable(
                        f"{self.cluster_name}: no active controller found within {timeout:.0f} s ({reasons})"
                    )
                await asyncio.sleep(backoff.next())

    async def _ask_brokers(self, tried: dict[str, str], deadline: float) -> ActiveController | None:
        """Also where controllers are configured: all of these may have been replaced since (KIP-853). There, a refusal
        is one more reason, and the controllers are asked again."""
        try:
            return await self._finder.ask_brokers(tried, deadline)
        except (AuthenticationFailed, MissingRight, TargetUnsupported) as error:
            if not self._finder.bootstrap:
                raise
            tried["the brokers"] = str(error)
            return None

    def moved(self, stale: ActiveController | None, *, leader_id: int = -1, epoch: int = -1) -> None:
        """Somebody learned that `stale` is not active any more; an answer may have named the new leader.

        Leaders are named with their epoch, and an older epoch never replaces a newer one (QuorumState's
        rule), so a controller that was cut off cannot pull us back.
        """
        if stale is not None and self._active is not None and self._active != stale:
            return  # already on another one
        if leader_id in self._finder.known and epoch > self._highest_epoch:
            host, port = self._finder.known[leader_id]
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
        self._finder.known[found.id] = (found.host, found.port)

    # --- talking to it --------------------------------------------------------------------------------------

    async def connection(self, purpose: str, *, timeout: float) -> tuple[ActiveController, Connection]:
        """The purpose's connection to the active controller, opened if need be."""
        deadline = time.monotonic() + timeout
        backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_FIRST)
        lock = self._opening.setdefault(purpose, asyncio.Lock())
        async with lock:
            while True:
                self._check_open()
                active = self._active or await self.discover(remaining(deadline, timeout))
                current = self._connections.get(purpose)
                if current is not None:
                    same = current[0] == active and not current[1].closed
                    if same and not current[1].ageing:
                        return current
                    del self._connections[purpose]
                    if same and current[1].channel.in_flight:
                        self._ageing.append(current[1])
                    else:
                        current[1].close()
                self._close_aged()
                try:
                    connection = await self._open(active, remaining(deadline, PROBE_TIMEOUT))
                except (AuthenticationFailed, UnsupportedApi):
                    raise
                except WireError as error:
                    self.moved(active)
                    if backoff.over(time.monotonic(), deadline):
                        raise ControllerUnreachable(
                            f"{self.cluster_name}: the controller at {active.address} cannot be reached: "
                            f"{error}"
                        ) from error
                    await asyncio.sleep(backoff.next())
                    continue
                try:
                    self._check_open()
                except ConnectionLost:
                    await end_connection(connection)
                    raise
                self._connections[purpose] = (active, connection)
                return active, connection

    def _close_aged(self) -> None:
        for connection in [one for one in self._ageing if one.closed or not one.channel.in_flight]:
            connection.close()
            self._ageing.remove(connection)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionLost("the channel to the controller is closed", sent=False)

    async def open_connection(self, *, timeout: float) -> Connection:
        """A connection of the caller's own to the active controller."""
        deadline = time.monotonic() + timeout
        active = self._active or await self.discover(timeout)
        return await self._open(active, remaining(deadline, timeout))

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
        backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_MAX)
        while True:
            active, connection = await self.connection(purpose, timeout=remaining(deadline, timeout))
            # From here to the write inside call() nothing awaits: a function sees the image of the send time.
            values = fields() if callable(fields) else fields
            try:
                response = await connection.call(
                    api,
                    values,
                    timeout=remaining(deadline, timeout),
                    version=version,
                    max_version=max_version,
                )
            except ConnectionLost as error:
                self.moved(active)
                if (error.sent and not idempotent) or backoff.over(time.monotonic(), deadline):
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
                if not idempotent or backoff.over(time.monotonic(), deadline):
                    raise ConnectionLost(
                        "the controller resigned while it handled the request",
                        sent=True,
                        api=api,
                        peer=active.address,
                    )
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        self._closed = True
        connections, self._connections = self._connections, {}
        for connection in (*(one for _, one in connections.values()), *self._ageing):
            await end_connection(connection)


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
