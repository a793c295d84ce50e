"""A source's topics get ids by an upgrade: for a restart, and for the account of what it drops, they stay the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from admin.service import IllegalState
from controller.plan.topic_configs import ConfigPlan
from controller.state import MirrorTopic
from linker.checks import holdings, preflight
from linker.checks.replica_logs import Extent
from linker.links.configs import TopicConfigs
from linker.service import SidecarService
from tests.links.test_service_races import T0, Rig

ID, OTHER = b"\x07" * 16, b"\x08" * 16
#: The id that a mirror was made with, and the one that the source tells now. A broker that is not upgraded tells none.
SAME = [
    pytest.param(None, None, id="never any"),
    pytest.param(None, ID, id="since"),
    pytest.param(ID, ID, id="always"),
    pytest.param(ID, None, id="half-way"),
]


async def restarted(
    monkeypatch: pytest.MonkeyPatch, mirrored: bytes | None, found: bytes | None, partitions: int = 1
) -> list[str]:
    """The topics that are begun again."""
    rig = await Rig.make()
    await rig.controller.fail_partition("east", T0, "retention outran it")
    mirrors = rig.controller.image.mirrors
    mirrors["east", "orders"] = replace(mirrors["east", "orders"], source_topic_id=mirrored)

    begun: list[str] = []

    async def begin(topic: str) -> None:
        begun.append(topic)

    async def read(source: Any, names: list[str]) -> Any:
        plan = ConfigPlan(copied={}, create={}, restore={}, skipped={}, adjusted={})
        there = preflight.SourceTopic("orders", found, partitions, 1, TopicConfigs({}, {}), plan)
        return {"orders": there}, [], []

    monkeypatch.setattr(preflight, "read_source_topics", read)
    monkeypatch.setattr(SidecarService, "_refuse_stuck", lambda *_: None)
    monkeypatch.setattr(rig.bring_up, "restart", begin)
    await rig.service.resume_mirror("east", "orders", restart=True, dry_run=False)
    return begun


@pytest.mark.parametrize(("mirrored", "found"), SAME)
async def test_it_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, mirrored: bytes | None, found: bytes | None
) -> None:
    assert await restarted(monkeypatch, mirrored, found) == ["orders"]


async def test_another_topic_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for mirrored, found, partitions in ((ID, OTHER, 1), (ID, ID, 0), (None, ID, 2), (ID, None, 2)):
        with pytest.raises(IllegalState, match="is another one at the source now"):
            await restarted(monkeypatch, mirrored, found, partitions)


async def test_the_same_topic_may_have_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await restarted(monkeypatch, ID, ID, 2) == ["orders"]


@pytest.mark.parametrize(("mirrored", "found"), [*SAME, pytest.param(ID, OTHER, id="another")])
async def test_what_the_source_has_of_it_counts(
    monkeypatch: pytest.MonkeyPatch, mirrored: bytes | None, found: bytes | None
) -> None:
    """Else a repair would say that the target alone has all of it."""
    mirror = MirrorTopic(link="east", topic="orders", topic_id=ID, source_topic_id=mirrored, partitions=1)

    async def seen(source: Any, topics: list[str]) -> dict[str, preflight.SeenTopic]:
        return {"orders": preflight.SeenTopic(found, 1)}

    async def extents(source: Any, tps: Any, *, timeout: float) -> dict[Any, Extent]:
        return dict.fromkeys(tps, Extent(0, 9))

    monkeypatch.setattr(preflight, "seen_source_topics", seen)
    monkeypatch.setattr(holdings, "source_extents", extents)
    runtime: Any = SimpleNamespace(source=None)
    at_source = await holdings._at_source(runtime, mirror, [T0])
    assert at_source == {T0: None if found is OTHER else Extent(0, 9)}
