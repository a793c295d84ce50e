"""How far the source's allocator of producer ids is, as far as this sidecar knows.

Each look takes one producer id from every broker of the source, and so uses up some of the distance that is watched.
So only the link controller looks, and writes down the result. The other sidecars use that, and look themselves only
when it is too old (controller.plan.producer_ids says when).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from controller.plan.producer_ids import RESERVE, block_end, lasts, pause, source_end
from controller.state import ProducerIdFloor
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.errors import BrokerError, ClusterUnreachable

_TIMEOUT = 10.0
#: Seconds: until a word of the link controller is heard, and a look of one's own has its answers.
_SLACK = 20.0


class SourceIds:
    """Of one link. `one_id` asks a broker of the source; `clock`: monotonic seconds."""

    def __init__(
        self,
        source: Cluster,
        one_id: Callable[[str, Connection], Awaitable[int]],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._one_id = one_id
        self._clock = clock
        #: Below it is everything that the source has handed out, as far as is known; it never goes down.
        self.end: int | None = None
        #: When that was certainly all, by a look or by word of one; None: nobody knows.
        self.known_at: float | None = None
        self._heard: ProducerIdFloor | None = None

    @property
    def age(self) -> float | None:
        """Seconds since `known_at`."""
        return None if self.known_at is None else self._clock() - self.known_at

    def hear(self, word: ProducerIdFloor) -> None:
        """Take over what the link controller wrote down after a look of its own. Nobody knows how old the first word
        is that is heard: it only says how far the allocator is at least."""
        if word == self._heard:
            return
        if self._heard is not None:
            self.known_at = self._clock()
        self._heard = word
        self._raise_to(block_end(word.source_seen))

    def due_in(self, floor: int, *, is_controller: bool) -> float:
        """Seconds until this sidecar has to look, as the link controller, or because it has heard of no look for too
        long."""
        if self.end is None or self.known_at is None:
            return 0.0
        distance = floor - self.end
        if distance < RESERVE:
            return float("inf")  # nothing makes the distance larger, and a look would only use up more of it
        limit = pause(distance) if is_controller else lasts(distance) - _SLACK
        return max(0.0, self.known_at + limit - self._clock())

    async def look(self) -> None:
        """Ask all brokers of the source: the one that is left out may hold the highest block. An error if one does not
        answer; what the others say counts all the same."""
        now = self._clock()
        await self._source.refresh((), timeout=_TIMEOUT)
        nodes = list(self._source.nodes)
        answers = await asyncio.gather(*(self._ask(node) for node in nodes), return_exceptions=True)
        found = {node: one for node, one in zip(nodes, answers, strict=True) if isinstance(one, int)}
        if found:
            self._raise_to(source_end(found))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if not found:
            # A broker that has just started may name nobody, itself included.
            raise ClusterUnreachable(f"{self._source.name} names no live broker yet")
        self.known_at = now

    def written_down(self, word: ProducerIdFloor) -> None:
        """Our own word, which tells us nothing."""
        self._heard = word

    def _raise_to(self, end: int) -> None:
        self.end = end if self.end is None else max(self.end, end)

    async def _ask(self, node: int) -> int:
        return await self._one_id(self._source.name, await self._source.connection(node))


async def one_producer_id(cluster: str, connection: Connection) -> int:
    """InitProducerId without a transactional id; waits out a broker that is fetching its next block."""
    deadline = time.monotonic() + _TIMEOUT
    while True:
        response = await connection.call(
            "init_producer_id",
            {
                "transactional_id": None,
                "transaction_timeout_ms": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            timeout=_TIMEOUT,
            max_version=4,
        )
        code = int(response.error_code)
        if code == 0:
            return int(response.producer_id)
        error = BrokerError(
            code,
            message=f"{cluster} gives no producer id (WRITE on any topic, or IDEMPOTENT_WRITE on Cluster, is needed)",
            api="init_producer_id",
            peer=connection.peer,
        )
        if not error.retriable or time.monotonic() > deadline:
            raise error
        await asyncio.sleep(0.05)
