"""The source cluster: one log per partition. Writes may be slow, and land long after whoever sent them gave up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from controller.judge.alignment import SourceEnd
from tests.sim.loop import Process
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.world import World

SOURCE = "source"


class Source:
    def __init__(self, world: World) -> None:
        self.world = world
        self.logs: dict[TopicPartition, list[str]] = {tp: [] for tp in world.tps}
        self.ids: dict[TopicPartition, set[str]] = {tp: set() for tp in world.tps}
        self.high_watermark: dict[TopicPartition, int] = dict.fromkeys(world.tps, 0)
        #: The highest end that any reading has shown.
        self.shown: dict[TopicPartition, int] = dict.fromkeys(world.tps, 0)
        self.slow_until: dict[str, float] = {}  # by process name: its writes take seconds

    def append(self, tp: TopicPartition, record: str) -> int:
        """What it has already (a sequence number) it does not take twice. The offset after it."""
        log = self.logs[tp]
        if record in self.ids[tp]:
            return log.index(record) + 1
        log.append(record)
        self.ids[tp].add(record)
        end = len(log)
        self.world.loop.kernel(self.world.rng_source.uniform(0, 0.02), self._commit, tp, end)
        return end

    def _commit(self, tp: TopicPartition, end: int) -> None:
        self.high_watermark[tp] = max(self.high_watermark[tp], end)

    def write(
        self, process: Process, tp: TopicPartition, record: str, answered: Callable[[bool], None]
    ) -> Callable[[], None]:
        """Answered with True when all replicas have it. Returns what breaks the connection: then answered(False), and
        the write may land yet."""
        network, rng, loop = self.world.network, self.world.rng_source, self.world.loop
        slow = rng.uniform(0, 4.5) if self.slow_until.get(process.name, 0.0) > loop.time() else 0.0
        state = {"over": False, "dropped": False}

        def settle(good: bool) -> None:
            if not state["over"]:
                state["over"] = True
                process.call(answered, good)

        def arrive() -> None:
            if not state["dropped"]:
                end = self.append(tp, record)
                wait_committed(end)

        def wait_committed(end: int) -> None:
            if self.high_watermark[tp] >= end:
                network.deliver(SOURCE, process.name, lambda: settle(True), network.delay())
            else:
                loop.kernel(0.005, wait_committed, end)

        def lost() -> None:
            if not state["over"]:
                state["dropped"] = rng.random() < 0.4
                settle(False)

        network.deliver(process.name, SOURCE, arrive, network.delay() + slow)
        return lost

    async def ends(
        self, process: Process, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        def read() -> dict[TopicPartition, SourceEnd]:
            found = {}
            for tp in tps:
                end = len(self.logs[tp])
                found[tp] = SourceEnd(end, self.high_watermark[tp], self.high_watermark[tp])
            return found

        found = await self.world.network.request(process.name, SOURCE, read, timeout)
        for tp, end in found.items():
            self.shown[tp] = max(self.shown[tp], end.log_end_offset)
        return found
