"""Moves the target's producer id allocator: AllocateProducerIds over several connections at once (KIP-730).

Several connections, because the controller hands out one block of 1000 per request, and commits it before it answers. The
caller decides how far to move the allocator.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import TargetError, check_error
from wire.backoff import Backoff
from wire.client.connection import Connection
from wire.errors import BrokerError, ConnectionLost, LinkerError, RequestTimedOut
from wire.task_group import TaskGroup
from wire.together import first_error

log = logging.getLogger(__name__)

_API = "allocate_producer_ids"
_REQUEST_TIMEOUT = 5.0
_RETRY_PAUSE = 0.1


class BlockAllocation:
    """Takes `count` blocks, or fewer if one ends past the id `until`. A block whose answer got lost is taken in addition."""

    def __init__(
        self,
        channel: ControllerChannel,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        count: int,
        until: int | None = None,
        took: Callable[[int, int], None] = lambda _first, _length: None,
    ) -> None:
        """`took` is called with the first id and the length of each block."""
        if count <= 0:
            raise TargetError(f"cannot allocate {count} blocks of producer ids")
        self._channel = channel
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._left = count  # not yet asked for by any connection
        self._until = until
        self._took = took
        self._highest = (-1, 0)  # first id and length of the highest block so far

    async def run(self, *, connections: int, timeout: float) -> tuple[int, int]:
        """(first id, length) of the highest block."""
        deadline = time.monotonic() + timeout
        try:
            async with TaskGroup() as group:
                for _ in range(min(connections, self._left)):
                    group.create_task(self._work(deadline))
        except* LinkerError as errors:
            raise first_error(errors) from None
        return self._highest

    def _far_enough(self) -> bool:
        return self._until is not None and sum(self._highest) > self._until

    async def _work(self, deadline: float) -> None:
        connection: Connection | None = None
        try:
            while self._left > 0 and not self._far_enough():
                self._left -= 1
                connection = await self._take_block(connection, deadline)
        finally:
            if connection is not None:
                connection.close()

    async def _take_block(self, connection: Connection | None, deadline: float) -> Connection:
        """Take one block, over as many connections and controllers as that needs. Returns the connection to keep."""
        backoff = Backoff(_RETRY_PAUSE, _RETRY_PAUSE)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RequestTimedOut(
                    f"no producer id block in time, the highest one ends at {sum(self._highest)}",
                    sent=True,
                    api=_API,
                    peer=self._channel.cluster_name,
                )
            active = await self._channel.discover(left)
            try:
                if connection is None or connection.closed:
                    connection = await self._channel.open_connection(timeout=left)
                response = await connection.call(
                    _API,
                    {"broker_id": self._broker_id, "broker_epoch": self._broker_epoch()},
                    timeout=min(left, _REQUEST_TIMEOUT),
                )
                check_error(int(response.error_code), _API, self._channel.cluster_name)
            except (ConnectionLost, BrokerError) as error:
                if connection is not None:
                    connection.close()
                    connection = None
                if isinstance(error, BrokerError) and not error.retriable:
                    raise
                log.info("allocating producer ids: %s", error)
                self._channel.moved(active)
                await asyncio.sleep(backoff.next())
                continue
            self._took(response.producer_id_start, response.producer_id_len)
            self._highest = max(self._highest, (response.producer_id_start, response.producer_id_len))
            return connection
