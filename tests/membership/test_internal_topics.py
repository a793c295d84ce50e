"""Kafka's own topics are made before there is a link broker that they could be placed on."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from linker.membership.cluster import TargetCluster
from linker.membership.internal_topics import create_internal_topics


class Target:
    """`versions`: of heartbeats. `code`: the coordinator's answer, in the form of FindCoordinator `version`."""

    def __init__(self, versions: tuple[int, int], code: int = 15, version: int = 4, level: int = 30) -> None:
        self.asked: list[tuple[int, str]] = []
        self.code, self.version = code, version
        features = {"metadata.version": (level, level)}
        connection = SimpleNamespace(api_range=lambda api: versions, finalized_features=features)

        async def found(*_: Any, **__: Any) -> Any:
            return None, connection

        self.channel = SimpleNamespace(discover=found, connection=found)
        here: Any = self
        self.places_replicas_on_us = partial(TargetCluster.places_replicas_on_us, here)
        self.cluster = SimpleNamespace(call=self.call, name="target")

    async def call(self, api: str, fields: dict[str, Any], *, timeout: float) -> Any:
        assert fields["coordinator_keys"] == [fields["key"]]
        self.asked.append((fields["key_type"], fields["key"]))
        one = SimpleNamespace(error_code=self.code)
        return SimpleNamespace(coordinators=[one]) if self.version >= 4 else one


async def asked(target: Any) -> list[tuple[int, str]]:
    await create_internal_topics(target, 1.0)
    return target.asked  # type: ignore[no-any-return]


async def test_only_where_no_log_dir_can_be_cordoned() -> None:
    assert await asked(Target((0, 2))) == []
    # Brokers of 4.3 before `kafka-features upgrade`: heartbeats may name cordoned directories, to no effect.
    assert len(await asked(Target((0, 2), level=29))) == 2
    # Keys that the documented rights are of: a broker without them makes nothing.
    assert await asked(Target((0, 1))) == [(0, "kafka-linker-gate-"), (1, "kafka-linker-gate-")]


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize(("code", "told"), [(0, 0), (15, 0), (30, 1), (53, 1)])
async def test_a_missing_right_is_told(
    caplog: pytest.LogCaptureFixture, code: int, told: int, version: int
) -> None:
    with caplog.at_level(logging.WARNING):
        await create_internal_topics(Target((0, 1), code, version), 1.0)  # type: ignore[arg-type]
    assert caplog.text.count("may be placed on this sidecar later") == told
