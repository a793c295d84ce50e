"""Topics by pattern: what is taken, what is not and why, and when a topic is believed to be deleted."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from admin.models import CreateMirrorsRequest, LinkOptions
from controller.state import MirrorTopic
from fleet.link_controller import LinkController
from fleet.stored_controller import StoredController
from linker.checks.preflight import PreflightError
from linker.links import new_mirrors
from linker.links.new_mirrors import NewMirrors, Planned, Wanted
from linker.links.topic_follower import TopicFollower
from linker.links.topic_options import topic_patterns
from tests.controller.bounded_store import BoundedStore
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from wire.client.topic_names import TopicNames
from wire.errors import ConnectionLost, LinkerError
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage

OWN = 900


def topic_id(number: int) -> bytes:
    return bytes([number]) * 16


class Source:
    """Brokers of a source, each with the topics that it knows: name -> number of the id, or an error code below 0."""

    name = "source"
    cluster_id = "cluster"

    def __init__(self, brokers: int = 2) -> None:
        self.known: dict[int, dict[str, int]] = {node: {} for node in range(1, brokers + 1)}
        self.down: set[int] = set()
        self.topic_names = TopicNames()

    @property
    def nodes(self) -> dict[int, Any]:
        return dict.fromkeys(self.known)

    def make(self, name: str, number: int) -> None:
        for known in self.known.values():
            known[name] = number

    def delete(self, name: str, *, at: int | None = None) -> None:
        for node, known in self.known.items():
            if at in (None, node):
                known.pop(name, None)

    async def call(self, api: str, fields: Any, *, timeout: float, node_id: int | None = None) -> Any:
        assert api == "metadata"
        await asyncio.sleep(0)
        node = node_id or min(self.known)
        if node in self.down:
            raise ConnectionLost("down", sent=False, api=api)
        known = self.known[node]
        if fields["topics"] is None:
            topics = [self._topic(name, number) for name, number in known.items() if number >= 0]
        else:
            topics = [self._topic(one["name"], known.get(one["name"], -3)) for one in fields["topics"]]
        return SimpleNamespace(topics=topics)

    @staticmethod
    def _topic(name: str, number: int) -> Any:
        found = UUID(bytes=topic_id(number)) if number >= 0 else None
        return SimpleNamespace(name=name, error_code=max(0, -number), topic_id=found, partitions=[0])


class Rig:
    """A follower over real state; topics are examined by a plan of the test's, and mirrors are deleted at once."""

    def __init__(self, controller: LinkController, monkeypatch: pytest.MonkeyPatch) -> None:
        self.controller = controller
        self.source: Any = Source()
        self.image = ClusterImage()
        self.deleted: list[str] = []
        self.asked: list[str] = []
        self.refusing: dict[str, str] = {}
        self.fails_after: list[float] = []
        target: Any = SimpleNamespace(image=self.image, broker_id=OWN)
        at = context("east", self.source, target, controller)
        self.new = NewMirrors(at, lambda _: None, self.asked.append)
        monkeypatch.setattr(self.new, "plan", self._plan)
        bring_up: Any = SimpleNamespace(delete=self._delete)
        self.follower = TopicFollower(at, self.new, bring_up, self.fails_after.append, {"__linker"})

    async def _plan(self, topics: list[str], wanted: Wanted, *, each: bool = False) -> Planned:
        done = Planned()
        for name in topics:
            if name in self.refusing:
                done.refused[name] = self.refusing[name]
            else:
                number = self.source.known[1][name]
                done.mirrors.append(
                    MirrorTopic(
                        link="east",
                        topic=name,
                        source_name=self.source.topic_names.there(name),
                        topic_id=bytes(16),
                        source_topic_id=topic_id(number),
                        partitions=1,
                        upstream=("cluster",),
                    )
                )
        return done

    async def _delete(self, topic: str, *, topic_too: bool) -> None:
        self.deleted.append(topic)
        await self.controller.delete_mirror("east", topic)

    async def options(self, **given: Any) -> None:
        await self.controller.update_link("east", None, given)

    @property
    def mirrors(self) -> list[str]:
        return [mirror.topic for mirror in self.controller.image.link_mirrors("east")]


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    controller = await StoredController.open(MemoryStore(), now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    return Rig(controller, monkeypatch)


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        ("", "", []),
        (".*", "", ["orders", "orders.eu", "quotes"]),
        ("orders", "", ["orders"]),  # of a whole name
        ("orders.*,quotes", "orders\\.eu", ["orders", "quotes"]),
        ("__heartbeat", "", ["__heartbeat"]),
        ("__.*", "", []),
        (".*,__heartbeat", "quotes", ["__heartbeat", "orders", "orders.eu"]),
        ("nothing", "", []),
    ],
)
def test_which_topics_patterns_take(include: str, exclude: str, taken: list[str]) -> None:
    rules = topic_patterns(include, exclude)
    names = ["__consumer_offsets_2", "__heartbeat", "orders", "orders.eu", "quotes"]
    assert [name for name in names if rules.takes(name)] == taken


def test_options_are_checked_as_those_of_groups() -> None:
    with pytest.raises(ValueError, match="is not a regular expression"):
        LinkOptions(topics_include="*a")
    with pytest.raises(ValueError, match="no partner"):
        LinkOptions(topics_exclude="a[b")
    with pytest.raises(ValueError, match="one of the two"):
        CreateMirrorsRequest(topics=["a"], include="b")
    with pytest.raises(ValueError, match="one of the two"):
        CreateMirrorsRequest()
    with pytest.raises(ValueError, match="give include, too"):
        CreateMirrorsRequest(topics=["a"], exclude="b")


async def test_a_topic_that_is_made_later_is_mirrored_and_others_are_not(rig: Rig) -> None:
    rig.source.make("orders", 1)
    rig.source.make("quotes", 2)
    rig.source.make("__consumer_offsets", 3)
    rig.source.make("__linker", 4)
    await rig.follower.look()
    assert rig.mirrors == []  # no pattern
    await rig.options(topics_include="orders.*,__linker,__consumer_offsets")
    await rig.follower.look()
    assert rig.mirrors == ["orders"]
    rig.source.make("orders-2", 5)
    await rig.follower.look()
    assert rig.mirrors == ["orders", "orders-2"] == rig.asked
    await rig.options(topics_include="")
    rig.source.make("orders-3", 6)
    await rig.follower.look()
    assert len(rig.mirrors) == 2


async def test_a_topic_that_cannot_be_mirrored_is_named_and_holds_up_no_other(rig: Rig) -> None:
    for number, name in enumerate(["a.b", "a_b", "bad", "good", "taken", "x.y"], 1):
        rig.source.make(name, number)
    rig.refusing["bad"] = "a batch of the source may be too large"
    for name in ("taken", "x_y"):
        rig.image.topics_by_name[name] = TopicImage(b"t" * 16, name, {})
    await rig.options(topics_include=".*")
    await rig.follower.look()
    assert rig.mirrors == ["good"]
    told = rig.follower.not_mirrored
    assert told.keys() == {"a.b", "a_b", "bad", "taken", "x.y"}
    assert "a_b and a.b differ" in told["a.b"] == told["a_b"]
    assert "exists at the target" in told["taken"]
    assert "x.y and x_y differ" in told["x.y"]
    await rig.options(topics_include=".*", topics_exclude="a_b,taken,x.y,bad")
    await rig.follower.look()
    assert rig.mirrors == ["a.b", "good"]
    assert rig.follower.not_mirrored == {}


async def test_patterns_leave_out_what_mirrormaker_2_made_unless_it_is_named(rig: Rig) -> None:
    own = ("heartbeats", "west.heartbeats", "west.checkpoints.internal", "mm2-offset-syncs.west.internal")
    copied = ("west.orders", "west.east.orders", "eu-1_orders", "eu-1_checkpoints_internal")
    for number, name in enumerate([*own, *copied, "orders", "western.orders", "user_heartbeats"], 1):
        rig.source.make(name, number)
    await rig.options(topics_include=".*")
    await rig.follower.look()
    assert rig.mirrors == ["orders", "user_heartbeats", "western.orders"]
    told = rig.follower.not_mirrored
    assert told.keys() == {*own, *copied}
    assert (
        "keeps it for itself" in told["mm2-offset-syncs.west.internal"] == told["eu-1_checkpoints_internal"]
    )
    assert "the cluster that it calls west, which may be this target" in told["west.orders"]
    assert "it calls eu-1" in told["eu-1_orders"]
    assert "add west\\..* to topics_include" in told["west.east.orders"]
    await rig.options(topics_include=r".*,west\..*,heartbeats,mm2-offset-syncs\.west\.internal")
    await rig.follower.look()
    assert rig.follower.not_mirrored.keys() == {
        *("eu-1_orders", "eu-1_checkpoints_internal", "west.heartbeats", "west.checkpoints.internal")
    }


async def test_mirrors_learn_where_they_come_from(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an older version; and a topic that was a mirror at the source is promoted there."""
    rig.source.make("orders", 1)
    await rig.options(topics_include=".*")
    await rig.follower.look()
    await rig.controller.note_upstream("east", {"orders": ()})
    answers: list[Any] = [LinkerError("away"), ("first",), ()]

    async def origins(topics: list[str]) -> dict[str, Any]:
        return {topic: answers.pop(0) for topic in topics}

    monkeypatch.setattr(rig.new.sidecars, "origins", origins)
    seen = []
    for _ in range(4):
        await rig.follower.look()
        seen.append(rig.controller.image.mirrors["east", "orders"].upstream)
    assert seen == [(), ("first", "cluster"), ("cluster",), ("cluster",)]
    assert answers == []  # and nobody is asked again


async def test_thousands_of_mirrors_learn_it_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them in one commit would be more than ZooKeeper takes, and no pattern was looked at any more."""
    names = [f"orders.events.team-{number:04d}" for number in range(3000)]
    store = BoundedStore()
    controller = await StoredController.open(store, now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    rig = Rig(controller, monkeypatch)
    configs = {"cleanup.policy": "delete", "retention.ms": "604800000", "segment.bytes": "1073741824"}
    mirrors = [
        MirrorTopic(
            link="east",
            topic=name,
            topic_id=bytes(16),
            source_topic_id=number.to_bytes(16, "big"),
            partitions=1,
            copied_configs=configs,
            target_replicas=((1, 2, 3),),
        )
        for number, name in enumerate(names)
    ]
    await rig.new.write_down(mirrors)

    async def origins(topics: list[str]) -> dict[str, Any]:
        return dict.fromkeys(topics, ())

    monkeypatch.setattr(rig.new.sidecars, "origins", origins)
    before = store.commits
    await rig.follower.look()
    assert {one.upstream for one in controller.image.link_mirrors("east")} == {("cluster",)}
    assert store.commits - before < 10


async def test_a_hundred_mirrors_with_many_partitions_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few commits as the store takes: they are no more than it takes each, whatever the mirrors' partitions."""
    store = BoundedStore()
    controller = await StoredController.open(store, now=lambda: 7)
    await controller.create_link("east", "cluster", {})
    rig = Rig(controller, monkeypatch)
    before = store.commits
    await rig.new.write_down(
        [
            MirrorTopic(
                link="east",
                topic=f"orders.events.team-{number:04d}",
                topic_id=bytes(16),
                source_topic_id=number.to_bytes(16, "big"),
                partitions=1000 if number == 50 else 30,
                target_replicas=((1, 2, 3),) * (1000 if number == 50 else 30),
            )
            for number in range(101)
        ]
    )
    assert len(rig.mirrors) == 101
    assert store.commits - before == 9


async def test_a_source_that_does_not_answer_changes_nothing_and_is_said(rig: Rig) -> None:
    await rig.options(topics_include=".*", topics_refresh_interval_ms=60_000)
    rig.source.make("orders", 1)
    rig.source.down = {1}
    running = asyncio.ensure_future(rig.follower.run())
    try:
        async with asyncio.timeout(25):
            while rig.follower.trouble is None:
                await asyncio.sleep(0.01)
            rig.source.down = set()
            rig.follower.on_records(())  # an option was changed: at once
            while rig.mirrors != ["orders"] or rig.follower.trouble:
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _deleting(rig: Rig, *, interval: int = 1000, also: int = 1) -> None:
    """`orders` is mirrored, and so are others that stay."""
    await rig.options(topics_include=".*", topics_deleted="delete", topics_refresh_interval_ms=interval)
    rig.source.make("orders", 1)
    for number in range(also):
        rig.source.make(f"other-{number}", 10 + number)
    await rig.follower.look()
    await rig.options(topics_deleted="delete", topics_refresh_interval_ms=interval)


async def _looks(rig: Rig, monkeypatch: pytest.MonkeyPatch, *moments: float) -> None:
    for moment in moments:
        monkeypatch.setattr("linker.links.topic_follower.time.monotonic", lambda moment=moment: moment)
        await rig.follower.look()


async def test_a_deleted_topic_ends_its_mirror_once_all_have_said_so_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _deleting(rig)
    rig.source.delete("orders")
    await _looks(rig, monkeypatch, 10.0, 10.9)
    assert rig.deleted == []
    await _looks(rig, monkeypatch, 11.0)
    assert rig.deleted == ["orders"]
    assert rig.mirrors == ["other-0"]


async def test_a_broker_that_is_behind_deletes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await _deleting(rig)
    rig.source.delete("orders", at=1)  # the one that is asked for all topics
    await _looks(rig, monkeypatch, 10.0, 20.0, 30.0)
    assert rig.deleted == []
    rig.source.delete("orders")
    await _looks(rig, monkeypatch, 40.0)
    rig.source.make("orders", 1)  # known again in between: an absence begins anew
    await _looks(rig, monkeypatch, 41.0)
    rig.source.delete("orders")
    await _looks(rig, monkeypatch, 42.0)
    assert rig.deleted == []


async def test_a_lost_right_or_a_silent_broker_is_no_deletion(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _deleting(rig)
    for known in rig.source.known.values():
        known["orders"] = -29  # TOPIC_AUTHORIZATION_FAILED: not among all topics
    await _looks(rig, monkeypatch, 10.0, 20.0)
    assert rig.deleted == []
    rig.source.delete("orders")
    rig.source.known[3] = {"other-0": 10}
    rig.source.down = {3}
    await _looks(rig, monkeypatch, 30.0, 40.0)  # those that answer agree
    assert rig.deleted == ["orders"]


async def test_all_topics_gone_at_once_are_no_deletion(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await _deleting(rig)
    rig.source.delete("orders")
    rig.source.delete("other-0")
    for moment in (10.0, 20.0):
        with pytest.raises(LinkerError, match="all 2 mirrored topics are gone"):
            await _looks(rig, monkeypatch, moment)
    assert rig.deleted == []


async def test_a_topic_that_was_made_again_ends_the_mirror_and_is_mirrored_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _deleting(rig)
    await rig.options(topics_include=".*", topics_deleted="delete", topics_refresh_interval_ms=1000)
    rig.source.make("orders", 2)
    await _looks(rig, monkeypatch, 10.0, 11.0)
    assert rig.deleted == ["orders"]
    await _looks(rig, monkeypatch, 12.0)
    assert rig.controller.image.mirrors["east", "orders"].source_topic_id == topic_id(2)


async def test_what_may_have_records_of_its_own_is_not_deleted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _deleting(rig)
    await rig.controller.bind_mirrors("east", {"orders": b"t" * 16})
    partitions = {
        0: PartitionImage(0, (1, OWN), (OWN,), (1,), (), OWN, 1, 1),
        1: PartitionImage(1, (1,), (1,), (), (), 1, 1, 1),  # added by somebody
    }
    topic = TopicImage(b"t" * 16, "orders", partitions)
    rig.image.topics_by_name["orders"] = rig.image.topics_by_id[topic.id] = topic
    rig.source.delete("orders")
    await _looks(rig, monkeypatch, 10.0, 11.0)
    assert rig.deleted == []
    assert "orders-1 is led by broker 1" in rig.follower.not_mirrored["orders"]


async def test_fetchers_fail_a_deleted_topic_unless_it_is_kept(rig: Rig) -> None:
    rig.follower.on_records(())
    await rig.options(topics_deleted="keep")
    rig.follower.on_records([rig.controller.image.links["east"]])
    assert rig.fails_after == [10.0, math.inf]


async def test_the_one_topic_that_cannot_be_mirrored_is_found_among_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SimpleNamespace(cluster_id="target", topic_names=TopicNames())
    target: Any = SimpleNamespace(image=ClusterImage(), broker_id=OWN, cluster=cluster)
    controller: Any = None
    source: Any = cluster
    new = NewMirrors(context("east", source, target, controller), lambda _: None, lambda _: None)
    asked: list[int] = []

    async def examine(plan: Any, topics: list[str], *, each: bool) -> None:
        asked.append(len(topics))
        for topic in topics:
            if topic in ("t7", "t93"):
                raise PreflightError(f"{topic} is too old")
        plan.done.mirrors += topics

    async def nothing(*_: Any, **__: Any) -> Any:
        return None

    async def defaults(*_: Any, **__: Any) -> dict[str, str]:
        return {}

    monkeypatch.setattr(new, "_examine_together", examine)
    monkeypatch.setattr(new.sidecars, "origins", defaults)
    monkeypatch.setattr(new_mirrors, "real_brokers", lambda *_: [])
    monkeypatch.setattr(new_mirrors, "topic_defaults", defaults)
    monkeypatch.setattr(new_mirrors, "target_default", nothing)
    names = [f"t{number}" for number in range(200)]
    planned = await new.plan(names, Wanted(), each=True)
    assert planned.refused == {"t7": "t7 is too old", "t93": "t93 is too old"}
    assert len(planned.mirrors) == 198
    assert len(asked) < 40
    with pytest.raises(PreflightError, match="t7 is too old"):
        await new.plan(names, Wanted())


async def test_patterns_are_of_the_sources_names_and_mirrors_of_ours(rig: Rig) -> None:
    """What the target cannot take is told by the name that it would have there."""
    await rig.controller.update_link(
        "east", None, {"topics_include": "orders.*,offsets,x+", "prefix": "__consumer_"}
    )
    rig.source.topic_names.prefix = "__consumer_"
    long = "x" * 240
    for number, name in enumerate(("orders", "offsets", "other", long)):
        rig.source.make(f"__consumer_{name}", number + 1)  # as the link's client tells them
    await rig.follower.look()
    assert rig.mirrors == ["__consumer_orders"]
    assert rig.controller.image.link_mirrors("east")[0].source_topic == "orders"
    assert "internal" in rig.follower.not_mirrored["__consumer_offsets"]
    assert "longer than 249" in rig.follower.not_mirrored[f"__consumer_{long}"]
