"""One run: fresh topics and a fresh link on a fleet that is there, clients, faults, promotes, and what came of it.

The deadlines are generous beside what a run takes, so that a busy machine is not taken for a stuck fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lab.workload.history import History
from lab.workload.live_consumers import AiokafkaConsumer, LibrdkafkaConsumer, LiveConsumer
from lab.workload.live_producers import (
    AiokafkaProducer,
    KafkaPythonProducer,
    LibrdkafkaProducer,
    LiveClientError,
    LiveProducer,
)
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.chaos.checker import Aftermath, Judgement, judge
from tests.chaos.committed import TransactionHistory
from tests.chaos.evidence import Collected, reader_behind
from tests.chaos.faults import Striker
from tests.chaos.fleet import ApiRefused, ApiSilent, Fleet
from tests.chaos.mirrors import Mirrors, link_name
from tests.chaos.plan import DeathPlan, FaultPlan, RunPlan
from tests.chaos.promotes import NotPromoted, PhaseBoard, PromoteLog, Promoter
from tests.chaos.result import RunResult, Stuck
from tests.chaos.stage import Stage
from tests.chaos.switches import SwitchLog
from tests.chaos.transactions import APPLICATIONS, CommittedReader, End, TransactionalApplication
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

READY_TIMEOUT = 90.0
SETTLE_TIMEOUT = 150.0  # for promotes, from the moment when the last fault is healed
DRAIN_TIMEOUT = 40.0
WRITES_AGAIN_TIMEOUT = 30.0  # after a failover
NODE_START = 90.0
TRANSACTION_RATE = 60.0
ROLES_EVERY = 0.4

PRODUCERS: dict[str, type[LiveProducer]] = {
    one.library: one for one in (LibrdkafkaProducer, AiokafkaProducer, KafkaPythonProducer)
}
CONSUMERS: dict[str, type[LiveConsumer]] = {
    one.library: one for one in (LibrdkafkaConsumer, AiokafkaConsumer)
}


class Run:
    """`await Run(...).go()`. Leaves its topics and its link to `clean_up`."""

    link_options: Mapping[str, Any] = {}

    def __init__(self, stage: Stage, fleet: Fleet, plan: RunPlan, number: int, *, kept: bool) -> None:
        self.stage, self.fleet, self.plan = stage, fleet, plan
        self.topics = [
            SourceTopic(f"run{number}-{'ab'[index]}", topic.partitions, SourceFiller.history, live=True)
            for index, topic in enumerate(plan.topics)
        ]
        self.mirrors = Mirrors(stage, fleet, link_name(number), self.topics)
        self.link = self.mirrors.link
        self.history = History()
        self.result = RunResult(plan.seed, asdict(plan), kept)
        self._handed_over: dict[str, float] = {}
        self._board = PhaseBoard(len(plan.promotes) + len(plan.switches))
        self._began = time.monotonic()
        self._producers: list[LiveProducer] = []
        self._movers: dict[int, list[LiveProducer]] = {}  # topic -> producers that begin at the source
        self._transactional: dict[int, list[TransactionalApplication]] = {}  # topic -> likewise
        self._direct: dict[str, float] = {}  # when producers were moved
        self._reader: CommittedReader | None = None
        self._consumers: list[LiveConsumer] = []
        self._ids: dict[bytes, str] = {}  # of the target's topics
        self._exits_before = len(fleet.exits)

    async def go(self) -> RunResult:
        """Never raises for what the run brings to light: that is in the result."""
        started = time.monotonic()
        result = self.result
        try:
            await self._go()
        except (Stuck, NotPromoted, ApiSilent, ApiRefused, LinkerError, TimeoutError) as error:
            result.stuck = f"{type(error).__name__}: {error}"[:1500]
            result.acked = len(self.history.acks)  # not judged
        finally:
            await self._abandon_clients()
        result.sidecar_exits = self.fleet.exits[self._exits_before :]
        result.seconds = round(time.monotonic() - started, 1)
        return result

    async def _go(self) -> None:
        with self._timed("ready"):
            await self.fleet.ready(READY_TIMEOUT)
        with self._timed("mirror"):
            self._ids = await self.mirrors.make(self.plan.copies, self.link_options)
        with self._timed("clients"):
            await self._start_clients()
        with self._timed("switch" if self.plan.switches else "promote"):
            await self._under_faults()
        with self._timed("stop"):
            await asyncio.sleep(self.plan.linger)
            await asyncio.gather(*(self._stop(producer) for producer in self._producers))
            await asyncio.gather(*(application.stop() for application in self._applications))
            if not await self.stage.healthy():
                raise Stuck("a broker did not come back")
        with self._timed("judge"):
            await self._judge()

    @contextlib.contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.result.timeline[step] = round(time.monotonic() - began, 2)

    # --- before

    async def _start_clients(self) -> None:
        starts: list[Awaitable[None]] = []
        for index, (topic, plan) in enumerate(zip(self.topics, self.plan.topics, strict=True)):
            for place, libraries in (("target", plan.producers), ("source", plan.source_producers)):
                for number, library in enumerate(libraries):
                    name = f"{library}-{place}-{topic.name}-{number}"
                    producer = PRODUCERS[library](name, topic.name, topic.partitions, plan.rate, self.history)
                    self._producers.append(producer)
                    cluster = self.stage.source if place == "source" else self.stage.target
                    starts.append(producer.start(cluster.bootstrap))
                    if place == "source":
                        self._movers.setdefault(index, []).append(producer)
            for number, library in enumerate(plan.transactional):
                name = f"{library}-transactions-{topic.name}-{number}"
                application = APPLICATIONS[library](
                    name, topic.name, topic.partitions, TRANSACTION_RATE, self.history, self.plan.seed
                )
                self._transactional.setdefault(index, []).append(application)
                starts.append(application.start(self.stage.source.bootstrap))
        await asyncio.gather(*starts, *self._readers())

    def _readers(self) -> list[Awaitable[None]]:
        partitions = [tp for topic in self.topics for tp in topic.topic_partitions()]
        self._reader = CommittedReader(f"committed-{self.link}", partitions, self.history)
        names = [topic.name for topic in self.topics]
        consumer = CONSUMERS[self.plan.consumer](f"reader-{self.link}", names, self.history)
        self._consumers.append(consumer)
        return [one.start(self.stage.target.bootstrap) for one in (self._reader, consumer)]

    # --- in between

    def _clock(self) -> float:
        return round(time.monotonic() - self._began, 3)

    async def _under_faults(self) -> None:
        self._began = time.monotonic()
        striker = Striker(self.stage, self.fleet, await self.fleet.roles(), self._clock)
        self.result.strikes = striker.strikes
        async with _background(self._keep_roles(striker)):
            faults = [asyncio.create_task(self._fault(striker, fault)) for fault in self.plan.faults]
            acts = asyncio.create_task(self._act(faults))
            try:
                await acts
                # Phases that never came: the promote is over, and so is the wait for them.
                await asyncio.gather(*faults)
            finally:
                for task in (acts, *faults):
                    task.cancel()
                await asyncio.gather(acts, *faults, return_exceptions=True)
        await self.fleet.ready(READY_TIMEOUT)

    async def _keep_roles(self, striker: Striker) -> None:
        """Asked beforehand: at the moment of a strike there is no time for it."""
        while True:
            await asyncio.sleep(ROLES_EVERY)
            striker.roles = await self.fleet.roles()

    async def _fault(self, striker: Striker, fault: FaultPlan) -> None:
        met = None
        if fault.phase is not None:
            met = await self._board.reached(fault.promote, fault.phase)
        if fault.after:
            await asyncio.sleep(fault.after)
        await striker.strike(fault, self._board.now() or met)

    async def _act(self, faults: list[asyncio.Task[None]]) -> None:
        """The operator's part, while faults strike."""
        names = [topic.name for topic in self.topics]
        promoter = Promoter(self.fleet, self.link, self._board, self._promoted)
        for index, plan in enumerate(self.plan.promotes):
            await asyncio.sleep(plan.delay)
            movers = [producer for topic in plan.topics for producer in self._movers.get(topic, ())]
            with_transactions = [one for topic in plan.topics for one in self._transactional.get(topic, ())]
            if plan.death is not None and plan.death.transactions_stay:
                with_transactions = []
            moving = [one.move(self.stage.target.bootstrap) for one in movers]
            moving += [one.move(self.stage.target.bootstrap) for one in with_transactions]
            await asyncio.gather(*moving)
            self._direct |= {one.name: self.history.clock() for one in movers}
            note = PromoteLog([names[topic] for topic in plan.topics], failover=plan.death is not None)
            self.result.promotes.append(note)
            if plan.death is not None:
                await self._source_dies(plan.death, plan.topics)
            options = {"fence_timeout_ms": round(plan.fence_timeout * 1000)}
            # The clock of being stuck begins when nothing is in the way any more.
            work = asyncio.create_task(promoter.run(index, note, options, plan.hopeless_fence_ms))
            await self._settled(work, faults, note)
            if plan.death is not None:
                await self._after_failover(plan.topics)

    async def _source_dies(self, death: DeathPlan, topics: Sequence[int]) -> None:
        # Those that are in the middle of a transaction there are left in it, and begin anew at the target.
        nodes = [node for node in self.stage.source.nodes.values() if node.running]
        await asyncio.gather(*(node.kill() for node in nodes))
        if death.transactions_stay:
            stayed = [one for topic in topics for one in self._transactional.get(topic, ())]
            await asyncio.gather(*(one.abandon() for one in stayed))
            await asyncio.gather(*(one.start(self.stage.target.bootstrap) for one in stayed))
        await asyncio.sleep(death.before)

    async def _after_failover(self, topics: Sequence[int]) -> None:
        """Somebody can write again, and the source that returns changes nothing."""
        fresh: list[LiveProducer] = []
        for topic in (self.topics[index] for index in topics):
            name = f"anew-{topic.name}"
            fresh.append(LibrdkafkaProducer(name, topic.name, topic.partitions, 50.0, self.history))
        self._producers += fresh
        for producer in fresh:
            await producer.start(self.stage.target.bootstrap)
        deadline = time.monotonic() + WRITES_AGAIN_TIMEOUT
        waiting = {producer.name for producer in fresh}
        while waiting:
            waiting -= {ack.producer for ack in list(self.history.acks)}
            if time.monotonic() > deadline:
                raise Stuck(f"nothing of {sorted(waiting)} is acknowledged after the failover")
            await asyncio.sleep(0.1)
        nodes = [node for node in self.stage.source.nodes.values() if not node.running]
        for node in nodes:
            node.launch()
        await asyncio.gather(*(node.wait_started(NODE_START) for node in nodes))

    @property
    def _applications(self) -> list[TransactionalApplication]:
        return [one for mine in self._transactional.values() for one in mine]

    async def _stop(self, producer: LiveProducer) -> None:
        """After a failover an idempotent producer may have a gap in its sequences, which librdkafka calls fatal."""
        try:
            await producer.stop()
        except (LiveClientError, SystemError) as error:
            if all(plan.death is None for plan in self.plan.promotes):
                raise
            self.history.error(producer.name, f"after the failover: {error}")

    async def _settled(
        self, work: asyncio.Task[None], faults: list[asyncio.Task[None]], note: PromoteLog | SwitchLog
    ) -> None:
        longest = max((fault.seconds for fault in self.plan.faults), default=0.0)
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT + longest):
                await work
        except TimeoutError:
            under_way = sum(not fault.done() for fault in faults)
            raise Stuck(f"{note.topics}: {note.last}; {under_way} faults under way") from None

    def _promoted(self, topic: str) -> None:
        self._handed_over.setdefault(topic, self.history.clock())

    # --- after

    async def _judge(self) -> None:
        collected = await asyncio.to_thread(Collected, self.stage, self.topics)
        assert self._reader is not None
        [consumer] = self._consumers
        # Of what a consumer is given: markers are not, and of aborted records it depends.
        ends = {tp: log.records[-1].offset + 1 for tp, log in collected.owner.items() if log.records}
        drained = await consumer.read_up_to(ends, DRAIN_TIMEOUT)
        if not drained:
            self.result.evidence += self._reading()
        await consumer.stop()
        all_ends = {tp: log.end for tp, log in collected.owner_transactions.items()}
        reader_drained = await self._reader.read_up_to(all_ends, DRAIN_TIMEOUT)
        if not reader_drained:
            self.result.evidence += self._reading()
            self.result.evidence += await asyncio.to_thread(
                reader_behind, self.stage.target.bootstrap, self._reader.reached, all_ends
            )
        await self._reader.stop()
        answers = [one for member in self.fleet.members for one in member.tap.answers(self._ids)]
        after = Aftermath(
            owner=collected.owner,
            source=collected.source,
            owned_from=collected.owned_from,
            handed_over={
                TopicPartition(topic.name, index): self._handed_over[topic.name]
                for topic in self.topics
                for index in range(topic.partitions)
            },
            replicas=collected.replicas,
            answers=answers,
            drained=True,
            taken={tp: over for note in self.result.promotes for tp, over in note.taken.items()},
            direct=self._direct,
            owner_transactions=collected.owner_transactions,
            source_transactions=collected.source_transactions,
        )
        written = [transaction for one in self._applications for transaction in one.transactions]
        transactions = TransactionHistory(transactions=written, reads=self._reader.reads, drained=True)
        judgement = await asyncio.to_thread(judge, self.history, after, transactions)
        self._note(judgement, len(answers), drained and reader_drained)
        self.result.committed_after = sum(
            one.end is End.COMMITTED
            and one.ended is not None
            and one.ended > self._handed_over[one.records[0].partition.topic]
            for one in written
        )
        for application in self._applications:
            if not any(one.producer == application.name and one.end is End.COMMITTED for one in written):
                self.result.evidence.append(f"{application.name} has committed nothing")

    def _note(self, judgement: Judgement, answers: int, drained: bool) -> None:
        self.result.note(judgement, answers)
        if not drained:
            self.result.evidence.append(f"the consumer has not read everything within {DRAIN_TIMEOUT:.0f} s")
        for member in self.fleet.members:
            self.result.evidence += member.tap.unread[:1]
            member.tap.told.clear()  # a fleet that is kept begins anew

    def _reading(self) -> list[str]:
        """Why does a reader not read? The connections that fetch from sidecars."""
        now = time.monotonic()
        return [line for member in self.fleet.members for line in member.tap.reading(now, 2.0)]

    async def _abandon_clients(self) -> None:
        """Stop what still runs. After a failure, that one matters and not what a client says to it."""
        for application in self._applications:
            try:
                await application.abandon()
            except LiveClientError as error:
                self.result.evidence.append(str(error)[:300])
        for client in (*self._producers, *self._consumers, self._reader):
            if client is None:
                continue
            try:
                await client.stop()
            except Exception as error:
                self.result.evidence.append(f"{client.name} did not stop: {error!r}"[:300])

    async def clean_up(self) -> None:
        """Raises if the fleet cannot be used any more."""
        await self.mirrors.remove()


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something that goes on beside the block, and ends with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
