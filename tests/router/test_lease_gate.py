"""Without its lease the router acknowledges nothing: produce through sockets, with a lease that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from router.fence import FenceTable
from router.ports import EndlessLease, RouterLimits
from router.produce.batch import Batch
from router.produce.lease_gate import LeaseGate
from tests.router.rig import Producer, Rig, ScriptedLease, eventually, held_produce
from wire.errors import ConnectionLost
from wire.frames.produce import ProduceResult
from wire.frames.types import TopicPartition

TP0 = TopicPartition("orders", 0)
UNKNOWN = 7
NOT_HERE = 6
#: Of the tests in which no lease comes.
IMPATIENT = RouterLimits(settle_grace=0.3, backoff_min=0.01, lease_patience=0.15)

Pending = asyncio.Future[list[ProduceResult]]


@dataclass
class Forwarded:
    """One write of an idempotent producer that knows its partition, on its way."""

    rig: Rig
    lease: ScriptedLease
    producer: Producer
    pending: Pending
    #: The source begins with it when this is set.
    comes: asyncio.Event

    @property
    def waiting(self) -> int:
        return len(self.rig.router.hub.gate)

    async def deferred(self) -> None:
        await eventually(lambda: self.waiting == 1)

    async def fence(self) -> None:
        await self.rig.router.fence([TP0], timeout=25)

    def renew(self, sent_at: float | None = None) -> None:
        self.lease.renew(sent_at)
        self.rig.router.lease_renewed()


@asynccontextmanager
async def forwarded(
    *, delay: float | None = 0.1, timeout_ms: int = 30_000, limits: RouterLimits | None = None, acks: int = -1
) -> AsyncIterator[Forwarded]:
    """delay: seconds until the source begins with it; None: it waits for `comes`."""
    lease = ScriptedLease()
    async with Rig(lease=lease, limits=limits) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        assert (await producer.send(0))[0].error == 0
        comes = held_produce(rig.source)
        pending = producer.send(0, timeout_ms=timeout_ms, acks=acks)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        if delay is not None:
            asyncio.get_running_loop().call_later(delay, comes.set)
        yield Forwarded(rig, lease, producer, pending, comes)
        assert len(rig.router.hub.gate) == 0
        assert rig.router.hub.budget.used == 0


async def test_covered_by_a_lease_that_is_renewed_meanwhile() -> None:
    async with forwarded() as one:
        one.lease.clock += 8
        one.renew()
        one.lease.clock += 8
        assert (await one.pending)[0].error == 0
        assert one.rig.router.stats.links["east"].deferred == 0


async def test_success_waits_for_a_renewal_that_was_sent_after_it() -> None:
    async with forwarded() as one:
        one.lease.lapse()
        before = one.lease.clock - 0.5
        await one.deferred()
        one.rig.router.lease_renewed()  # nothing new
        one.lease.clock += 1
        one.renew(sent_at=before)  # the lease is back, but it proves nothing of the time since
        assert one.lease.valid()
        await asyncio.sleep(0.05)
        assert not one.pending.done()
        assert one.rig.router.hub.fences.pending([TP0])  # a fence would wait for it
        assert one.rig.router.hub.budget.used > 0
        one.renew()
        result = (await one.pending)[0]
        assert (result.error, result.base_offset) == (0, 1)
        assert one.rig.router.stats.links["east"].deferred == 1
        assert (await one.producer.send(0))[0].error == 0
        assert one.rig.values() == [(5, 0), (5, 1), (5, 2)]


async def test_a_lapse_that_was_healed_is_a_lapse() -> None:
    async with forwarded() as one:
        one.lease.lapse()
        one.renew()
        await one.deferred()
        assert one.lease.valid()
        await asyncio.sleep(0.05)
        assert not one.pending.done()
        one.renew()
        assert (await one.pending)[0].error == 0


async def test_the_lease_is_asked_after_the_answer_was_read() -> None:
    """It ends between the source's write and the arrival of the answer."""
    async with forwarded(delay=0.2) as one:
        await asyncio.sleep(0.05)
        one.lease.clock = one.lease.lease.until
        await one.deferred()
        one.renew()
        assert (await one.pending)[0].error == 0


async def test_a_duplicate_is_an_acknowledgement_too() -> None:
    async with forwarded() as one:
        await one.pending
        one.rig.source.inject("produce", error=46, delay=0.1)
        pending = one.producer.send(0)
        await eventually(lambda: one.rig.source.counts["produce"] == 3)
        one.lease.lapse()
        await one.deferred()
        await asyncio.sleep(0.02)
        assert not pending.done()
        one.renew()
        assert (await pending)[0].error == 46


@pytest.mark.parametrize("code", [10, 87, 20])
async def test_a_refusal_of_the_source_is_told_without_a_lease(code: int) -> None:
    async with forwarded() as one:
        await one.pending
        one.rig.source.inject("produce", error=code, delay=0.1)
        pending = one.producer.send(0)
        await eventually(lambda: one.rig.source.counts["produce"] == 3)
        one.lease.lapse()
        assert (await pending)[0].error == code


async def test_a_fence_makes_a_deferred_success_unknown_and_stands() -> None:
    async with forwarded() as one:
        one.lease.lapse()
        await one.deferred()
        await one.fence()
        assert (await one.pending)[0].error == UNKNOWN
        one.renew()  # too late for it
        one.rig.router.unfence([TP0])
        assert (await one.producer.send(0, sequence=1))[0].error in (0, 46)  # the client's own retry
        assert (await one.producer.send(0, sequence=2))[0].error == 0
        assert one.rig.values() == [(5, 0), (5, 1), (5, 2)]


async def test_a_hand_over_makes_a_deferred_success_unknown() -> None:
    async with forwarded() as one:
        one.lease.lapse()
        await one.deferred()
        one.rig.router.handed_over([TP0])
        assert (await one.pending)[0].error == UNKNOWN


@pytest.mark.parametrize("healed", [False, True])
async def test_uncovered_success_that_arrives_behind_a_fence_is_unknown(healed: bool) -> None:
    async with forwarded(delay=0.2) as one:
        one.lease.lapse()
        fence = asyncio.create_task(one.fence())
        await asyncio.sleep(0.02)
        if healed:
            one.renew()
        assert (await one.pending)[0].error == UNKNOWN
        await fence


async def test_what_waits_behind_an_unknown_one_does_not_overtake_its_retry() -> None:
    async with forwarded(delay=0.2) as one:
        fence = asyncio.create_task(one.fence())
        await asyncio.sleep(0.02)
        behind = one.producer.send(0)
        await eventually(lambda: any(lane.queue for lane in one.rig.router.hub.fences.lanes(TP0)))
        one.lease.lapse()
        assert (await one.pending)[0].error == UNKNOWN
        assert (await behind)[0].error == 6
        await fence
        assert one.rig.values() == [(5, 0), (5, 1)]


async def test_covered_success_behind_a_fence_is_told() -> None:
    async with forwarded(delay=0.2) as one:
        fence = asyncio.create_task(one.fence())
        assert (await one.pending)[0].error == 0
        await fence


async def test_after_a_hand_over_no_success_of_the_source_is_told() -> None:
    async with forwarded(delay=0.2) as one:
        one.rig.router.handed_over([TP0])
        assert (await one.pending)[0].error == UNKNOWN


async def test_deferred_until_the_deadline_is_unknown_and_lets_the_fence_stand() -> None:
    limits = RouterLimits(min_timeout=0.4, settle_grace=60.0)
    async with forwarded(timeout_ms=400, limits=limits) as one:
        one.lease.lapse()
        assert (await asyncio.wait_for(one.pending, 25))[0].error == UNKNOWN
        assert one.waiting == 0
        await one.fence()  # at once: the source's answer is known


async def test_an_answer_that_nobody_waits_for_does_not_wait() -> None:
    """The client was told REQUEST_TIMED_OUT before the source answered."""
    async with forwarded(delay=None, timeout_ms=300, limits=RouterLimits(min_timeout=0.3)) as one:
        one.lease.lapse()
        assert (await one.pending)[0].error == UNKNOWN
        assert one.rig.router.hub.fences.pending([TP0])
        one.comes.set()
        await eventually(lambda: not one.rig.router.hub.fences.pending([TP0]))
        assert one.waiting == 0


def test_a_fence_that_nobody_told_of_counts_at_the_renewal() -> None:
    lease = ScriptedLease()
    fences: FenceTable[None] = FenceTable(lambda: 0.0, 3.0)
    gate = LeaseGate(lease, fences)
    lane = fences.open_lane(TP0)
    batch: Batch[None] = Batch(None, 0, memoryview(b"x"))
    lane.offer(batch)
    assert lane.take("route") is batch
    lease.lapse()
    assert gate.answered(lane, batch, ProduceResult(0, 0), covered=False) == ()
    fences.fence([TP0])
    lease.renew()
    assert gate.renewed() == [(lane, batch, [(batch, UNKNOWN)])]
    assert fences.pending([TP0]) == {}
    assert gate.renewed() == []


async def test_nothing_is_sent_without_a_lease() -> None:
    """It waits for one a while; then its client looks for another leader."""
    async with forwarded(limits=IMPATIENT) as one:
        await one.pending
        one.lease.lapse()
        assert [r.error for r in await one.producer.send(0, 1)] == [NOT_HERE, NOT_HERE]
        assert one.rig.source.counts["produce"] == 2
        one.renew()
        assert (await one.producer.send(0, sequence=2))[0].error == 0
        assert (await one.producer.send(1, sequence=0))[0].error == 0


async def test_what_was_on_the_way_behind_a_refused_batch_does_not_overtake_it() -> None:
    """The source would answer OUT_OF_ORDER_SEQUENCE_NUMBER, for which some producers begin a new epoch."""
    async with forwarded(limits=IMPATIENT) as one:
        await one.pending
        one.lease.lapse()
        assert (await one.producer.send(0, sequence=2))[0].error == NOT_HERE
        one.renew()
        assert (await one.producer.send(0, sequence=3))[0].error == NOT_HERE
        assert (await one.producer.send(1, sequence=0))[0].error == 0, "of its own partition alone"
        assert (await one.producer.send(0, sequence=2))[0].error == 0
        assert (await one.producer.send(0, sequence=3))[0].error == 0
        assert one.rig.source.counts["produce"] == 5


async def test_what_was_held_and_went_back_is_not_overtaken() -> None:
    async with forwarded(limits=IMPATIENT) as one:
        await one.pending
        await one.fence()
        held = one.producer.send(0, sequence=2)
        await eventually(lambda: any(lane.queue for lane in one.rig.router.hub.fences.lanes(TP0)))
        one.lease.lapse()
        one.rig.router.unfence([TP0])
        assert (await held)[0].error == NOT_HERE
        one.renew()
        behind = [one.producer.send(0, sequence=number) for number in (3, 4)]
        assert [(await pending)[0].error for pending in behind] == [NOT_HERE, NOT_HERE]
        again = [one.producer.send(0, sequence=number) for number in (2, 3, 4)]
        assert [(await pending)[0].error for pending in again] == [0, 0, 0]


async def test_nothing_that_was_held_is_sent_without_a_lease() -> None:
    async with forwarded(limits=IMPATIENT) as one:
        await one.pending
        await one.fence()
        held = [one.producer.send(0) for _ in range(3)]
        await eventually(lambda: any(lane.queue for lane in one.rig.router.hub.fences.lanes(TP0)))
        one.lease.lapse()
        one.rig.router.unfence([TP0])
        assert [(await h)[0].error for h in held] == [NOT_HERE] * 3
        assert one.rig.source.counts["produce"] == 2


async def test_nothing_of_unknown_outcome_is_sent_again_without_a_lease() -> None:
    """And it is not called unwritten: it is in the log."""
    lease = ScriptedLease()
    async with Rig(lease=lease, limits=IMPATIENT) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", close_after=0, delay=0.1)
        pending = producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        lease.lapse()
        assert (await pending)[0].error == UNKNOWN
        assert rig.source.counts["produce"] == 2
        assert rig.values() == [(5, 0), (5, 1)]


@pytest.mark.parametrize("lapse", [False, True])
async def test_a_lost_write_is_settled_under_a_fence_only_by_the_lease_that_saw_the_fence(
    lapse: bool,
) -> None:
    """After a lapse, healed or not, the source's end may have been read: what is sent then comes too late."""
    lease = ScriptedLease()
    async with Rig(source_nodes=1, lease=lease) as rig:
        producer = Producer(await rig.client(), rig, producer_id=5)
        await producer.send(0)
        rig.source.inject("produce", close_after=0, process=False, delay=0.1)
        pending = producer.send(0)
        await eventually(lambda: rig.source.counts["produce"] == 2)
        fence = asyncio.create_task(rig.router.fence([TP0], timeout=25))
        await asyncio.sleep(0.02)
        if lapse:
            lease.lapse()
            lease.renew()
            rig.router.lease_renewed()
        again = asyncio.create_task(rig.router.fence([TP0], timeout=25))  # the command is repeated
        assert (await pending)[0].error == (UNKNOWN if lapse else 0)
        await fence
        await again
        assert rig.values() == ([(5, 0)] if lapse else [(5, 0), (5, 1)])
        rig.router.unfence([TP0])
        assert (await producer.send(0, sequence=1))[0].error in (0, 46)


async def test_a_client_that_goes_away_leaves_nothing_deferred() -> None:
    async with forwarded() as one:
        one.lease.lapse()
        await one.deferred()
        one.producer.connection.close()
        await eventually(lambda: one.waiting == 0)
        await one.fence()
        assert one.rig.router.hub.fences.lanes(TP0) == frozenset()
        with pytest.raises(ConnectionLost):
            await one.pending


async def test_no_acknowledgement_no_wait() -> None:
    """acks=0 is told nothing, so a lapse must not hold up the answers behind it, nor close the connection."""
    async with forwarded(acks=0, limits=IMPATIENT) as one:
        one.lease.lapse()
        await eventually(lambda: one.rig.values() == [(5, 0), (5, 1)])
        assert (await asyncio.wait_for(one.producer.send(0), 25))[0].error == NOT_HERE
        one.renew()
        assert (await one.producer.send(0, sequence=2))[0].error == 0


async def test_several_deferred_of_one_lane_are_told_in_order_and_the_lane_goes_on() -> None:
    async with forwarded(delay=0.0) as one:
        await one.pending
        one.rig.source.inject("produce", delay=0.1)
        pending = [one.producer.send(0) for _ in range(4)]
        await eventually(lambda: one.rig.source.counts["produce"] >= 3)
        await asyncio.sleep(0.02)
        one.lease.lapse()
        await eventually(lambda: one.waiting == 4)
        one.renew()
        assert [(await p)[0].base_offset for p in pending] == [2, 3, 4, 5]
        assert (await one.producer.send(0))[0].error == 0


async def test_other_partitions_of_a_fence_are_not_touched() -> None:
    async with forwarded() as one:
        one.lease.lapse()
        await one.deferred()
        await one.rig.router.fence([TopicPartition("orders", 1)], timeout=25)
        assert not one.pending.done()
        one.renew()
        assert (await one.pending)[0].error == 0


async def test_produce_needs_leadership_reads_need_the_state() -> None:
    async with Rig() as rig:
        partition = rig.directory.mirrors["orders"].partitions[0]
        producer = Producer(await rig.client(), rig)
        partition.serving = False
        assert (await producer.send(0))[0].error == 0
        partition.leading = False
        assert (await producer.send(0))[0].error == 6
        await rig.router.fence([TP0], timeout=25)
        assert (await asyncio.wait_for(producer.send(0), 25))[0].error == 6  # not held for nothing


async def test_what_was_queued_goes_back_when_leadership_is_gone() -> None:
    async with Rig() as rig:
        partition = rig.directory.mirrors["orders"].partitions[0]
        producer = Producer(await rig.client(), rig)
        await rig.router.fence([TP0], timeout=25)
        held = producer.send(0)
        await eventually(lambda: any(lane.queue for lane in rig.router.hub.fences.lanes(TP0)))
        partition.leading = partition.serving = False
        rig.router.unfence([TP0])
        assert (await held)[0].error == 6
        assert rig.values() == []


def test_alone_the_lease_never_ends() -> None:
    lease = EndlessLease()
    assert lease.valid()
    assert lease.covers(lease.term)
    assert lease.proven_since(lease.now())
