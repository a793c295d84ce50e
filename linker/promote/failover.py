"""The steps of a failover that differ from a promote's.

There is no catching up; the longest replica takes the place of the source; transactions that were left open get abort
markers.

    ACTIVE | PAUSED | FAILED -> FENCED -> (end chosen) -> ALIGNED -> VALIDATED -> HANDED_OVER -> FAILED_OVER

From VALIDATED to HANDED_OVER a failover runs `hand_over` unchanged. controller.decide.failovers has the decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from controller.decide.failovers import KnownEnds, choose_ends, describe_loss, open_at_failover
from controller.errors import PromoteAbandoned
from controller.judge.alignment import SourceEnd
from controller.phases import Phase
from controller.state import AbortedTransaction
from fleet.link_controller import LinkController
from linker.promote.checks import Checks
from linker.promote.context import PromoteBatch
from linker.promote.ports import PromotePorts, PromoteSettings, Report, Tps
from wire.frames.types import TopicPartition

# A follower appends what it was sent before it asks again: two equal readings so far apart are its end.
_AT_REST = 0.25


class GivenUpSource(Protocol):
    """The source as it is remembered."""

    async def known_ends(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, KnownEnds]:
        """The ends that the leading sidecars tell now; those that do not answer in time are left out."""
        ...


class ReplicaEnds(Protocol):
    """The real brokers, asked themselves."""

    async def log_ends(
        self, targets: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, Mapping[int, int]]:
        """Per partition and broker its log end offset; a broker that does not tell is left out."""
        ...


class OpenTransactions(Protocol):
    """Transactions at the partitions' leaders of the target, which are real brokers by now."""

    async def find(
        self, tps: Tps, *, timeout: float
    ) -> Mapping[TopicPartition, Sequence[AbortedTransaction]]: ...

    async def abort(
        self, found: Mapping[TopicPartition, Sequence[AbortedTransaction]], *, timeout: float
    ) -> None:
        """Write abort markers for them. A transaction that has ended meanwhile is no error."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPorts:
    """Everything that a failover needs done outside. Of `ports`, `tail_check` compares replicas and `source_ends` is
    not asked."""

    ports: PromotePorts
    source: GivenUpSource
    replicas: ReplicaEnds
    transactions: OpenTransactions


class FailoverBatch(PromoteBatch):
    """One batch of a failover."""

    def __init__(
        self,
        controller: LinkController,
        link: str,
        job_id: int,
        tps: Collection[TopicPartition],
        settings: PromoteSettings,
        report: Report | None,
        failover_ports: FailoverPorts,
    ) -> None:
        settings = replace(settings, fence_deadline=settings.failover_deadline)
        super().__init__(controller, link, job_id, tps, failover_ports.ports, settings, report)
        self.failover_ports = failover_ports

    final = Phase.FAILED_OVER

    def check_failures(self, tps: Collection[TopicPartition]) -> None:
        """A mirror that broke is what may be failed over: its copies are all there is."""

    async def before_the_end(self, tps: Collection[TopicPartition]) -> None:
        """Nobody can commit a transaction that was open at the source when it died: its coordinator is gone. Without a
        marker no reader of committed records would ever get beyond it.

        Real brokers lead by now, and a transaction that began behind the failover's end is one of theirs: its producer
        lives.
        """

        async def copied(
            of: Collection[TopicPartition], timeout: float
        ) -> Mapping[TopicPartition, Sequence[AbortedTransaction]]:
            seen = await self.failover_ports.transactions.find(of, timeout=timeout)
            return open_at_failover(self.controller.image, self.link, seen)

        async def end_open(timeout: float) -> None:
            found = await copied(tps, timeout)
            if found:
                await self.controller.note_aborted(self.link, found)
                await self.failover_ports.transactions.abort(found, timeout=timeout)
                left = list(await copied(found, timeout))
                if left:
                    raise PromoteAbandoned(f"a transaction of {left[0]} is still open after its abort marker")

        await self.insist(end_open, "aborting the transactions that were open at the source")

    def final_reasons(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, str]:
        states = self.controller.image.partitions
        return {tp: describe_loss(f) for tp in tps if (f := states[self.link, tp].failover) is not None}


class FailoverChecks(Checks):
    """Checks in which the chosen end of the replicas stands for the source's."""

    def __init__(self, context: FailoverBatch) -> None:
        super().__init__(context)
        self._over = context

    async def ready(self) -> None:
        """Before anything is held: every target broker is up, the reassignment is open."""
        deadline = self._context.now() + self._settings.catch_up_timeout
        with self._context.timed("catch_up"):
            while self._context.plan(self._context.tps).obstacles:
                context, left = self._context, deadline - self._context.now()
                plan = context.plan(context.tps)
                context.waiting = {tp: found.reason for tp, found in plan.obstacles.items()}
                context.tell()
                hopeless = {tp: f.reason for tp, f in plan.obstacles.items() if not f.may_pass}
                if hopeless or left <= 0:
                    raise PromoteAbandoned("the hand-over is not possible", hopeless or dict(context.waiting))
                await context.open(plan, min(left, self._settings.call_timeout))
                await self._wait_image(
                    lambda: not self._context.plan(self._context.tps).obstacles, max(0.001, min(left, 1.0))
                )
        self._context.waiting = {}

    async def take_fence(self) -> None:
        """-> FENCED, for good unless it is abandoned: nothing is forwarded, nothing copied from the source."""
        context = self._context
        fresh = [tp for tp in context.tps if context.phase_of(tp) not in (Phase.FENCED, Phase.ALIGNED)]
        if fresh:
            known = await self._known(fresh)
            await context.controller.give_up_source(
                context.link, {tp: known.get(tp, KnownEnds()) for tp in fresh}
            )
        context.start_fence()
        context.tell()
        with context.timed("fence"):
            timeout = min(self._settings.fence_drain_timeout, context.fence_left())
            await context.within(
                self._ports.fencer.fence(context.tps, timeout=timeout), timeout, "fencing every sidecar"
            )

    async def choose_end(self) -> None:
        """Where the target takes over: durable, then told to whoever serves the followers."""
        context = self._context
        with context.timed("align"):
            open_ = [tp for tp in context.tps if self._end(tp) is None]
            if open_:
                await self._choose(open_)
        self.expect_ends({tp: end for tp in context.tps if (end := self._end(tp)) is not None})

    def _end(self, tp: TopicPartition) -> int | None:
        state = self._context.controller.image.partitions[self._context.link, tp]
        return None if state.failover is None else state.failover.end

    async def _choose(self, tps: Collection[TopicPartition]) -> None:
        context = self._context
        image = context.controller.image
        targets = {tp: tuple(context.plan([tp]).replicas.get(tp, ())) for tp in tps}
        untruncated = {
            tp: {replica for replica, _ in image.partitions[context.link, tp].untruncated} for tp in tps
        }
        before: Mapping[TopicPartition, Mapping[int, int]] = {}
        while True:
            timeout = min(context.fence_left(), self._settings.call_timeout)
            ends = await context.within(
                self._over.failover_ports.replicas.log_ends(targets, timeout=timeout),
                timeout,
                "asking the replicas",
            )
            verdict = choose_ends(targets, ends, untruncated)
            if not verdict.waiting and ends == before:
                # Behind the fence no further success is told to a client, so all of them are counted by now.
                known = await self._known(tps)
                chosen = {
                    tp: one._replace(
                        acked_end=known.get(tp, KnownEnds()).acked_end,
                        unasked=known.get(tp, KnownEnds()).unasked,
                    )
                    for tp, one in verdict.chosen.items()
                }
                await context.written(context.controller.choose_ends(context.link, chosen))
                context.waiting = {}
                return
            context.waiting = dict(verdict.waiting)
            context.tell()
            before = ends
            await asyncio.sleep(min(context.fence_left(), _AT_REST))

    async def _known(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, KnownEnds]:
        timeout = self._settings.call_timeout
        source = self._over.failover_ports.source
        return await self._context.within(
            source.known_ends(tps, timeout=timeout), timeout, "asking what was seen of the source"
        )

    async def _source_rests(self, tps: Collection[TopicPartition]) -> bool:
        """Always true: a failover asks the source nothing more."""
        if missing := [tp for tp in tps if tp not in self._baseline]:
            self._baseline = {
                **self._baseline,
                **{tp: SourceEnd(end, end, end) for tp in missing if (end := self._end(tp)) is not None},
            }
        return True

    async def source_now(
        self, tps: Collection[TopicPartition], timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        return {}
