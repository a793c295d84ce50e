"""LinkValidator: the validation of one link, on the link controller only.

Runs that somebody asked for, continuous runs (durable as options of the link, so the next link controller goes on with
them from the watermarks), the runs of promotes, and the last one after each, which closes its evidence.
controller.decide.validations decides about results; `turns` decides which run has the validator.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from admin.validation_models import ValidationState
from controller.phases import ENDED
from controller.proof import EvidenceStatus
from controller.state import PromoteJob
from fleet.link_controller import wall_clock_ms
from linker.links.configs import topic_configs
from linker.links.copies import CopyView
from linker.links.link_part import LinkContext
from linker.validation.errors import ValidatorCancelled
from linker.validation.lost_copies import LostCopies
from linker.validation.planner import TopicRules, ValidationPlan, plan
from linker.validation.result_book import ResultBook
from linker.validation.runs import Recorder, RunStatus, Totals
from linker.validation.turns import Urgency
from linker.validation.validator import Validator
from validator import messages as m
from validator.mode import Mode
from wire.client.waiting import until_set
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

INTERVAL_OPTION = "validation_interval_ms"
_CALL_TIMEOUT = 15.0
_KEPT_RUNS = 20
_RETRY_FIRST, _RETRY_MAX = 1.0, 60.0
_BUG = "internal error; see the sidecar's log"
_WAIT_AFTER_HAND_OVER = 60.0  # for replicas that are not in the ISR yet


class NotRunning(LinkerError):
    """This sidecar does not decide, or the link is not running."""


async def _unknown() -> tuple[str | None, str | None]:
    return None, None


WritesEvidence = Callable[["LinkValidator", PromoteJob], Coroutine[Any, Any, None]]
"""Proves what a promote has handed over, and writes its evidence (`evidence.close_evidence`)."""


class LinkValidator:
    """One per link. `run` it while this sidecar is the link controller."""

    def __init__(
        self,
        context: LinkContext,
        validator: Validator,
        source_side: Callable[[], m.Side],
        copy: Callable[[TopicPartition], CopyView | None],
        write_evidence: WritesEvidence,
    ) -> None:
        self.link, self.controller, self.target = context.link, context.controller, context.target
        self.link_brokers = context.link_brokers
        self.validator = validator
        self.source_side = source_side
        self.copy = copy
        self.totals = Totals()
        self.book = ResultBook(context.link, context.controller, copy)
        self.lost_copies = LostCopies(context, copy, self.book)
        #: Why the last run of the continuous validation failed; None if it did not.
        self.trouble: str | None = None
        self.runs: deque[RunStatus] = deque()
        self._write_evidence = write_evidence
        #: Where replicas start that start later than the source, as seen last.
        self.log_starts: Callable[[], Mapping[TopicPartition, Mapping[int, int]]] = dict
        #: Kafka's versions at both sides, for the evidence.
        self.versions: Callable[[], Awaitable[tuple[str | None, str | None]]] = _unknown
        self._numbers = itertools.count(1)
        self._session = secrets.token_hex(3)
        #: Woken by a change of the link's options.
        self.continuous = PeriodicTask(
            "continuous validation",
            self._continue,
            0.0,
            failed=self._not_continued,
            survives=Exception,
            pause=self._rest,
        )
        self._moved = asyncio.Event()
        self._group: TaskGroup | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with TaskGroup() as group:
                self._group = group
                group.create_task(self.lost_copies.run(), name=f"{self.link}: watermarks")
                group.create_task(self.continuous.run(), name=f"{self.link}: continuous validation")
                for (link, _), job in sorted(self.controller.image.jobs.items()):
                    if link == self.link:
                        self.close_evidence(job)
        finally:
            self._group = None
            self.validator.turns.speak_up(self.link)
            for one in self.runs:
                if not one.state.final:
                    one.end(ValidationState.CANCELLED, "this sidecar does not decide any more")

    @property
    def interval(self) -> float | None:
        """Seconds between continuous runs; None: it does not run by itself."""
        link = self.controller.image.links.get(self.link)
        value = None if link is None else link.options.get(INTERVAL_OPTION)
        return value / 1000 if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def options_changed(self) -> None:
        self.continuous.wake()

    def on_target_change(self) -> None:
        """From the metadata log's subscription; takes note and returns."""
        self.lost_copies.look()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        group = self._group
        if group is None:
            work.close()
            raise NotRunning(f"link {self.link} does not run here")

        async def caught() -> None:
            try:
                await work
            except Exception:
                # A bug in one run must not end the others, nor the link.
                log.exception("link %s: %s hit a bug", self.link, name)
            finally:
                self._tasks.pop(name, None)

        self._tasks[name] = group.create_task(caught(), name=f"{self.link}: {name}")

    # --- one run -------------------------------------------------------------------------------------------------

    def begin(self, urgency: Urgency, topics: Sequence[str], mode: Mode = Mode.BATCHES) -> RunStatus:
        """A run that is shown from now on."""
        number = next(self._numbers)
        kind = urgency.name.lower()
        status = RunStatus(f"{self.link}-v{self._session}-{number}", kind, mode, tuple(topics))
        self.runs.append(status)
        over = [one for one in self.runs if one.state.final][: max(0, len(self.runs) - _KEPT_RUNS)]
        for one in over:
            self.runs.remove(one)
        return status

    async def check(
        self,
        status: RunStatus,
        urgency: Urgency,
        tps: Callable[[], Collection[TopicPartition]],
        *,
        only_behind: bool,
        wait: float = 30.0,
    ) -> m.Finished | None:
        """Carry a run out; None if there was nothing to do. Its end is in `status` whatever happens."""

        made: list[Recorder] = []

        async def prepare() -> m.Run | None:
            status.state = ValidationState.RUNNING
            found = await self.plan(tps(), status.mode, only_behind=only_behind)
            status.left_out = dict(found.left_out)
            if not found.partitions:
                return None
            self.book.look([TopicPartition(one.topic, one.partition) for one in found.partitions])
            made[:] = [
                Recorder(
                    self.controller,
                    self.link,
                    found,
                    status,
                    self.totals,
                    self.book.note,
                    self._source_end,
                    self.lost_copies.lost,
                )
            ]
            return m.Run(
                id=f"{status.id}-{secrets.token_hex(2)}",  # planned anew, it is another run to the process
                mode=status.mode,
                source=self.source_side(),
                target=self.validator.target(),
                partitions=found.partitions,
                wait_s=wait,
            )

        async def seen(event: m.Progress | m.Checked) -> None:
            await made[0].seen(event)
            self._moved.set()

        self.totals.runs += 1
        try:
            finished = await self.validator.check(urgency, prepare, seen)
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError | ValidatorCancelled)
            status.end(
                ValidationState.CANCELLED if cancelled else ValidationState.FAILED,
                str(error) or type(error).__name__,
            )
            if not cancelled:
                self.totals.failed_runs += 1
            raise
        finally:
            self._moved.set()
        status.end(ValidationState.DONE, None if finished is not None else "nothing to validate")
        return finished

    async def plan(
        self, tps: Collection[TopicPartition], mode: Mode = Mode.BATCHES, *, only_behind: bool = False
    ) -> ValidationPlan:
        """The ranges that are due now. LinkerError if the target does not say what is configured there."""
        now = wall_clock_ms()
        await self.lost_copies.forget()
        image = self.controller.image
        topics = sorted({tp.topic for tp in tps if (self.link, tp.topic) in image.mirrors})
        rules: Mapping[str, TopicRules] = {}
        if topics:
            configs = await topic_configs(self.target.cluster, topics, timeout=_CALL_TIMEOUT)
            rules = {topic: TopicRules.of(found.effective) for topic, found in configs.items()}
        return replace(self._plan(tps, rules, mode, only_behind=only_behind), at=now)

    def _plan(
        self,
        tps: Collection[TopicPartition],
        rules: Mapping[str, TopicRules],
        mode: Mode = Mode.BATCHES,
        *,
        only_behind: bool,
    ) -> ValidationPlan:
        ends = {tp: end for tp in tps if (end := self._source_end(tp)) is not None} if only_behind else None
        return plan(
            self.controller.image,
            self.target.image,
            self.link,
            tps,
            self.link_brokers(),
            rules,
            mode=mode,
            source_ends=ends,
            log_starts=self.log_starts(),
        )

    def _source_end(self, tp: TopicPartition) -> int | None:
        copy = self.copy(tp)
        return copy.high_watermark if copy is not None and copy.loaded else None

    # --- what somebody asks for ------------------------------------------------------------------------------------

    def start(self, topics: Sequence[str], mode: Mode) -> RunStatus:
        """A run in the background over these topics; all of the link's that are none if there are none."""
        status = self.begin(Urgency.ONCE, topics, mode)
        try:
            self._spawn(status.id, self._once(status))
        except NotRunning:
            self.runs.remove(status)
            raise
        return status

    async def _once(self, status: RunStatus) -> None:
        wanted = set(status.topics)
        try:
            await self.check(
                status,
                Urgency.ONCE,
                lambda: [
                    state.tp
                    for state in self.controller.image.link_partitions(self.link)
                    if state.topic in wanted
                ],
                only_behind=False,
            )
        except LinkerError as error:
            log.warning("link %s: validation %s: %s", self.link, status.id, error)

    def cancel(self, name: str) -> RunStatus | None:
        """End a run that was asked for; what it has proved stays. None: there is none of that id."""
        status = next((one for one in self.runs if one.id == name), None)
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
        return status

    # --- continuous ----------------------------------------------------------------------------------------------

    async def _continue(self) -> None:
        """If the link's options say so. A run that finds nothing new is not shown."""
        self.continuous.interval = self.interval or 0.0
        if self.interval is not None:
            await self.lost_copies.forget()  # where nothing is new no run would look
            if self._due():
                status = self.begin(Urgency.CONTINUOUS, ())
                await self.check(status, Urgency.CONTINUOUS, self._open, only_behind=True)
        self.trouble = None

    def _not_continued(self, error: Exception) -> None:
        if not isinstance(error, LinkerError):
            # A bug in one run must not end the others, nor the link.
            log.exception("link %s: continuous validation hit a bug", self.link)
            self.trouble = _BUG
            return
        if self.trouble != str(error):
            log.warning("link %s: continuous validation failed: %s; tried again", self.link, error)
        self.trouble = str(error)

    def _rest(self, task: PeriodicTask) -> float | None:
        if not task.failures:
            return self.interval
        return _RETRY_MAX if self.trouble == _BUG else task.backoff(_RETRY_FIRST, _RETRY_MAX)

    def _open(self) -> list[TopicPartition]:
        return [
            state.tp
            for state in self.controller.image.link_partitions(self.link)
            if state.phase not in ENDED and state.session_epoch >= 0
        ]

    def _due(self) -> bool:
        """Whether the process is worth being woken up."""
        return bool(self._plan(self._open(), {}, only_behind=True).partitions)

    # --- for promotes --------------------------------------------------------------------------------------------

    async def moved(self, timeout: float) -> None:
        """Until a run has got further, or ended, or the time is over."""
        await until_set(self._moved, timeout)

    def close_evidence(self, job: PromoteJob) -> None:
        """See to the last run of a promote, in the background, if it owes one."""
        if job.evidence is not None and job.evidence.status is EvidenceStatus.PENDING:
            name = f"evidence of promote {job.id}"
            if name not in self._tasks and self._group is not None:
                self._spawn(name, self._write_evidence(self, job))

    async def after_hand_over(self, status: RunStatus, tps: Sequence[TopicPartition]) -> m.Finished | None:
        """The run with exact ends."""
        return await self.check(
            status, Urgency.EVIDENCE, lambda: tps, only_behind=False, wait=_WAIT_AFTER_HAND_OVER
        )
