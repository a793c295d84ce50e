"""The steps before the hand-over may be sent: catch up, fence, align, compare the tails.

All of them can be undone. In the batch's context they leave only timings and reports; `Verified` is their result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from controller.errors import PromoteAbandoned
from controller.judge.alignment import (
    PositionsVerdict,
    SourceEnd,
    describe_behind,
    judge_ends,
    judge_positions,
)
from controller.judge.hand_over import HandOverPlan, broker_trouble
from controller.phases import Phase
from linker.promote.at_source import SourceTransactions, name_writers
from linker.promote.context import PromoteBatch
from linker.promote.replica_proof import ReplicaProof
from linker.promote.source_fencing import close_source, not_yet
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

logger = logging.getLogger(__name__)
# The longest single wait for an event, after which failures and brokers are looked at again.
_SLICE = 0.25


@dataclass(frozen=True, slots=True)
class Verified:
    """Source and replicas were equal up to `ends`, for exactly these incarnations of the replicas'
    brokers, and these leader epochs.
    """

    ends: Mapping[TopicPartition, int]
    replicas: Mapping[TopicPartition, Mapping[int, int]]
    leader_epochs: Mapping[TopicPartition, int]

    def holds_for(self, plan: HandOverPlan) -> bool:
        """Are the copies that would be handed over to the ones that were compared?

        A broker that restarted has another epoch. One that was taken out of the replicas deleted its copy, and has
        the same epoch if it was put in again: KRaft raises the leader epoch whenever it takes replicas out. It raises
        it for a new leader too, whose replicas are compared once more without need.
        """
        return all(self.holds_at(plan, tp) for tp in plan.replicas)

    def holds_at(self, plan: HandOverPlan, tp: TopicPartition) -> bool:
        """The same for one partition, that the plan knows the replicas of."""
        return (
            self.replicas.get(tp) == plan.replicas[tp]
            and self.leader_epochs.get(tp) == plan.leader_epochs[tp]
        )


class Checks:
    """The checks of one batch. The baseline of the source's ends lives from the fence on."""

    def __init__(self, context: PromoteBatch) -> None:
        self._context = context
        self._ports = context.ports
        self._settings = context.settings
        self._baseline: Mapping[TopicPartition, SourceEnd] = {}
        self._transactions = SourceTransactions(context)
        self._proof = ReplicaProof(context)

    def expect_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """After a restart: where the source ended when the batch was validated."""
        self._baseline = {tp: SourceEnd(end, end, end) for tp, end in ends.items()}

    async def catch_up(self) -> None:
        """ACTIVE -> CATCHING_UP; returns when nothing but the last few records should keep the fence
        from closing.
        """
        context = self._context
        await self._begin()
        deadline = context.now() + self._settings.catch_up_timeout
        with context.timed("catch_up"):
            async with self._proof.validator():
                while not await self._nearly_there(deadline):
                    if context.now() >= deadline:
                        raise PromoteAbandoned(
                            f"not caught up within {self._settings.catch_up_timeout:g} s",
                            dict(context.waiting),
                        )
        context.waiting = {}
        context.tell()

    async def _begin(self) -> dict[TopicPartition, str]:
        """ACTIVE -> CATCHING_UP. The partitions that are not ACTIVE yet: the source has just added them."""
        context = self._context
        phases = {tp: context.phase_of(tp) for tp in context.tps}
        ended = {
            tp: f"it is {phase}" for tp, phase in phases.items() if phase in (Phase.FAILED, Phase.PAUSED)
        }
        if ended:
            raise PromoteAbandoned("the mirror cannot be promoted", ended)
        ready = [tp for tp, phase in phases.items() if phase is Phase.ACTIVE]
        if ready:
            await context.controller.advance(context.link, ready, Phase.CATCHING_UP)
        return {
            tp: "it was added at the source, and its copy is yet to begin"
            for tp, phase in phases.items()
            if phase is Phase.LINKING
        }

    async def _nearly_there(self, deadline: float) -> bool:
        context, tps = self._context, self._context.tps
        context.check_failures(tps)
        left = max(deadline - context.now(), 0.001)
        linking = await self._begin()
        if linking:
            context.waiting = linking
            context.tell()
            await asyncio.sleep(min(left, self._settings.idle_poll))
            return False
        behind = self._behind(tps)
        if behind:
            context.waiting = behind
            context.tell()
            await self._wait_progress(tps, lambda: not self._behind(tps), min(left, 1.0))
            return False
        plan = context.plan(tps)
        if plan.obstacles:
            context.waiting = {tp: found.reason for tp, found in plan.obstacles.items()}
            context.tell()
            await context.open(plan, min(left, self._settings.call_timeout))
            left = max(deadline - context.now(), 0.001)
            await self._wait_image(lambda: not context.plan(tps).obstacles, min(left, 1.0))
            return False
        absent = self._ports.fencer.absent() or not_yet(context)
        if absent is not None:
            context.waiting = dict.fromkeys(tps, absent)
            context.tell()
            await asyncio.sleep(min(left, self._settings.idle_poll))
            return False
        ends = await self._read_ends(tps, min(left, self._settings.call_timeout))
        transactions = await self._transactions.waited_for(ends)
        if transactions:
            context.waiting = transactions
            context.tell()
            await asyncio.sleep(min(left, self._settings.idle_poll))
            return False
        if not await self._proof.proved(tps, left):
            return False
        try:
            # A broker that sleeps does not hold this up: behind the fence each has to tell.
            await self._proof.check_starts(tps, min(left, self._settings.call_timeout), every=False)
        except PromoteAbandoned:
            raise
        except LinkerError as error:
            context.waiting = dict.fromkeys(tps, f"where its replicas start is not known: {error}")
            context.tell()
            await asyncio.sleep(min(left, self._settings.idle_poll))
            return False
        return True

    def _behind(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        late: dict[TopicPartition, str] = {}
        for tp, lag in self._ports.progress.lag(tps).items():
            if lag is None:
                late[tp] = "a target replica has not fetched yet"
            elif lag > self._settings.max_lag:
                late[tp] = f"{lag} offsets behind"
        return late

    async def take_fence(self) -> None:
        """CATCHING_UP -> FENCED, written before the first produce is held. The routers follow what is written, so what
        can be prepared is prepared before.
        """
        context = self._context
        timeout = self._settings.call_timeout
        await context.within(
            self._ports.fencer.prepare(context.tps, timeout=timeout), timeout, "preparing the fence"
        )
        await context.controller.advance(context.link, context.tps, Phase.FENCED)
        context.start_fence()
        context.tell()
        # Before a switch takes the source over, too: a leader that is deposed refuses writes that it may have passed on to
        # followers, and a producer that is not idempotent writes these again.
        with context.timed("fence"):
            timeout = min(self._settings.fence_drain_timeout, context.fence_left())
            await context.within(
                self._ports.fencer.fence(context.tps, timeout=timeout), timeout, "draining forwarded produces"
            )
        await close_source(context)

    async def verify(self, tps: Collection[TopicPartition]) -> Verified:
        """Align and compare, again and again until it holds or the fence's time is over.

        Called again when a broker's incarnation or a leader epoch changed, or after a restart: by then the phase
        may be VALIDATED, and only the checks are repeated.

        Whether it still holds when this returns is for the caller to ask, with the plan that is to be sent
        (`Verified.holds_for`). Not asked here: a hand-over that was sent before and lands now raises the leader epoch
        too, and would be waited for until the fence's deadline.
        """
        while True:
            verified = await self._verify_once(tps)
            if verified is not None:
                return verified

    async def _verify_once(self, tps: Collection[TopicPartition]) -> Verified | None:
        context = self._context
        with context.timed("align"):
            aligned = await self._align_once(tps)
        if aligned is None:
            return None
        with context.timed("validate"):
            # All replicas are there: has the source's end stayed where it was? Read beside the tails; whatever either
            # brings to light sends the batch back from ALIGNED as it does from FENCED.
            steps: list[Awaitable[object]] = [
                self._compare_tails(aligned.ends),
                self._source_rests(tps),
                self._proof.check_starts(tps, min(context.fence_left(), self._settings.call_timeout)),
            ]
            if all(context.phase_of(tp) is Phase.FENCED for tp in tps):
                # Written while the tails are compared: both have to be done before VALIDATED.
                steps.append(
                    context.written(
                        context.controller.advance(
                            context.link, tps, Phase.ALIGNED, aligned_ends=aligned.ends
                        )
                    )
                )
            results = await _all(steps)
            context.tell()
        return aligned if results[1] else None

    async def _align_once(self, tps: Collection[TopicPartition]) -> Verified | None:
        context = self._context
        context.check_failures(tps)
        plan = context.plan(tps)
        hopeless = {tp: found.reason for tp, found in plan.obstacles.items() if not found.may_pass}
        if hopeless:
            raise PromoteAbandoned("the hand-over is not possible", hopeless)
        if plan.obstacles:
            context.waiting = {tp: found.reason for tp, found in plan.obstacles.items()}
            context.tell()
            await context.open(plan, min(context.fence_left(), self._settings.call_timeout))
            await self._wait_image(lambda: not context.plan(tps).obstacles, min(context.fence_left(), _SLICE))
            return None
        if not await self._source_rests(tps):
            await asyncio.sleep(min(context.fence_left(), self._settings.poll))
            return None
        ends = {tp: self._baseline[tp].log_end_offset for tp in tps}

        def judge() -> PositionsVerdict:
            return judge_positions(ends, plan.replicas, self._ports.progress.positions(tps))

        def decided() -> bool:
            verdict = judge()
            return verdict.all_there or bool(verdict.ahead)

        await self._wait_progress(tps, decided, min(context.fence_left(), _SLICE))
        verdict = judge()
        if verdict.ahead:
            context.waiting = dict(verdict.ahead)
            # Ahead of what was read of the source: if that has moved meanwhile, this says who is to blame.
            await self._source_rests(tps)
            raise PromoteAbandoned("a target replica is ahead of the source", verdict.ahead)
        if verdict.behind:
            context.waiting = describe_behind(verdict.behind, ends)
            self._name_dead_brokers(verdict)
            context.tell()
            return None
        context.waiting = {}
        return Verified(ends, plan.replicas, plan.leader_epochs)

    def _name_dead_brokers(self, verdict: PositionsVerdict) -> None:
        image = self._ports.hand_over.image()
        for tp, late in verdict.behind.items():
            for broker_id in late:
                trouble = broker_trouble(image, broker_id)
                if trouble is not None:
                    self._context.waiting[tp] += f" ({trouble})"

    async def _source_rests(self, tps: Collection[TopicPartition]) -> bool:
        """Read the ends: True if all is settled there. Raises if somebody wrote past the fence."""
        context = self._context
        timeout = min(context.fence_left(), self._settings.call_timeout)
        try:
            ends = await self._read_ends(tps, timeout)
        except LinkerError as error:
            # The question had only the rest of the fence's time, perhaps next to nothing: then its timeout is not the
            # reason.
            context.fence_left(error)
            raise
        verdict = judge_ends(self._baseline, ends)
        if verdict.moved:
            raise PromoteAbandoned(
                "somebody writes to the source past the fence (a producer that was not moved?)",
                await name_writers(context, verdict.moved),
            )
        self._baseline = verdict.baseline
        if context.switch and (
            begun := {tp: why for tp, why in verdict.unsettled.items() if ends[tp].in_transaction}
        ):
            # The mark of its end would be a write to the log that was taken over: waiting is for nothing.
            raise PromoteAbandoned(
                "a transaction began while the source was taken over, and cannot end there now: switch again",
                begun,
            )
        if verdict.unsettled:
            context.waiting = dict(verdict.unsettled)
            context.tell()
        return not verdict.unsettled

    async def source_now(
        self, tps: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        """The source's ends, as far as it tells them: nothing of one that is away."""
        try:
            return await self._context.within(
                self._ports.source_ends.ends(tps, timeout=timeout), timeout, "reading the source's ends"
            )
        except LinkerError as error:
            logger.info("link %s: the source's ends are not known: %s", self._context.link, error)
            return {}

    async def _read_ends(
        self, tps: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        ends = await self._context.within(
            self._ports.source_ends.ends(tps, timeout=timeout), timeout, "reading the source's ends"
        )
        missing = {tp: "no end offset from the source" for tp in tps if tp not in ends}
        if missing:
            raise PromoteAbandoned("the source did not answer for every partition", missing)
        return ends

    async def _compare_tails(self, ends: Mapping[TopicPartition, int]) -> None:
        timeout = min(self._context.fence_left(), self._settings.call_timeout)
        differing = await self._context.within(
            self._ports.tail_check.check(ends, timeout=timeout), timeout, "comparing the tails"
        )
        if differing:
            raise PromoteAbandoned("a replica's tail differs from the source's", differing)

    async def _wait_progress(
        self, tps: Collection[TopicPartition], predicate: Callable[[], bool], timeout: float
    ) -> None:
        # A busy process may come back late from a short wait: no reason to give up.
        limit = max(timeout, self._settings.call_timeout)
        await self._context.within(
            self._ports.progress.wait_until(tps, predicate, timeout=timeout), limit, "waiting for replicas"
        )

    async def _wait_image(self, predicate: Callable[[], bool], timeout: float) -> None:
        await self._context.within(
            self._ports.hand_over.wait_until(lambda _: predicate(), timeout=timeout),
            max(timeout, self._settings.call_timeout),
            "waiting for the target's metadata",
        )


async def _all(steps: list[Awaitable[object]]) -> list[object]:
    """Run the steps together. One error of several is raised as itself: the first is as good a reason
    as any.
    """

    async def run(step: Awaitable[object]) -> object:
        return await step

    tasks: list[asyncio.Task[object]] = []
    try:
        async with TaskGroup() as group:
            tasks = [group.create_task(run(step)) for step in steps]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
