"""What a transaction holds: the group's offsets are pending in it, and whoever wants stable offsets has to wait.

Holds: clients that ask for stable offsets (OffsetFetch with RequireStable, answered UNSTABLE_OFFSET_COMMIT): Java of both
protocols, `assign()` with a group id too, kafka-python under read_committed. They are members of the group
meanwhile, with partitions, and read nothing.

Holds only as long as its partitions do not change: librdkafka (2.16, both protocols). A rebalance while it waits makes it
read what it was given before from where `auto.offset.reset` says. So a transaction is no gate for a librdkafka group of
several members; beside a member it is, because there clients have no partitions to wait for.

Does not hold: aiokafka, clients under read_uncommitted that are not Java, clients without a group id, and
partitions that are not pending, which they cannot be before they exist: there is a moment. A topic that is deleted takes
its pending offsets along. It opens by itself, without publishing anything, a transaction timeout after its last
renewal.

Renewal: transactions are not prolonged, so a second one (of another transactional id) takes the same offsets before the
first one is aborted. InitProducerId names the producer id and epoch that this process had before (KIP-360): a
sidecar that was taken over from has old ones, is refused, and cannot abort what another one holds.

A holding transaction is always aborted in the end; what it has pending are placeholders. What shall be published is
pending in a transaction of its own. (OffsetMetadataManager.java keeps the newer of a plain commit and a pending
one, so a commit while the gate is closed survives both ends.)

Requests are those of clients before transactions version 2, which all targets take: with those, EndTxn leaves producer
id and epoch alone and may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from controller.groups import PendingTransaction
from groups.gates import codes
from groups.gates.base import CommitFailed, GateLost, LostReason, OffsetAndMetadata
from groups.gates.coordinators import Coordinators, KeyType
from groups.gates.ledger import Ledger
from groups.gates.pieces import Piece, pieces, smaller
from groups.gates.requests import by_topic, describe, failed_partitions, offset_fetch
from groups.gates.settings import GateSettings
from wire.frames.error_codes import (
    INVALID_COMMIT_OFFSET_SIZE,
    INVALID_TRANSACTION_TIMEOUT,
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicPartition

# The last versions before KIP-890.
_INIT, _ADD, _COMMIT, _END = 4, 3, 3, 3
_SHORTEST_TIMEOUT_MS = 10_000
_FIRST_RETRY = 0.5  # seconds
_LAST_RETRY = 30.0

log = logging.getLogger(__name__)


class TransactionHold:
    """Of a TransactionGate or a PairGate. Knows nothing of stages."""

    def __init__(
        self,
        coordinators: Coordinators,
        ledger: Ledger,
        settings: GateSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.coordinators = coordinators
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.sleep = sleep
        self.jitter = jitter
        #: What it has to hold, and what is pending: a topic that does not exist on the target cannot be.
        self._covered: dict[TopicPartition, OffsetAndMetadata] = {}
        self.pending: frozenset[TopicPartition] = frozenset()
        self._timeout_ms = int(settings.transaction_timeout * 1000)
        self._taken = False  # in this process
        # Slot -> producer id and newest epoch, as far as this process knows them.
        self._known: dict[int, tuple[int, int]] = {}
        # It may be open: a renewal was not seen to end.
        self._other_open = True
        self._due = clock()
        # When what could not be pending is tried again: partitions that come into being.
        self._retry_at = clock()
        self._retry_pause = _FIRST_RETRY

    @property
    def group(self) -> str:
        return self.ledger.record.group

    @property
    def state(self) -> PendingTransaction:
        state = self.ledger.record.transaction
        if state is None:
            raise ValueError(f"a {self.ledger.record.kind} gate has no transaction")
        return state

    @property
    def unheld(self) -> frozenset[TopicPartition]:
        return frozenset(self._covered.keys() - self.pending)

    @property
    def begun(self) -> bool:
        return self.state.producer_id >= 0

    def due(self) -> float:
        if not self._covered:
            return math.inf
        held = self._covered.keys() <= self.pending
        return self._due if held else min(self._due, self._retry_at)

    async def take(self, assignment: Mapping[TopicPartition, int]) -> None:
        """Make every partition pending, in the transaction of the record if it is still open."""
        wanted = {tp: OffsetAndMetadata(offset) for tp, offset in assignment.items()}
        if not wanted.keys() <= self._covered.keys():
            self._retry_pause = _FIRST_RETRY
            self._retry_at = self.clock() + _FIRST_RETRY
        self._covered.update(wanted)
        if not self.begun:
            await self._begin()
        elif self._taken:
            await self._put_missing()
        else:
            if wanted and not await self.holds(wanted):
                raise await self.lost("nothing of the group is pending any more")
            # How old the transaction is, nobody knows whose clock could be trusted: it is renewed soon.
            self._due = self.clock() + self.settings.take_over_spread * self.jitter()
            await self._put_missing()
            await self.ledger.transaction()  # the store takes it only from who may go on
            await self._know_other()
            self._taken = True

    async def _know_other(self) -> None:
        """Learn an epoch of the free transactional id that nobody else knows. Whatever is open under it is aborted.

        InitProducerId aborts what is open whatever epoch it names (TransactionCoordinator.prepareInitProducerIdTransit), so
        a renewal begins without it: AddOffsetsToTxn refuses an epoch that is not the newest and changes nothing. A sidecar
        that was taken over from cannot end what the next one holds.
        """
        slot = 1 - self.state.current
        self._known.pop(slot, None)  # whether the coordinator has taken it, a lost answer does not tell
        self._known[slot] = await self._init(slot)
        self._other_open = False

    async def _put_missing(self) -> None:
        state = self.state
        missing = {tp: offset for tp, offset in self._covered.items() if tp not in self.pending}
        if missing:
            await self._put(state.current, state.producer_id, state.producer_epoch, missing)

    async def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether clients that ask for stable offsets wait."""
        found = await offset_fetch(
            self.coordinators,
            self.group,
            partitions,
            require_stable=True,
            timeout=self.settings.operation_timeout,
        )
        return bool(found.unstable)

    async def _begin(self) -> None:
        slot = self.state.current
        producer_id, epoch = await self._init(slot)
        self.pending = frozenset()
        await self._put(slot, producer_id, epoch, self._covered)
        await self.ledger.transaction(producer_id=producer_id, producer_epoch=epoch)
        await self._know_other()
        self._taken = True
        self._renewed()

    def _renewed(self) -> None:
        share = self.settings.transaction_renew_at * (1 - 0.2 * self.jitter())
        self._due = self.clock() + share * self._timeout_ms / 1000

    async def renew(self) -> None:
        """What is due: partitions that exist by now become pending; a younger transaction takes over.

        Raises GateLost(EXPIRED) if the old one had ended by then; the new one holds from here on all the same.
        """
        if not self._covered:
            # An opening that was taken over: nobody has said what it covers. A younger transaction would have nothing
            # pending, and the one that holds would be aborted for it.
            return
        if self.clock() < self._due:
            self._retry_pause = min(2 * self._retry_pause, _LAST_RETRY)
            self._retry_at = self.clock() + self._retry_pause
            await self._put_missing()
            return
        await self._rotate(self._covered)
        self._renewed()

    async def _rotate(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        state = self.state
        slot = 1 - state.current
        self._known[state.current] = (state.producer_id, state.producer_epoch)
        if slot not in self._known:
            await self._know_other()
        producer_id, epoch = self._known[slot]
        if self._other_open:
            await self._end(slot, producer_id, epoch, commit=False)
        self._other_open = True
        self.pending = frozenset()
        await self._put(slot, producer_id, epoch, offsets)
        await self.ledger.transaction(current=slot, producer_id=producer_id, producer_epoch=epoch)
        ended = await self._end(state.current, state.producer_id, state.producer_epoch, commit=False)
        await self._know_other()
        if not ended:
            raise GateLost(
                self.group,
                self.ledger.record.kind,
                LostReason.EXPIRED,
                "its transaction had ended before it was renewed (see transaction.max.timeout.ms); it is pending again, "
                "compare the group's offsets",
            )

    async def abort(self) -> None:
        """End whatever is open, publishing nothing. Repeatable."""
        state = self.state
        if self._other_open:
            await self._know_other()
        if self.begun:
            ended = await self._end(state.current, state.producer_id, state.producer_epoch, commit=False)
            if ended:
                return
        await self._init(state.current)  # aborts what is open under that name

    async def prepare(self, final: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Have exactly these offsets pending, to be published."""
        await self._rotate(final)
        missing = final.keys() - self.pending
        if missing:
            raise CommitFailed(
                self.group,
                dict.fromkeys(missing, "does not exist on the target"),
                codes=dict.fromkeys(missing, UNKNOWN_TOPIC_OR_PARTITION),
            )

    async def publish(self) -> None:
        """Commit what is pending. Repeatable. GateLost if the transaction has ended otherwise."""
        state = self.state
        if self._other_open:
            await self._know_other()
        if not await self._end(state.current, state.producer_id, state.producer_epoch, commit=True):
            raise await self.lost("its transaction had ended before the final offsets were published")

    async def lost(self, detail: str) -> GateLost:
        """The error to raise; the record is reset, so that the gate can be taken anew."""
        described = await describe(self.coordinators, self.group, timeout=self.settings.operation_timeout)
        kind = self.ledger.record.kind
        self._taken, self._other_open = False, True
        self._known.clear()
        self.pending = frozenset()
        await self.ledger.transaction(producer_id=-1, producer_epoch=-1)
        return GateLost(
            self.group, kind, LostReason.EXPIRED, f"{detail}; take it again", members=described.members
        )

    # --- exchanges ------------------------------------------------------------------------------------------

    async def _ask(self, api: str, version: int, slot: int, fields: Mapping[str, object]) -> Any:
        tid = self.state.transactional_ids[slot]
        return await self.coordinators.call(
            KeyType.TRANSACTION,
            tid,
            api,
            {"transactional_id": tid, **fields},
            timeout=self.settings.operation_timeout,
            max_version=version,
        )

    async def _init(self, slot: int) -> tuple[int, int]:
        """InitProducerId, which aborts what is open under the transactional id; the new producer id and epoch."""
        while True:
            answer = await self._ask(
                "init_producer_id",
                _INIT,
                slot,
                {
                    "transaction_timeout_ms": self._timeout_ms,
                    "producer_id": -1,
                    "producer_epoch": -1,
                },
            )
            code = int(answer.error_code)
            if code == INVALID_TRANSACTION_TIMEOUT and self._timeout_ms > _SHORTEST_TIMEOUT_MS:
                self._timeout_ms = max(_SHORTEST_TIMEOUT_MS, self._timeout_ms // 2)
                continue
            if code in codes.TRANSACTION_GONE:
                raise self._fenced()
            self._check(code, "init_producer_id", slot)
            return answer.producer_id, answer.producer_epoch

    def _fenced(self) -> GateLost:
        return GateLost(
            self.group, self.ledger.record.kind, LostReason.FENCED, "this sidecar must not touch it any more"
        )

    async def _put(
        self, slot: int, producer_id: int, epoch: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """AddOffsetsToTxn, then TxnOffsetCommit. The first one is what proves that the transaction is ours."""
        producer = {"producer_id": producer_id, "producer_epoch": epoch}
        answer = await self._ask("add_offsets_to_txn", _ADD, slot, {**producer, "group_id": self.group})
        await self._check_open(int(answer.error_code), "add_offsets_to_txn", slot)
        left = list(pieces(self.group, offsets))
        while left:
            part = left.pop(0)
            left[:0] = await self._commit_part(slot, producer, part)

    async def _commit_part(self, slot: int, producer: Mapping[str, int], part: Piece) -> list[Piece]:
        """What of it is to be tried once more, in smaller pieces or without texts that are too long."""
        answer = await self.coordinators.call(
            KeyType.GROUP,
            self.group,
            "txn_offset_commit",
            {
                **producer,
                "transactional_id": self.state.transactional_ids[slot],
                "group_id": self.group,
                "generation_id": -1,
                "member_id": "",
                "topics": by_topic(part),
            },
            timeout=self.settings.operation_timeout,
            max_version=_COMMIT,
        )
        failed = failed_partitions(answer)
        if halves := smaller(self.group, part, failed.values()):
            return halves
        bare: Piece = {}
        for tp, code in failed.items():
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if code in (OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE) and part[tp].metadata:
                log.warning(
                    "group %s: the target does not take the text of %d characters beside its offset of %s-%d, which is "
                    "published without it",
                    self.group,
                    len(part[tp].metadata),
                    tp.topic,
                    tp.partition,
                )
                bare[tp] = OffsetAndMetadata(part[tp].offset)
                continue
            if code == TOPIC_AUTHORIZATION_FAILED:
                codes.check(code, "txn_offset_commit", self.group, resource=tp.topic)
            await self._check_open(code, "txn_offset_commit", slot)
        self.pending |= part.keys() - failed.keys()
        return [bare] if bare else []

    async def _end(self, slot: int, producer_id: int, epoch: int, *, commit: bool) -> bool:
        """EndTxn; False if the transaction had ended otherwise."""
        answer = await self._ask(
            "end_txn",
            _END,
            slot,
            {"producer_id": producer_id, "producer_epoch": epoch, "committed": commit},
        )
        code = int(answer.error_code)
        if code in codes.TRANSACTION_GONE:
            return False
        self._check(code, "end_txn", slot)
        return True

    async def _check_open(self, code: int, api: str, slot: int) -> None:
        if code in codes.TRANSACTION_GONE:
            if slot != self.state.current:
                raise self._fenced()
            raise await self.lost("its transaction has ended")
        self._check(code, api, slot)

    def _check(self, code: int, api: str, slot: int) -> None:
        codes.check(code, api, self.group, resource=self.state.transactional_ids[slot])

    async def see_stable(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until nothing of the partitions is pending: the markers are written after EndTxn has answered."""
        wanted = set(partitions)
        deadline = self.clock() + self.settings.operation_timeout
        pause = 0.01
        while True:
            found = await offset_fetch(
                self.coordinators,
                self.group,
                wanted,
                require_stable=True,
                timeout=self.settings.operation_timeout,
            )
            if not found.unstable:
                return
            if self.clock() + pause >= deadline:
                raise CommitFailed(
                    self.group,
                    dict.fromkeys(
                        found.unstable,
                        "is pending in a transaction of somebody else (kafka-transactions.sh find-hanging), which keeps "
                        "clients from reading",
                    ),
                )
            await self.sleep(pause)
            pause = min(2 * pause, 0.5)
