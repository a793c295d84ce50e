"""The part of a fleet in a switch: who follows a partition, and who is asked where it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import (
    Link,
    MirrorPartition,
    MirrorTopic,
    RemoveMirror,
    SidecarIdentity,
    SwitchEnd,
    Taken,
)
from linker.links import assembly, switching
from linker.links.switching import LinkSwitch
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

ONE, TWO, THREE = (TopicPartition("t", index) for index in range(3))


class Scene:
    """Sidecars 900 to 902, which are 800 and 801 at the source of `east` (the third has no section for it). 900 is asked."""

    def __init__(self) -> None:
        self.image = ControllerImage()
        mirror = MirrorTopic(
            link="east", topic="t", topic_id=b"\x01" * 16, source_topic_id=None, partitions=3
        )
        self.image.replay(
            [
                *(
                    SidecarIdentity(
                        broker_id=sidecar, incarnation_id=bytes(16), log_dir_id=bytes(16), sources=sources
                    )
                    for sidecar, sources in (
                        (900, (("east", 800),)),
                        (901, (("east", 801), ("west", 7))),
                        (902, ()),
                    )
                ),
                Link(name="east", source_cluster_id="s", properties={}, options={"join_source": True}),
                Link(name="east.reverse", source_cluster_id="c", properties={}, reverse_of="east"),
                mirror,
                *(self.led(tp, 900 + tp.partition) for tp in (ONE, TWO, THREE)),
            ]
        )
        self.stopped: list[tuple[int, list[TopicPartition]]] = []
        self.again: list[Collection[TopicPartition]] = []
        self.forwards: list[int] = []  # how often those were woken whose writes wait
        self.leaders = {0: 800, 1: 801, 2: 2}
        self.copies: dict[TopicPartition, Any] = dict.fromkeys((ONE, TWO, THREE))
        controller: Any = SimpleNamespace(image=self.image)
        commands = SimpleNamespace(stop_following=self._stop, follow_again=lambda link, tps: None)
        member: Any = SimpleNamespace(membership=self, link_brokers=lambda: frozenset({800, 801}))
        self.broker_id = 800
        self.switch = LinkSwitch(
            "east",
            controller,
            SimpleNamespace(  # type: ignore[arg-type]
                stop=self._stop_here, begin=self.again.append, followed=(ONE, TWO, THREE)
            ),
            lambda: member,
            lambda topic: None,
            lambda: None,
            self.copies,
            lambda: SimpleNamespace(commands=commands),  # type: ignore[arg-type,return-value]
            2,
            SimpleNamespace(),  # type: ignore[arg-type]
            Path(),
            lambda _topics: None,  # type: ignore[arg-type,return-value]
            lambda: self.forwards.append(1),
        )
        self.switch.replicas.task.wake = lambda: None  # type: ignore[method-assign]
        self.switch.task.wake = lambda: None  # type: ignore[method-assign]

    def led(self, tp: TopicPartition, leader: int) -> MirrorPartition:
        return MirrorPartition(link="east", topic=tp.topic, partition=tp.partition, leader=leader)

    @property
    def topics_by_name(self) -> dict[str, Any]:
        partitions = {index: SimpleNamespace(leader=leader) for index, leader in self.leaders.items()}
        return {"t": SimpleNamespace(partitions=partitions)}

    async def _stop(
        self, link: str, tps: list[TopicPartition], sidecar: int, *, timeout: float
    ) -> dict[TopicPartition, int]:
        self.stopped.append((sidecar, tps))
        if sidecar < 0:
            raise LinkerError("nobody")
        return dict.fromkeys(tps, sidecar)

    async def _stop_here(self, tps: list[TopicPartition], *, timeout: float) -> dict[TopicPartition, int]:
        self.stopped.append((900, tps))
        return dict.fromkeys(tps, 900)


def test_the_broker_of_the_sidecar_that_leads_the_mirror_follows() -> None:
    scene = Scene()
    follower = scene.switch._follower
    assert [follower(tp) for tp in (ONE, TWO, THREE)] == [800, 801, -1]
    scene.image.replay([scene.led(ONE, 901), scene.led(TWO, -1)])
    assert [follower(ONE), follower(TWO), follower(TopicPartition("t", 9))] == [801, None, None]
    assert [scene.image.sidecar_at("east", broker) for broker in (800, 801, 7, 2)] == [900, 901, -1, -1]
    assert [scene.image.broker_at("", 900), scene.image.sidecar_at("", 900)] == [900, 900]
    assert scene.image.broker_at("west", 900) is None


def test_each_end_is_asked_of_who_hears_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr(
        "linker.links.switching.find", lambda image, tp: scene.topics_by_name["t"].partitions[tp.partition]
    )
    found = asyncio.run(scene.switch.stop([ONE, TWO], timeout=1))
    assert found == {ONE: 900, TWO: 901}
    assert sorted(scene.stopped) == [(900, [ONE]), (901, [TWO])]
    with pytest.raises(LinkerError, match="nobody"):  # a real broker leads it
        asyncio.run(scene.switch.stop([ONE, THREE], timeout=1))
    # The mirror went elsewhere: its copies are heard of by who leads it now, if that one is a broker of the source.
    for leader, asked in ((901, 901), (902, 900), (-1, 900)):
        scene.image.replay([scene.led(ONE, leader)])
        assert asyncio.run(scene.switch.stop([ONE], timeout=1)) == {ONE: asked}
    scene.leaders[0] = 2
    with pytest.raises(LinkerError, match="nobody"):
        asyncio.run(scene.switch.stop([ONE], timeout=1))


async def test_held_writes_go_on_as_soon_as_the_switch_is_over() -> None:
    """Not with the next look at deadlines: that is up to a tenth of a second later."""
    scene = Scene()
    for phase, woken in (
        (Phase.TAKING, 0),
        (Phase.TAKEN, 0),
        (Phase.ACTIVE, 1),
        (Phase.ACTIVE, 1),
        (Phase.TAKING, 1),
    ):
        records = [dataclasses.replace(scene.led(tp, 900), phase=phase) for tp in (ONE, TWO)]
        scene.image.replay(records)
        scene.switch.on_records(records)
        assert len(scene.forwards) < 1 + woken, "who asks then sees the state of before"
        await asyncio.sleep(0)
        assert len(scene.forwards) == woken, phase
    scene.switch.on_records(())
    scene.switch.on_records([RemoveMirror("east", "t")])
    await asyncio.sleep(0)
    assert len(scene.forwards) == 2


def test_the_state_says_when_to_follow_again() -> None:
    """Whoever stopped, and missed that it was given back, must not stay silent in an ISR."""
    scene = Scene()
    del scene.copies[TWO]  # another sidecar leads its mirror by now, and it may come back here
    scene.switch.on_records([scene.led(ONE, 900)])
    assert scene.again == []
    scene.switch.on_records([RemoveMirror("east.reverse", "t")])
    assert scene.again == [[ONE, TWO, THREE]]
    back = MirrorTopic(
        link="east.reverse", topic="t", topic_id=b"\x02" * 16, source_topic_id=None, partitions=3
    )
    scene.image.replay([back])
    scene.switch.on_records(())
    assert scene.again[1:] == [[]]
    scene.switch.on_records([RemoveMirror("east", "other")])
    assert len(scene.again) == 2


OURS, OTHER = b"\x02" * 16, b"\x09" * 16


@pytest.mark.parametrize("there", [None, OTHER], ids=["deleted", "made again"])
async def test_a_topic_that_somebody_has_deleted_holds_up_no_end_of_a_switch(
    monkeypatch: pytest.MonkeyPatch, there: bytes | None
) -> None:
    """One of that name that he has made since is not closed."""
    scene = Scene()
    ids = {"kept": OURS, "gone": there}
    for topic in ids:
        mirror = MirrorTopic(
            link="east.reverse", topic=topic, topic_id=OURS, source_topic_id=None, partitions=1
        )
        state = MirrorPartition(
            link="east.reverse", topic=topic, partition=0, phase=Phase.ACTIVE, taken=Taken(end=5, epochs=())
        )
        scene.image.replay([dataclasses.replace(mirror, ending=SwitchEnd.CLOSED), state])
    closed: list[str] = []

    class Owner:
        def __init__(self, *_: object) -> None:
            pass

        async def caught_up(self, *, timeout: float) -> None:
            pass

        def overrides_of(self, topic: str, topic_id: bytes) -> dict[str, str] | None:
            return {} if ids[topic] == topic_id else None

        async def set_configs(self, configs: dict[str, dict[str, str]], *, timeout: float) -> None:
            if missing := [topic for topic in configs if ids[topic] is None]:
                raise LinkerError(f"UNKNOWN_TOPIC_OR_PARTITION: {missing}")
            closed.extend(configs)

        async def each_broker_goes_by(self, *_: object, timeout: float) -> None:
            pass

    given_back: list[Collection[str]] = []

    async def give_back(topics: Collection[str], *, timeout: float) -> None:
        given_back.append(topics)

    async def decide(decision: Any) -> None:
        scene.image.replay(decision(scene.image)[0])

    monkeypatch.setattr(switching, "OwnerCluster", Owner)
    monkeypatch.setattr(scene.switch, "_take_over", lambda: SimpleNamespace(give_back=give_back))
    monkeypatch.setattr(scene.switch._controller, "decide", decide, raising=False)
    await scene.switch._finish(ids, 1.0)
    assert closed == ["kept"]
    assert all(scene.image.mirrors["east.reverse", topic].finished for topic in ids)
    assert [sorted(topics) for topics in given_back] == [["gone", "kept"]]


@pytest.mark.parametrize("there", [OURS, None, OTHER], ids=["there", "deleted", "made again"])
async def test_the_end_of_a_switch_deletes_only_its_own_topic(there: bytes | None) -> None:
    image = ControllerImage()
    image.replay(
        [
            Link(name="east.reverse", source_cluster_id="c", properties={}, reverse_of="east"),
            MirrorTopic(link="east.reverse", topic="t", topic_id=OURS, source_topic_id=None, partitions=1),
        ]
    )
    deleted: list[bool] = []

    async def delete(topic: str, *, topic_too: bool, force: bool) -> None:
        deleted.append(topic_too)

    topics = {} if there is None else {"t": SimpleNamespace(id=there, partitions={})}
    other: Any = SimpleNamespace(
        name="east.reverse",
        controller=SimpleNamespace(image=image),
        target=SimpleNamespace(image=SimpleNamespace(topics_by_name=topics)),
        bring_up=SimpleNamespace(delete=delete),
        link_brokers=lambda: frozenset({800}),
    )
    await assembly._drop(other, "t")
    assert deleted == [there == OURS]
