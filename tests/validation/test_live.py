"""What a terminal shows while a run is followed."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console

from admin.client import AdminError
from admin.validation_models import ValidationProgress, ValidationRun, ValidationState
from linker.cli.follow import Screen
from linker.cli.validate import drawn

RUN = ValidationRun(
    id="east-v1",
    link="east",
    kind="once",
    mode="batches",
    state=ValidationState.RUNNING,
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
    progress=ValidationProgress(
        tasks_done=2, tasks=4, partitions_done=1, partitions=2, bytes=2048, batches=3
    ),
)


def shown(view: Screen[ValidationRun]) -> str:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(view.live.renderable)
    return captured.get()


def test_a_sidecar_that_is_away_is_said_below_what_was_seen_last() -> None:
    view, away = Screen(drawn), AdminError("the sidecar does not answer")
    view.lost(away)
    assert "the sidecar does not answer; waiting for the sidecar to return" in shown(view)
    view.show(RUN)
    assert "1 of 2 partitions" in shown(view)
    view.lost(away)
    assert "validation east-v1" in shown(view), "the bar stays"
    assert "waiting for the sidecar to return" in shown(view)
    view.show(RUN)
    assert "waiting" not in shown(view)
