"""From where on a replica is proved, as mirror describe shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.judge.late_starts import LateStart
from controller.proof import MissingRecords
from controller.state import MirrorPartition
from linker.links.proved import proved_from
from wire.frames.types import TopicPartition


@pytest.mark.parametrize(
    ("late", "missing", "proved"),
    [
        ([], None, 7),
        ([LateStart(1, 0, 9), LateStart(2, 0, 99)], None, 9),
        ([], MissingRecords(start=0, end=20, batches=1, records=1, why="retention"), 20),
    ],
)
def test_a_replica_is_proved_from_where_it_starts(
    late: list[LateStart], missing: MissingRecords | None, proved: int
) -> None:
    replica = SimpleNamespace(start=7, missing=missing)
    known = SimpleNamespace(of=lambda broker: replica if broker == 1 else None)
    state = MirrorPartition(link="l", topic="t", partition=0)
    image = SimpleNamespace(validations={("l", TopicPartition("t", 0)): known})
    runtime: Any = SimpleNamespace(
        controller=SimpleNamespace(image=image), starts=SimpleNamespace(of=lambda tp: late)
    )
    assert proved_from(runtime, state, 1) == proved
    assert proved_from(runtime, state, 2) is None
