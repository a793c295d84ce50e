"""Topics that a broker does not tell of: the side has failed, and no replica differs because of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.cluster import FakeCluster
from tests.validator.without_spark import END, Runner, found
from wire.frames.error_codes import (
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)

CODES = (LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION)


def misinform(cluster: FakeCluster, *, times: int | None = None, **fields: Any) -> list[str]:
    """Metadata of topic t with other fields, so many times. Returns what was asked for, as it grows."""
    real = cluster.handlers["metadata"]
    asked: list[str] = []

    async def handler(broker: Any, request: Any) -> Mapping[str, object] | None:
        answer: dict[str, Any] = dict(await real(broker, request) or {})
        topics = [dict(topic) for topic in answer["topics"]]
        for topic in topics:
            asked.append(topic["name"])
            if topic["name"] == "t" and (times is None or asked.count("t") <= times):
                topic.update(fields)
        return {**answer, "topics": topics}

    cluster.handlers["metadata"] = handler
    return asked


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_topic_with_an_error_fails_its_side_and_leaves_the_others_judged(
    runner: Runner, side: str, code: int
):
    for cluster in (runner.source, runner.target):
        cluster.add_topic("other").partitions[0].add(5)
    asked = misinform(getattr(runner, side), error_code=code, partitions=[])
    results = await runner.run(runner.plan(), runner.plan("other"))
    assert [(one.topic, one.through, found(one)) for one in results] == [("other", 5, [])] * 3
    assert runner.failed.side == side
    assert "topic t (metadata)" in runner.failed.reason
    again = code != TOPIC_AUTHORIZATION_FAILED
    assert (asked.count("t") > 1) is again, "a right does not come by asking"


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    "fields",
    [
        {"error_code": LEADER_NOT_AVAILABLE, "partitions": []},
        {"error_code": UNKNOWN_TOPIC_OR_PARTITION, "partitions": []},
        {"partitions": []},
        {"topic_id": uuid.UUID(int=7)},
    ],
    ids=["no leader", "unknown", "empty", "of before"],
)
async def test_a_broker_that_is_behind_is_asked_again(runner: Runner, side: str, fields: dict[str, Any]):
    ids = {
        f"{name}_topic_id": getattr(runner, name).topics["t"].topic_id.hex() for name in ("source", "target")
    }
    misinform(getattr(runner, side), times=1, **fields)
    results = await runner.run(runner.plan(**ids))
    assert [(one.through, found(one)) for one in results] == [(END, [])] * 3
    assert runner.finished.mismatches == 0
