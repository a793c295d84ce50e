"""Commits as ZooKeeper transactions, without a server: the steps run on ZooKeeper's own rules for znodes, and
the nodes that come of it are those of the store in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import CorruptState, InvalidName
from controller.operations import Delete, Operation, Put
from fleet.stores.base import Candidate, NodeNotEmpty, Seat, StoreError, StoreTooNew, VersionConflict
from fleet.stores.zookeeper.plan import (
    PINNED,
    Create,
    Remove,
    Step,
    VersionCheck,
    Write,
    Znode,
    dump,
    envelope,
    open_envelope,
    open_seat,
    plan_commit,
    prepare,
    seat_node,
)
from tests.controller.memory_store import MemoryStore

NAMES = st.sampled_from(["a", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))


class Znodes:
    """What a ZooKeeper server does with the steps of a transaction (PrepRequestProcessor)."""

    def __init__(self) -> None:
        self.data: dict[str, tuple[bytes, int]] = {"/sidecars": (b"", 0), "/sidecars/ids": (b"", 0)}

    def transact(self, steps: Sequence[Step]) -> None:
        data = dict(self.data)
        for step in steps:
            if isinstance(step, Create):
                parent = step.path.rpartition("/")[0]
                assert parent == "" or parent in data, f"no parent: {step}"
                assert step.path not in data, f"exists: {step}"
                data[step.path] = (step.data, 0)
                continue
            assert step.path in data, f"not there: {step}"
            version = data[step.path][1]
            assert step.version == version, f"bad version: {step}"
            if isinstance(step, Write):
                data[step.path] = (step.data, version + 1)
            elif isinstance(step, Remove):
                assert not any(path.startswith(f"{step.path}/") for path in data), f"not empty: {step}"
                del data[step.path]
            else:
                assert isinstance(step, VersionCheck)
        self.data = data

    def snapshot(self) -> dict[str, Znode]:
        """Read anew, as a process that remembers nothing would."""
        found = {}
        for path, (data, version) in self.data.items():
            opened = open_envelope(path, data)
            children = sum(1 for other in self.data if other.rpartition("/")[0] == path)
            found[path] = Znode(version, None if opened is None else opened.base, children)
        return found

    def nodes(self) -> dict[str, tuple[object, int]]:
        found: dict[str, tuple[object, int]] = {}
        for path, (data, version) in self.data.items():
            opened = open_envelope(path, data)
            if opened is not None:
                found[path] = (opened.value, version - opened.base)
        return found


@st.composite
def operations(draw: st.DrawFn) -> list[Operation]:
    found: list[Operation] = []
    for number in range(draw(st.integers(1, 4))):
        path = draw(PATHS)
        version = draw(st.sampled_from([None, None, 0, 0, 1, 2]))
        if version is not None and draw(st.booleans()):
            found.append(Delete(path, version))
        else:
            found.append(Put(path, number, version))
    return found


@given(st.lists(operations(), max_size=12))
async def test_a_plan_does_what_the_contract_says(commits: list[list[Operation]]) -> None:
    memory, znodes = MemoryStore(), Znodes()
    remembered = znodes.snapshot()
    epoch = await memory.claim()
    for commit in commits:
        wanted: type[Exception] | None = None
        try:
            await memory.commit(commit, controller_epoch=epoch)
        except (VersionConflict, NodeNotEmpty) as error:
            wanted = type(error)
        try:
            plan = plan_commit(remembered, prepare(commit))
        except (VersionConflict, NodeNotEmpty) as error:
            assert type(error) is wanted
        else:
            assert wanted is None
            znodes.transact(plan.steps)
            for path, node in plan.changed.items():
                if node is None:
                    remembered.pop(path, None)
                else:
                    remembered[path] = node
        assert remembered == znodes.snapshot()
        tree = await memory.tree("/")
        assert znodes.nodes() == {
            path: (node.value, node.version) for path, node in tree.items() if path != "/controller_epoch"
        }
        # No znode is left over that is neither a node nor on the way to one.
        for path, znode in remembered.items():
            assert znode.base is not None or znode.children or path in PINNED


@pytest.mark.parametrize(
    "path", ["/controller", "/commits", "/fleet", "/sidecars/ids/7", "/controller_epoch"]
)
def test_the_stores_own_nodes_are_not_committed_to(path: str) -> None:
    with pytest.raises(StoreError, match=path):
        prepare([Put(path, 1, None)])
    prepare([Put("/controllers", 1, None), Put("/sidecars/identities/7", 1, None)])
    with pytest.raises(InvalidName):
        prepare([Delete(f"{path}/", 0)])


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4), st.integers(0, 9))
def test_envelopes(value: object, base: int) -> None:
    data = envelope(dump("/a", value), base)  # type: ignore[arg-type]
    assert open_envelope("/a", data) == (value, base)


@given(st.binary(min_size=1))
def test_foreign_bytes(data: bytes) -> None:
    with pytest.raises(CorruptState, match="server/a"):
        open_envelope("server/a", data)


def test_a_newer_format() -> None:
    with pytest.raises(StoreTooNew, match="server/a"):
        open_envelope("server/a", b'{"format": 2, "other": true}')
    assert open_envelope("/a", b"") is None


def test_seats() -> None:
    me = Candidate(broker_id=900, control="h:1", admin="h:2", session="s", cluster_id="c")
    assert open_seat("/controller", seat_node(me, 7)) == Seat(holder=me, epoch=7)
    for foreign in (b"", envelope("7"), envelope('{"broker_id": "900"}'), envelope("null")):
        with pytest.raises(CorruptState, match="/controller"):
            open_seat("/controller", foreign)
