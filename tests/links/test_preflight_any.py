"""What any broker can answer is not lost with one that hangs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from linker import preflight
from tests.fakes import FakeCluster
from tests.links.conftest import client
from wire.errors import ConnectionLost


async def test_a_broker_that_hangs_is_given_up_for_another(
    source: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_ANSWER_TIMEOUT", 0.2)
    cluster = client(source, "source")
    try:
        await cluster.connect()
        source.inject("metadata", drop=True, process=False, times=1)
        topics, missing, findings = await preflight.read_source_topics(cluster, ["orders"])
    finally:
        await cluster.close()
    assert (set(topics), missing) == ({"orders"}, [])
    assert len(source.received("metadata")) >= 3, "connect, the one that hung, the one that answered"
    assert not [finding for finding in findings if finding.fatal]


async def test_when_all_hang_it_is_said_in_time(source: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_ANSWER_TIMEOUT", 0.1)
    monkeypatch.setattr(preflight, "TIMEOUT", 0.5)
    cluster = client(source, "source")
    target: Any = SimpleNamespace(cluster=cluster)
    try:
        await cluster.connect()
        source.inject("describe_cluster", drop=True, process=False, times=100)
        with pytest.raises(ConnectionLost, match="no answer within"):
            await preflight.check_target_rights(target)
    finally:
        await cluster.close()
