"""`linker store copy` and `reopen`: the state arrives whole, nobody uses two copies, nothing is lost half-way."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.operations import Put, Versioned
from fleet.stores.base import Candidate, FleetStore, StoreError, StoreUnusable
from fleet.stores.sqlite import SqliteStore
from linker.config.file import load_config
from linker.config.model import Config
from linker.fleet.fleet import Fleet
from linker.stores import CopyUnfinished, Location, StoreMoved, open_store
from linker.stores import copy as copying
from linker.stores.copy import TargetNotEmpty, copy_store, reopen_store
from linker.stores.measured import MeasuredStore
from tests.fakes.cluster import FakeCluster
from tests.fakes.transactions import FakeCoordinator
from tests.shell.conftest import Cli
from wire.client.secrets import SecretError

STATE = {
    "/links/a": {"source": "x"},
    "/links/a/mirrors/t": {"partitions": 1},
    "/links/a/mirrors/t/0/state": {"phase": "ACTIVE", "epochs": [1, None]},
    "/links/b": {},
    "/sidecars/identities/900": {"incarnation_id": "ü"},
    **{f"/links/b/mirrors/t{i}": {"padding": "x" * 3000} for i in range(250)},
}


async def fill(path: Path, state: Mapping[str, Any], claims: int = 3) -> None:
    store = await SqliteStore.open(path)
    for _ in range(claims):
        epoch = await store.claim()
    await store.commit([Put(name, value, None) for name, value in state.items()], controller_epoch=epoch)
    await store.close()


async def content(location: Location) -> dict[str, Versioned]:
    store = await location.open()
    try:
        return dict(await store.tree("/"))
    finally:
        await store.close()


def values(nodes: Mapping[str, Versioned]) -> dict[str, Any]:
    return {
        path: node.value for path, node in nodes.items() if path not in ("/controller_epoch", "/moved_to")
    }


def at(path: Path) -> Location:
    return Location.parse(f"sqlite:{path}")


def config_with(tmp_path: Path, store: Mapping[str, Any]) -> Config:
    document = {
        "sidecar": {"broker.id": 900, "listeners": ["PLAINTEXT://127.0.0.1:1"], "state.dir": "state"},
        "target": {"bootstrap.servers": "127.0.0.1:1"},
        "store": dict(store),
    }
    file = tmp_path / "linker.yaml"
    file.write_text(yaml.safe_dump(document))
    return load_config(file)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=1) as cluster:
        cluster.add_topic("state", configs={"cleanup.policy": "compact"})
        FakeCoordinator(cluster)
        yield cluster


async def test_there_and_back(tmp_path: Path, cluster: FakeCluster) -> None:
    old, new = at(tmp_path / "a.db"), Location.parse(f"topic:{cluster.bootstrap_servers}/state")
    await fill(old.path, STATE)
    before = await content(old)
    result = await copy_store(old, new)
    assert (result.nodes, result.links, result.replaced) == (len(STATE), ["a", "b"], 0)
    there = await content(new)
    assert values(there) == STATE
    assert there["/controller_epoch"].value > before["/controller_epoch"].value
    after = await content(old)
    assert values(after) == values(before)
    assert after["/moved_to"].value["store"] == str(new)
    # The old one is not used by mistake; and it may be copied back to, as it is.
    with pytest.raises(StoreMoved, match="moved to topic:"):
        await open_store(config_with(tmp_path, {"path": str(old.path)}))
    with pytest.raises(StoreMoved):
        await copy_store(old, at(tmp_path / "b.db"))
    again = await copy_store(new, old)
    assert not again.already_there
    assert values(await content(old)) == STATE
    store = await open_store(config_with(tmp_path, {"path": str(old.path)}))
    await store.close()


async def test_a_moved_store_is_only_replaced_by_force(tmp_path: Path) -> None:
    one, two = at(tmp_path / "1.db"), at(tmp_path / "2.db")
    await fill(one.path, STATE)
    await copy_store(one, two)
    store = await two.open()
    epoch = await store.claim()
    await store.commit([Put("/links/new", {}, None)], controller_epoch=epoch)
    await store.close()
    with pytest.raises(TargetNotEmpty, match=r"/links/new differs.*--force"):
        await copy_store(two, one)
    result = await copy_store(two, one, force=True)
    assert result.replaced == len(STATE)
    assert values(await content(one)) == {**STATE, "/links/new": {}}
    # Without a mark, force does not help.
    await fill(tmp_path / "3.db", {"/links/z": {}})
    with pytest.raises(TargetNotEmpty):
        await copy_store(one, at(tmp_path / "3.db"), force=True)


async def test_a_copy_that_was_cut_off_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = at(tmp_path / "1.db"), at(tmp_path / "2.db")
    await fill(one.path, STATE)
    commit, calls = SqliteStore.commit, 0

    async def dies(self: SqliteStore, operations: Any, **rest: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StoreError("the disk is full")
        await commit(self, operations, **rest)

    monkeypatch.setattr(SqliteStore, "commit", dies)
    with pytest.raises(StoreError, match="disk is full"):
        await copy_store(one, two)
    monkeypatch.undo()
    assert "/moved_to" not in await content(one)
    with pytest.raises(CopyUnfinished, match="linker store copy --from"):
        await open_store(config_with(tmp_path, {"path": str(two.path)}))
    with pytest.raises(StoreError, match="did not come to its end"):
        await copy_store(two, at(tmp_path / "3.db"))
    await copy_store(one, two)
    assert values(await content(two)) == STATE
    assert (await content(two)).keys() - STATE.keys() == {"/controller_epoch"}


async def test_what_does_not_arrive_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = at(tmp_path / "1.db"), at(tmp_path / "2.db")
    await fill(one.path, STATE)
    close = SqliteStore.close

    async def breaks(self: SqliteStore) -> None:
        await close(self)
        if self.path == two.path:
            with sqlite3.connect(two.path) as database:
                database.execute("UPDATE node SET value = '{}' WHERE path = '/links/a'")
            database.close()

    monkeypatch.setattr(SqliteStore, "close", breaks)
    with pytest.raises(StoreError, match="/links/a differs"):
        await copy_store(one, two)
    monkeypatch.undo()
    assert "/moved_to" not in await content(one)


async def test_what_a_reference_stands_for_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("X", "hunter2")
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "${env:X}"}
    place = Location(
        Location.parse("topic:127.0.0.1:1/state").store, target={"bootstrap.servers": "h:1", **login}
    )
    with pytest.raises(SecretError, match=r"^sasl\.mechanism: the value that its reference stands for"):
        await place.open()


@pytest.mark.parametrize("which", ["source", "target"])
async def test_a_running_sidecar_refuses(tmp_path: Path, cluster: FakeCluster, which: str) -> None:
    file, topic = at(tmp_path / "a.db"), Location.parse(f"topic:{cluster.bootstrap_servers}/state")
    quick = Location(topic.store.model_copy(update={"seat_timeout_ms": 300}), target=topic.target)
    await fill(file.path, STATE)
    running = await file.open()
    with pytest.raises(StoreError, match="Stop the sidecars first"):
        await (copy_store(file, quick) if which == "source" else copy_store(quick, file))
    await running.close()


async def test_a_link_controller_that_lives_refuses(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linker.stores.copy._MARGIN", 0.3)
    file, topic = at(tmp_path / "a.db"), Location.parse(f"topic:{cluster.bootstrap_servers}/state")
    monkeypatch.setattr("linker.stores.copy._patience", lambda _: 1.5)
    quick = Location(topic.store.model_copy(update={"seat_timeout_ms": 500}), target=topic.target)
    await fill(file.path, STATE)
    running = await quick.open()
    epoch = await running.take_seat(Candidate(broker_id=7))
    for dry_run in (True, False):
        with pytest.raises(StoreError, match=r"sidecar 7 is the link controller.*stop the sidecars first"):
            await copy_store(file, quick, dry_run=dry_run)
    await running.commit([], controller_epoch=epoch)
    assert "/moved_to" not in await content(file)
    await running.close()


async def test_a_dry_run_changes_nothing(tmp_path: Path, cluster: FakeCluster) -> None:
    file = at(tmp_path / "a.db")
    await fill(file.path, STATE)
    before = await content(file)
    missing = Location.parse(f"topic:{cluster.bootstrap_servers}/missing")
    for target in (at(tmp_path / "b.db"), missing):
        result = await copy_store(file, target, dry_run=True)
        assert (result.dry_run, result.nodes, result.controller_epoch) == (True, len(STATE), 3)
    assert await content(file) == before
    assert not (tmp_path / "b.db").exists()
    assert "missing" not in cluster.topics
    assert not cluster.received("create_topics")


async def test_reopen(tmp_path: Path) -> None:
    one, two = at(tmp_path / "1.db"), at(tmp_path / "2.db")
    await fill(one.path, STATE)
    with pytest.raises(StoreError, match="was not moved"):
        await reopen_store(one)
    await copy_store(one, two)
    assert await reopen_store(one) == str(two)
    store = await open_store(config_with(tmp_path, {"path": str(one.path)}))
    await store.close()


@pytest.mark.parametrize(
    ("mark", "refused"), [("/moved_to", "was moved to B"), ("/copying", "a copy from B into")]
)
async def test_a_sidecar_does_not_rule_a_store_that_was_marked_since_it_opened_it(
    tmp_path: Path, mark: str, refused: str
) -> None:
    file = at(tmp_path / "a.db")
    await fill(file.path, STATE)
    config = config_with(tmp_path, {"path": str(file.path)})
    store = await open_store(config)
    await store.commit([Put(mark, {"store": "B"}, None)], controller_epoch=await store.claim())
    sidecar = fleet_of(config, store)
    with pytest.raises(StoreUnusable, match=refused):
        await asyncio.wait_for(sidecar.runner.run(), 30)
    assert sidecar.fleet_controller is None
    await store.close()


async def test_a_sidecar_that_starts_during_a_copy_waits_and_does_not_rule_what_was_moved(
    tmp_path: Path, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Location.parse(f"topic:{cluster.bootstrap_servers}/state")
    quick = Location(topic.store.model_copy(update={"seat_timeout_ms": 600}), target=topic.target)
    first = await quick.open()
    epoch = await first.take_seat(Candidate(broker_id=1, session="before", cluster_id="T"))
    await first.commit([Put("/links/b", {}, None)], controller_epoch=epoch)
    await first.close()
    fill_copy, running = copying._fill, []

    async def meanwhile(*given: Any) -> None:
        store = await quick.open()
        sidecar = fleet_of(config_with(tmp_path, {}), store)
        await store.announce(sidecar.candidate)
        running.append((store, sidecar, asyncio.create_task(sidecar.runner.run())))
        async with asyncio.timeout(30):
            while sidecar.runner.trouble != "cannot connect: '' is not host:port":
                await asyncio.sleep(0.01)
        await fill_copy(*given)

    monkeypatch.setattr(copying, "_fill", meanwhile)
    await copy_store(quick, at(tmp_path / "b.db"))
    ((store, sidecar, task),) = running
    with pytest.raises(StoreMoved, match=r"was moved to sqlite:.*b\.db"):
        await asyncio.wait_for(task, 30)
    assert sidecar.fleet_controller is None
    await store.close()


def fleet_of(config: Config, store: FleetStore) -> Fleet:
    """A sidecar's place in its fleet, over a store that it has opened."""
    nothing: Any = None
    return Fleet(config, MeasuredStore(store), None, None, nothing, nothing, "T")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sqlite:", "neither a configuration file nor"),
        ("nothing.yaml", "neither a configuration file nor"),
        ("etcd:1:2", "neither a configuration file nor"),
        ("zookeeper:zk", "'zk' is not host:port"),
        ("zookeeper:", "connect is empty"),
        ("topic:a", "'a' is not host:port"),
        ("topic:a:1/b c", "other than a-z"),
    ],
)
def test_places_that_are_none(text: str, message: str) -> None:
    with pytest.raises(StoreError) as caught:
        Location.parse(text)
    assert message in str(caught.value)


def test_places() -> None:
    for text in ("sqlite:/a/b.db", "zookeeper:a:1,b:2/c", "topic:a:1,b:2/name"):
        assert str(Location.parse(text)) == text
    assert str(Location.parse("topic:a:1")) == "topic:a:1/__kafka_linker_state"
    assert Location.parse("sqlite:/a/../a/b.db").same_place(Location.parse("sqlite:/a/b.db"))


def test_the_command(cli: Cli, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "a.db", STATE))
    source, target = f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db"
    dry = cli("store", "copy", "--from", source, "--to", target, "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert "nothing was changed (--dry-run)" in dry.out
    done = cli("store", "copy", "--from", source, "--to", target, "-o", "json")
    assert (done.code, json.loads(done.out)["nodes"]) == (0, len(STATE))
    assert "marked as moved" in done.err
    again = cli("store", "copy", "--from", source, "--to", target, "-o", "yaml")
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith("linker: the state in sqlite:")
    assert len(again.err.splitlines()) == 1
    assert cli("store", "reopen", source).code == 0
    same = cli("store", "copy", "--from", source, "--to", target)
    assert (same.code, "same state already there" in same.out) == (0, True)
    assert cli("store", "copy", "--from", source, "--to", source).code == 1
    assert cli("store", "copy", "--from", source).code == 2
    assert cli("store", "reopen").code == 2
    missing = cli("store", "copy", "--from", f"sqlite:{tmp_path}/none.db", "--to", target)
    assert (missing.code, "there is no state store" in missing.err) == (1, True)


def test_the_command_takes_a_configuration(cli: Cli, tmp_path: Path) -> None:
    config_with(tmp_path, {"path": "here.db"})
    asyncio.run(fill(tmp_path / "here.db", STATE))
    config, target = str(tmp_path / "linker.yaml"), f"sqlite:{tmp_path}/b.db"
    assert cli("store", "copy", "--from", config, "--to", target).code == 0
    assert values(asyncio.run(content(at(tmp_path / "b.db")))) == STATE
