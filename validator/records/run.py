"""One run in mode `records`: the groups of partitions of records.py one after the other, told as a run of batches is."""

from __future__ import annotations

import time
from collections.abc import Sequence

from validator.batch_run import BatchRun
from validator.messages import PartitionPlan
from validator.records.records import check_records, groups


class RecordRun(BatchRun):
    """A run; `execute` ends with exactly one Finished or Failed."""

    def _round(self, plans: Sequence[PartitionPlan]) -> list[PartitionPlan]:
        """Compare all; what moves meanwhile is planned anew inside of `check_records`."""
        jobs = list(groups(plans))
        tasks = [sum(1 + len(plan.replicas) for plan in job) for job in jobs]
        self._meter.expect(sum(tasks))
        for job, count in zip(jobs, tasks, strict=True):
            self._check_cancelled()
            with self._meter.job(count):
                checked = check_records(
                    self._spark,
                    self._source,
                    self._target,
                    job,
                    wait_s=self._run.wait_s,
                    now_ms=int(time.time() * 1000),
                )
            self._failures += checked.failures
            self._sums[1] += checked.read_records
            self._sums[2] += checked.read_bytes
            self._tell(checked.results)
        return []
