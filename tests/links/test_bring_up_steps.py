"""Bringing mirrors up: every step is looked at before it is done, whoever ended the last run, whatever somebody did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from controller.phases import Phase
from controller.state import Attempt, MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from linker.links import copy_specs
from linker.links.bring_up import BringUp
from linker.links.topic_shape import grown_apart
from linker.membership import TargetCluster
from linker.promote.fleet_ports import TargetHandOver
from tests.controller.memory_store import MemoryStore
from tests.fakes import FakeCluster
from tests.fakes.controller import DROP
from tests.fakes.mirror_topic import create_mirror_topic
from tests.fakes.quorum import FakeQuorum
from tests.links.conftest import OWN, client, replayed
from tests.links.link_context import context
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.types import TOPIC_RESOURCE, TopicPartition

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
REPLICAS = ((1, 2, 3), (2, 3, 1))
FORCED = {"unclean.leader.election.enable": "false"}


class Fetchers:
    """As much of a FetcherManager as is asked."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Any] = {}

    def add(self, specs: Iterable[Any]) -> list[Any]:
        added = []
        for spec in specs:
            copy = SimpleNamespace(spec=spec, bytes_served=0, epochs=[], paused=False)
            copy.led_under = copy.epochs.append
            self.partitions[spec.topic_partition] = copy
            added.append(copy)
        return added

    def remove(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.partitions.pop(tp, None)

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.partitions[tp].paused = True

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.partitions[tp].paused = False


class Rig:
    """A link with one mirror of two partitions that nothing was done for yet."""

    def __init__(
        self, quorum: FakeQuorum, target: TargetCluster, controller: LinkController, source: Cluster
    ) -> None:
        self.quorum, self.target, self.controller, self.source = quorum, target, controller, source
        self.node = quorum.nodes[0]
        self.node.hooks["describe_configs"] = self._configs
        self.again()

    def again(self) -> None:
        """Another run of the process over the same state."""
        self.fetcher = Fetchers()
        fetcher: Any = self.fetcher
        self.bring_up = BringUp(context("east", self.source, self.target, self.controller), fetcher)

    @staticmethod
    def _configs(request: Any) -> dict[str, Any]:
        return {
            "results": [
                {
                    "resource_type": asked.resource_type,
                    "resource_name": asked.resource_name,
                    "configs": [{"name": "segment.bytes", "value": "1048576", "config_source": 5}],
                }
                for asked in request.resources
            ]
        }

    async def replayed(self) -> None:
        await replayed(self.quorum, self.target)

    async def complete(self) -> None:
        await self.replayed()
        await self.bring_up.complete("orders")
        await self.replayed()

    def partition(self, index: int = 0) -> Any:
        return self.target.image.topics_by_name["orders"].partitions[index]

    def phase(self, tp: TopicPartition = T0) -> Phase:
        return self.controller.image.partitions["east", tp].phase

    def open(self) -> bool:
        return all(
            tuple(self.partition(index).replicas) == (*wanted, OWN)
            and set(self.partition(index).adding) == set(wanted)
            and tuple(self.partition(index).removing) == (OWN,)
            for index, wanted in enumerate(REPLICAS)
        )

    async def promoted(self) -> None:
        """Both partitions, in the state only."""
        await self.controller.begin_promote("east", ["orders"])
        for phase in (Phase.CATCHING_UP, Phase.FENCED):
            await self.controller.advance("east", [T0, T1], phase)
        await self.controller.advance("east", [T0, T1], Phase.ALIGNED, aligned_ends={T0: 0, T1: 0})
        attempts = dict.fromkeys([T0, T1], Attempt(leader_epoch=0, partition_epoch=1))
        await self.controller.advance("east", [T0, T1], Phase.VALIDATED, attempts=attempts)
        for phase in (Phase.HANDED_OVER, Phase.PROMOTED):
            await self.controller.advance("east", [T0, T1], phase)


@pytest_asyncio.fixture
async def rig(quorum: FakeQuorum, target: TargetCluster, source: FakeCluster) -> AsyncIterator[Rig]:
    for _ in range(5):
        source.add("orders", 0)
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", source.cluster_id, {})
    await controller.create_mirror(
        MirrorTopic(
            link="east",
            topic="orders",
            topic_id=bytes(16),
            source_topic_id=source.topics["orders"].topic_id,
            partitions=2,
            start="earliest",
            target_replicas=REPLICAS,
            copied_configs=FORCED,
        )
    )
    cluster = client(source, "source")
    try:
        await cluster.connect()
        yield Rig(quorum, target, controller, cluster)
    finally:
        await cluster.close()


async def test_all_steps_and_then_nothing_more(rig: Rig) -> None:
    await rig.complete()
    assert rig.open()
    assert rig.target.image.configs[TOPIC_RESOURCE, "orders"] == FORCED
    assert (rig.phase(T0), rig.phase(T1)) == (Phase.ACTIVE, Phase.ACTIVE)
    spec = rig.fetcher.partitions[T0].spec
    assert (spec.start_offset, spec.session_epoch, spec.segment_bytes) == (0, 0, 1048576)
    assert spec.target_replicas == REPLICAS[0]
    asked = sum(rig.node.seen[api] for api in ("create_topics", "alter_partition_reassignments"))
    await rig.complete()
    assert sum(rig.node.seen[api] for api in ("create_topics", "alter_partition_reassignments")) == asked


@pytest.mark.parametrize("api", ["create_topics", "describe_configs", "alter_partition_reassignments"])
async def test_it_goes_on_where_it_broke_off(rig: Rig, api: str) -> None:
    """The controller dies at the step, once for this process and once for the next."""
    usual = rig.node.hooks.get(api)
    for _ in range(2):
        rig.node.hooks[api] = lambda request: DROP
        work = asyncio.ensure_future(rig.complete())
        await asyncio.sleep(0.3)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        rig.again()
    rig.node.hooks.pop(api)
    if usual is not None:
        rig.node.hooks[api] = usual
    await rig.complete()
    assert rig.open()
    assert set(rig.fetcher.partitions) == {T0, T1}


async def test_a_topic_that_was_made_but_not_noted_is_taken_over(rig: Rig) -> None:
    await create_mirror_topic(rig.target.operations, "orders", {0: [OWN], 1: [OWN]}, FORCED)
    await rig.complete()
    assert rig.open()
    assert rig.phase() is Phase.ACTIVE


async def test_a_topic_of_somebody_else_is_left_alone(rig: Rig) -> None:
    await create_mirror_topic(rig.target.operations, "orders", {0: [1], 1: [2]}, {})
    await rig.complete()
    assert (rig.phase(T0), rig.phase(T1)) == (Phase.FAILED, Phase.FAILED)
    assert list(rig.partition().replicas) == [1]
    assert rig.fetcher.partitions == {}


async def test_a_topic_that_is_gone_fails_the_mirror(rig: Rig) -> None:
    await rig.complete()
    await rig.target.operations.delete_topic("orders")
    await rig.complete()
    assert rig.phase() is Phase.FAILED
    assert rig.fetcher.partitions == {}


async def test_e0_and_the_start_offset_outlive_a_restart_and_a_new_leader_epoch(rig: Rig) -> None:
    await rig.complete()
    rig.quorum.change("orders", 0, leader=-1)
    rig.quorum.change("orders", 0, leader=OWN)
    rig.again()
    await rig.complete()
    assert rig.partition().leader_epoch == 2
    assert rig.fetcher.partitions[T0].spec.session_epoch == 0
    assert rig.controller.image.partitions["east", T0].leader_epoch == 2


async def test_a_partition_that_nobody_can_lead_keeps_no_other_of_its_topic_from_being_served(
    rig: Rig,
) -> None:
    await rig.complete()
    rig.quorum.change("orders", 0, leader=-1, isr=[1])  # a real broker may have led it
    rig.again()
    with pytest.raises(LinkerError, match="nobody leads orders-0"):
        await rig.complete()
    assert set(rig.fetcher.partitions) == {T1}
    assert rig.controller.image.partitions["east", T0].leader == OWN, "by which a real broker's time is seen"


async def test_positions_of_followers_hold_for_one_leader_epoch(rig: Rig) -> None:
    await rig.complete()
    unsubscribe = rig.target.metadata.subscribe(rig.bring_up.on_target_change)
    first = rig.target.image.topics_by_name["orders"].partitions[0].leader_epoch
    rig.quorum.change("orders", 0, isr=[OWN])  # the same epoch
    await rig.replayed()
    assert set(rig.fetcher.partitions[T0].epochs) == {first}
    rig.quorum.change("orders", 0, leader=OWN)
    await rig.replayed()
    unsubscribe()
    assert rig.fetcher.partitions[T0].epochs[-1] == first + 1
    assert first + 1 not in rig.fetcher.partitions[T1].epochs


async def test_a_cancelled_reassignment_is_asked_for_again_and_told(rig: Rig) -> None:
    await rig.complete()
    rig.fetcher.partitions[T0].bytes_served = 1
    rig.quorum.change("orders", 0, replicas=[OWN], adding_replicas=[], removing_replicas=[], leader=OWN)
    await rig.complete()
    assert rig.open()
    assert rig.bring_up.cancelled == {"orders": 1}


@pytest.mark.parametrize(
    ("shape", "dropped_by"),
    [
        ({}, "the cancel"),
        ({"adding_replicas": [], "removing_replicas": []}, "a reassignment"),
        ({"adding_replicas": [901], "removing_replicas": [], "replicas": [OWN, 1, 2, 3, 901]}, "both"),
        ({"adding_replicas": [], "removing_replicas": [901], "replicas": [OWN, 1, 2, 3, 901]}, "both"),
    ],
    ids=["as asked for", "plain replicas", "a link broker joins", "a link broker leaves"],
)
async def test_a_restart_drops_the_copies_whatever_shape_they_have(
    rig: Rig, shape: dict[str, list[int]], dropped_by: str
) -> None:
    """Once a link broker has joined or left, a cancel does not take them out any more."""
    for part in (rig.bring_up, rig.bring_up._reassignments, rig.bring_up._served, rig.bring_up._added):
        part._link_brokers = lambda: frozenset({OWN, 901})
    await rig.complete()
    if shape:
        rig.quorum.change("orders", 0, **shape)
    await rig.replayed()
    before = rig.partition()
    await rig.controller.fail_partition("east", T0, "retention at the source has outrun the mirror")
    await rig.bring_up.restart("orders")
    left = rig.partition()
    assert list(left.replicas) == [OWN]
    assert (list(left.isr), left.leader) == ([OWN], OWN)
    assert left.leader_epoch > before.leader_epoch, dropped_by
    assert rig.phase() is Phase.LINKING
    await rig.complete()
    assert rig.open()
    assert rig.fetcher.partitions[T0].spec.session_epoch == left.leader_epoch, (
        "nothing of before can be of it"
    )
    assert rig.controller.image.partitions["east", T1].session_epoch == 0, "left alone"


async def test_a_restart_takes_no_broker_from_a_partition_that_another_one_leads(rig: Rig) -> None:
    await rig.complete()
    rig.quorum.change("orders", 0, adding_replicas=[], removing_replicas=[], isr=[1, OWN], leader=1)
    await rig.complete()
    assert rig.phase() is Phase.FAILED
    await rig.bring_up.restart("orders")
    assert set(rig.partition().replicas) == {OWN, *REPLICAS[0]}
    await rig.complete()
    assert rig.phase() is Phase.FAILED


async def test_another_order_is_put_right_before_a_promote(rig: Rig) -> None:
    """Half a revoke, say. The first of the replicas is who will lead; until then the order is of no importance."""
    await rig.complete()
    rig.fetcher.partitions[T0].bytes_served = 1
    await rig.target.operations.reassign({T0: [3, 1, 2]})
    await rig.complete()
    assert not rig.open()
    assert rig.bring_up.cancelled == {}
    await TargetHandOver(rig.target, lambda: frozenset({OWN})).open({T0: REPLICAS[0]}, timeout=5)
    assert rig.open()


async def test_a_promote_owns_its_partitions(rig: Rig) -> None:
    """As long as it only catches up, it waits for copies that are asked for again."""
    await rig.complete()
    await rig.controller.begin_promote("east", ["orders"])
    await rig.controller.advance("east", [T0, T1], Phase.CATCHING_UP)
    rig.quorum.change("orders", 0, replicas=[OWN], adding_replicas=[], removing_replicas=[], leader=OWN)
    await rig.complete()
    assert rig.open()
    await rig.controller.advance("east", [T0, T1], Phase.FENCED)
    rig.quorum.change("orders", 0, replicas=[OWN], adding_replicas=[], removing_replicas=[], leader=OWN)
    await rig.complete()
    assert not rig.open(), "left alone"
    await rig.controller.advance("east", [T0, T1], Phase.ACTIVE)
    await rig.complete()
    assert rig.open()


async def test_after_the_promote_a_late_revoke_is_taken_back(rig: Rig) -> None:
    await rig.complete()
    await rig.promoted()
    rig.quorum.change("orders", 0, replicas=[1], isr=[1], leader=1, adding_replicas=[], removing_replicas=[])
    await rig.target.operations.reassign({T0: [OWN, 1]})
    await rig.replayed()
    assert list(rig.partition().adding) == [OWN]
    await rig.complete()
    assert (list(rig.partition().replicas), list(rig.partition().adding)) == ([1], [])
    asked = rig.node.seen["alter_partition_reassignments"]
    await rig.complete()
    assert rig.node.seen["alter_partition_reassignments"] == asked


async def test_after_the_promote_the_operators_own_reassignment_is_left_alone(rig: Rig) -> None:
    await rig.complete()
    await rig.promoted()
    rig.quorum.change("orders", 0, replicas=[1], isr=[1], leader=1, adding_replicas=[], removing_replicas=[])
    await rig.target.operations.reassign({T0: [1, 3]})
    await rig.complete()
    assert list(rig.partition().adding) == [3]


async def test_a_mirror_in_trouble_does_not_keep_another_from_being_completed(
    rig: Rig, source: FakeCluster
) -> None:
    source.add_topic("quotes", partitions=1)
    await rig.controller.create_mirror(
        MirrorTopic(
            link="east",
            topic="quotes",
            topic_id=bytes(16),
            source_topic_id=source.topics["quotes"].topic_id,
            partitions=1,
            start="no number",
            target_replicas=((1,),),
            copied_configs=FORCED,
        )
    )
    rig.bring_up.ask("quotes")
    running = asyncio.ensure_future(rig.bring_up.run())
    try:
        async with asyncio.timeout(30):
            while rig.phase() is not Phase.ACTIVE or "quotes" not in rig.bring_up.trouble:
                await asyncio.sleep(0.01)
        assert "no number" in rig.bring_up.trouble["quotes"]
        assert not rig.bring_up.settled.is_set()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def another(topic_id: bytes | None) -> MirrorTopic:
    return MirrorTopic(
        link="east",
        topic="quotes",
        topic_id=bytes(16),
        source_topic_id=topic_id,
        partitions=1,
        start="earliest",
        target_replicas=((1,),),
        copied_configs=FORCED,
    )


@pytest.mark.parametrize("start", ["earliest", "1700000000000"])
async def test_a_source_partition_without_a_leader_keeps_another_mirror_waiting_for_a_moment(
    rig: Rig, source: FakeCluster, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.setitem(copy_specs._list.__kwdefaults__, "timeout", 0.3)
    monkeypatch.setattr(copy_specs, "_CALL_TIMEOUT", 60.0)
    source.add_topic("quotes", partitions=1)
    source.move_leader("orders", 1, -1)
    await rig.controller.delete_mirror("east", "orders")
    orders = replace(another(source.topics["orders"].topic_id), topic="orders", start=start)
    await rig.controller.create_mirror(replace(orders, partitions=2, target_replicas=REPLICAS))
    quotes = TopicPartition("quotes", 0)
    running = asyncio.ensure_future(rig.bring_up.run())
    try:
        async with asyncio.timeout(25):
            while "orders" not in rig.bring_up.trouble:
                await asyncio.sleep(0.01)
            assert "orders-1" in rig.bring_up.trouble["orders"]
            assert "no start offset" in rig.bring_up.trouble["orders"]
            await rig.controller.create_mirror(another(source.topics["quotes"].topic_id))
            rig.bring_up.ask("quotes")
            while rig.controller.image.partitions["east", quotes].phase is not Phase.ACTIVE:
                await asyncio.sleep(0.01)
            assert "orders" in rig.bring_up.trouble
            while rig.phase(T0) is not Phase.ACTIVE:  # the topic's other partition is copied meanwhile
                await asyncio.sleep(0.01)
            source.move_leader("orders", 1, source.topics["orders"].partitions[0].leader)
            while rig.phase(T1) is not Phase.ACTIVE or rig.bring_up.trouble:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_wake_for_one_mirror_is_none_for_another_in_trouble(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def complete(topics: list[str]) -> dict[str, LinkerError]:
        tried.extend(topics)
        return {"orders": LinkerError("no leader")} if "orders" in topics else {}

    monkeypatch.setattr(rig.bring_up, "complete_all", complete)
    running = asyncio.ensure_future(rig.bring_up.run())
    try:
        for _ in range(15):
            rig.bring_up.ask("quotes")
            await asyncio.sleep(0.03)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert tried.count("quotes") > 10
    assert 1 <= tried.count("orders") < 5
    assert rig.bring_up.trouble == {"orders": "no leader"}


async def test_what_fails_and_asks_again_at_once_leaves_room_for_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link controller that is fenced: nothing in it waits for anything."""
    tries = 0

    async def complete(topics: list[str]) -> dict[str, LinkerError]:
        nonlocal tries
        tries += 1
        if tries > 1000:
            raise RuntimeError  # nobody else would run again
        for topic in topics:
            rig.bring_up.ask(topic)
        raise LinkerError("fenced")

    monkeypatch.setattr(rig.bring_up, "complete_all", complete)
    running = asyncio.ensure_future(rig.bring_up.run())
    try:
        await asyncio.sleep(0.3)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert 1 < tries < 50


async def test_one_mirror_that_spoils_a_step_for_all_is_found_and_holds_nobody_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: set[str] = set()
    largest = 0

    async def complete(topics: list[str]) -> dict[str, LinkerError]:
        nonlocal largest
        largest = max(largest, len(topics))
        await asyncio.sleep(0)
        if "orders" in topics:
            raise LinkerError("no answer")
        done.update(topics)
        return {}

    monkeypatch.setattr(rig.bring_up, "complete_all", complete)
    running = asyncio.ensure_future(rig.bring_up.run())
    try:
        for number in range(200):
            rig.bring_up.ask(f"t{number}")
        async with asyncio.timeout(30):
            while len(done) < 200 or rig.bring_up.trouble != {"orders": "no answer"}:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert largest == 100


async def test_a_source_that_does_not_tell_its_start_is_an_error_and_changes_nothing(
    rig: Rig, source: FakeCluster
) -> None:
    source.inject("list_offsets", error=29, times=4)
    with pytest.raises(LinkerError, match="orders"):
        await rig.complete()
    assert rig.phase() is Phase.LINKING
    assert rig.fetcher.partitions == {}


def test_partitions_that_somebody_added_at_the_target_are_named() -> None:
    mirror = MirrorTopic(
        link="east",
        topic="orders",
        topic_id=b"i" * 16,
        source_topic_id=None,
        partitions=2,
        target_replicas=REPLICAS,
    )
    as_made: Any = SimpleNamespace(partitions={0: None, 1: None})
    grown: Any = SimpleNamespace(partitions={0: None, 1: None, 2: None})
    assert grown_apart(mirror, as_made) is None
    assert "at the target: it has 3, the source topic 2" in str(grown_apart(mirror, grown))
    back = str(grown_apart(mirror, grown, reverse=True))
    assert "at the source: it has 3, the target topic 2" in back and "Give the target as many" in back


async def test_a_copy_begins_with_what_the_leader_before_has_noted_meanwhile(rig: Rig) -> None:
    await rig.complete()
    image = rig.controller.image
    state = image.partitions["east", T0]
    assert state.source_epochs == ()

    def configs(request: Any) -> dict[str, Any]:
        image.replay([replace(state, source_epochs=((4, 7),))])
        return rig._configs(request)

    rig.node.hooks["describe_configs"] = configs
    rig.again()
    await rig.complete()
    assert rig.fetcher.partitions[T0].spec.source_epochs == ((4, 7),)
