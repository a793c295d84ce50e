"""Committed offsets, read at the source in rounds and committed on the target through the gates, where they have
changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from controller.group_phases import GroupPhase
from controller.judge.group_offsets import Offsets, wanted_offsets
from controller.mirror_group import MirrorGroup
from groups.gate_keeper import GateKeeper, HeldUp
from groups.gates.base import GateLost
from groups.left_out import NOT_MIRRORED
from groups.tools import Tools
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask
from wire.together import together

log = logging.getLogger(__name__)

_AT_ONCE = 256  # groups that are committed at the same time, and described together before it
_READ_TIMEOUT = 10.0
_SYNCED = frozenset({GroupPhase.GATED, GroupPhase.DRAINING})


@dataclass(slots=True)
class SyncStats:
    """Counters for metrics."""

    rounds: int = 0
    commits: int = 0  # groups committed for
    offsets: int = 0  # partitions committed
    errors: int = 0
    last_seconds: float = 0.0  # how long the newest round took
    gates_lost: int = 0


class OffsetSync:
    """The sync of the groups in `runs`, which the manager fills. `lost` is called for gates that hold no longer."""

    def __init__(
        self,
        tools: Tools,
        interval: float,
        runs: Mapping[str, GateKeeper],
        stats: SyncStats,
        lost: Callable[[GateKeeper, GateLost], Awaitable[None]],
    ) -> None:
        self._tools = tools
        self._runs = runs
        self._stats = stats
        self._lost = lost
        #: Woken when new offsets are known.
        self.task = PeriodicTask(
            "group offsets", lambda: self.sync(), interval, failed=self._not_synced, pause=self._pause
        )

    def set_interval(self, seconds: float) -> None:
        """From now on."""
        if seconds != self.task.interval:
            self.task.interval = seconds
            self.task.wake()

    def _not_synced(self, error: Exception) -> None:
        self._stats.errors += 1
        log.warning("link %s: the offsets of groups were not synced: %s", self._tools.book.link, error)

    def _pause(self, task: PeriodicTask) -> float:
        self._stats.rounds += 1
        self._stats.last_seconds = task.took
        return max(task.interval - task.took, task.interval / 10)

    async def sync(self) -> None:
        """Once: read all held groups at the source, commit what changed. Raises LinkerError."""
        book, tools = self._tools.book, self._tools
        held = {
            group.group: (group, run)
            for group in book.all()
            if group.phase in _SYNCED
            and (run := self._runs.get(group.group)) is not None
            and run.gate is not None
            and not run.gone
        }
        if not held:
            return
        read_at = time.monotonic()
        answer = await tools.source.offsets(list(held), timeout=_READ_TIMEOUT)
        for name, reason in answer.failed.items():
            held[name][1].sync_trouble = f"its offsets cannot be read at the source: {reason}"
        unknown = [name for name in answer.found if held[name][1].target is None]
        if unknown:
            on_target = await tools.target.offsets(unknown, timeout=_READ_TIMEOUT)
            for name, offsets in on_target.found.items():
                held[name][1].target = dict(offsets)
            for name, reason in on_target.failed.items():
                held[name][1].sync_trouble = f"its offsets cannot be read on the target: {reason}"
        stale = self._stale(answer.found)
        every = {tp for offsets in answer.found.values() for tp in offsets} - stale
        await tools.bounds.refresh(every, timeout=_READ_TIMEOUT)
        bounds = tools.bounds.known(every)
        work = []
        for name, offsets in answer.found.items():
            group, run = held[name]
            run.source = offsets
            run.left_out.gone(stale & offsets.keys(), NOT_MIRRORED)
            wanted = run.left_out.fitting(wanted_offsets(offsets, group.topics, bounds))
            if run.target is None:
                continue
            run.wanted = wanted
            same = all(run.target.get(tp) == commit for tp, commit in wanted.items())
            if same and not run.uncovered(group):
                run.synced_at, run.sync_trouble = read_at, None
            else:
                work.append((group, run, wanted))
        changed = iter(work)

        async def some() -> None:
            for group, run, wanted in changed:
                await self._sync_one(group, run, wanted, read_at)

        await together(some() for _ in range(min(_AT_ONCE, len(work))))

    def _stale(self, found: Mapping[str, Offsets]) -> frozenset[TopicPartition]:
        """Commits for partitions that their mirror does not have: the topic had more partitions once, or has just got
        more, which the mirror will get as well."""
        sizes: dict[str, int] = {}
        stale = set()
        for offsets in found.values():
            for tp in offsets:
                size = sizes.get(tp.topic)
                if size is None:
                    size = sizes[tp.topic] = self._tools.partitions(tp.topic)
                if 0 < size <= tp.partition:
                    stale.add(tp)
        return frozenset(stale)

    async def _sync_one(self, group: MirrorGroup, run: GateKeeper, wanted: Offsets, read_at: float) -> None:
        try:
            if run.uncovered(group):
                await run.hold(group)
            committed = await run.commit(wanted, _SYNCED)
        except GateLost as error:
            await self._lost(run, error)
            return
        except HeldUp as error:
            run.sync_trouble = str(error)
            return
        except (LinkerError, TimeoutError) as error:
            self._stats.errors += 1
            run.sync_trouble = f"its offsets were not committed on the target: {error}"
            return
        run.synced_at, run.sync_trouble = read_at, None
        self._stats.commits += 1
        self._stats.offsets += committed
