"""Producers that write to the source directly, and the transactions that are open there.

A producer that was moved has an id of the target's allocator, which is above every id of the source (producer_ids.py).
An id below that floor belongs to a producer that was bootstrapped at the source, and the source's partition leaders
tell when it wrote last. Producers without idempotence have no id, and no broker lists them: only the offsets show them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.link_controller import wall_clock_ms
from linker.promote.ports import Tps
from linker.promote.producer_states import ProducerState, States, describe_producers
from wire.client.cluster import Cluster
from wire.client.coordinators import CoordinatorClient, KeyType
from wire.errors import BrokerError, LinkerError, error_name
from wire.frames.types import TopicPartition
from wire.shown_id import listed
from wire.together import together

log = logging.getLogger(__name__)

RECENT_MS = 15 * 60_000
_MOST_NAMED = 3
_TRANSACTION_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class AtSource:
    """The result of a look at the source; `transactional_ids` by producer id, as far as they could be had."""

    at_ms: int
    direct: Mapping[TopicPartition, Sequence[ProducerState]] = field(default_factory=dict)
    open: Mapping[TopicPartition, Sequence[ProducerState]] = field(default_factory=dict)
    transactional_ids: Mapping[int, str] = field(default_factory=dict)
    unnamed: Sequence[str] = ()  # per broker that was asked for transactional ids and did not tell: why

    def describe(self, one: ProducerState) -> str:
        """One producer for people."""
        name = self.transactional_ids.get(one.producer_id)
        called = "" if name is None else f', transactional.id "{name}"'
        wrote = "" if one.last_timestamp < 0 else f", last wrote {age(self.at_ms - one.last_timestamp)} ago"
        return f"producer {one.producer_id} (epoch {one.producer_epoch}{called}{wrote})"


def age(milliseconds: int) -> str:
    seconds = max(0, milliseconds) / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def direct_writers(
    states: States,
    floor: int | None,
    now_ms: int,
    *,
    ceiling: int | None = None,
) -> States:
    """Producers with an id of the source's own that wrote lately, the newest first. Without a floor nothing is known; from
    the ceiling on they are the source's again."""
    if floor is None:
        return {}
    found: dict[TopicPartition, list[ProducerState]] = {}
    for tp, producers in states.items():
        mine = [
            one
            for one in producers
            if (one.producer_id < floor or (ceiling is not None and one.producer_id >= ceiling))
            and (one.in_transaction or now_ms - one.last_timestamp <= RECENT_MS)
        ]
        if mine:
            found[tp] = sorted(mine, key=lambda one: -one.last_timestamp)
    return found


def open_transactions(states: States) -> States:
    """By partition, the one that holds the last stable offset back first."""
    found: dict[TopicPartition, list[ProducerState]] = {}
    for tp, producers in states.items():
        mine = sorted((one for one in producers if one.in_transaction), key=lambda one: one.txn_start_offset)
        if mine:
            found[tp] = mine
    return found


class SourceWriters:
    """The source of one link; also linker.promote.ports.SourceProducers."""

    def __init__(
        self,
        source: Cluster,
        floor: Callable[[], int | None],
        ceiling: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._source = source
        self._floor = floor
        self._ceiling = ceiling

    async def look(self, tps: Tps, *, timeout: float) -> AtSource:
        """All within `timeout` seconds; names are left out, and said to be, when it is over. LinkerError if the source does
        not tell its producers: it needs READ on the topics, and Kafka 2.8."""
        deadline = time.monotonic() + timeout
        states = await describe_producers(self._source, self._leaders(tps), timeout=timeout)
        now = wall_clock_ms()
        direct = direct_writers(states, self._floor(), now, ceiling=self._ceiling())
        open_ = open_transactions(states)
        ids = {one.producer_id for found in (*direct.values(), *open_.values()) for one in found}
        if not ids:
            return AtSource(now, direct, open_)
        names, unnamed = await self._transactional_ids(ids, deadline - time.monotonic())
        return AtSource(now, direct, open_, names, unnamed)

    def _leaders(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for tp in tps:
            leader = self._source.leader(tp)
            if leader is None:
                raise LinkerError(f"the leader of {tp} at the source is not known")
            found[tp] = leader.id
        return found

    async def _transactional_ids(
        self, ids: Collection[int], timeout: float
    ) -> tuple[dict[int, str], list[str]]:
        """ListTransactions at every broker (KIP-664; Kafka 3.0), each of which knows those that it coordinates: the
        names, and why a broker told none. A broker leaves out without a word all that the principal may not
        describe."""

        async def ask(node: int) -> dict[int, str] | str:
            try:
                answer = await self._source.call(
                    "list_transactions",
                    {"state_filters": [], "producer_id_filters": sorted(ids)},
                    node_id=node,
                    timeout=timeout,
                    version=0,
                )
            except LinkerError as error:
                return f"broker {node} does not list its transactions: {error}"
            code = int(answer.error_code)
            if code:
                return f"broker {node} does not list its transactions: {error_name(code)}"
            return {int(one.producer_id): str(one.transactional_id) for one in answer.transaction_states}

        if timeout <= 0:
            return {}, ["no time was left to ask for transactional ids"]
        found: dict[int, str] = {}
        unnamed: list[str] = []
        for one in await together(ask(node) for node in sorted(self._source.nodes)):
            if isinstance(one, str):
                unnamed.append(one)
            else:
                found |= one
        for why in unnamed:
            log.info("%s: %s", self._source.name, why)
        return found, unnamed

    # --- linker.promote.ports.SourceProducers ---------------------------------------------------------------------------

    async def writers(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, str]:
        seen = await self.look(tps, timeout=timeout)
        return {
            tp: listed(map(seen.describe, seen.direct[tp]), _MOST_NAMED, apart="; ", last="; and ")
            if seen.direct.get(tp)
            else "no producer with an id has done it: it is one without idempotence"
            for tp in tps
        }

    async def open_transactions(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, str]:
        seen = await self.look(tps, timeout=timeout)
        return {
            tp: "; ".join(
                f"{seen.describe(one)}, open from offset {one.txn_start_offset}"
                for one in found[:_MOST_NAMED]
            )
            for tp, found in seen.open.items()
        }

    async def abort_open(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, str]:
        """LinkerError names a producer whose transactional id the source does not tell; the others are aborted by then.

        Nothing is concluded from a missing id. No coordinator may know the transaction (it hangs, KIP-664), but brokers
        also leave out what the principal may not describe, and those before Kafka 3.0 list none. An abort marker
        would not fence the producer of a live one: it could commit afterwards without what the marker took.
        """
        seen = await self.look(tps, timeout=timeout / 2)
        oldest = {tp: found[0] for tp, found in seen.open.items()}
        names = {one.producer_id: seen.transactional_ids.get(one.producer_id) for one in oldest.values()}
        await together(
            fence_producer(self._source, name, timeout=timeout / 2)
            for name in names.values()
            if name is not None
        )
        for tp, one in sorted(oldest.items()):
            if names[one.producer_id] is None:
                raise LinkerError(
                    f"{tp}: the source does not tell the transactional.id of {seen.describe(one)}, open from offset "
                    f"{one.txn_start_offset}: allow DESCRIBE on its TransactionalId, or, if kafka-transactions.sh "
                    "find-hanging lists it, abort it there" + "".join(f"; {why}" for why in seen.unnamed)
                )
        return {tp: seen.describe(one) for tp, one in oldest.items()}


async def fence_producer(cluster: Cluster, transactional_id: str, *, timeout: float) -> None:
    """Abort the transaction of a transactional id and fence its producer, by its coordinator: InitProducerId, as
    `kafka-transactions.sh forceTerminateTransaction` (Admin.fenceProducers) does it. WRITE on the TransactionalId is needed.
    """
    coordinators = CoordinatorClient(cluster)
    try:
        answer = await coordinators.call(
            KeyType.TRANSACTION,
            transactional_id,
            "init_producer_id",
            {
                "transactional_id": transactional_id,
                # Also how long the coordinator waits for its own log (TransactionStateManager).
                "transaction_timeout_ms": _TRANSACTION_TIMEOUT_MS,
                "producer_id": -1,
                "producer_epoch": -1,
            },
            timeout=timeout,
        )
        code = int(answer.error_code)
    except BrokerError as error:
        code = error.code
    finally:
        await coordinators.close()
    if code:
        raise BrokerError(
            code,
            message=f"{cluster.name} does not abort the transaction of {transactional_id!r} ({error_name(code)})",
            api="init_producer_id",
        )
