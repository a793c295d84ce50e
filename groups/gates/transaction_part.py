"""The transaction of a gate: the group's offsets are pending in it, so readers of stable offsets wait.

Holds: clients that ask for stable offsets (OffsetFetch with RequireStable, answered UNSTABLE_OFFSET_COMMIT): Java of
both protocols, `assign()` with a group id too, kafka-python under read_committed. They are members of the group
meanwhile, with partitions, and read nothing.

Holds only as long as its partitions do not change: librdkafka (2.16, both protocols). A rebalance while it waits makes
it read its earlier partitions from where `auto.offset.reset` says. So a transaction is no gate for a librdkafka group
of several members; beside a member it is, because there clients have no partitions to wait for.

Does not hold: aiokafka, clients under read_uncommitted that are not Java, clients without a group id, and partitions
that are not pending. A partition cannot be pending before it exists, so there is a moment. A deleted topic takes its
pending offsets along. The gate opens by itself, without publishing anything, a transaction timeout after its last
renewal.

Renewal: transactions cannot be prolonged, so a second one (of another transactional id) takes the same offsets before
the first one is aborted. InitProducerId names the producer id and epoch that this process had before (KIP-360): a
sidecar that was taken over from has old ones, is refused, and cannot abort the successor's transaction.

A holding transaction is always aborted in the end; its pending offsets are placeholders. Offsets to publish are
pending in a transaction of their own. (OffsetMetadataManager.java keeps the newer of a plain commit and a pending one,
so a commit while the gate is closed survives both ends.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from groups.gates.base import CommitFailed, GateLost, LostReason, OffsetAndMetadata
from groups.gates.requests import describe
from groups.gates.transaction_calls import TransactionCalls
from wire.backoff import Backoff
from wire.frames.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import TopicPartition

_FIRST_RETRY = 0.5  # seconds
_LAST_RETRY = 30.0


class TransactionPart(TransactionCalls):
    """The transaction of a TransactionGate or a PairGate. Knows nothing of stages."""

    def set_up(self) -> None:
        super().set_up()
        #: All partitions to hold; `pending` lacks those that do not exist on the target yet.
        self._covered: dict[TopicPartition, OffsetAndMetadata] = {}
        self._taken = False  # in this process
        # Slot -> producer id and newest epoch, as far as this process knows them.
        self._known: dict[int, tuple[int, int]] = {}
        # The other transaction may be open: no renewal was seen to end.
        self._other_open = True
        self._due = self.clock()
        # Next attempt for partitions that did not exist yet.
        self._retry_at = self.clock()
        self._backoff = Backoff(_FIRST_RETRY, _LAST_RETRY)

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
            self._backoff.reset()
            self._retry_at = self.clock() + self._backoff.next()
        self._covered.update(wanted)
        if not self.begun:
            await self._begin()
        elif self._taken:
            await self._put_missing()
        else:
            if wanted and not await self.holds(wanted):
                raise await self.lost("nothing of the group is pending any more")
            # No trusted clock tells the age of the transaction: it is renewed soon.
            self._due = self.clock() + self.settings.take_over_spread * self.jitter()
            await self._put_missing()
            await self.ledger.transaction()  # the store takes it only from the present link controller
            await self._know_other()
            self._taken = True

    async def _know_other(self) -> None:
        """Fetch an epoch of the free transactional id that no other process knows. An open transaction under it is
        aborted.

        InitProducerId aborts the open transaction whatever epoch it names
        (TransactionCoordinator.prepareInitProducerIdTransit), so a renewal begins without it: AddOffsetsToTxn refuses
        an epoch that is not the newest and changes nothing. A sidecar that was taken over from cannot end the
        successor's transaction.
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
        """Do what is due: partitions that exist by now become pending; a younger transaction takes over.

        Raises GateLost(EXPIRED) if the old one had ended by then; the new one holds from here on all the same.
        """
        if not self._covered:
            # An opening that was taken over: its partitions are unknown. A younger transaction would have nothing
            # pending, and the one that holds would be aborted for it.
            return
        if self.clock() < self._due:
            self._retry_at = self.clock() + self._backoff.next()
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
        """End the open transactions, publishing nothing. Repeatable."""
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
        """Commit the pending offsets. Repeatable. GateLost if the transaction has ended otherwise."""
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
