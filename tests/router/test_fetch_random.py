"""Random histories of a consumer: whatever is in memory and whoever answers late, it reads each record once and in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from fetcher.budget import Charge, MemoryBudget
from fetcher.window import WindowChunk
from tests.router.rig import E0, Log, Rig
from tests.router.test_consumer_fetch import fetch, log_of

STEPS = 150


class Story:
    """Two partitions at two source nodes, copies of them that come, stop and are dropped, and one consumer of both."""

    def __init__(self, rig: Rig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.logs = [log_of(rig, index) for index in (0, 1)]
        self.written = [0, 0]
        self.read = [0, 0]

    async def write(self) -> None:
        rng = self.rng
        for _ in range(STEPS):
            index = rng.randrange(2)
            log = self.logs[index]
            action = rng.random()
            if action < 0.6:
                count = rng.randint(1, 3)
                self.rig.source.add("orders", index, count, value_size=rng.choice([10, 10, 100_000, 700_000]))
                self.written[index] += count
            elif action < 0.7:
                log.fetcher.answers = not log.fetcher.answers
            elif action < 0.75:
                log.resume() if log.paused else log.pause()
            elif action < 0.8 and log.cursors:
                log.cursors[0].restart(log.cursors[0].position)
            elif action < 0.9:
                self.rig.source.inject("fetch", delay=rng.uniform(0, 0.05), node=index + 1)
            elif action < 0.92:
                self.rig.source.inject("fetch", close_after=0, node=index + 1)
            elif action < 0.94:
                self.rig.source.inject("fetch", error=6, node=index + 1)
            if rng.random() < 0.8:
                self.copy(rng.randrange(2))
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01]))
        for index in (0, 1):
            self.copy(index)  # what is followed is copied in the end

    def copy(self, index: int) -> None:
        """What a source fetcher does."""
        log, source = self.logs[index], self.rig.source.partition("orders", index).log
        (cursor,) = log.cursors
        if not log.fetcher.answers or not log.may_fetch:
            return
        for stored in source.batches:
            base, following = stored.info.base_offset, stored.info.last_offset + 1
            if following <= cursor.position:
                continue
            data = bytearray(stored.data)
            data[12:16] = E0.to_bytes(4, "big")
            charge = Charge(MemoryBudget(len(data)), len(data))
            chunk = WindowChunk(base, following, memoryview(data), len(data), charge)
            log.note_answer(source.high_watermark, source.high_watermark, 0)
            log.add_chunks(cursor, [chunk], [], source.high_watermark)
            charge.drop()
        log.notify()

    async def consume(self, writing: asyncio.Task[None]) -> None:
        rng = self.rng
        client = await self.rig.client()
        late = 0
        while not writing.done() or self.read != self.written:
            asked = [index for index in (0, 1) if rng.random() < 0.9] or [0]
            offsets = {index: self.read[index] for index in asked}
            answer = await asyncio.wait_for(
                fetch(
                    client,
                    self.rig,
                    offsets,
                    max_wait_ms=rng.choice([0, 20, 200, 2000]),
                    min_bytes=rng.choice([0, 1, 1, 1, 1000]),
                ),
                25,
            )
            for index in asked:
                part = answer.partitions[index]
                assert part.error == 0, part
                got = [offset for offset, _ in answer.values(index) if offset >= offsets[index]]
                assert got == list(range(offsets[index], offsets[index] + len(got)))
                self.read[index] += len(got)
            late += writing.done()
            assert late < 100, f"{self.read} of {self.written}"
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0.001, 0.02, 0.1]))


@pytest.mark.parametrize("seed", range(8))
async def test_each_record_once_and_in_order(seed: int) -> None:
    async with Rig(source_nodes=2) as rig:
        rig.source.move_leader("orders", 0, 1)
        rig.source.move_leader("orders", 1, 2)
        await rig.cluster.refresh(["orders"], timeout=5)
        story = Story(rig, random.Random(seed))
        writing = asyncio.create_task(story.write())
        await story.consume(writing)
        await writing
        assert story.read == story.written
        assert not any(log.listeners for log in story.logs)
    assert isinstance(story.logs[0], Log)
