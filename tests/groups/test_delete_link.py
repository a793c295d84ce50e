"""A link whose deletion fails after its groups were let go holds them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from admin.service import IllegalState
from controller.errors import Refused
from linker.service.links import LinkChanges


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
