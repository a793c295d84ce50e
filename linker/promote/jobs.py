"""Runs the promotes of one link one after the other, and settles the last run's first.

The link controller's sidecar runs them. Every durable job is either run here by one task, or settled: by `settle` when
the term as link controller begins, by `watch` when it shows itself later. Never both.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from controller.phases import ENDED
from controller.state import PromoteJob, Record
from fetcher.link_fetcher import LinkFetcher
from fleet.link_controller import LinkController
from linker.links.bring_up import BringUp
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.failover import FailoverPorts
from linker.promote.ports import PromotePorts, PromoteProgress, PromoteSettings
from linker.validation.runner import LinkValidator
from wire.errors import LinkerError

log = logging.getLogger(__name__)

_STUCK_PAUSE = 2.0
_SETTLE_TIMEOUT = 20.0
_LOST = "not begun: the state store did not say in time that it was written down"


class LinkPromotes:
    """The jobs that run, and what the status says of them. The ports raise LinkerError where this sidecar is not the
    link controller."""

    def __init__(
        self,
        name: str,
        controller: LinkController,
        ports: Callable[[], PromotePorts],
        failover_ports: Callable[[], FailoverPorts],
        fetcher: LinkFetcher,
        bring_up: BringUp,
        validation: LinkValidator,
        before_promote: Callable[[], Awaitable[None]],
        *,
        source_known: asyncio.Event,
        source_hopeless: bool,
    ) -> None:
        self._name = name
        self._controller = controller
        self._ports = ports
        self._failover_ports = failover_ports
        self._fetcher = fetcher
        self._bring_up = bring_up
        self._validation = validation
        self._before_promote = before_promote
        self._source_known = source_known
        self._source_hopeless = source_hopeless
        #: The newest report of each running job, for status and API.
        self.progress: dict[int, PromoteProgress] = {}
        self._settled = asyncio.Event()
        # Held by the promote that runs: settling a stuck one must not look at another in the middle of its hand-over.
        self._promoting = asyncio.Lock()
        # The task that runs each job here. One that is written down as running and is not among them nobody runs.
        self._runs: dict[int, asyncio.Task[None]] = {}
        # From the writing down of a job to its start: who looks for jobs that nobody runs must not find it in between.
        self._beginning = asyncio.Lock()
        # A job may be written down that nobody runs; until that was looked at.
        self._unsure = asyncio.Event()

    def begin(self) -> None:
        """This sidecar is the link controller now: what was running is to be settled first."""
        self._settled.clear()
        self._unsure.clear()

    @property
    def settling(self) -> bool:
        """Whether promotes of the last run are still being settled; no other may begin before that."""
        return not self._settled.is_set()

    # --- jobs that are written down and that nobody runs ---------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def beginning(self) -> AsyncIterator[None]:
        """Persist and start a job inside of this. After any failure, a cancellation too, the commit may have been
        carried out, or may be yet, and nobody would run the job, nor let go of its topics."""
        async with self._beginning:
            try:
                yield
            except BaseException:
                self._unsure.set()
                raise

    def started(self, job_id: int, task: asyncio.Task[None]) -> None:
        """Note the task that runs a job. The caller makes the task and tells it here without a wait after the job was
        persisted."""
        self._runs = {known: run for known, run in self._runs.items() if not run.done()}
        self._runs[job_id] = task

    def runs(self, job_id: int) -> bool:
        """Whether a job is run here."""
        return job_id in self._runs and not self._runs[job_id].done()

    @property
    def running(self) -> bool:
        return any(not run.done() for run in self._runs.values())

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller. Where the state was read anew, a commit was in doubt: it may be in it."""
        if not records:
            self._unsure.set()

    @property
    def unsure(self) -> bool:
        """Whether a job may be written down that nobody runs. It is looked at while this sidecar is the link controller."""
        return self._unsure.is_set()

    async def watch(self) -> None:
        """End jobs that are written down and that nobody runs: nothing of them was begun. Until cancelled.

        They are not run late either: whoever asked for them was told that it is not known whether they were begun, and
        what was looked at before need not be so any more.
        """
        while True:
            await self._unsure.wait()
            await self._settled.wait()
            try:
                await self._settle_lost()
            except (LinkerError, TimeoutError) as error:
                log.warning(
                    "link %s: looking for promotes that nobody runs failed: %s; tried again in %g s",
                    self._name,
                    error,
                    _STUCK_PAUSE,
                )
                await asyncio.sleep(_STUCK_PAUSE)
            except Exception:
                log.exception(
                    "link %s: settling a promote that nobody runs hit a bug; tried again", self._name
                )
                await asyncio.sleep(_STUCK_PAUSE)

    async def _settle_lost(self) -> None:
        async with self._beginning:
            await self._controller.refresh()
            lost = self._left()
            if lost:
                outcomes = await self._driver().resume({job.id for job in lost}, why=_LOST)
                for outcome in outcomes:
                    self._log_settled(outcome)
                    self._prove(outcome.job_id)
            self._unsure.clear()
        for topic in dict.fromkeys(topic for job in lost for topic in job.topics):
            self._bring_up.ask(topic)

    def _left(self) -> list[PromoteJob]:
        return [job for job in self._controller.image.running_jobs(self._name) if not self.runs(job.id)]

    # --- what the last run left ----------------------------------------------------------------------------------------

    def _driver(self, settings: PromoteSettings | None = None) -> PromoteDriver:
        failover_ports = self._failover_ports()
        return PromoteDriver(
            self._controller, self._name, self._ports(), settings, self._report, failover_ports
        )

    def _report(self, progress: PromoteProgress) -> None:
        self.progress[progress.job_id] = progress

    async def settle(self) -> None:
        """Settle the jobs that a crash, or another link controller, left behind. Their partitions stay fenced until
        then."""
        while True:
            try:
                # Partitions that were certainly not handed over do not have to wait for anything.
                await self._driver().retreat()
                left = self._left()
                if not left:
                    break
                ids = {job.id for job in left}
                if all(job.failover for job in left):
                    # Its source is dead, and it does not need what only a source could tell.
                    for outcome in await self._driver().resume(ids):
                        self._log_settled(outcome)
                    break
                await self.wait_for_source()
                if self._source_known.is_set():
                    await self._wait_for_mirrors()
                outcomes = await self._driver().resume(ids)
            except LinkerError as error:
                log.warning("link %s: a promote cannot be settled yet: %s; tried again", self._name, error)
                await asyncio.sleep(_STUCK_PAUSE)
                continue
            for outcome in outcomes:
                self._log_settled(outcome)
                self._prove(outcome.job_id)
            break
        self.progress.clear()
        self._release_promoted()
        self._settled.set()
        for mirror in self._controller.image.link_mirrors(self._name):
            self._bring_up.ask(mirror.topic)  # mirrors that a promote holds were not looked at until now

    async def wait_for_source(self) -> None:
        """For a while: what was handed over does not need the source any more, which may be gone for good."""
        if self._source_hopeless:
            return
        try:
            async with asyncio.timeout(_SETTLE_TIMEOUT):
                await self._source_known.wait()
        except TimeoutError:
            log.warning("link %s: the source is away; settling promotes all the same", self._name)

    async def _wait_for_mirrors(self) -> None:
        """Positions of followers are needed; but one mirror in trouble must not keep the others fenced."""
        try:
            async with asyncio.timeout(_SETTLE_TIMEOUT):
                await self._bring_up.settled.wait()
        except TimeoutError:
            log.warning("link %s: some mirrors are not complete; settling promotes all the same", self._name)

    def _log_settled(self, outcome: PromoteOutcome) -> None:
        log.info(
            "link %s: promote %d settled: %d partitions promoted, %d active again",
            self._name,
            outcome.job_id,
            len(outcome.promoted),
            len(outcome.abandoned),
        )

    async def run(self, job: PromoteJob, settings: PromoteSettings) -> None:
        """Run a job of the link controller to its end. A job that is stuck is settled again and again until it has
        ended."""
        async with self._promoting:
            # A job that was settled is not run: this sidecar may have become the link controller while the job was
            # written down, and have ended it by now.
            await self._settled.wait()
            if job.id not in {left.id for left in self._controller.image.running_jobs(self._name)}:
                log.warning("link %s: promote %d has ended before it was begun", self._name, job.id)
                return
            driver = self._driver(settings)
            try:
                await self._before_promote()
                outcome = await driver.run(job)
            except Exception as error:
                if isinstance(error, LinkerError):
                    log.warning("link %s: promote %d is stuck: %s; settling it", self._name, job.id, error)
                else:
                    log.exception("link %s: promote %d hit a bug; settling it", self._name, job.id)
                await self._settle_stuck(driver, job.id, f"not begun: {error}")
            else:
                log.info(
                    "link %s: promote %d ended: %d partitions promoted, %d abandoned%s; ms by phase %s",
                    self._name,
                    job.id,
                    len(outcome.promoted),
                    len(outcome.abandoned),
                    f" ({outcome.reason})" if outcome.reason else "",
                    {phase: round(ms) for phase, ms in outcome.phases_ms.items()},
                )
            finally:
                self._validation.validator.turns.speak_up(self._name)
        self.progress.pop(job.id, None)
        self._release_promoted()
        self._prove(job.id)
        for topic in job.topics:
            self._bring_up.ask(topic)  # changes at the target were not followed meanwhile

    def _prove(self, job_id: int) -> None:
        """Promoted partitions are to be compared to their exact ends."""
        job = self._controller.image.jobs.get((self._name, job_id))
        if job is not None:
            self._validation.close_evidence(job)

    async def _settle_stuck(self, driver: PromoteDriver, job_id: int, why: str) -> None:
        while any(job.id == job_id for job in self._controller.image.running_jobs(self._name)):
            await asyncio.sleep(_STUCK_PAUSE)
            try:
                for outcome in await driver.resume({job_id}, why=why):
                    self._log_settled(outcome)
            except LinkerError as error:
                log.warning("link %s: a promote cannot be settled yet: %s; tried again", self._name, error)
            except Exception:
                # Else it would be held by nobody, for as long as this sidecar is the link controller.
                log.exception("link %s: settling promote %d hit a bug; tried again", self._name, job_id)

    def _release_promoted(self) -> None:
        """Promoted partitions need no source any more. Clients that still ask are told the leader from the image."""
        for state in self._controller.image.link_partitions(self._name):
            if state.phase in ENDED:
                self._fetcher.remove([state.tp])
