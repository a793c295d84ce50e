"""When each broker of the cluster that is left goes by a config."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller.state import MirrorTopic
from linker.switch import owner
from linker.switch.giving_back import GivingBack
from linker.switch.owner import ConfigNotSeen, OwnerCluster
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


@pytest.mark.parametrize("late", ["never", "soon", "refused"])
async def test_each_broker_tells_the_config_before_one_may_lead(
    monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """Broker 2 is behind with its metadata, or does not tell."""
    asked: list[int] = []

    async def told(
        _cluster: Any, topics: Any, _name: str, *, node_id: int, timeout: float
    ) -> tuple[dict[str, str | None], dict[str, LinkerError]]:
        asked.append(node_id)
        if node_id == 2 and late == "refused":
            return {}, dict.fromkeys(topics, LinkerError("away"))
        old = node_id == 2 and (late == "never" or asked.count(2) < 3)
        return dict.fromkeys(topics, "1048588" if old else "0"), {}

    monkeypatch.setattr(owner, "topic_config_each", told)
    membership: Any = SimpleNamespace(
        cluster=None,
        image=SimpleNamespace(live_brokers=lambda _ours: [SimpleNamespace(id=1), SimpleNamespace(id=2)]),
    )
    cluster = OwnerCluster(membership, lambda: {800})
    if late == "soon":
        await cluster.each_broker_goes_by(["t"], "max.message.bytes", "0", timeout=5.0)
        assert (asked.count(1), asked.count(2)) == (1, 3)
    else:
        with pytest.raises(ConfigNotSeen, match=r"brokers \[2\] do not go by max.message.bytes=0 of t"):
            await cluster.each_broker_goes_by(["t"], "max.message.bytes", "0", timeout=0.2)


@pytest.mark.parametrize("ours", [True, False])
async def test_nothing_is_put_back_on_another_topic_of_the_name(ours: bool) -> None:
    """Somebody has deleted the one that was taken over, and made it again."""
    tp = TopicPartition("t", 0)
    mirror = MirrorTopic(
        link="back",
        topic="t",
        topic_id=b"\x01" * 16,
        source_topic_id=None,
        partitions=1,
        target_replicas=((2, 1),),
        restore_configs={"retention.ms": "5"},
        given_back=True,
    )
    there = SimpleNamespace(replicas=(800, 1, 2, 3), adding=(), removing=())  # 3 is not registered
    topic = SimpleNamespace(id=bytes([1 if ours else 9]) * 16, partitions={0: there})
    asked: list[object] = []

    async def request(what: object, *, timeout: float) -> None:
        asked.append(what)

    async def attempt(call: Any) -> None:
        await call

    async def proved() -> None:
        return

    steps: Any = SimpleNamespace(
        records=SimpleNamespace(mirror=lambda _topic: mirror, prove_newest=proved),
        owner=SimpleNamespace(
            image=lambda: SimpleNamespace(topics_by_name={"t": topic}, brokers={1, 2, 800}),
            link_brokers=lambda: {800},
            overrides=lambda _topic: {"retention.ms": "-1"},
            set_configs=request,
            reassign=request,
        ),
        partitions=lambda _topics: [tp],
        attempt=attempt,
    )
    unused: Any = None
    await GivingBack(steps, unused, unused)._put_back(["t"], 0.0)
    assert asked == ([{"t": {"retention.ms": "5"}}, {tp: (2, 1, 800)}] if ours else [])
