"""A run in which topics go to the other cluster and back, under clients of both clusters that are never restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from itertools import pairwise
from typing import Any

from lab.workload.history import History
from lab.workload.inspection import truncations
from lab.workload.live_consumers import read_up_to
from tests.chaos.checker import Aftermath, judge
from tests.chaos.result import MOST_EVIDENCE, Stuck
from tests.chaos.run import CONSUMERS, DRAIN_TIMEOUT, Run
from tests.chaos.switch_evidence import Owned, own_configs
from tests.chaos.switches import Owner, Switcher, SwitchLog

#: Beside those of the checker. Errors that only idempotent producers saw count, too.
SWITCH_RULES = ("producer_errors", "unsettled", "configs", "not_drained")
WRITES_ON_TIMEOUT = 60.0
WRITES_ON = 20  # records of each producer


class SwitchRun(Run):
    """`await SwitchRun(...).go()`."""

    link_options: Mapping[str, Any] = {"join_source": True}
    _owners: dict[str, Owner]
    _configs: dict[str, dict[str, str]]

    def _readers(self) -> list[Awaitable[None]]:
        """One at each cluster, with a group of its own there."""
        names = [topic.name for topic in self.topics]
        starts = []
        for cluster in (self.stage.source, self.stage.target):
            reader = CONSUMERS[self.plan.consumer](
                f"reader-{cluster.spec.name}-{self.link}", names, self.history
            )
            self._consumers.append(reader)
            starts.append(reader.start(cluster.bootstrap))
        return starts

    async def _act(self, faults: list[asyncio.Task[None]]) -> None:
        names = [topic.name for topic in self.topics]
        self._owners = dict.fromkeys(names, Owner.SOURCE)
        self._configs = {
            name: await asyncio.to_thread(own_configs, self.stage.source, name) for name in names
        }
        switcher = Switcher(self.fleet, self.link, self._board)
        for index, plan in enumerate(self.plan.switches):
            await asyncio.sleep(plan.delay)
            topics = [names[topic] for topic in plan.topics]
            note = SwitchLog(topics, self._owners[topics[0]].other, plan.batch_partitions)
            self.result.switches.append(note)
            began = self.history.clock()
            work = asyncio.create_task(switcher.run(index, note, plan.fence_timeout))
            await self._settled(work, faults, note)
            self._owners |= dict.fromkeys(topics, note.to)
            note.longest_gap_ms = longest_gap(self.history, began, self.history.clock())
        # Faults that are aimed at what is after the last switch have begun by now.
        await asyncio.gather(*faults)
        await self._writes_go_on()

    async def _writes_go_on(self) -> None:
        """No producer is left behind, whatever was done to it."""
        wanted = {one.name: _acked(self.history, one.name) + WRITES_ON for one in self._producers}
        deadline = time.monotonic() + WRITES_ON_TIMEOUT
        while waiting := [name for name, count in wanted.items() if _acked(self.history, name) < count]:
            if time.monotonic() > deadline:
                raise Stuck(f"nothing of {sorted(waiting)} is acknowledged any more")
            await asyncio.sleep(0.1)

    async def _judge(self) -> None:
        owned_by = {
            owner: [topic for topic in self.topics if self._owners[topic.name] is owner] for owner in Owner
        }
        link_brokers = {
            Owner.SOURCE: {one.source_id for one in self.fleet.members},
            Owner.TARGET: {one.broker_id for one in self.fleet.members},
        }
        owned = await asyncio.to_thread(Owned, self.stage, owned_by, link_brokers)
        ends = {tp: log.records[-1].offset + 1 for tp, log in owned.owner.items() if log.records}
        drained = all([await read_up_to([one], ends, DRAIN_TIMEOUT) for one in self._consumers])
        if not drained:
            self.result.evidence += self._reading()
        for one in self._consumers:
            await one.stop()
            behind = [
                f"{tp} {one.positions.get(tp)}/{end}"
                for tp, end in ends.items()
                if one.positions.get(tp, 0) < end
            ]
            if behind:
                self.result.evidence.append(f"{one.name} has not read all: {behind}")
        after = Aftermath(owner=owned.owner, replicas=owned.replicas, drained=drained)
        self._note(await asyncio.to_thread(judge, self.history, after), 0, drained)
        producers = {one.name for one in self._producers}
        errors = [f"{one.producer} record {one.sequence}: {one.error}" for one in self.history.unacked]
        errors += [f"{one.client}: {one.error}" for one in self.history.errors if one.client in producers]
        self._broken("producer_errors", errors)
        self._broken("unsettled", owned.unsettled)
        self._broken("configs", await self._changed_configs())
        truncated = await asyncio.to_thread(truncations, self.stage.nodes, self.topics)
        self.result.truncated_committed = len(truncated)
        self.result.evidence += truncated[:MOST_EVIDENCE]
        if not drained:
            self._broken("not_drained", ["the readers have not read all"])

    def _broken(self, rule: str, lines: list[str]) -> None:
        if lines:
            self.result.broken[rule] = len(lines)
            self.result.evidence += [f"{rule}: {line}" for line in lines[:MOST_EVIDENCE]]

    async def _changed_configs(self) -> list[str]:
        """Of topics that the source owns again."""
        found = []
        for topic, owner in self._owners.items():
            if owner is Owner.SOURCE:
                now = await asyncio.to_thread(own_configs, self.stage.source, topic)
                if now != self._configs[topic]:
                    found.append(f"{topic}: {self._configs[topic]} before, {now} now")
        return found

    async def clean_up(self) -> None:
        switched = [topic for topic, owner in self._owners.items() if owner is Owner.TARGET]
        mirrors = f"/v1/links/{self.link}/mirrors"
        if switched:
            await self.fleet.call("POST", f"{mirrors}:finish", {"topics": switched}, timeout=60.0)
        left = [topic for topic in self._owners if topic not in switched]
        if left:
            await self.fleet.call("POST", f"{mirrors}:sync", {"topics": left, "off": True})
        await super().clean_up()


def longest_gap(history: History, began: float, ended: float) -> float | None:
    """Milliseconds between two acknowledgements of one producer that overlap this time."""
    times: dict[str, list[float]] = {}
    for ack in list(history.acks):
        times.setdefault(ack.producer, []).append(ack.time)
    gaps = [
        after - before
        for moments in times.values()
        for before, after in pairwise(sorted(moments))
        if after >= began and before <= ended
    ]
    return round(max(gaps) * 1000, 1) if gaps else None


def _acked(history: History, producer: str) -> int:
    return sum(ack.producer == producer for ack in list(history.acks))
