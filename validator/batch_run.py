"""One run in mode `batches`, from the plan to the last Checked: survey, groups of ranges, tallies.

Each group of ranges is a Spark job; what it settles is told before the next begins, so a run that is cut off has moved the
watermarks as far as it came. A partition whose logs moved under the run (retention, a truncation) is surveyed again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from validator import messages
from validator.compare.logs import compare, task_count
from validator.compare.tally import ReplicaTally, whole_partition_finding
from validator.compare.verdict import RangeVerdict
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.ranges import Range, make_groups, make_ranges
from validator.read.session import reason_of
from validator.read.survey import Survey, survey
from wire.frames.types import TopicPartition
from wire.shown_id import listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_SECONDS = 0.5
SIGN_SECONDS = 5.0
"""At the latest a Progress is sent after this long, changed or not: somebody waits for a sign of life."""
ROUNDS = 4
"""Of surveys, for partitions that moved in the round before."""
RESULTS_PER_MESSAGE = 1000

Emit = Callable[[messages.Event], None]
_Result = TypeVar("_Result")


class Cancelled(Exception):
    """The run was cancelled."""


def endpoint_of(side: messages.Side, name: Literal["source", "target"]) -> ClusterEndpoint:
    return ClusterEndpoint(
        name, side.name, side.bootstrap, side.properties, side.cluster_id, side.topic_prefix
    )


class BatchRun:
    """A run; `execute` ends with exactly one Finished or Failed."""

    def __init__(
        self, spark: SparkSession, run: messages.Run, emit: Emit, cancelled: threading.Event
    ) -> None:
        self._spark = spark
        self._run = run
        self._emit = emit
        self._cancelled = cancelled
        self._source = endpoint_of(run.source, "source")
        self._target = endpoint_of(run.target, "target")
        self._began = time.monotonic()
        self._meter = _Meter(spark, run.id, emit, len(run.partitions))
        self._final: dict[tuple[str, int, int], messages.ReplicaResult] = {}
        self._failures: list[SideFailed] = []
        self._sums = [0, 0, 0]  # batches, records, bytes of this run

    def execute(self) -> None:
        """Never raises for what Spark or the clusters do."""
        with self._meter.ticking(self._cancelled):
            self._execute()

    def _execute(self) -> None:
        try:
            plans: Sequence[messages.PartitionPlan] = self._run.partitions
            for _ in range(ROUNDS):
                plans = self._round(plans)
                if not plans:
                    break
            else:
                names = listed(f"{plan.topic}-{plan.partition}" for plan in plans)
                self._failures.append(SideFailed("target", None, f"the logs of {names} kept moving away"))
            self._end()
        except Cancelled:
            self._emit(messages.Failed(id=self._run.id, reason="cancelled", cancelled=True))
        except SideFailed as error:
            self._emit(failed(self._run.id, error))
        except Exception as error:  # Spark's, py4j's; the reader's errors come back as their text
            if self._cancelled.is_set():
                self._emit(messages.Failed(id=self._run.id, reason="cancelled", cancelled=True))
                return
            side = SideFailed.parse(str(error))
            if side is not None:
                self._emit(failed(self._run.id, side))
            else:
                self._emit(
                    messages.Failed(id=self._run.id, reason=f"Spark failed: {reason_of(error)}", side="spark")
                )

    def _end(self) -> None:
        if self._failures:
            self._emit(failed(self._run.id, self._failures[0], others=len(self._failures) - 1))
            return
        results = self._final.values()
        self._emit(
            messages.Finished(
                id=self._run.id,
                partitions=len({(one.topic, one.partition) for one in results}),
                replicas=len(results),
                batches=self._sums[0],
                records=self._sums[1],
                bytes=self._sums[2],
                mismatches=sum(1 for one in results if one.findings_count),
                seconds=time.monotonic() - self._began,
            )
        )

    # --- a round --------------------------------------------------------------------------------------------

    def _round(self, plans: Sequence[messages.PartitionPlan]) -> list[messages.PartitionPlan]:
        """Survey and compare; returns what has to be planned anew."""
        found = self._wait(survey(self._source, self._target, plans, wait_s=self._run.wait_s))
        self._failures += found.failures
        self._tell([whole_partition_finding(*wrong) for wrong in found.wrong])
        tallies = self._tallies(plans, found)
        ranges = make_ranges(list(found.bounds.values()))
        groups = make_groups(ranges)
        counts = [task_count(self._spark, group, found.leaders) for group in groups]
        self._meter.expect(sum(counts))
        left = dict.fromkeys(found.bounds, 0)
        for one in ranges:
            left[_tp(one)] += 1
        for tp, count in left.items():
            if not count:
                self._settle(tallies[tp])
        for group, count in zip(groups, counts, strict=True):
            self._check_cancelled()
            with self._meter.job(count):
                verdicts = compare(self._spark, self._clusters, group, found.leaders)
            self._take(group, verdicts, tallies, left)
            self._meter.say()
        return _planned_anew(tallies)

    @property
    def _clusters(self) -> Mapping[str, ClusterEndpoint]:
        return {"source": self._source, "target": self._target}

    def _tallies(
        self, plans: Sequence[messages.PartitionPlan], found: Survey
    ) -> dict[TopicPartition, list[ReplicaTally]]:
        now_ms = int(time.time() * 1000)
        tallies: dict[TopicPartition, list[ReplicaTally]] = {}
        for plan in plans:
            tp = TopicPartition(plan.topic, plan.partition)
            bounds = found.bounds.get(tp)
            if bounds is None:
                continue
            tallies[tp] = [
                ReplicaTally(
                    plan,
                    plan.replicas[one.slot - 1],
                    bounds,
                    one,
                    now_ms,
                    lawful=self._lawful_before(tp, one.broker_id),
                )
                for one in bounds.replicas
            ]
        return tallies

    def _lawful_before(self, tp: TopicPartition, broker_id: int) -> dict[str, int]:
        """Of the rounds before: whoever is told adds what has come since, so a sum must not begin again."""
        before = self._final.get((tp.topic, tp.partition, broker_id))
        return {} if before is None else dict(before.lawful)

    def _take(
        self,
        group: Sequence[Range],
        verdicts: Mapping[int, RangeVerdict],
        tallies: Mapping[TopicPartition, list[ReplicaTally]],
        left: dict[TopicPartition, int],
    ) -> None:
        touched: dict[TopicPartition, None] = {}
        for one in group:
            tp = _tp(one)
            verdict = verdicts.get(one.spec.range_id)
            for tally in tallies[tp]:
                tally.take(one, verdict)
            if verdict is not None:
                self._meter.add_read(verdict)
            left[tp] -= 1
            touched[tp] = None
        interim: list[messages.ReplicaResult] = []
        for tp in touched:
            if not left[tp]:
                self._settle(tallies[tp])
            else:
                interim += [tally.result(self._seconds()) for tally in tallies[tp] if tally.tellable]
        self._tell(interim, final=False)

    def _settle(self, tallies: Sequence[ReplicaTally]) -> None:
        """All of a partition has been read. A replica whose late start could not be judged is told in the next round."""
        results = []
        for tally in tallies:
            tally.finish()
            self._sums[0] += tally.read_batches
            self._sums[1] += tally.read_records
            self._sums[2] += tally.read_bytes
            if tally.tellable:
                results.append(tally.result(self._seconds()))
        self._tell(results)

    def _tell(self, results: Sequence[messages.ReplicaResult], *, final: bool = True) -> None:
        if final:
            for one in results:
                self._final[one.topic, one.partition, one.broker_id] = one
            self._meter.partitions(len({key[:2] for key in self._final}))
        for first in range(0, len(results), RESULTS_PER_MESSAGE):
            self._emit(
                messages.Checked(id=self._run.id, results=tuple(results[first : first + RESULTS_PER_MESSAGE]))
            )

    # --- waiting --------------------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The result of `work`, or Cancelled."""

        async def watched() -> _Result:
            task = asyncio.ensure_future(work)
            try:
                while not task.done():
                    self._check_cancelled()
                    await asyncio.wait([task], timeout=0.1)
                return task.result()
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        return asyncio.run(watched())


def failed(run_id: str, error: SideFailed, *, others: int = 0) -> messages.Failed:
    """The message for a side that failed."""
    more = f" (and {others} more)" if others else ""
    return messages.Failed(id=run_id, reason=error.sentence + more, side=error.side, address=error.address)


def _tp(one: Range) -> TopicPartition:
    return TopicPartition(one.bounds.topic, one.bounds.partition)


def _planned_anew(tallies: Mapping[TopicPartition, list[ReplicaTally]]) -> list[messages.PartitionPlan]:
    """Plans that go on where a replica or its source had moved away."""
    plans = []
    for of_partition in tallies.values():
        replicas = tuple(
            messages.ReplicaPlan.model_validate(tally.result(0.0), from_attributes=True)
            if tally.tellable
            else tally.replica  # nothing was told of it: as if it had not been looked at
            for tally in of_partition
            if tally.moved and tally.first_finding is None
        )
        if replicas:
            plans.append(of_partition[0].plan.model_copy(update={"replicas": replicas}))
    return plans


class _Meter:
    """Progress of a run: tasks from Spark's status tracker, bytes from the verdicts."""

    def __init__(self, spark: SparkSession, run_id: str, emit: Emit, partitions: int) -> None:
        self._spark = spark
        self._run_id = run_id
        self._emit = emit
        self._tasks = self._tasks_done = self._base = 0
        self._bytes = self._batches = 0
        self._all_partitions = partitions
        self._partitions_done = 0
        self._jobs_before: set[int] | None = None  # of earlier groups; None while no job runs
        self._job_tasks = 0
        self._last: messages.Progress | None = None
        self._said_at = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def ticking(self, cancelled: threading.Event) -> Iterator[None]:
        """Around the whole run: says how it goes, now and then. A job that was submitted just when the run was cancelled
        is cancelled here: Spark cancels only jobs that it knows."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(PROGRESS_SECONDS):
                if cancelled.is_set() and self._jobs_before is not None:
                    self._spark.sparkContext.cancelJobGroup(self._run_id)
                self._look()
                self.say()

        ticker = threading.Thread(target=tick, name="progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()

    def expect(self, tasks: int) -> None:
        self._tasks += tasks
        self.say()

    def partitions(self, done: int) -> None:
        self._partitions_done = max(self._partitions_done, done)

    def add_read(self, verdict: RangeVerdict) -> None:
        self._bytes += verdict.source_bytes + sum(one.bytes for one in verdict.replicas.values())
        self._batches += verdict.source_batches + sum(one.batches for one in verdict.replicas.values())

    @contextmanager
    def job(self, tasks: int) -> Iterator[None]:
        """Around a Spark job of about so many tasks."""
        context = self._spark.sparkContext
        context.setJobGroup(self._run_id, "kafka-linker validation", True)
        self._job_tasks = tasks
        self._jobs_before = set(context.statusTracker().getJobIdsForGroup(self._run_id))
        try:
            yield
        finally:
            self._jobs_before = None
            self._base += tasks
            self._tasks_done = max(self._tasks_done, self._base)
            self.say()

    def _look(self) -> None:
        before = self._jobs_before
        if before is None:
            return
        tracker = self._spark.sparkContext.statusTracker()
        done = 0
        for job_id in set(tracker.getJobIdsForGroup(self._run_id)) - before:
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job is not None else ():
                stage = tracker.getStageInfo(stage_id)
                done += stage.numCompletedTasks if stage is not None else 0
        self._tasks_done = max(self._tasks_done, self._base + min(done, self._job_tasks))

    def say(self) -> None:
        """Tell it, if there is anything new."""
        progress = messages.Progress(
            id=self._run_id,
            tasks_done=self._tasks_done,
            tasks=self._tasks,
            bytes=self._bytes,
            batches=self._batches,
            partitions_done=self._partitions_done,
            partitions=self._all_partitions,
        )
        with self._lock:
            now = time.monotonic()
            if progress == self._last and now - self._said_at < SIGN_SECONDS:
                return
            self._last, self._said_at = progress, now
            self._emit(progress)
