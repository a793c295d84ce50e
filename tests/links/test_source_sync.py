"""Whom a sidecar follows at the source: by the source's metadata log, as every broker does."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.reverse import reverse_name
from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import Link, MirrorPartition, SidecarIdentity, Taken
from fetcher.followed import InSyncState
from linker.links.source_sync import SourceSync
from wire.errors import LinkerError, LocalProtocolError
from wire.frames.types import Node, TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

US = 800
BACK = reverse_name("east")
ID = b"t" * 16
TP = TopicPartition("t", 0)


def at(replicas: tuple[int, ...], *, leader: int = 1, isr: tuple[int, ...] = (1, 2)) -> PartitionImage:
    return PartitionImage(0, replicas, isr, (), (), leader, 5, 9)


class Membership:
    """Of the source."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.broker_id = US
        self.registration = SimpleNamespace(broker_epoch=77)
        self.cluster = SimpleNamespace(nodes={2: Node(2, "b", 9092, None)})
        self.metadata = self
        self.subscribers: list[Callable[[ClusterImage, frozenset[bytes]], None]] = []

    def subscribe(self, callback: Any) -> Callable[[], None]:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def put(self, partition: PartitionImage) -> None:
        topic = TopicImage(ID, "t", {0: partition})
        self.image.topics_by_id[ID] = self.image.topics_by_name["t"] = topic
        for tell in list(self.subscribers):
            tell(self.image, frozenset({ID}))


class Directory:
    listeners: list[Any]

    def __init__(self) -> None:
        self.listeners = []


class Fetcher:
    """A link's fetcher, as far as it is asked."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, Any] = {TP: object()}
        self.directory = Directory()


def broker(broker_id: int, **changes: Any) -> BrokerImage:
    made = BrokerImage(
        broker_id, 1, bytes(16), None, {}, fenced=False, in_controlled_shutdown=False, log_dirs=()
    )
    return dataclasses.replace(made, **changes)


class Scene:
    def __init__(self) -> None:
        self.membership: Membership | None = Membership()
        self.image = ControllerImage()
        self.target = SimpleNamespace(image=ClusterImage())
        self.fetcher = Fetcher()
        self.learned: list[tuple[TopicPartition, int, int]] = []
        source: Any = SimpleNamespace(
            client_id="linker",
            nodes={1: Node(1, "a", 9092, None)},
            topics={"t": SimpleNamespace(topic_id=ID)},
            learn_leader=lambda *told: self.learned.append(told),
        )
        self.source = source
        self.sync = SourceSync(
            "east",
            source,
            self.target,  # type: ignore[arg-type]
            self.fetcher,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            lambda: self.membership,  # type: ignore[arg-type,return-value]
            None,  # type: ignore[arg-type]
            lambda: self.image,
        )
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        for name in ("follow", "begin", "end"):
            setattr(self.sync.follower, name, self._record(name))
        self.told = 0
        self.sync.follower.stop = lambda tps: dict.fromkeys(tps, 7)  # type: ignore[method-assign]
        self.sync.follower.state = lambda tp: InSyncState(True, True, self.told, 7, "")  # type: ignore[method-assign]

    def _record(self, name: str) -> Callable[[Any], None]:
        def call(tps: Any) -> None:
            found = list(tps)
            if found:
                self.calls.append((name, found))

        return call

    def subscribe(self) -> None:
        self.sync._subscribe(self.membership)  # type: ignore[arg-type]


def test_a_partition_that_names_us_is_followed_until_it_does_not() -> None:
    scene = Scene()
    membership = scene.membership
    assert membership is not None
    membership.put(at((1, 2)))
    scene.subscribe()
    assert scene.calls == []
    membership.put(at((1, 2, US)))
    assert scene.calls == [("follow", [TP])]
    # Nothing that changes there begins again what was stopped.
    membership.put(at((US, 1, 2), isr=(1, 2, US)))
    assert {name for name, _ in scene.calls} == {"follow"}
    membership.put(at((1, 2)))
    assert scene.calls[-1] == ("end", [TP])


def test_writes_go_to_the_leader_that_the_metadata_log_names() -> None:
    """Who led before refuses them, and a write that a switch has held would wait for another look at the metadata."""
    scene = Scene()
    membership = scene.membership
    assert membership is not None
    scene.subscribe()
    membership.put(at((1, 2), leader=2))
    assert scene.learned == [(TP, 2, 5)]
    scene.source.topics["t"].topic_id = b"another topic..."
    membership.put(at((1, 2), leader=1))
    scene.source.topics.clear()
    membership.put(at((1, 2), leader=1))
    assert len(scene.learned) == 1


def test_a_copy_that_comes_later_is_followed_too() -> None:
    scene = Scene()
    membership = scene.membership
    assert membership is not None
    copy = SimpleNamespace(tp=TP, spec=SimpleNamespace(link="east"))
    scene.fetcher.partitions.clear()
    membership.put(at((1, 2, US)))
    scene.subscribe()
    assert scene.calls == []
    scene.sync._copy_added(copy)  # type: ignore[arg-type]
    assert scene.calls == [("follow", [TP])]
    copy.spec.link = "west"
    scene.sync._copy_added(copy)  # type: ignore[arg-type]
    assert len(scene.calls) == 1


def test_a_topic_that_is_gone_and_a_source_that_was_left() -> None:
    scene = Scene()
    membership = scene.membership
    assert membership is not None
    membership.put(at((1, 2, US)))
    scene.subscribe()
    membership.image.topics_by_id.clear()
    membership.image.topics_by_name.clear()
    membership.subscribers[0](membership.image, frozenset({ID}))
    assert scene.calls[-1] == ("end", [TP])
    membership.put(at((1, 2, US)))
    scene.membership = None
    scene.subscribe()
    assert scene.calls[-1] == ("end", [TP])
    assert membership.subscribers == []
    assert scene.sync.leader_of(TP) is None
    assert scene.sync.identity() is None
    assert not scene.sync.led_by_us(TP)


def test_leader_and_identity_as_the_metadata_log_has_them() -> None:
    scene = Scene()
    membership = scene.membership
    assert membership is not None
    assert scene.sync.leader_of(TP) is None  # no such topic
    for partition, expected in (
        (at((1, 2, US)), (1, 5, False)),
        (at((1, 2, US), leader=2, isr=(2, US)), (2, 5, True)),
        (at((1, 2)), None),
        (at((1, 2, US), leader=-1), None),
        (at((1, 2, US), leader=US), None),
        (at((1, 3, US), leader=3), None),  # nobody has said yet where that one is
    ):
        membership.put(partition)
        found = scene.sync.leader_of(TP)
        assert expected == (found and (found.node.id, found.leader_epoch, found.in_sync))
        assert scene.sync.led_by_us(TP) == (partition.leader == US)
    assert scene.sync.identity() == (US, 77)
    membership.registration.broker_epoch = -1
    assert scene.sync.identity() is None


def test_what_link_brokers_hold_to_an_end_is_not_followed_beyond_it() -> None:
    """A sidecar that was restarted while a partition is given back: it may be elected again before the end is forgotten,
    and would serve no more than that."""
    scene = Scene()
    assert scene.membership is not None
    scene.membership.put(at((1, 2, US), isr=(1, US)))
    state = MirrorPartition(link=BACK, topic="t", partition=0, phase=Phase.TAKING)
    for name, against in (("east", None), (BACK, "east")):
        link = Link(name=name, source_cluster_id=name, properties={}, reverse_of=against)
        scene.image.replay([link])
        assert scene.sync.leader_of(TP) is not None
    for phase, taken, followed in (
        (Phase.TAKING, None, True),
        (Phase.TAKING, Taken(end=7), False),
        (Phase.TAKEN, Taken(end=7), False),
        (Phase.ACTIVE, Taken(end=7), True),
    ):
        scene.image.replay([dataclasses.replace(state, phase=phase, taken=taken)])
        assert (scene.sync.leader_of(TP) is not None) == followed
    assert not scene.sync.led_by_us(TP)


def _copy(*replicas: int) -> Any:
    return SimpleNamespace(spec=SimpleNamespace(target_replicas=replicas, topic_id=ID, partition=0))


def test_replicas_that_are_taken_out_count_until_they_are_out() -> None:
    """One that comes in their place has nothing at first, and a log that is said to end there would be cut to that."""
    scene = Scene()
    scene.image.replay([SidecarIdentity(broker_id=900, incarnation_id=bytes(16), log_dir_id=bytes(16))])
    image = scene.target.image
    image.brokers |= {one: broker(one) for one in (1, 2, 3, 900)}
    moving = dataclasses.replace(at((900, 3, 1, 2)), removing=(1, 2, 900), adding=(3,))
    image.topics_by_id[ID] = TopicImage(ID, "t", {0: moving})
    assert list(scene.sync.must_hold(_copy(3))) == [3, 1, 2]
    image.brokers |= {2: broker(2, fenced=True)}
    assert list(scene.sync.must_hold(_copy(3))) == [3, 1]
    assert list(scene.sync.must_tell(_copy(3))) == [3, 1, 2]  # nobody else knows what it was told to have
    image.topics_by_id[ID] = TopicImage(ID, "t", {0: at((900, 3))})
    assert list(scene.sync.must_hold(_copy(3))) == [3]


def test_brokers_of_the_target_that_are_away_need_not_have_it() -> None:
    scene = Scene()
    copy = _copy(1, 2, 3, 4)
    brokers = scene.target.image.brokers
    brokers |= {1: broker(1), 2: broker(2, fenced=True), 3: broker(3, in_controlled_shutdown=True)}
    assert list(scene.sync.must_hold(copy)) == [1]


async def test_stop_waits_for_the_replicas() -> None:
    scene = Scene()
    with pytest.raises(LinkerError, match=r"do not have all of t-0 \(up to offset 7\) within 0.02 s"):
        await scene.sync.stop([TP], timeout=0.02)
    asyncio.get_running_loop().call_later(0.03, setattr, scene, "told", 7)
    assert await scene.sync.stop([TP], timeout=5) == {TP: 7}


async def test_the_end_of_what_another_link_broker_leads_is_told_by_who_has_the_copy() -> None:
    scene = Scene()
    assert scene.membership is not None
    scene.told = 7
    found: list[TopicPartition] = []
    scene.sync.follower.find_end = found.append  # type: ignore[method-assign]
    scene.image.replay(
        SidecarIdentity(
            broker_id=sidecar, incarnation_id=bytes(16), log_dir_id=bytes(16), sources=(("east", broker),)
        )
        for sidecar, broker in ((900, US), (901, 801))
    )
    scene.image.replay([Link(name="east", source_cluster_id="s", properties={})])
    for leader, asked in ((US, False), (1, False), (-1, False), (801, True)):
        scene.membership.put(at((1, 2, 801), leader=leader, isr=(801,)))
        assert await scene.sync.stop([TP], timeout=1) == {TP: 7}
        assert bool(found) == asked
    scene.membership = None
    await scene.sync.stop([TP], timeout=1)
    assert found == [TP]


async def test_what_is_not_followed_cannot_be_stopped() -> None:
    scene = Scene()
    del scene.sync.follower.stop  # type: ignore[method-assign]
    with pytest.raises(LocalProtocolError, match="not followed at the source now: t-0"):
        await scene.sync.stop([TP], timeout=1)
