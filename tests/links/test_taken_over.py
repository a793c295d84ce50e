"""Mirrors of topics that the cluster's own brokers led: left alone while they are switched, and never copied anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from controller.errors import Refused
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic, Record, RemoveMirror, Taken
from linker.links.mirrors import Mirrors
from linker.links.topic_shape import led_by_others
from tests.fakes.mirror_topic import create_mirror_topic
from tests.links.conftest import OWN
from tests.links.link_context import context
from tests.links.test_bring_up_steps import Fetchers, Rig, rig
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import TopicPartition

SOLD = TopicPartition("sold", 0)
__all__ = ["rig"]


class HeldFetchers(Fetchers):
    def __init__(self) -> None:
        super().__init__()
        self.released: list[TopicPartition] = []

    def release(self, tps: Any) -> None:
        for tp in tps:
            self.released.append(tp)
            copy = self.partitions[tp]
            copy.spec = replace(copy.spec, held=False)


class Sold:
    """A topic that the link broker leads, with the real brokers as plain replicas outside the ISR."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.fetcher = HeldFetchers()
        self.again()

    def again(self) -> None:
        fetcher: Any = self.fetcher
        self.rig.bring_up = type(self.rig.bring_up)(
            context("east", self.rig.source, self.rig.target, self.rig.controller), fetcher
        )

    async def begin(self, phase: Phase) -> None:
        await create_mirror_topic(self.rig.target.operations, "sold", {0: [OWN]}, {})
        self.change(replicas=[OWN, 1, 2])
        await self.rig.replayed()
        topic = self.rig.target.image.topics_by_name["sold"]
        mirror = MirrorTopic(
            link="east",
            topic="sold",
            topic_id=topic.id,
            source_topic_id=None,
            partitions=1,
            target_replicas=((1, 2),),
        )
        state = MirrorPartition(link="east", topic="sold", partition=0, phase=Phase.TAKING)
        await self.commit(mirror, state)
        if phase is not Phase.TAKING:
            await self.taken()

    async def taken(self) -> None:
        partition = self.partition()
        await self.commit(
            replace(
                self.state,
                phase=Phase.TAKEN,
                leader=OWN,
                leader_epoch=partition.leader_epoch,
                isr=(OWN,),
                session_epoch=partition.leader_epoch + 5,
                start_offset=3,
                taken=Taken(end=40, epochs=((0, 0), (2, 10))),
            )
        )

    async def commit(self, *records: Record) -> None:
        await self.rig.controller.decide(lambda _image: (records, None))

    @property
    def state(self) -> MirrorPartition:
        return self.rig.controller.image.partitions["east", SOLD]

    def partition(self) -> Any:
        return self.rig.target.image.topics_by_name["sold"].partitions[0]

    def change(self, **fields: Any) -> None:
        self.rig.quorum.change("sold", 0, **fields)

    async def complete(self) -> None:
        await self.rig.replayed()
        await self.rig.bring_up.complete("sold")
        await self.rig.replayed()

    def asked(self) -> int:
        """Of the cluster's controller, to change anything."""
        seen = self.rig.node.seen
        return sum(count for api, count in seen.items() if api.startswith(("alter", "create", "elect")))


@pytest_asyncio.fixture
async def sold(rig: Rig) -> AsyncIterator[Sold]:
    yield Sold(rig)


async def test_it_is_left_alone_until_it_is_taken(sold: Sold) -> None:
    await sold.begin(Phase.TAKING)
    for leader in (1, OWN, -1):  # before the take-over, in its middle, and while the cluster elects
        sold.change(leader=leader, isr=[1, 2, OWN] if leader >= 0 else [1])
        asked = sold.asked()
        await sold.complete()
        assert (sold.asked(), sold.fetcher.partitions) == (asked, {})
        assert (sold.state.phase, sold.state.failure) == (Phase.TAKING, None)


async def test_what_was_taken_is_served_and_not_fed_until_it_is_active(sold: Sold) -> None:
    await sold.begin(Phase.TAKEN)
    asked = sold.asked()
    await sold.complete()
    spec = sold.fetcher.partitions[SOLD].spec
    epoch = sold.state.session_epoch
    assert spec.held and spec.taken == LeaderEpochs.of(epoch, 40, [(0, 0), (2, 10)])
    assert (spec.start_offset, spec.session_epoch, spec.target_replicas) == (3, epoch, (1, 2))
    await sold.complete()
    assert sold.fetcher.released == []
    await sold.commit(replace(sold.state, phase=Phase.ACTIVE))
    await sold.complete()
    await sold.complete()
    assert sold.fetcher.released == [SOLD]
    # Plain replicas outside the ISR: nothing of that shape is changed.
    assert sold.asked() == asked
    assert (list(sold.partition().replicas), list(sold.partition().isr)) == ([OWN, 1, 2], [OWN])
    assert sold.state.phase is Phase.ACTIVE


async def test_what_the_switch_writes_down_is_followed_at_once(sold: Sold) -> None:
    """The metadata log says nothing when a switch goes on or is over."""
    sold.rig.controller.listeners.add(sold.rig.bring_up.on_records)
    running = asyncio.ensure_future(sold.rig.bring_up.run())
    try:
        await sold.begin(Phase.TAKEN)
        async with asyncio.timeout(30):
            while SOLD not in sold.fetcher.partitions:
                await asyncio.sleep(0.01)
        await sold.commit(replace(sold.state, phase=Phase.ACTIVE))
        assert sold.fetcher.released == [SOLD], "followers wait for it"
        await sold.commit(RemoveMirror("east", "sold"))
        async with asyncio.timeout(30):
            while SOLD in sold.fetcher.partitions:
                await asyncio.sleep(0.01)
    finally:
        sold.rig.controller.listeners.discard(sold.rig.bring_up.on_records)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_brokers_to_whom_it_is_given_back_follow_to_its_end(sold: Sold) -> None:
    """In TAKING, once it is written down where link brokers lead from: the real brokers come to the end, and lead then."""
    await sold.begin(Phase.TAKEN)
    await sold.complete()
    copy = sold.fetcher.partitions[SOLD]
    await sold.commit(replace(sold.state, phase=Phase.TAKING))
    await sold.complete()
    assert sold.fetcher.partitions[SOLD] is copy and copy.spec.held
    assert sold.fetcher.released == []


def served(sold: Sold) -> Any:
    image: Any = sold.rig.target.image
    mirrors = Mirrors(
        lambda: sold.rig.controller.image, image, lambda _key, _index: None, lambda _link: True, OWN
    )
    mirrors.rebuild()
    mirror = mirrors.by_name("sold")
    assert mirror is not None
    return mirror.partition(0)


async def test_the_router_sees_the_switch(sold: Sold) -> None:
    await sold.begin(Phase.TAKING)
    partition = served(sold)
    assert (partition.switching, partition.taking, partition.forwarding) == (True, True, False)
    assert partition.epochs is None
    mirror = sold.rig.controller.image.mirrors["east", "sold"]
    await sold.commit(replace(mirror, given_back=True))
    assert not partition.taking, "its real leader may be given what is held"
    await sold.commit(mirror)
    await sold.taken()
    partition = served(sold)
    assert (partition.switching, partition.taking, partition.forwarding) == (True, False, False)
    assert partition.epochs == LeaderEpochs.of(sold.state.session_epoch, 40, [(0, 0), (2, 10)])
    assert partition.leading and not partition.serving
    await sold.commit(replace(sold.state, phase=Phase.ACTIVE))
    partition = served(sold)
    assert (partition.switching, partition.taking, partition.forwarding) == (False, False, True)


async def test_a_copy_of_another_take_over_is_begun_anew(sold: Sold) -> None:
    await sold.begin(Phase.TAKEN)
    await sold.complete()
    before = sold.fetcher.partitions[SOLD]
    await sold.complete()
    assert sold.fetcher.partitions[SOLD] is before
    await sold.commit(replace(sold.state, taken=Taken(end=41, epochs=((0, 0),))))
    await sold.complete()
    assert sold.fetcher.partitions[SOLD] is not before


async def test_given_back_it_is_no_fork(sold: Sold) -> None:
    await sold.begin(Phase.TAKEN)
    sold.change(leader=1, isr=[1, 2, OWN], replicas=[1, 2, OWN])
    await sold.complete()
    assert (sold.state.phase, sold.state.failure, sold.state.leader) == (Phase.TAKEN, None, 1)
    assert sold.fetcher.partitions == {}  # another one leads it
    topic = sold.rig.target.image.topics_by_name["sold"]
    assert list(led_by_others([sold.state], topic, frozenset({OWN}))) == []


async def test_the_log_of_its_brokers_is_never_dropped(sold: Sold) -> None:
    await sold.begin(Phase.TAKEN)
    await sold.commit(replace(sold.state, phase=Phase.ACTIVE))
    await sold.rig.controller.fail_partition("east", SOLD, "because")
    await sold.rig.replayed()
    asked = sold.asked()
    with pytest.raises(Refused, match="switch back instead"):
        await sold.rig.bring_up.restart("sold")
    with pytest.raises(Refused, match="switch back instead"):
        await sold.rig.controller.restart_partition("east", SOLD)
    with pytest.raises(Refused, match="switch back instead"):
        await sold.rig.bring_up.move({SOLD: (2, 3)}, afresh=True)
    with pytest.raises(Refused, match="switch back instead"):
        await sold.rig.bring_up._reassignments.drop_copies([SOLD])
    with pytest.raises(Refused, match="switch back instead"):
        await sold.rig.controller.delete_mirror("east", "sold")
    assert sold.asked() == asked


async def test_its_replicas_move_without_dropping_a_copy(sold: Sold) -> None:
    await sold.begin(Phase.TAKEN)
    await sold.commit(replace(sold.state, phase=Phase.ACTIVE))
    await sold.rig.replayed()
    await sold.rig.bring_up.move({SOLD: (1, 3)}, afresh=False)
    await sold.rig.replayed()
    assert set(sold.partition().replicas) == {OWN, 1, 2, 3}
    assert list(sold.partition().isr) == [OWN]


async def test_only_the_switch_changes_what_is_switched(sold: Sold) -> None:
    await sold.begin(Phase.TAKEN)
    controller = sold.rig.controller
    with pytest.raises(Refused, match="is being switched"):
        await controller.delete_mirror("east", "sold", force=True)
    with pytest.raises(Refused, match="is being switched"):
        await controller.pause("east", "sold")
    await controller.fail_partition("east", SOLD, "because")
    assert (sold.state.phase, sold.state.failure) == (Phase.TAKEN, "because")
