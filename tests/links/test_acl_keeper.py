"""The keeper of ACLs against two clusters that are sets of ACLs: notes, changes, and failures in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from controller.access.acls import Acl, Resource
from controller.access.carry import AclRules
from controller.decide.acls import carried
from controller.state import MirrorTopic
from fleet.stored_controller import StoredController
from linker.access import keeper as module
from linker.access.cluster_access import NoAuthorizer, Refusals
from linker.access.keeper import AclKeeper
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from wire.client.topic_names import TopicNames
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import INVALID_REQUEST
from wire.metadata.image import ClusterImage

READ = Acl(Resource("TOPIC", "LITERAL", "t"), "User:a", "*", "READ", "ALLOW")
WRITE = READ._replace(operation="WRITE")
DENY = READ._replace(principal="User:b", permission="DENY")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


class Rig:
    def __init__(self, controller: StoredController, monkeypatch: pytest.MonkeyPatch) -> None:
        self.controller = controller
        self.source: Any = SimpleNamespace(
            acls={READ, WRITE}, fails=None, name="source", topic_names=TopicNames()
        )
        cluster = SimpleNamespace(acls=set[Acl](), fails=None)
        self.target: Any = SimpleNamespace(image=ClusterImage(), cluster=cluster)
        self.there: set[Acl] = cluster.acls
        self.refuses: set[Acl] = set()
        self.made: list[Acl] = []
        monkeypatch.setattr(module, "read_acls", self._read)
        monkeypatch.setattr(module, "create_acls", self._create)
        monkeypatch.setattr(module, "delete_acls", self._delete)
        self.keeper = AclKeeper(context("l", self.source, self.target, controller, brokers=frozenset()))

    @classmethod
    async def make(cls, monkeypatch: pytest.MonkeyPatch) -> Rig:
        controller = await StoredController.open(MemoryStore(), now=lambda: 7)
        await controller.create_link("l", "cluster", {})
        await controller.create_mirror(
            MirrorTopic(link="l", topic="t", topic_id=b"\1" * 16, source_topic_id=None, partitions=1)
        )
        return cls(controller, monkeypatch)

    async def _read(self, cluster: Any, *, node: int | None = None) -> frozenset[Acl]:
        if cluster.fails is not None:
            raise cluster.fails
        return frozenset(cluster.acls)

    async def _create(self, cluster: Any, acls: Sequence[Acl], *, node: int | None = None) -> Refusals:
        made = [acl for acl in acls if acl not in self.refuses]
        self.there.update(made)
        self.made += made
        return {acl: BrokerError(INVALID_REQUEST, api="create_acls") for acl in acls if acl in self.refuses}

    async def _delete(self, cluster: Any, acls: Sequence[Acl], *, node: int | None = None) -> Refusals:
        self.there.difference_update(set(acls) - self.refuses)
        return {acl: BrokerError(INVALID_REQUEST, api="delete_acls") for acl in acls if acl in self.refuses}

    async def look(self) -> None:
        await self.keeper.look(AclRules(), follow=True)

    @property
    def noted(self) -> frozenset[Acl]:
        return carried(self.controller.image, "l")


async def test_noted_made_and_removed_after_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await Rig.make(monkeypatch)
    rig.source.acls.add(DENY)
    rig.there.add(READ)  # the target had it
    await rig.look()
    assert rig.made == [DENY, WRITE]
    assert rig.noted == {DENY, WRITE}
    rig.source.acls.clear()
    await rig.look()
    assert rig.there == {READ, WRITE, DENY}, "one look may be that of a broker which is behind"
    rig.source.acls.add(DENY)
    await rig.look()
    assert rig.there == {READ, DENY}
    rig.source.acls.clear()
    await rig.look()
    await rig.look()
    assert (rig.there, rig.noted) == ({READ}, frozenset())


async def test_an_acl_that_was_refused_is_not_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await Rig.make(monkeypatch)
    rig.refuses = {WRITE}
    with pytest.raises(LinkerError, match="the others are followed"):
        await rig.look()
    assert rig.noted == rig.there == {READ}
    rig.there.add(WRITE)  # somebody makes it by hand, and it is theirs
    rig.refuses = set()
    rig.source.acls.clear()
    await rig.look()
    await rig.look()
    assert rig.there == {WRITE}


async def test_a_client_that_cannot_be_kept_out_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await Rig.make(monkeypatch)
    denial = READ._replace(operation="ALL", permission="DENY", host="10.0.0.1")
    other = READ._replace(principal="User:c")
    rig.source.acls.update({denial, other})
    rig.refuses = {denial}
    with pytest.raises(LinkerError, match="the others are followed"):
        await rig.look()
    assert rig.there == rig.noted == {other}
    rig.refuses = set()
    await rig.look()
    assert rig.made[1:] == [denial, READ, WRITE]


async def test_a_removal_that_is_refused_stays_noted_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await Rig.make(monkeypatch)
    await rig.look()
    rig.source.acls.clear()
    await rig.look()
    rig.refuses = {READ}
    with pytest.raises(LinkerError, match="the others are followed"):
        await rig.look()
    assert rig.there == rig.noted == {READ}


async def test_a_life_that_ended_in_between_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted and not made; removed and still noted."""
    rig = await Rig.make(monkeypatch)
    await rig.controller.note_acls("l", add=[READ, WRITE, DENY])
    rig.there.add(DENY)
    await rig.look()
    assert rig.there == {READ, WRITE, DENY}
    await rig.look()
    assert (rig.there, rig.noted) == ({READ, WRITE}, {READ, WRITE})


@pytest.mark.parametrize("mode", ["follow", "report", "off"])
async def test_a_source_that_does_not_tell_is_named_and_takes_nothing_away(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    rig = await Rig.make(monkeypatch)
    await rig.look()
    before = set(rig.there)
    await rig.controller.update_link("l", None, {"acl_sync": mode, "acl_sync_interval_ms": 60_000})
    rig.source.fails = LinkerError("no right")
    work, task = asyncio.create_task(rig.keeper.run()), rig.keeper.task
    try:
        await until(lambda: task.failures > 0 or task.last_success is not None)
        assert (rig.keeper.trouble or "").endswith("no right") is (mode != "off")
        assert (task.failures > 0) is (mode == "follow")
        rig.source.fails = NoAuthorizer(rig.source) if mode == "report" else None
        before_this = task.last_success
        task.wake()
        await until(lambda: task.last_success != before_this)
        assert rig.keeper.trouble is None
    finally:
        work.cancel()
    assert rig.there == before


async def test_everything_stays_when_the_last_mirror_is_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await Rig.make(monkeypatch)
    await rig.look()
    monkeypatch.setattr(rig.keeper, "topics", frozenset)
    rig.source.acls.clear()
    await rig.look()
    await rig.look()
    assert (rig.there, rig.noted) == ({READ, WRITE}, frozenset())
