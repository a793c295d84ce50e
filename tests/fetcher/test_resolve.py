"""What the source's metadata mean for a partition, asked again and again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fetcher.resolve import Resolver
from wire.errors import ClusterUnreachable
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)


class Source:
    """It knows no topic, and may be away."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.away = False

    async def refresh(self, topics: Any, *, timeout: float) -> None:
        if self.away:
            raise ClusterUnreachable("nobody answers")


@pytest.mark.parametrize("outage", [True, False])
async def test_a_topic_is_gone_when_answers_say_so_for_long(
    outage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two answers of brokers that have just started, with an outage in between, do not."""
    now = 100.0
    monkeypatch.setattr("fetcher.resolve.time", SimpleNamespace(monotonic=lambda: now))
    source: Any = Source()
    resolver = Resolver(source, rack=None, deleted_after=10.0)
    mirror: Any = SimpleNamespace(
        tp=TP, spec=SimpleNamespace(topic="t", source_name=None, partition=0, source_topic_id=None)
    )
    assert (await resolver.resolve([mirror]))[TP].trouble
    now += 30
    if outage:
        source.away = True
        with pytest.raises(ClusterUnreachable):
            await resolver.resolve([mirror])
        source.away = False
    now += 30
    verdict = (await resolver.resolve([mirror]))[TP]
    assert (verdict.failure is None) is outage
    now += 9
    assert ((await resolver.resolve([mirror]))[TP].failure is None) is outage
    now += 1
    assert (await resolver.resolve([mirror]))[TP].failure is not None
