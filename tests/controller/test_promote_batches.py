"""The promote driver with many partitions: batch by batch, with breathers, and mirrors that are opened first."""

from __future__ import annotations

from dataclasses import replace

from controller.state import PromoteJob
from fleet.link_controller import LinkController
from linker.promote.driver import batches, cut
from linker.promote.ports import PromoteSettings
from tests.controller.promote_kit import promote, returned
from tests.controller.simulation import (
    SIDECAR,
    World,
)
from wire.frames.types import TopicPartition


def test_several_batches_one_after_the_other() -> None:
    world, _, outcome, _ = promote(
        settings=PromoteSettings(batch_partitions=5, first_partitions=5), partitions=12
    )
    assert outcome.promoted == tuple(world.tps)
    assert world.sent == 3
    assert world.restored == ["t"]


def moments(world: World) -> tuple[list[float], list[float]]:
    """When batches are held from, and when each is told to its clients, by a look every half millisecond."""
    held: list[float] = []
    over: list[float] = []
    seen: tuple[int, int] = (0, 0)

    def look() -> None:
        nonlocal seen
        now = (len(world.fenced), len(world.handed_over))
        if now[0] > seen[0]:
            held.append(world.loop.time())
        if now[1] > seen[1]:
            over.append(world.loop.time())
        seen = now
        world.loop.call_later(0.0005, look)

    look()
    return held, over


def test_producers_go_on_between_two_batches() -> None:
    times: list[tuple[list[float], list[float]]] = []
    settings = PromoteSettings(batch_partitions=5, first_partitions=5, breather=0.7)
    world, _, outcome, reports = promote(
        lambda world, _: times.append(moments(world)), settings, partitions=12
    )
    assert outcome.promoted == tuple(world.tps)
    assert world.breathers == [tuple(world.tps[:5]), tuple(world.tps[5:10])]
    held, over = times[0]
    assert len(held) == len(over) == 3
    assert all(next_held - told >= 0.7 for told, next_held in zip(over, held[1:], strict=False))
    assert "producers go on for a moment" in {report.waiting_for for report in reports}


def test_the_longer_they_were_held_the_longer_they_go_on() -> None:
    times: list[tuple[list[float], list[float]]] = []

    def prepare(world: World, _: LinkController) -> None:
        world.fence_drain = (1.5, 1.6)
        times.append(moments(world))

    world, _, outcome, _ = promote(prepare, PromoteSettings(batch_partitions=2, breather=0.1))
    assert outcome.promoted == tuple(world.tps)
    held, over = times[0]
    assert held[1] - over[0] >= 1.5


def test_a_breather_that_fails_is_no_reason_to_give_up() -> None:
    def prepare(world: World, _: LinkController) -> None:
        world.answers_fail = True

    world, _, outcome, _ = promote(prepare, PromoteSettings(batch_partitions=1))
    assert outcome.promoted == tuple(world.tps)
    assert world.breathers == []


def test_how_many_at_a_time() -> None:
    settings = PromoteSettings(batch_partitions=3, first_partitions=2, whole_partitions=7)
    assert settings.at_a_time(4, whole=False) == (3, 2)
    assert settings.at_a_time(3, whole=False) == (3, 3)
    assert settings.at_a_time(4, whole=True) == (7, 7)
    assert replace(settings, fence_source=True).at_a_time(4, whole=False) == (7, 7)
    assert replace(settings, first_partitions=9).at_a_time(4, whole=False) == (3, 3)


def test_a_promote_of_many_begins_with_few_partitions() -> None:
    tps = [TopicPartition("t", index) for index in range(100)]
    parts = cut(tps, PromoteSettings())
    assert [len(batch) for batch in parts] == [4, 8, 16, 32, 32, 8]
    assert [tp for batch in parts for tp in batch] == tps
    job = PromoteJob(id=1, link="l", partitions=tuple(tps), failover=True)
    assert [len(batch) for batch in cut(tps, PromoteSettings(), job)] == [100]
    # A topic is taken over at its source as a whole.
    many = [TopicPartition(topic, index) for topic in "ab" for index in range(300)]
    switch = PromoteJob(id=1, link="l", partitions=tuple(many), switch=True)
    assert [len(batch) for batch in cut(many, PromoteSettings(), switch)] == [300, 300]
    # Of smaller ones as many as are quick: all their clients wait for the slowest of them.
    few = tuple(TopicPartition(topic, index) for topic in "abcde" for index in range(40))
    switch = replace(switch, partitions=few)
    assert [len(batch) for batch in cut(few, PromoteSettings(), switch)] == [80, 80, 40]
    # A large one makes no wave of small ones longer.
    mixed = (*few[:80], *(TopicPartition("z", index) for index in range(300)), *few[80:])
    waves = cut(mixed, PromoteSettings(), replace(switch, partitions=mixed))
    assert [len(batch) for batch in waves] == [80, 300, 80, 40]
    one_by_one = PromoteSettings().in_batches(1)
    assert [len(batch) for batch in cut(few, one_by_one, switch)] == [40] * 5
    assert [len(batch) for batch in cut(tps[:3], one_by_one)] == [1, 1, 1]
    assert PromoteSettings().in_batches(None) == PromoteSettings()
    assert [len(batch) for batch in cut(tps[:32], PromoteSettings())] == [32]
    small = [TopicPartition(topic, index) for topic in "abcdefg" for index in range(3)]
    assert [len(batch) for batch in batches(small, 32, 4)] == [3, 6, 12]
    assert [len(batch) for batch in batches(tps[:4], 32, 4)] == [4]

    world, _, outcome, _ = promote(
        settings=PromoteSettings(batch_partitions=4, first_partitions=1), partitions=12
    )
    assert outcome.promoted == tuple(world.tps)
    assert [len(batch) for batch in world.breathers] == [1, 2, 4, 4]


def test_cutting_into_batches() -> None:
    def parts(topic: str, count: int) -> list[TopicPartition]:
        return [TopicPartition(topic, index) for index in range(count)]

    tps = parts("a", 3) + parts("b", 2) + parts("c", 7)
    cut = batches(tps, 5)
    assert [len(batch) for batch in cut] == [5, 5, 2]
    assert [tp for batch in cut for tp in batch] == tps
    assert batches(parts("a", 3) + parts("b", 3), 5) == [parts("a", 3), parts("b", 3)]
    assert batches([], 5) == []


# Over several link brokers a partition may copy without being open.


def close(world: World, tp: TopicPartition) -> None:
    state = world.real[tp]
    world.real[tp] = replace(
        state,
        replicas=(SIDECAR, 1, 2),
        adding=(),
        removing=(),
        partition_epoch=state.partition_epoch + 1,
    )
    world.publish()


def test_what_is_not_open_is_opened_before_the_fence() -> None:
    def prepare(world: World, controller: LinkController) -> None:
        for tp in world.tps:
            close(world, tp)
        world.visible = world._snapshot()

    world, _, outcome, reports = promote(prepare)
    assert set(outcome.promoted) == set(world.tps)
    opened = next(i for i, line in enumerate(world.log) if "open after" in line)
    fenced = next(i for i, line in enumerate(world.log) if "fence before" in line)
    assert opened < fenced
    assert any("opened first" in (report.waiting_for or "") for report in reports)


def test_what_is_closed_behind_the_fence_is_opened_again() -> None:
    def prepare(world: World, controller: LinkController) -> None:
        def once() -> None:
            if world.fenced:
                close(world, world.tps[0])
            else:
                world.loop.call_later(0.001, once)

        once()

    world, _, outcome, _ = promote(prepare)
    assert set(outcome.promoted) == set(world.tps)
    assert any("open after" in line for line in world.log)


def test_what_cannot_be_opened_is_not_promoted() -> None:
    def prepare(world: World, controller: LinkController) -> None:
        close(world, world.tps[1])
        world.visible = world._snapshot()
        world.open = lambda tp, targets: None  # type: ignore[method-assign]

    world, controller, outcome, _ = promote(prepare, PromoteSettings(catch_up_timeout=3.0))
    assert "t-1: its reassignment to the real brokers has to be opened first" in returned(
        world, controller, outcome
    )
