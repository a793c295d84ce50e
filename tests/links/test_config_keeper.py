"""Configs of a mirror at the target: kept, followed, and let go when a real broker leads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.decide.mirrors import Leadership
from controller.phases import Phase
from controller.state import MirrorTopic
from fleet.stored_controller import StoredController
from linker.checks.mirror_configs import reported_checks
from linker.links import config_keeper
from linker.links.config_keeper import ConfigKeeper
from linker.links.configs import TopicConfigs
from tests.controller.established import establish
from tests.controller.memory_store import MemoryStore
from tests.links.link_context import context
from wire.errors import LinkerError
from wire.frames.types import TOPIC_RESOURCE, TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, TopicImage

ID = b"\x01" * 16
OFF = {"retention.bytes": "-1", "retention.ms": "-1", "unclean.leader.election.enable": "false"}
RESTORE: dict[str, str | None] = {
    "unclean.leader.election.enable": None,
    "retention.ms": "5",
    "retention.bytes": None,
}


class Rig:
    def __init__(self, controller: StoredController) -> None:
        self.controller = controller
        self.image = ClusterImage()
        topic = TopicImage(ID, "t", {})
        self.image.brokers[1] = BrokerImage(1, 1, bytes(16), None, {}, False, False, ())
        self.image.topics_by_name["t"] = self.image.topics_by_id[ID] = topic
        self.overrides = dict(OFF)
        self.image.configs[TOPIC_RESOURCE, "t"] = self.overrides
        self.asked: list[tuple[dict[str, str], list[str]]] = []
        self.refuses: LinkerError | None = None
        self.after: Any = None
        target: Any = SimpleNamespace(image=self.image, operations=self, cluster=None)
        source: Any = SimpleNamespace(nodes={1: None, 2: None})
        self.keeper = ConfigKeeper(context("l", source, target, controller))

    @classmethod
    async def make(cls) -> Rig:
        controller = await StoredController.open(MemoryStore(), now=lambda: 7)
        await controller.create_link("l", "cluster", {})
        await controller.create_mirror(
            MirrorTopic(
                link="l",
                topic="t",
                topic_id=ID,
                source_topic_id=None,
                partitions=1,
                copied_configs=OFF,
                restore_configs=RESTORE,
            )
        )
        tp = TopicPartition("t", 0)
        await establish(
            controller, "l", tp, leadership=Leadership(900, 3, (900,)), session_epoch=3, start_offset=0
        )
        return cls(controller)

    async def set_configs_of_topics(self, configs: Any, *, timeout: float) -> None:
        if self.refuses is not None:
            raise self.refuses
        (changes,) = configs.values()
        set_ = {name: value for name, value in changes.items() if value is not None}
        delete = [name for name, value in changes.items() if value is None]
        self.asked.append((dict(set_), list(delete)))
        self.overrides.update(set_)
        for one in delete:
            self.overrides.pop(one, None)
        if self.after is not None:
            await self.after()

    def changed(self) -> None:
        self.keeper.on_target_change(self.image, frozenset({ID}))


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_what_somebody_changes_is_put_back_and_counted() -> None:
    rig = await Rig.make()
    task = asyncio.create_task(rig.keeper._keep())
    try:
        await asyncio.sleep(0.01)
        assert rig.asked == []
        rig.overrides["retention.ms"] = "1000"
        rig.overrides["max.message.bytes"] = "5"
        rig.changed()
        await until(lambda: rig.overrides == OFF)
        assert rig.asked == [({"retention.ms": "-1"}, ["max.message.bytes"])]
        await until(lambda: rig.keeper.put_back.get("t"))
        assert rig.keeper.put_back["t"] == {"retention.ms": 1, "max.message.bytes": 1}
    finally:
        task.cancel()


async def test_a_refusal_is_shown_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_keeper, "_FIRST_PAUSE", 0.01)
    rig = await Rig.make()
    task = asyncio.create_task(rig.keeper._keep())
    try:
        rig.refuses = LinkerError("no right")
        rig.overrides["retention.ms"] = "1000"
        rig.changed()
        await until(lambda: "no right" in rig.keeper.trouble.get("t", ""))
        rig.refuses = None
        await until(lambda: rig.overrides == OFF and not rig.keeper.trouble)
    finally:
        task.cancel()


async def test_a_promoted_topic_is_its_owners() -> None:
    rig = await Rig.make()
    rig.overrides["retention.ms"] = "1000"
    await end(rig)
    rig.changed()
    assert not rig.keeper.drift("t")
    await rig.keeper.put_right("t")
    assert rig.asked == []


async def test_a_promote_that_ends_meanwhile_has_the_last_word() -> None:
    """Put back and restored at the same moment: the topic must not be left with retention off for good."""
    rig = await Rig.make()
    rig.overrides["retention.ms"] = "1000"

    async def promoted() -> None:
        rig.after = None
        await end(rig)

    rig.after = promoted
    await rig.keeper.put_right("t")
    assert rig.overrides == {"retention.ms": "5"}


async def test_a_promote_that_ends_meanwhile_has_the_last_word_also_where_nothing_was_answered() -> None:
    rig = await Rig.make()
    rig.overrides["retention.ms"] = "1000"

    async def promoted() -> None:
        rig.after = None
        await end(rig)
        raise LinkerError("no answer in time")

    rig.after = promoted
    assert not await rig.keeper._try("t")
    assert rig.overrides == OFF, "set all the same"
    rig.refuses = LinkerError("no controller")
    assert not await rig.keeper._try("t")
    rig.refuses = None
    assert await rig.keeper._try("t")
    assert rig.overrides == {"retention.ms": "5"}
    rig.overrides["retention.ms"] = "6"  # its owner
    assert await rig.keeper._try("t")
    assert rig.overrides == {"retention.ms": "6"}


async def end(rig: Rig) -> None:
    """The state as after a promote."""
    tp = TopicPartition("t", 0)

    state = rig.controller.image.partitions["l", tp]
    await rig.controller.decide(lambda image: ([replace(state, phase=Phase.PROMOTED)], None))


def source_has_changed(
    monkeypatch: pytest.MonkeyPatch, refused: dict[str, LinkerError] | None = None
) -> None:
    effective = {"retention.ms": "7", "max.message.bytes": "99"}

    async def each(*_: Any, **__: Any) -> Any:
        return {"t": TopicConfigs(effective, {"max.message.bytes": "99"})}, refused or {}

    async def defaults(*_: Any, **__: Any) -> Any:
        return {"retention.ms": "604800000"}

    monkeypatch.setattr(config_keeper, "topic_configs_each", each)
    monkeypatch.setattr(config_keeper, "topic_defaults", defaults)


async def test_of_source_brokers_that_differ_the_most_generous_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody has shortened retention on one of them, for its full disk, and that one is asked: a promote would have the
    target delete what the source keeps."""
    rig = await Rig.make()
    source_has_changed(monkeypatch)

    async def defaults(cluster: Any, brokers: Any, *, timeout: float) -> Any:
        at_source = list(brokers) == [1, 2]
        return {"retention.ms": "7 | 604800000"} if at_source else {"retention.ms": "86400000"}

    monkeypatch.setattr(config_keeper, "topic_defaults", defaults)
    await rig.keeper.follow(["t"])
    mirror = rig.controller.image.mirrors["l", "t"]
    assert mirror.restore_configs["retention.ms"] == "604800000"


async def test_the_sources_changes_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    await rig.keeper.follow(["t"])
    mirror = rig.controller.image.mirrors["l", "t"]
    assert mirror.restore_configs["retention.ms"] == "7"
    assert rig.overrides == {**OFF, "max.message.bytes": "99"}
    assert not rig.keeper.put_back, "that was nobody's doing"
    rig.asked.clear()
    await rig.keeper.follow(["t"])
    assert rig.asked == []


async def test_a_plan_whose_maker_died_before_it_was_carried_out_is_carried_out_by_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A switch looks before it begins, and follows nothing while it lasts."""
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    rig.refuses = LinkerError("no controller")
    with pytest.raises(LinkerError, match="no controller"):
        await rig.keeper.follow(["t"])
    again = Rig(rig.controller)
    again.overrides["min.insync.replicas"] = "1"
    await again.keeper.follow(["t"])
    assert again.overrides == {**OFF, "max.message.bytes": "99"}


async def test_a_change_of_the_source_that_the_target_refuses_is_set_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config_keeper, "_FIRST_PAUSE", 0.01)
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    rig.overrides["retention.ms"] = "1000"
    task = asyncio.create_task(rig.keeper._keep())
    try:
        await until(lambda: rig.keeper.put_back)  # its first look is over
        rig.keeper.put_back.clear()
        rig.refuses = LinkerError("no controller")
        with pytest.raises(LinkerError, match="no controller"):
            await rig.keeper.follow(["t"])
        await until(lambda: "no controller" in rig.keeper.trouble.get("t", ""))
        rig.refuses = None
        await until(lambda: rig.overrides == {**OFF, "max.message.bytes": "99"} and not rig.keeper.trouble)
        assert not rig.keeper.put_back, "that was nobody's doing"
    finally:
        task.cancel()


async def test_a_topic_whose_configs_the_source_does_not_tell_is_no_success_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A promote would give it what somebody saw last."""
    rig = await Rig.make()
    source_has_changed(monkeypatch, {"u": LinkerError("not allowed")})
    with pytest.raises(LinkerError, match="not allowed"):
        await rig.keeper.follow(["t", "u"])
    assert rig.overrides == {**OFF, "max.message.bytes": "99"}
    assert "not allowed" in rig.keeper.behind["u"]
    assert "t" not in rig.keeper.behind


async def test_without_a_broker_of_the_target_the_plan_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its controllers may be there, and would take what is planned from overrides alone."""
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    rig.image.brokers.clear()
    with pytest.raises(LinkerError, match="no broker of the target"):
        await rig.keeper.follow(["t"])
    assert rig.controller.image.mirrors["l", "t"].copied_configs == OFF
    assert rig.asked == []


async def test_the_sources_changes_are_reported_only_and_dangerous_ones_are_put_back_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    await rig.controller.update_link("l", None, {"topic_config_sync": "report"})
    await rig.keeper.follow(["t"])
    assert "max.message.bytes not set -> 99" in rig.keeper.reported["t"]
    assert rig.overrides == OFF
    [check] = reported_checks(rig.keeper.reported)
    assert "are not followed" in check.detail
    rig.overrides.update({"max.message.bytes": "5", "retention.ms": "1000", "min.insync.replicas": "3"})
    assert [one.config for one in rig.keeper.drift("t")] == ["min.insync.replicas", "retention.ms"]
    await rig.controller.update_link("l", None, {"topic_config_sync": "follow"})
    await rig.keeper.follow(["t"])
    assert rig.overrides == {**OFF, "max.message.bytes": "99"}
    assert not rig.keeper.reported


async def test_off_asks_nobody_and_dangerous_changes_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await Rig.make()
    source_has_changed(monkeypatch, {"t": LinkerError("nobody may ask")})
    await rig.controller.update_link("l", None, {"topic_config_sync": "off"})
    await rig.keeper.follow(["t"])
    assert await rig.keeper._watch() is None
    assert (rig.keeper.reported, rig.keeper.behind) == ({}, {})
    rig.overrides["unclean.leader.election.enable"] = "true"
    assert [one.config for one in rig.keeper.drift("t")] == ["unclean.leader.election.enable"]


async def test_a_config_of_the_targets_own_is_neither_followed_nor_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    await rig.controller.update_link("l", None, {"topic_config_exclude": "max.message.bytes,segment.ms"})
    await rig.keeper.follow(["t"])
    assert rig.overrides == OFF
    rig.overrides["max.message.bytes"] = "5"
    assert rig.keeper.drift("t") == []
    rig.overrides["retention.ms"] = "1000"
    assert [one.config for one in rig.keeper.drift("t")] == ["retention.ms"]


async def test_changes_at_the_target_are_put_back_once_the_link_follows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await Rig.make()
    source_has_changed(monkeypatch)
    await rig.keeper.follow(["t"])
    wanted = dict(rig.overrides)
    task = asyncio.create_task(rig.keeper._keep())
    try:
        rig.overrides["retention.ms"] = "1000"
        rig.changed()
        await until(lambda: rig.overrides == wanted)  # it has looked at everything once
        await rig.controller.update_link("l", None, {"topic_config_sync": "report"})
        rig.overrides["max.message.bytes"] = "5"
        rig.changed()
        await rig.keeper.follow(["t"])
        assert rig.overrides["max.message.bytes"] == "5"
        await rig.controller.update_link("l", None, {"topic_config_sync": "follow"})
        await rig.keeper.follow(["t"])
        await until(lambda: rig.overrides == wanted)
    finally:
        task.cancel()
