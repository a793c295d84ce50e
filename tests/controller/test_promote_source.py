"""A promote and who else is at the source: transactions that stay open, and names for whoever writes past the fence."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.errors import PromoteAbandoned
from controller.judge.alignment import SourceEnd
from controller.phases import Phase
from controller.state import PromoteJob
from linker.promote.checks import Checks
from linker.promote.driver import PromoteDriver, PromoteOutcome
from linker.promote.ports import PromoteSettings
from tests.controller.simulation import LINK, World, mirrored, ports_of
from tests.controller.virtual_loop import run_virtual
from wire.errors import LinkerError
from wire.frames.types import TopicPartition


class Producers:
    """The source's producers; a transaction of the world is aborted when that is asked for."""

    def __init__(self, world: World, *, silent: bool = False, takes: float = 0) -> None:
        self.world = world
        self.silent = silent
        self.takes = takes  # seconds to name a transaction
        self.aborted: list[TopicPartition] = []

    def _answer(self) -> None:
        if self.silent:
            raise LinkerError("READ is missing")

    async def writers(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        self._answer()
        return dict.fromkeys(tps, "producer 7 (epoch 0)")

    async def open_transactions(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        self._answer()
        await asyncio.sleep(self.takes)
        return dict.fromkeys(tps, 'producer 8 (epoch 1, transactional.id "billing")')

    async def abort_open(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        self._answer()
        for tp in tps:
            self.aborted.append(tp)
            self.world.last_stable.pop(tp, None)
        return dict.fromkeys(tps, "producer 8 (epoch 1)")


class EndsThen:
    """The world's source, until something was handed over; from then on it does as it is told."""

    def __init__(self, world: World, then: Callable[[], Awaitable[None]]) -> None:
        self.world, self.then = world, then
        self.real = ports_of(world).source_ends

    async def ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        if self.world.handed_over:
            await self.then()
        return await self.real.ends(tps, timeout=timeout)


class Topics:
    """The source's topic, with one more partition when it is asked for the `grown_at`-th time."""

    def __init__(self, world: World, grown_at: int | None) -> None:
        self.world, self.grown_at = world, grown_at
        self.behind_fence: list[bool] = []  # of each question

    async def partitions(self, topics: Collection[str], *, timeout: float) -> Mapping[str, int]:
        assert list(topics) == ["t"]
        self.behind_fence.append(bool(self.world.fenced))
        return {"t": 3 if len(self.behind_fence) == self.grown_at else 2}


def promote(
    prepare: Callable[[World], None],
    settings: PromoteSettings,
    *,
    silent: bool = False,
    takes: float = 0,
    afterwards: Callable[[], Awaitable[None]] | None = None,
    topics: Callable[[World], Topics] | None = None,
) -> tuple[World, PromoteOutcome, Producers, PromoteJob]:
    async def main() -> tuple[World, PromoteOutcome, Producers, PromoteJob]:
        world = World(random.Random(5), partitions=2)
        controller = await mirrored(world)
        producers = Producers(world, silent=silent, takes=takes)
        ports = replace(ports_of(world), producers=producers)
        if afterwards is not None:
            ports = replace(ports, source_ends=EndsThen(world, afterwards))
        if topics is not None:
            ports = replace(ports, source_topics=topics(world))
        driver = PromoteDriver(controller, LINK, ports, settings)
        job = await controller.begin_promote(LINK)
        prepare(world)
        world.start()
        outcome = await driver.run(job)
        world.stopped = True
        await asyncio.sleep(10)
        if world.broken is not None:
            raise world.broken
        expected = Phase.ACTIVE if outcome.abandoned else Phase.PROMOTED
        assert {s.phase for s in controller.image.link_partitions(LINK)} == {expected}
        return world, outcome, producers, controller.image.jobs[LINK, job.id]

    return run_virtual(main())


def leave_open(world: World) -> None:
    world.last_stable[world.tps[1]] = 990


@pytest.mark.parametrize("takes", [0, 8], ids=["at once", "a slow source"])
def test_a_transaction_that_stays_open_abandons_it_and_is_named(takes: float) -> None:
    _, outcome, producers, job = promote(leave_open, PromoteSettings(transaction_timeout=3.0), takes=takes)
    assert outcome.abandoned
    assert 'open at the source for 3 s: t-1: producer 8 (epoch 1, transactional.id "billing")' in (
        job.reason or ""
    )
    assert "t-0" not in (job.reason or "")
    assert not producers.aborted
    assert "fence" not in outcome.phases_ms, "nobody was held for it"


def test_without_names_it_is_abandoned_all_the_same() -> None:
    _, outcome, _, job = promote(leave_open, PromoteSettings(transaction_timeout=3.0), silent=True)
    assert outcome.abandoned
    assert "its producer is not known" in (job.reason or "")


def test_it_is_aborted_when_that_was_asked_for_and_the_job_says_so() -> None:
    settings = PromoteSettings(transaction_timeout=3.0, abort_open_transactions=True)
    world, outcome, producers, job = promote(leave_open, settings)
    assert outcome.promoted == tuple(world.tps)
    assert producers.aborted == [world.tps[1]]
    assert job.warnings == ("t-1: aborted producer 8 (epoch 1)",)


def test_an_abort_that_is_refused_abandons_it() -> None:
    settings = PromoteSettings(transaction_timeout=3.0, abort_open_transactions=True)
    _, outcome, _, job = promote(leave_open, settings, silent=True)
    assert outcome.abandoned
    assert "READ is missing" in (job.reason or "")


def test_short_transactions_one_after_the_other_are_not_one_long() -> None:
    def prepare(world: World) -> None:
        leave_open(world)

        def next_one() -> None:
            if world.loop.time() < 8:
                world.last_stable[world.tps[1]] += 1
                world.loop.call_later(1.0, next_one)
            else:
                world.last_stable.clear()

        next_one()

    world, outcome, producers, _ = promote(
        prepare, PromoteSettings(transaction_timeout=3.0, abort_open_transactions=True)
    )
    assert outcome.promoted == tuple(world.tps)
    assert not producers.aborted


def test_who_writes_past_the_fence_is_named() -> None:
    def prepare(world: World) -> None:
        def write() -> None:
            if world.tps[1] in world.fenced:
                world.append(world.tps[1], 1)
            world.loop.call_later(0.001, write)

        write()

    for silent, named in ((False, True), (True, False)):
        _, outcome, _, job = promote(prepare, PromoteSettings(), silent=silent)
        assert outcome.abandoned
        assert "past the fence" in (job.reason or "")
        assert ("; producer 7 (epoch 0)" in (job.reason or "")) is named


def write_when_handed_over(world: World) -> None:
    """Three records of a producer that paused while the promote looked: nobody could know of it."""
    tp = world.tps[1]
    if tp in world.handed_over:
        world.append(tp, 3)
    else:
        world.loop.call_later(0.0001, write_when_handed_over, world)


def test_who_wrote_after_the_last_look_is_told_of() -> None:
    for silent, named in ((False, "; producer 7 (epoch 0)"), (True, "")):
        world, outcome, _, job = promote(write_when_handed_over, PromoteSettings(), silent=silent)
        assert outcome.promoted == tuple(world.tps), "it cannot be undone"
        end = world.source[world.tps[1]]
        [warning] = job.warnings
        went = f"went on from offset {end - 3} to {end} after it was handed over"
        assert warning == f"t-1: the source's log {went}: what was written there is not at the target{named}"


def test_a_promote_that_nobody_wrote_past_warns_of_nothing() -> None:
    _, outcome, _, job = promote(lambda _: None, PromoteSettings())
    assert outcome.promoted
    assert job.warnings == ()


def test_a_source_that_is_gone_after_the_hand_over_holds_up_nothing() -> None:
    async def refuses() -> None:
        raise LinkerError("connection refused")

    async def hangs() -> None:
        await asyncio.sleep(3600)

    for then, why in ((refuses, "connection refused"), (hangs, "took longer than 2 s")):
        world, outcome, _, job = promote(lambda _: None, PromoteSettings(), afterwards=then)
        assert outcome.promoted == tuple(world.tps)
        [warning] = job.warnings
        assert "whether somebody wrote to the source after the hand-over is not known" in warning
        assert why in warning


def test_what_is_missing_at_the_target_comes_first_among_the_warnings() -> None:
    """A store keeps only so many: what cannot be mended otherwise is not to be cut off."""

    def prepare(world: World) -> None:
        leave_open(world)
        write_when_handed_over(world)

    settings = PromoteSettings(transaction_timeout=3.0, abort_open_transactions=True)
    _, _, _, job = promote(prepare, settings)
    assert [("went on" in line, "aborted" in line) for line in job.warnings] == [(True, False), (False, True)]


def counted(
    grown_at: int | None, settings: PromoteSettings | None = None
) -> tuple[Topics, PromoteOutcome, PromoteJob]:
    made: list[Topics] = []

    def make(world: World) -> Topics:
        made.append(Topics(world, grown_at))
        return made[0]

    _, outcome, _, job = promote(lambda _: None, settings or PromoteSettings(), topics=make)
    return made[0], outcome, job


def test_partitions_at_the_source_are_counted_before_the_fence_and_behind_it() -> None:
    topics, outcome, _ = counted(None)
    assert not outcome.abandoned
    assert topics.behind_fence == [False, True]


def test_partitions_added_while_it_caught_up_abandon_it_before_anybody_is_held() -> None:
    topics, outcome, job = counted(1)
    assert topics.behind_fence == [False]
    assert "fence" not in outcome.phases_ms
    assert job.reason == (
        "topic t: the source topic has 3 partitions now, the mirror 2; it does not take the others yet: they could not be "
        "taken before writes were held"
    )


def test_partitions_added_around_the_fence_abandon_it() -> None:
    topics, outcome, job = counted(2)
    assert topics.behind_fence == [False, True]
    assert outcome.abandoned
    assert "topic t: the source topic has 3 partitions now, the mirror 2" in (job.reason or "")


def test_partitions_added_between_two_batches_of_a_topic_are_told_and_stop_nothing() -> None:
    """Half of it is led by the target already: another half that can never follow helps nobody."""
    topics, outcome, job = counted(3, PromoteSettings(batch_partitions=1, first_partitions=1))
    assert len(topics.behind_fence) == 4
    assert len(outcome.promoted) == 2
    [warning] = job.warnings
    assert "topic t: the source has partitions that were added meanwhile" in warning


@pytest.mark.parametrize("switch", [True, False])
async def test_a_transaction_that_is_open_in_a_log_that_was_taken_over_is_not_waited_for(
    switch: bool,
) -> None:
    """Its end would be a write to that log. One that is open at a source with a leader ends in a moment."""

    class Ends:
        async def ends(
            self, tps: Collection[TopicPartition], *, timeout: float
        ) -> Mapping[TopicPartition, SourceEnd]:
            return dict.fromkeys(tps, SourceEnd(10, 10, 7))

    async def within(call: Awaitable[Any], timeout: float, what: str) -> Any:
        return await call

    context: Any = SimpleNamespace(
        switch=switch,
        ports=SimpleNamespace(source_ends=Ends()),
        settings=PromoteSettings(),
        fence_left=lambda _error=None: 5.0,
        within=within,
        tell=lambda: None,
    )
    checks = Checks(context)
    if switch:
        with pytest.raises(PromoteAbandoned, match="cannot end there now"):
            await checks._source_rests([TopicPartition("t", 0)])
    else:
        assert not await checks._source_rests([TopicPartition("t", 0)])
