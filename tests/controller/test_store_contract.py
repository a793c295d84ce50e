"""The contract of `fleet.stores.base`, held against every store. A later store adds one factory here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.errors import InvalidName
from controller.operations import Delete, Put, Versioned
from fleet.stores.base import ControllerFenced, NodeNotEmpty, Store, StoreError, VersionConflict
from fleet.stores.sqlite import SqliteStore
from tests.controller.memory_store import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = (
        MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "state.db")
    )
    yield opened
    await opened.close()


async def test_a_node_lives_and_dies(store: Store) -> None:
    epoch = await store.claim()
    assert await store.get("/links/a") is None
    await store.commit([Put("/links/a", {"x": [1, None, "ü"]}, None)], controller_epoch=epoch)
    assert await store.get("/links/a") == Versioned({"x": [1, None, "ü"]}, 0)
    await store.commit([Put("/links/a", 2, 0)], controller_epoch=epoch)
    await store.commit([Put("/links/a", 3, 1)], controller_epoch=epoch)
    assert await store.get("/links/a") == Versioned(3, 2)
    await store.commit([Delete("/links/a", 2)], controller_epoch=epoch)
    assert await store.get("/links/a") is None
    await store.commit([Put("/links/a", 4, None)], controller_epoch=epoch)
    assert await store.get("/links/a") == Versioned(4, 0)


@pytest.mark.parametrize(
    "bad", [Put("/a", 1, None), Put("/a", 1, 7), Put("/b", 1, 0), Delete("/a", 1), Delete("/b", 0)]
)
async def test_a_lost_race_writes_nothing(store: Store, bad: Put | Delete) -> None:
    epoch = await store.claim()
    await store.commit([Put("/a", "old", None)], controller_epoch=epoch)
    with pytest.raises(VersionConflict) as caught:
        await store.commit([Put("/c", 1, None), bad, Put("/d", 1, None)], controller_epoch=epoch)
    assert caught.value.path == bad.path
    assert set(await store.tree("/")) == {"/a", "/controller_epoch"}
    assert await store.get("/a") == Versioned("old", 0)


async def test_operations_see_the_earlier_ones_of_their_commit(store: Store) -> None:
    epoch = await store.claim()
    await store.commit(
        [Put("/a", 1, None), Put("/a", 2, 0), Delete("/a", 1), Put("/a", 3, None)], controller_epoch=epoch
    )
    assert await store.get("/a") == Versioned(3, 0)


async def test_an_earlier_controller_is_fenced(store: Store) -> None:
    first = await store.claim()
    second = await store.claim()
    assert second > first
    with pytest.raises(ControllerFenced) as caught:
        await store.commit([Put("/a", 1, None)], controller_epoch=first)
    assert (caught.value.epoch, caught.value.current) == (first, second)
    assert await store.get("/a") is None
    await store.commit([Put("/a", 1, None)], controller_epoch=second)


async def test_nobody_writes_the_epoch_by_hand(store: Store) -> None:
    epoch = await store.claim()
    with pytest.raises(StoreError):
        await store.commit([Put("/controller_epoch", 0, 0)], controller_epoch=epoch)


async def test_children_and_trees(store: Store) -> None:
    epoch = await store.claim()
    paths = ["/links/a", "/links/a/mirrors/t/0/state", "/links/a-b", "/links/a0", "/links/b/x", "/z"]
    await store.commit([Put(path, path, None) for path in paths], controller_epoch=epoch)
    assert await store.children("/links") == ["a", "a-b", "a0", "b"]
    assert await store.children("/links/a") == ["mirrors"]
    assert await store.children("/nothing") == []
    assert await store.children("/") == ["controller_epoch", "links", "z"]
    assert set(await store.tree("/links/a")) == {"/links/a/mirrors/t/0/state"}
    assert set(await store.tree("/")) == {*paths, "/controller_epoch"}


async def test_a_node_with_children_stays(store: Store) -> None:
    epoch = await store.claim()
    await store.commit([Put("/a", 1, None), Put("/a/b", 1, None)], controller_epoch=epoch)
    with pytest.raises(NodeNotEmpty):
        await store.commit([Delete("/a", 0)], controller_epoch=epoch)
    await store.commit([Delete("/a/b", 0), Delete("/a", 0)], controller_epoch=epoch)
    assert await store.children("/") == ["controller_epoch"]


@pytest.mark.parametrize(
    "path", ["", "a", "/", "/a/", "//a", "/a/../b", "/a/.", "/a b", "/a\x00", "/ä", "/a\n"]
)
async def test_hostile_paths(store: Store, path: str) -> None:
    epoch = await store.claim()
    with pytest.raises(InvalidName):
        await store.commit([Put(path, 1, None)], controller_epoch=epoch)
    with pytest.raises(InvalidName):
        await store.get(path)


@pytest.mark.parametrize("value", [b"x", {1, 2}, float("nan"), object()])
async def test_what_is_no_json(store: Store, value: object) -> None:
    epoch = await store.claim()
    with pytest.raises(StoreError):
        await store.commit([Put("/ok", 1, None), Put("/a", value, None)], controller_epoch=epoch)  # type: ignore[arg-type]
    assert await store.get("/ok") is None
