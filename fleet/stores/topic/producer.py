"""The transactional producer of the state topic: fencing, and transactions whose outcome is never guessed.

One transactional id for the whole fleet (KIP-618's pattern). The coordinator guarantees (read in its source,
TransactionCoordinator and TransactionMetadata):
- InitProducerId without an expected epoch ends what is open, raises the producer epoch and forgets the last
  one. After it has answered, every earlier commit's markers are written, and no request with an older epoch
  changes anything any more. That is `fence`.
- InitProducerId *with* our id and epoch (KIP-360) succeeds only if nobody has fenced us: an epoch that was
  given to somebody else is neither the current nor the last one. That is `renew`. But before it looks at the
  epoch it aborts whatever is open, even if that is the transaction of the one who has fenced us: look at the
  log before you ask.
- EndTxn is the commit: accepted for our epoch, it happens for certain, and it proves that at that moment
  nobody had fenced us. Repeated with the same epoch it tells the outcome of the first.
- A late duplicate of an EndTxn whose answer was lost would commit the *next* transaction of the same epoch
  before it is whole. So after any lost answer the epoch is renewed before the next transaction (`stale`).

Only versions from before transactions V2 (KIP-890) are sent: one path for all brokers, still served by 4.x.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.stores.base import StoreError
from fleet.stores.topic.brokers import PASSING, RIGHTS, StateTopicBrokers
from fleet.stores.topic.records import Item, batches_of, build_batch
from wire.backoff import Backoff
from wire.client.retry import Meaning, NodeKind, meaning, passing
from wire.errors import BrokerError, ConnectionLost, MalformedFrame, WireError, error_name
from wire.frames import error_codes

TRANSACTION_TIMEOUT_MS: Final = 30_000
"""The coordinator aborts what is open longer; must be above every commit's deadline."""
BATCH_BYTES: Final = 512 << 10

# v4 tells PRODUCER_FENCED from INVALID_PRODUCER_EPOCH, v6 is about two-phase commit; v4 of AddPartitionsToTxn
# is the brokers' own, v5 of EndTxn and v12 of Produce are transactions V2.
_INIT_VERSION, _ADD_VERSION, _END_VERSION, _PRODUCE_VERSION = 5, 3, 4, 11

# INVALID_PRODUCER_ID_MAPPING: the id expired or was rotated.
_FENCED: Final = frozenset(
    {error_codes.INVALID_PRODUCER_EPOCH, error_codes.INVALID_PRODUCER_ID_MAPPING, error_codes.PRODUCER_FENCED}
)
#: RecordBatch.NO_TIMESTAMP. Brokers refuse a batch whose time is an hour after theirs (message.timestamp.after.max.ms,
#: LogValidator.validateTimestamp), and a sidecar's clock may be wrong.
_NO_TIMESTAMP: Final = -1
# The same batch again, which the leader tells by its sequence number.
_REPEAT_PRODUCE: Final = frozenset(
    {
        error_codes.UNKNOWN_SERVER_ERROR,
        error_codes.REQUEST_TIMED_OUT,
        error_codes.NOT_ENOUGH_REPLICAS,
        error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
# This transaction is lost, the next one under a new epoch need not be.
_ABORTED: Final = frozenset(
    {
        error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        error_codes.DUPLICATE_SEQUENCE_NUMBER,
        error_codes.INVALID_TXN_STATE,
        error_codes.UNKNOWN_PRODUCER_ID,
        error_codes.TRANSACTION_ABORTABLE,
    }
)


class ProducerFenced(StoreError):
    """Another sidecar has fenced us. Nothing of the transaction was committed."""


class NotCommitted(StoreError):
    """Nothing of the transaction was committed; another attempt may succeed."""


class CommitOutcomeUnknown(StoreError):
    """The commit was requested and its answer is missing."""

    def __init__(self, message: str, *, fenced: bool = False) -> None:
        super().__init__(message)
        self.fenced = fenced  # another sidecar has fenced us, before or after the commit


class TransactionalProducer:
    """One at a time may call; the store's lock sees to that."""

    def __init__(self, brokers: StateTopicBrokers) -> None:
        self._brokers = brokers
        self._producer_id = -1
        self._epoch = -1
        self._sequence = 0
        #: A request of this epoch may still be under way, or its transaction open: renew before the next one.
        self.stale = True

    async def fence(self, deadline: float) -> None:
        """Become the only producer of the fleet."""
        self.stale = True
        await self._init(-1, -1, deadline)

    async def renew(self, deadline: float) -> None:
        """A new epoch, with the open transaction aborted; ProducerFenced if another sidecar has called `fence` since
        ours."""
        await self._init(self._producer_id, self._epoch, deadline)

    async def _init(self, producer_id: int, epoch: int, deadline: float) -> None:
        fields = {
            "transactional_id": self._brokers.transactional_id,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        attempts = _Attempts("init_producer_id", deadline)
        while True:
            try:
                answer = await self._at_coordinator("init_producer_id", fields, deadline, _INIT_VERSION)
            except PASSING as error:
                self._brokers.forget_coordinator()
                await attempts.pause(error, NotCommitted)
                continue
            except WireError as error:
                raise StoreError(str(error)) from error
            code = int(answer.error_code)
            if code == 0:
                self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
                self._sequence = 0
                self.stale = False
                return
            await self._coordinator_said(code, "init_producer_id", attempts)

    async def transaction(self, items: Sequence[Item], deadline: float) -> int:
        """Write and commit; the offset of the last record.

        ProducerFenced, NotCommitted and other StoreErrors: certainly nothing was committed. CommitOutcomeUnknown, and
        anything that ends the call from outside, like a cancellation: perhaps.
        """
        if self.stale:
            raise NotCommitted("the producer's epoch has to be renewed first")
        self.stale = True
        clean = await self._add_partition(deadline)
        offset = -1
        for run in batches_of(items, BATCH_BYTES):
            offset, in_order = await self._produce(run, deadline)
            clean = clean and in_order
        clean = await self._end(deadline) and clean
        self.stale = not clean
        return offset

    async def _add_partition(self, deadline: float) -> bool:
        """Whether every answer came."""
        fields = {
            **{f"v3_and_below_{name}": value for name, value in self._identity().items()},
            "v3_and_below_topics": [{"name": self._brokers.topic, "partitions": [0]}],
        }
        attempts = _Attempts("add_partitions_to_txn", deadline)
        clean = True
        while True:
            try:
                answer = await self._at_coordinator("add_partitions_to_txn", fields, deadline, _ADD_VERSION)
            except PASSING as error:
                clean = clean and not _sent(error)
                self._brokers.forget_coordinator()
                await attempts.pause(error, NotCommitted)
                continue
            except WireError as error:
                raise StoreError(str(error)) from error
            code = _partition_code(answer)
            if code == 0:
                return clean
            # The coordinator has not heard of the topic yet.
            if code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                await attempts.pause(BrokerError(code, api="add_partitions_to_txn"), NotCommitted)
                continue
            await self._coordinator_said(code, "add_partitions_to_txn", attempts)

    async def _produce(self, items: Sequence[Item], deadline: float) -> tuple[int, bool]:
        """(offset of the last record, whether every answer came)"""
        records = build_batch(
            items,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            timestamp=_NO_TIMESTAMP,
        )
        fields = {
            "transactional_id": self._brokers.transactional_id,
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [
                {"name": self._brokers.topic, "partition_data": [{"index": 0, "records": records}]}
            ],
        }
        attempts = _Attempts("produce", deadline)
        clean = True
        while True:
            try:
                address = await self._brokers.leader(deadline)
                answer = await self._brokers.ask(
                    address, "produce", fields, deadline, max_version=_PRODUCE_VERSION, patience=8.0
                )
            except PASSING as error:
                clean = clean and not _sent(error)
                self._brokers.forget_leader()
                await attempts.pause(error, NotCommitted)
                continue
            except WireError as error:
                raise StoreError(str(error)) from error
            (topic,) = answer.responses
            (partition,) = topic.partition_responses
            code = int(partition.error_code)
            if code == 0:
                self._sequence = (self._sequence + len(items)) & 0x7FFFFFFF
                return partition.base_offset + len(items) - 1, clean
            message = getattr(partition, "error_message", None)
            if code in _FENCED:
                raise ProducerFenced(f"produce: {error_name(code)}")
            if code in _ABORTED:
                raise NotCommitted(f"produce: {error_name(code)}")
            if code not in _REPEAT_PRODUCE and not any(passing(kind, code) for kind in NodeKind):
                raise self._brokers.refused(code, "produce", message)
            self._brokers.forget_leader()
            await attempts.pause(BrokerError(code, api="produce", message=message), NotCommitted)

    async def _end(self, deadline: float) -> bool:
        """Commit; whether every answer came."""
        fields = {**self._identity(), "committed": True}
        attempts = _Attempts("end_txn", deadline)
        asked = False  # a request that may have been carried out has no answer that says so
        while True:
            try:
                answer = await self._at_coordinator("end_txn", fields, deadline, _END_VERSION)
            except PASSING as error:
                asked = asked or _sent(error)
                self._brokers.forget_coordinator()
                await attempts.pause(error, CommitOutcomeUnknown if asked else NotCommitted)
                continue
            except WireError as error:
                if asked or isinstance(error, MalformedFrame):
                    raise CommitOutcomeUnknown(str(error)) from error
                raise StoreError(str(error)) from error
            code = int(answer.error_code)
            if code == 0:
                return not asked
            if code == error_codes.CONCURRENT_TRANSACTIONS:
                # This one did nothing: another transition, perhaps the commit of an earlier one, is under way.
                failure: type[CommitOutcomeUnknown | NotCommitted] = (
                    CommitOutcomeUnknown if asked else NotCommitted
                )
                await attempts.pause(BrokerError(code, api="end_txn"), failure)
            elif code in _FENCED:
                if asked:
                    raise CommitOutcomeUnknown(
                        f"end_txn: {error_name(code)} after a lost answer", fenced=True
                    )
                raise ProducerFenced(f"end_txn: {error_name(code)}")
            elif code in _ABORTED and not asked:
                raise NotCommitted(f"end_txn: {error_name(code)}")
            elif code in RIGHTS and not asked:
                raise self._brokers.refused(code, "end_txn")
            else:
                # Perhaps it is written: NOT_COORDINATOR and COORDINATOR_NOT_AVAILABLE are also said after that, and
                # UNKNOWN_SERVER_ERROR (seen when somebody fences us in the same moment) says nothing at all.
                asked = True
                self._brokers.forget_coordinator()
                await attempts.pause(BrokerError(code, api="end_txn"), CommitOutcomeUnknown)

    # --- helpers --------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, object]:
        return {
            "transactional_id": self._brokers.transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
        }

    async def _at_coordinator(
        self, api: str, fields: Mapping[str, object], deadline: float, max_version: int
    ) -> Any:
        address = await self._brokers.coordinator(deadline)
        return await self._brokers.ask(address, api, fields, deadline, max_version=max_version)

    async def _coordinator_said(self, code: int, api: str, attempts: _Attempts) -> None:
        """Return if the request is to be repeated."""
        if code in _FENCED:
            raise ProducerFenced(f"{api}: {error_name(code)}")
        if code in _ABORTED:
            raise NotCommitted(f"{api}: {error_name(code)}")
        if meaning(NodeKind.COORDINATOR, code) is Meaning.MOVED:
            self._brokers.forget_coordinator()
        elif code != error_codes.UNKNOWN_SERVER_ERROR and not passing(NodeKind.COORDINATOR, code):
            raise self._brokers.refused(code, api)
        await attempts.pause(BrokerError(code, api=api), NotCommitted)


class _Attempts:
    """Pauses between the attempts of one request, until its deadline."""

    def __init__(self, api: str, deadline: float) -> None:
        self._api = api
        self._deadline = deadline
        # Markers of the transaction before are written within a few milliseconds.
        self._quick = Backoff(0.002, 0.05, 1.6)
        self._slow = Backoff(0.05, 0.5)
        self._before: str | None = None

    async def pause(self, error: WireError, failure: type[NotCommitted | CommitOutcomeUnknown]) -> None:
        text = str(error)
        quick = isinstance(error, BrokerError) and error.code == error_codes.CONCURRENT_TRANSACTIONS
        backoff = self._quick if quick or self._before is None else self._slow
        if backoff.over(time.monotonic(), self._deadline):
            # The last attempt may have failed only for want of time.
            before = "" if self._before in (None, text) else f" (and before that: {self._before})"
            raise failure(f"{self._api} did not succeed in time: {text}{before}") from error
        self._before = text
        await asyncio.sleep(backoff.next())


def _sent(error: WireError) -> bool:
    return isinstance(error, ConnectionLost) and error.sent


def _partition_code(answer: Any) -> int:
    """AddPartitionsToTxn up to v3 with one partition."""
    (topic,) = answer.results_by_topic_v3_and_below
    (partition,) = topic.results_by_partition
    return int(partition.partition_error_code)
