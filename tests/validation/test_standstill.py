"""A run that gets no further, told from one that is slow."""

from __future__ import annotations

from linker.validation.standstill import Movement
from validator import messages as m
from validator.mode import Mode


def progress(tasks_done: int = 0, **more: int) -> m.Progress:
    fields = {"bytes": 0, "batches": 0, "partitions_done": 0, **more}
    return m.Progress(id="r", tasks_done=tasks_done, tasks=8, partitions=2, **fields)


def test_the_same_progress_over_and_over_is_a_standstill() -> None:
    movement = Movement(Mode.BATCHES, 100.0)
    assert [movement.rested(progress(), at) for at in (101.0, 106.0, 111.0)] == [0.0, 5.0, 10.0]


def test_anything_new_is_a_step_forward() -> None:
    movement = Movement(Mode.BATCHES, 0.0)
    steps = [
        progress(1),
        progress(1, bytes=9),
        progress(1, bytes=9, batches=1),
        progress(1, bytes=9, batches=1, partitions_done=1),
        m.Checked(id="r", results=()),
        m.Checked(id="r", results=()),
    ]
    for at, step in enumerate(steps):
        assert movement.rested(step, float(at)) == 0.0
    assert movement.rested(progress(1, bytes=9, batches=1, partitions_done=1), 9.0) == 4.0


def test_a_run_by_records_is_not_judged_by_its_progress() -> None:
    movement = Movement(Mode.RECORDS, 0.0)
    assert [movement.rested(progress(), at) for at in (1.0, 9999.0)] == [0.0, 0.0]
