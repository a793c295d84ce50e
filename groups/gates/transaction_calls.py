"""Requests of a gate's transaction, and the meaning of their error codes.

The versions are those from before transactions version 2, which all targets take: with them EndTxn leaves producer id
and epoch alone and may be repeated.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from controller.groups import PendingTransaction
from groups.gates import codes
from groups.gates.base import CommitFailed, GateLost, LostReason, OffsetAndMetadata
from groups.gates.coordinators import KeyType
from groups.gates.ledger import GatePart
from groups.gates.pieces import Piece, pieces, smaller
from groups.gates.requests import by_topic, failed_partitions, offset_fetch
from wire.backoff import Backoff
from wire.frames.error_codes import (
    INVALID_COMMIT_OFFSET_SIZE,
    INVALID_TRANSACTION_TIMEOUT,
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicPartition
from wire.shown_id import shown_id

# The last versions before KIP-890.
_INIT, _ADD, _COMMIT, _END = 4, 3, 3, 3
_SHORTEST_TIMEOUT_MS = 10_000

log = logging.getLogger(__name__)


class TransactionCalls(GatePart, abc.ABC):
    """The exchanges of one gate's transaction with its coordinators."""

    def set_up(self) -> None:
        #: Partitions whose offsets are pending.
        self.pending: frozenset[TopicPartition] = frozenset()
        self._timeout_ms = int(self.settings.transaction_timeout * 1000)

    @property
    def state(self) -> PendingTransaction:
        state = self.ledger.record.transaction
        if state is None:
            raise ValueError(f"a {self.ledger.record.kind} gate has no transaction")
        return state

    @abc.abstractmethod
    async def lost(self, detail: str) -> GateLost:
        """The error to raise; the record is reset, so that the gate can be taken anew."""

    async def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether clients that ask for stable offsets wait."""
        return bool(await self._pending(partitions))

    async def _pending(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Those of the partitions whose offsets are pending in a transaction."""
        found = await offset_fetch(
            self.coordinators,
            self.group,
            partitions,
            require_stable=True,
            timeout=self.settings.operation_timeout,
        )
        return found.unstable

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
        """AddOffsetsToTxn, then TxnOffsetCommit. The first proves that the transaction is ours."""
        producer = {"producer_id": producer_id, "producer_epoch": epoch}
        answer = await self._ask("add_offsets_to_txn", _ADD, slot, {**producer, "group_id": self.group})
        await self._check_open(int(answer.error_code), "add_offsets_to_txn", slot)
        left = list(pieces(self.group, offsets))
        while left:
            part = left.pop(0)
            left[:0] = await self._commit_part(slot, producer, part)

    async def _commit_part(self, slot: int, producer: Mapping[str, int], part: Piece) -> list[Piece]:
        """Commit one piece; returns the pieces to retry, smaller or without texts that are too long."""
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
                    shown_id(self.group),
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
        backoff = Backoff(0.01, 0.5)
        while True:
            pending = await self._pending(wanted)
            if not pending:
                return
            if backoff.over(self.clock(), deadline):
                raise CommitFailed(
                    self.group,
                    dict.fromkeys(
                        pending,
                        "is pending in a transaction of somebody else (kafka-transactions.sh find-hanging), which keeps "
                        "clients from reading",
                    ),
                )
            await self.sleep(backoff.next())
