"""Deleted links: one whose deletion fails after its groups were let go holds them again; a large one goes in portions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from admin.service import IllegalState
from controller.errors import Refused
from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.mirror_group import GroupProtocol, MirrorGroup
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from fleet.stored_controller import StoredController
from linker.service.links import LinkChanges
from tests.controller.bounded_store import BoundedStore


class Groups:
    def __init__(self, events: list[str]) -> None:
        self.events = events

    async def release_all(self) -> None:
        self.events.append("released")

    def hold_again(self) -> None:
        self.events.append("held again")


class Controller:
    def __init__(self, events: list[str], refuses: bool) -> None:
        self.events = events
        self.refuses = refuses
        self.image = SimpleNamespace(links={})

    async def decide(self, _: object) -> bool:
        """Nothing has to go before the link."""
        return False

    async def delete_link(self, link: str, *, force: bool, dry_run: bool = False) -> None:
        if not dry_run:
            if self.refuses:
                raise Refused("a mirror was made meanwhile")
            self.events.append("deleted")


@pytest.mark.parametrize(
    ("refuses", "wanted"),
    [(False, ["released", "deleted", "stopped"]), (True, ["released", "held again"])],
)
async def test_groups_are_held_as_long_as_the_link_is(
    monkeypatch: pytest.MonkeyPatch, refuses: bool, wanted: list[str]
) -> None:
    events: list[str] = []

    class Links(dict[str, Any]):
        async def stop(self, link: str) -> None:
            events.append("stopped")

    sidecar: Any = SimpleNamespace(
        controller=Controller(events, refuses),
        links=Links(old=SimpleNamespace(groups=Groups(events))),
    )
    monkeypatch.setattr("linker.service.links.refuse_leaving", lambda *_: None)
    monkeypatch.setattr(LinkChanges, "_leave_source", AsyncMock())
    service = LinkChanges(cast("Any", sidecar))
    if refuses:
        with pytest.raises(IllegalState, match="meanwhile"):
            await service.delete_link("old", dry_run=False)
    else:
        await service.delete_link("old", dry_run=False)
    assert events == wanted


def a_service(
    monkeypatch: pytest.MonkeyPatch, controller: StoredController, events: list[str]
) -> LinkChanges:
    class Links(dict[str, Any]):
        async def stop(self, link: str) -> None:
            events.append("stopped")

    sidecar: Any = SimpleNamespace(
        controller=controller, links=Links(old=SimpleNamespace(name="old", groups=Groups(events)))
    )
    monkeypatch.setattr("linker.service.links.refuse_leaving", lambda *_: None)
    monkeypatch.setattr(LinkChanges, "_leave_source", AsyncMock())
    return LinkChanges(cast("Any", sidecar))


async def with_much(topics: int, groups: int) -> tuple[StoredController, BoundedStore]:
    """A link whose mirrors, of 50 partitions each, are promoted."""
    store = BoundedStore()
    controller = await StoredController.open(store)
    await controller.create_link("old", "source", {})
    for number in range(topics):
        name = f"orders.events.team-{number:05d}"
        mirror = MirrorTopic(
            link="old",
            topic=name,
            topic_id=number.to_bytes(16, "big"),
            source_topic_id=number.to_bytes(16, "big"),
            partitions=50,
            target_replicas=((1, 2, 3),) * 50,
        )
        states = [
            MirrorPartition(link="old", topic=name, partition=index, phase=Phase.PROMOTED)
            for index in range(50)
        ]
        await controller.create_mirror(mirror, states)
    for number in range(groups):
        group = MirrorGroup(
            link="old",
            group=f"service-{number:05d}",
            gate=GateKind.CONSUMER,
            topics=("orders.events.team-00000",),
            protocol=GroupProtocol.CLASSIC,
            phase=GroupPhase.PROMOTED,
        )
        await controller.decide(lambda _, group=group: ([group], None))  # type: ignore[misc]
    return controller, store


@pytest.mark.parametrize(("topics", "groups"), [(120, 50), (10, 3000)])
async def test_a_link_with_more_than_a_store_takes_at_once_is_deleted(
    monkeypatch: pytest.MonkeyPatch, topics: int, groups: int
) -> None:
    controller, store = await with_much(topics, groups)
    events: list[str] = []
    before = store.commits
    await a_service(monkeypatch, controller, events).delete_link("old", dry_run=False)
    assert events == ["released", "stopped"]
    assert not controller.image.links
    assert set(await store.tree("/")) == {"/controller_epoch"}
    assert 2 <= store.commits - before < 10


async def test_a_small_link_goes_with_all_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one commit: there is no link that has lost a part of its mirrors."""
    controller, store = await with_much(5, 5)
    before = store.commits
    await a_service(monkeypatch, controller, []).delete_link("old", dry_run=False)
    assert store.commits - before == 1
    assert set(await store.tree("/")) == {"/controller_epoch"}
