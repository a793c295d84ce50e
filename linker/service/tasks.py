"""Periodic tasks as shown to people: in the status, and as checks of the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from admin.models import Check, CheckResult, PeriodicState, TaskStatus
from linker.links.runtime import LinkRuntime
from linker.running import Running
from wire.periodic_task import PeriodicTask, TaskState


def tasks_of(sidecar: Running, links: Iterable[LinkRuntime]) -> list[TaskStatus]:
    """Those of these links and those of the sidecar itself. Tasks that another sidecar does are left out."""
    now = datetime.now(UTC)
    found: list[tuple[PeriodicTask, str | None]] = [(task, None) for task in sidecar.periodic_tasks()]
    found += [(task, runtime.name) for runtime in links for task in runtime.periodic_tasks]
    return [task_status(task, link, now) for task, link in found if task.state is not TaskState.IDLE]


def task_status(task: PeriodicTask, link: str | None, now: datetime) -> TaskStatus:
    def moment(of: float | None) -> datetime | None:
        ago = task.ago(of)
        return None if ago is None else now - timedelta(seconds=ago)

    return TaskStatus(
        name=task.name,
        link=link,
        state=PeriodicState(task.state.value),
        interval_ms=round(task.interval * 1000),
        last_success=moment(task.last_success),
        failing_since=moment(task.failing_since),
        reason=task.reason,
        well=task.well,
    )


def task_checks(tasks: Iterable[TaskStatus]) -> list[Check]:
    return [
        Check(name="periodic task", result=CheckResult.WARN, detail=task.trouble)
        for task in tasks
        if not task.well
    ]
