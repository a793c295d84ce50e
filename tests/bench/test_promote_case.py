"""What a promote's case makes of records that are wrong, on the link's side and on Kafka's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admin.models import PromoteJobStatus
from lab.bench import promote
from lab.bench.settings import QUICK
from lab.workload.checker import Verdict


class _Stage:
    """Of a stage nothing is asked but to forget topics."""

    async def discard(self, topic: str, *, mirror: bool) -> None: ...


def _moved(job: Any, duplicated: int) -> promote.Moved:
    twice = [f"record {number} is there 2 times" for number in range(duplicated)]
    verdict = Verdict(acked=10, failed=0, unknown=0, read=10, reread=0, promote_pause_ms=100.0)
    return promote.Moved(replace(verdict, duplicated=twice), job)


@pytest.mark.parametrize(("of_link", "of_kafka"), [(0, 0), (2, 0), (0, 3), (2, 3)])
async def test_only_what_the_link_has_a_part_in_fails(
    monkeypatch: pytest.MonkeyPatch, of_link: int, of_kafka: int
) -> None:
    async def by_the_link(*_: object) -> promote.Moved:
        return _moved(PromoteJobStatus.model_construct(phases_ms={}), of_link)

    async def by_kafka(*_: object) -> promote.Moved:
        return _moved(None, of_kafka)

    monkeypatch.setattr(promote, "promote_under_load", by_the_link)
    monkeypatch.setattr(promote, "elect_under_load", by_kafka)
    said: list[str] = []
    on: Any = _Stage()
    case = await promote._case(on, "", 4, QUICK, said.append)
    assert case.problems == (
        [f"link round 1: duplicated: {of_link}, first record 0 is there 2 times"] if of_link else []
    )
    told = [f"election round 1: duplicated: {of_kafka}, first record 0 is there 2 times"] if of_kafka else []
    assert case.rounds["election"][0].get("wrong", []) == told
    assert [line for line in said if "alone" in line] == [
        f"4 partitions, by Kafka and its clients alone: {one}" for one in told
    ]
