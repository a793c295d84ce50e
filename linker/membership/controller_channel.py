"""Requests to the active controller, over one connection per purpose. The channel follows when another one becomes active.

The channel does not know the meaning of requests. It knows which answers say "not the active controller", and whether a
request may be sent again. discovery.py finds the active controller.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from linker.membership.discovery import (
    PROBE_TIMEOUT,
    ActiveController,
    ControllerFinder,
    QuorumFinder,
    remaining,
)
from linker.membership.errors import ControllerUnreachable, MissingRight, TargetUnsupported
from wire.backoff import Backoff
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.kept_connections import KeptConnections
from wire.client.retry import NodeKind, until_answered
from wire.client.security import ClientSecurity
from wire.errors import (
    AuthenticationFailed,
    ConnectionLost,
    MalformedFrame,
    RequestTimedOut,
    UnsupportedApi,
    WireError,
)

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
        client_id: str = "kafka-linker",
        own_broker_id: int | None = None,
        finder: ControllerFinder | None = None,
    ) -> None:
        """`finder`: finds the controller of a cluster that has no KRaft quorum; None: the quorum is asked."""
        self._cluster = cluster
        self._security = security
        self._client_id = client_id
        self._finder: ControllerFinder = finder or QuorumFinder(
            cluster,
            security=security,
            bootstrap=bootstrap,
            client_id=client_id,
            own_broker_id=own_broker_id,
        )
        self._active: ActiveController | None = None
        self._highest_epoch = -1
        self._kept = KeptConnections(lambda host, port: self._open(host, port), self._closing)
        self._discovery = asyncio.Lock()

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
                if found is None and self._finder.refused is not None:
                    raise self._finder.refused
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
        """Ask the target's brokers, even if controllers are configured: all of those may have been replaced since (KIP-853).
        With controllers configured, a refusal by the brokers is only noted as one more reason, and the controllers are
        asked again."""
        try:
            return await self._finder.ask_brokers(tried, deadline)
        except (AuthenticationFailed, MissingRight, TargetUnsupported) as error:
            if not self._finder.bootstrap:
                raise
            tried["the brokers"] = str(error)
            return None

    def moved(self, stale: ActiveController | None, *, leader_id: int = -1, epoch: int = -1) -> None:
        """An answer has shown that `stale` is not active any more; it may have named the new leader.

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
        while True:
            if self._kept.closed:
                raise self._closing()
            active = self._active or await self.discover(remaining(deadline, timeout))
            self._kept.end_others(active.address, purpose)
            try:
                return active, await self._kept_connection(
                    active, purpose, remaining(deadline, PROBE_TIMEOUT)
                )
            except (AuthenticationFailed, UnsupportedApi):
                self.moved(active)  # another one may lead by the next try, and take us
                raise
            except WireError as error:
                if self._kept.closed:
                    raise
                self.moved(active)
                if backoff.over(time.monotonic(), deadline):
                    raise ControllerUnreachable(
                        f"{self.cluster_name}: the controller at {active.address} cannot be reached: {error}"
                    ) from error
            await asyncio.sleep(backoff.next())

    async def _kept_connection(self, active: ActiveController, purpose: str, timeout: float) -> Connection:
        try:
            async with asyncio.timeout(timeout):
                return await self._kept.to(active.address, active.host, active.port, purpose)
        except TimeoutError:
            raise RequestTimedOut(
                f"no connection within {timeout:g} s", sent=False, peer=active.address
            ) from None

    @staticmethod
    def _closing() -> ConnectionLost:
        return ConnectionLost("the channel to the controller is closed", sent=False)

    async def open_connection(self, *, timeout: float) -> Connection:
        """A new connection to the active controller. The caller owns it and closes it."""
        deadline = time.monotonic() + timeout
        active = self._active or await self.discover(timeout)
        return await self._open(active.host, active.port, remaining(deadline, timeout))

    async def _open(self, host: str, port: int, timeout: float = PROBE_TIMEOUT) -> Connection:
        return await Connection.open(host, port, self._security, client_id=self._client_id, timeout=timeout)

    async def call(
        self,
        api: str,
        fields: Fields,
        *,
        timeout: float,
        purpose: str = "admin",
        idempotent: bool = False,
        max_version: int | None = None,
    ) -> Any:
        """Send to the active controller and return its answer.

        `fields` may be a function: it is called right before the request is sent (and again before it is sent
        again), for requests whose epochs must be the newest known.

        A request that was surely not carried out is repeated until the deadline. A request that may have been carried out
        is repeated only if `idempotent`; else ConnectionLost(sent=True) is raised, and the caller settles the outcome from
        the metadata log. NOT_CONTROLLER means "may have been carried out": a controller that resigns answers so to writes
        that it has appended but not committed, and the next leader may commit them (`QuorumController.renounce`).
        """
        deadline = time.monotonic() + timeout
        active: ActiveController | None = None

        async def once() -> Any:
            nonlocal active
            active, connection = await self.connection(purpose, timeout=remaining(deadline, timeout))
            # Nothing awaits from here to the write inside call(): a function of fields sees the image as it is when sent.
            values = fields() if callable(fields) else fields
            try:
                return await connection.call(
                    api,
                    values,
                    timeout=remaining(deadline, timeout),
                    max_version=max_version,
                )
            except MalformedFrame:
                connection.close()
                raise

        def forget() -> None:
            if active is not None:  # None: no controller was asked, so none has moved
                self.moved(active)

        def address() -> str | None:
            return None if active is None else active.address

        try:
            return await until_answered(
                NodeKind.CONTROLLER,
                once,
                deadline=deadline,
                backoff=Backoff(_BACKOFF_FIRST, _BACKOFF_MAX),
                codes_of=_codes,
                refused=lambda code: ConnectionLost(
                    "the controller resigned while it handled the request", sent=True, api=api, peer=address()
                ),
                forget=forget,
                again=lambda error: (
                    not self._kept.closed
                    and (idempotent or not (isinstance(error, ConnectionLost) and error.sent))
                ),
            )
        except MalformedFrame as error:
            # An answer that cannot be read does not tell whether the request was carried out.
            raise ConnectionLost(
                f"the controller's answer cannot be read: {error.message}",
                sent=True,
                api=api,
                peer=address(),
            ) from error

    async def close(self) -> None:
        await self._kept.close()


def _codes(value: Any) -> Iterator[int]:
    """Every error code in the answer: some apis carry NOT_CONTROLLER per topic or partition."""
    if isinstance(value, tuple):
        for item in value:
            yield from _codes(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if field.name == "error_code":
                yield int(inner)
            else:
                yield from _codes(inner)
