"""When each broker of the cluster that is left goes by a config."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from linker.switch import owner
from linker.switch.owner import ConfigNotSeen, OwnerCluster
from wire.errors import LinkerError


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
