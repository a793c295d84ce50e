"""The parts that the steps of a promote share: deadlines, retries, timings, reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TypeVar

from controller.errors import PromoteAbandoned, PromoteStuck
from controller.judge.hand_over import HandOverPlan, plan_hand_over
from controller.phases import LED_ELSEWHERE, PROMOTING, Phase
from controller.plan.taken_configs import configs_at_promote
from fleet.link_controller import LinkController
from fleet.stores.base import ControllerFenced, StoreError
from linker.promote.ports import PromotePorts, PromoteProgress, PromoteSettings, Report, SourceFence
from wire.backoff import Backoff
from wire.errors import BrokerError, LinkerError
from wire.frames.types import TopicId, TopicPartition
from wire.together import together

T = TypeVar("T")
logger = logging.getLogger(__name__)

# A port gets its deadline and normally says itself, in better words, that it was missed.
_SLACK = 0.25


class PromoteBatch:
    """One batch of partitions of one job."""

    final = Phase.PROMOTED

    def __init__(
        self,
        controller: LinkController,
        link: str,
        job_id: int,
        tps: Collection[TopicPartition],
        ports: PromotePorts,
        settings: PromoteSettings,
        report: Report | None,
    ) -> None:
        self.controller = controller
        self.link = link
        self.job_id = job_id
        self.tps = tuple(sorted(tps))
        self.ports = ports
        self.settings = settings
        self._report = report
        self.phases_ms: dict[str, float] = {}
        self.promoted: list[TopicPartition] = []
        self.abandoned: dict[TopicPartition, str] = {}
        self.fence_end = 0.0  # loop time; set when the fence is taken
        self._fenced_since: float | None = None
        #: No request to close the source is under way any more (source_fencing.close_source).
        self.close_is_over = False
        #: Findings that do not keep the batch from being promoted, and somebody should know.
        self.warnings: tuple[str, ...] = ()
        #: Records that replicas lack before their log start, by partition, as found last and accepted; and of the batches
        #: of this job before it.
        self.missing: Mapping[TopicPartition, int] = {}
        self.missing_before = 0
        # Why each partition waits, for reports and for the reason if the deadline passes.
        self.waiting: dict[TopicPartition, str] = {}

    @staticmethod
    def now() -> float:
        return asyncio.get_running_loop().time()

    def phase_of(self, tp: TopicPartition) -> Phase:
        return self.controller.image.partitions[self.link, tp].phase

    @property
    def accept_missing(self) -> int:
        """Records that may be left behind, as the operator has said of the whole job."""
        job = self.controller.image.jobs.get((self.link, self.job_id))
        return 0 if job is None else job.accept_missing

    @property
    def switch(self) -> bool:
        """Link brokers take the source over, and it follows the target from the hand-over on."""
        job = self.controller.image.jobs.get((self.link, self.job_id))
        return job is not None and job.switch

    @property
    def source_fence(self) -> SourceFence | None:
        """Keeps others from writing to the source."""
        return self.ports.switch if self.switch else self.ports.source_fence

    def topic_id(self, tp: TopicPartition) -> TopicId:
        return self.controller.image.mirrors[self.link, tp.topic].topic_id

    def plan(self, tps: Collection[TopicPartition]) -> HandOverPlan:
        """The partitions that could be handed over as the metadata image stands."""
        port = self.ports.hand_over
        mirrors = self.controller.image.mirrors
        targets = {
            tp: replicas[tp.partition]
            for tp in tps
            if len(replicas := mirrors[self.link, tp.topic].target_replicas) > tp.partition
        }
        return plan_hand_over(
            port.image(), {tp: self.topic_id(tp) for tp in tps}, port.link_brokers(), targets
        )

    async def open(self, plan: HandOverPlan, timeout: float) -> None:
        """Open what the plan found closed. A failure is no reason to give up: it is shown, and tried again."""
        if not plan.closed:
            return
        try:
            await self.within(
                self.ports.hand_over.open(plan.closed, timeout=timeout), timeout, "opening the reassignment"
            )
        except LinkerError as error:
            self.waiting |= {tp: f"{plan.obstacles[tp].reason}; {full_reason(error)}" for tp in plan.closed}
            self.tell()

    def check_failures(self, tps: Collection[TopicPartition]) -> None:
        """A mirror that broke meanwhile (source re-created, retention outran it) must not be promoted."""
        states = (self.controller.image.partitions[self.link, tp] for tp in tps)
        failed = {state.tp: state.failure for state in states if state.failure is not None}
        if failed:
            raise PromoteAbandoned("the mirror failed", failed)

    # Deadlines.

    def start_fence(self) -> None:
        self._fenced_since = self.now()
        self.fence_end = self._fenced_since + self.settings.fence_deadline

    @property
    def fenced(self) -> bool:
        return self._fenced_since is not None

    def fence_left(self, last: LinkerError | None = None) -> float:
        """Seconds until the fence has to be given up; raises with what was waited for when they are over. `last` is
        a question to the source that the end of that time has cut short: told along.
        """
        left = self.fence_end - self.now()
        if left <= 0:
            reason = f"not ready for the hand-over within {self.settings.fence_deadline:g} s of the fence"
            if last is not None:
                reason += f" ({full_reason(last)})"
            raise PromoteAbandoned(reason, dict(self.waiting)) from last
        return left

    async def within(self, call: Awaitable[T], timeout: float, what: str) -> T:
        """Hold a port to its deadline even if it does not itself."""
        try:
            async with asyncio.timeout(timeout + _SLACK):
                return await call
        except TimeoutError as error:
            raise PromoteAbandoned(f"{what} took longer than {timeout:.3g} s") from error

    async def written(self, commit: Awaitable[None]) -> None:
        """A commit behind the fence. A store that does not answer must not hold producers longer than the fence may
        last: nothing was sent yet, so whether it was written in the end makes no difference to what is safe.
        """
        timeout = self.fence_left()
        await self.within(commit, timeout, "writing the state")

    async def insist(self, call: Callable[[float], Awaitable[object]], what: str) -> None:
        """Repeat a step that may not be skipped; PromoteStuck leaves the phase for resume()."""
        deadline = self.now() + self.settings.insist_timeout
        backoff = Backoff(self.settings.backoff, self.settings.max_backoff)
        while True:
            try:
                await self.within(call(self.settings.call_timeout), self.settings.call_timeout, what)
                return
            except LinkerError as error:
                if self.now() >= deadline:
                    raise PromoteStuck(f"{what}: {error}") from error
                logger.warning(
                    "promote %d of link %s: %s: %s; tried again", self.job_id, self.link, what, error
                )
                self.tell(f"{what}: {error}")
            await asyncio.sleep(backoff.next())

    # Reports.

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = self.now()
        try:
            yield
        finally:
            self.phases_ms[name] = self.phases_ms.get(name, 0.0) + (self.now() - started) * 1000

    def tell(self, waiting_for: str | None = None) -> None:
        """Report where the batch stands. A report that fails is logged: it must not decide over a promote."""
        if self._report is None:
            return
        phases = {tp: self.phase_of(tp) for tp in self.tps}
        order = list(Phase)
        progress = PromoteProgress(
            job_id=self.job_id,
            phase=min(phases.values(), key=order.index),
            partitions=phases,
            lag=self.ports.progress.lag(self.tps),
            phases_ms=dict(self.phases_ms),
            waiting_for=waiting_for or describe(self.waiting),
        )
        try:
            self._report(progress)
        except Exception:
            logger.exception("promote %d of link %s: the report callback failed", self.job_id, self.link)

    # Ways out.

    async def go_back(self, reasons: Mapping[TopicPartition, str]) -> None:
        """Unfence and return to ACTIVE. Only for partitions that certainly were not and cannot be handed
        over.

        Unfence first: the hold ends sooner, and it ends even if the store is broken. A crash in between
        leaves a phase from which resume() comes to the same end. Before it only comes a source that refuses writes:
        what is held would be refused too.
        """
        tps = sorted(reasons)
        await self._open_source(tps)
        await self.insist(
            lambda timeout: self.ports.fencer.unfence(tps, timeout=timeout), "releasing the fence"
        )
        self._stop_fence_clock()
        await self.controller.refresh()
        held = [tp for tp in tps if self.phase_of(tp) in PROMOTING]
        if held:
            await self.controller.advance(self.link, held, Phase.ACTIVE, reasons=reasons)
        self.abandoned.update(reasons)
        self.waiting = {tp: why for tp, why in self.waiting.items() if tp not in reasons}
        self.tell()

    async def _open_source(self, tps: Collection[TopicPartition]) -> None:
        """Undo `source_fencing.close_source`. PromoteStuck if the source is there and refuses that."""
        job = self.controller.image.jobs.get((self.link, self.job_id))
        topics = sorted({tp.topic for tp in tps}.intersection(() if job is None else job.source_fenced))
        if not topics or (port := self.source_fence) is None:
            return
        attempts = 0

        async def opened(timeout: float) -> None:
            nonlocal attempts
            attempts += 1
            await port.open(topics, timeout=timeout)

        try:
            await self.insist(opened, "letting the source accept writes again")
        except PromoteStuck as error:
            if isinstance(error.__cause__, BrokerError):
                raise
            # It cannot be reached, so nothing can be forwarded to it: a debt, see source_fence.
            logger.warning("promote %d of link %s: %s; tried again later", self.job_id, self.link, error)
            return
        if not self.close_is_over or attempts > 1:
            # It may be closed after this, or opened once more, into the next promote: a debt, until neither is possible.
            return
        try:
            await self.controller.note_source_fence(self.link, self.job_id, opened=topics)
        except ControllerFenced:
            raise
        except StoreError as error:
            # Held writes do not wait for the store. A note that is left there is a debt, settled by opening once more.
            logger.warning("promote %d of link %s: %s", self.job_id, self.link, error)

    async def release(self, tps: Collection[TopicPartition]) -> None:
        """The metadata log has the hand-over: clients first, then the store. A crash in between is
        settled again.
        """
        chosen = sorted(tps)
        answered = self.insist(
            lambda timeout: self.ports.fencer.handed_over(chosen, timeout=timeout), "answering held produces"
        )
        # Clients of the cluster that is left wait for no more than those of the other one.
        await together([answered, self._source_handed_over(chosen)])
        self._stop_fence_clock()
        await self.controller.refresh()
        fresh = [tp for tp in chosen if self.phase_of(tp) is Phase.VALIDATED]
        if fresh:
            await self.controller.advance(self.link, fresh, Phase.HANDED_OVER)
        self.waiting = {tp: why for tp, why in self.waiting.items() if tp not in chosen}
        self.tell()

    async def _source_handed_over(self, tps: Collection[TopicPartition]) -> None:
        """A failure is no reason to stop: it is done again once the state says it (linker.links.switching)."""
        if not self.switch or (port := self.ports.switch) is None:
            return
        try:
            async with asyncio.timeout(self.settings.call_timeout):
                await port.handed_over(tps)
        except ControllerFenced:
            raise
        except (LinkerError, TimeoutError) as error:
            logger.warning("promote %d of link %s: %s", self.job_id, self.link, full_reason(error))

    async def finish(self) -> None:
        """HANDED_OVER -> PROMOTED (or FAILED_OVER): what mirroring forced on a topic is put back once all of the topic
        is over.
        """
        await self.controller.refresh()
        over = [tp for tp in self.tps if self.phase_of(tp) is Phase.HANDED_OVER]
        if not over:
            return
        with self.timed("finish"):
            for topic in dict.fromkeys(tp.topic for tp in over):
                states = self.controller.image.topic_partitions(self.link, topic)
                mirror = self.controller.image.mirrors[self.link, topic]
                if mirror.restore_configs and all(state.phase in LED_ELSEWHERE for state in states):
                    await self._restore(topic, configs_at_promote(self.controller.image, mirror))
            await self.before_the_end(over)
            await self.controller.advance(self.link, over, self.final, reasons=self.final_reasons(over))
        self.promoted += over
        self.tell()

    async def breathe(self) -> None:
        """Before the next batch is held: producers get their answers, and as long a time as they were held for.

        A request has partitions of several batches, and a connection is answered in order. So who is not let go in
        between waits through all the batches that follow each other. Nothing rests on it: what goes wrong here is
        said, and the promote goes on.
        """
        self.tell("producers go on for a moment")
        timeout = self.settings.answered_timeout
        try:
            await self.within(
                self.ports.fencer.answered(self.promoted, timeout=timeout), timeout, "answering what was held"
            )
        except LinkerError as error:
            logger.info("promote %d of link %s: %s", self.job_id, self.link, full_reason(error))
        held = self.phases_ms.get("fenced_total", 0.0) / 1000
        await asyncio.sleep(max(self.settings.breather, held))

    async def before_the_end(self, tps: Collection[TopicPartition]) -> None:
        """Further steps once real brokers lead; none for a promote."""

    def final_reasons(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, str] | None:
        return None

    async def _restore(self, topic: str, configs: Mapping[str, str | None]) -> None:
        async def restore(timeout: float) -> None:
            await self.controller.prove_newest()
            await self.ports.configs.restore(topic, configs, timeout=timeout)

        await self.insist(restore, f"putting the configs of topic {topic} back")

    def _stop_fence_clock(self) -> None:
        """The longest hold of any partition of the batch is what is shown."""
        if self._fenced_since is not None:
            self.phases_ms["fenced_total"] = (self.now() - self._fenced_since) * 1000


def describe(reasons: Mapping[TopicPartition, str], most: int = 5) -> str | None:
    """`t-0: why; t-1: why and 10 more`."""
    if not reasons:
        return None
    shown = [f"{tp}: {why}" for tp, why in sorted(reasons.items())[:most]]
    more = len(reasons) - len(shown)
    return "; ".join(shown) + (f" and {more} more partitions" if more else "")


def full_reason(error: BaseException) -> str:
    """One line out of whatever ended a batch."""
    if isinstance(error, PromoteAbandoned):
        details = describe(error.partitions)
        return error.reason if details is None else f"{error.reason}: {details}"
    return str(error) or repr(error)
