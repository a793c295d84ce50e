"""Thousands of groups on real coordinators, none of them promoted: every second some of them, or all, commit at the source,
and the link brings that over. How long a round of it takes, how old the oldest group's offsets get, and what it costs.

The groups have no members at the source: their offsets are committed by hand, in as many requests as clients would need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from admin.models import GroupsStatus, LinkOptionsUpdate, UpdateLinkRequest
from controller.judge.group_offsets import Committed
from groups.group_reader import GroupReader
from lab.bench.cluster import BenchError
from lab.bench.load import build_batch, fill
from lab.bench.memory import MIB, MemoryWatch
from lab.bench.results import CaseResult, Goal, median_of, percentile, strip
from lab.bench.settings import Settings
from lab.bench.stage import Source, Stage, stage
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.task_group import TaskGroup

TOPIC, PARTITIONS = "of-groups", 2
TOPIC_BYTES = 1_000_000  # of records of 100 B: room for the offsets that are committed
NAMED = "bench-group-"
SIDES = ("still", "fifth", "all")
INTERVAL = 1.0  # groups.sync.interval.ms as it is by default
#: Seconds, auto.commit.interval.ms of Kafka's clients: in each second a fifth of the groups commits.
AUTO_COMMIT = 5
SETTLE = 2 * INTERVAL  # until then what was before is still in the figures
AT_ONCE = 32  # commits under way
LOOK = 0.2
HELD_TIMEOUT, COMMIT_TIMEOUT, EQUAL_TIMEOUT = 400.0, 60.0, 60.0
#: For each coordinator one; one for questions to any of them and one for lookups.
CONNECTIONS_BESIDES = 2
_ESTABLISHED = "01"


class Committer:
    """Commits for groups at the source, each time one offset further."""

    def __init__(self, cluster: Cluster, names: Sequence[str]) -> None:
        self.reader = GroupReader(cluster)
        self.committed = dict.fromkeys(names, 0)
        self._lanes = asyncio.Semaphore(AT_ONCE)

    async def begin(self) -> None:
        """The first commit of each; the first of all makes `__consumer_offsets`, whose coordinators come up meanwhile."""
        deadline = time.monotonic() + COMMIT_TIMEOUT
        for name in self.committed:
            while not self.committed[name]:
                try:
                    await self._one(name)
                except LinkerError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(LOOK)

    async def commit(self, names: Sequence[str]) -> None:
        """One offset further for each of them."""
        async with TaskGroup() as group:
            for name in names:
                group.create_task(self._one(name), name=f"commit of {name}")

    async def _one(self, name: str) -> None:
        async with self._lanes:
            offset = self.committed[name] + 1
            await self.reader.commit_empty(name, _offsets(offset), timeout=COMMIT_TIMEOUT)
            self.committed[name] = offset

    async def every_second(self, seconds: float, groups: int) -> float:
        """The next `groups` of them in each second, in turn; the second that took longest."""
        names, longest, began, number = list(self.committed), 0.0, time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            first = number * groups % len(names)
            await self.commit((names + names)[first : first + groups])
            longest, number = max(longest, time.monotonic() - now), number + 1
            await asyncio.sleep(max(0.0, began + number - time.monotonic()))
        return longest


def _offsets(offset: int) -> dict[TopicPartition, Committed]:
    return {TopicPartition(TOPIC, index): Committed(offset) for index in range(PARTITIONS)}


async def run(source: Source, settings: Settings, say: Callable[[str], None]) -> CaseResult:
    """Nothing committed, a fifth of the groups every second, all of them."""
    names = [f"{NAMED}{number}" for number in range(settings.groups)]
    result = CaseResult(
        "groups",
        f"{len(names):,} groups of {PARTITIONS} partitions, held on the target; in each second a fifth of them commits at "
        "the source, or each. A round of the sync, the age of the oldest group's offsets as the admin API tells it",
        {side: [] for side in SIDES},
    )
    async with (
        # Of one broker: copies of offsets at the source are work for this machine and no matter of the link's.
        Source(source.directory, name="source-groups", brokers=1, quick_start=source.quick_start) as small,
        stage(small, "groups", 1) as on,
        MemoryWatch(on.sidecar) as memory,
    ):
        await small.cluster.create_topic(TOPIC, [[1]] * PARTITIONS)
        batch = build_batch(100, 10_000, int(time.time() * 1000))
        await fill(small.cluster.connected, TOPIC, PARTITIONS, TOPIC_BYTES, batch)
        client = Cluster(
            "source",
            parse_bootstrap_servers(on.source.bootstrap),
            ClientSecurity.plaintext(),
            client_id="bench-groups",
        )
        try:
            await client.connect()
            await _measure(on, Committer(client, names), settings, result, say)
        finally:
            await client.close()
        result.figures["peak_rss_mib"] = memory.peak_now() / MIB
    _judge(result, coordinators=1)
    return result


async def _measure(
    on: Stage, committer: Committer, settings: Settings, result: CaseResult, say: Callable[[str], None]
) -> None:
    names, figures = list(committer.committed), result.figures
    await _include(on, "")
    await on.create_mirror(TOPIC, 1)
    await on.wait_active(TOPIC)
    await committer.begin()
    before, began = _connections(on), time.monotonic()
    await _include(on, f"{NAMED}.*")
    while (groups := await _groups(on)).gated < len(names) or groups.sync_age_ms is None:
        if time.monotonic() > began + HELD_TIMEOUT:
            raise BenchError(f"of {len(names)} groups {groups.gated} are held: {groups.reason}")
        await asyncio.sleep(LOOK)
    figures["held_after_seconds"] = time.monotonic() - began
    say(f"{len(names)} groups held after {figures['held_after_seconds']:.1f} s")
    for side, some in zip(SIDES, (0, len(names) // AUTO_COMMIT, len(names)), strict=True):
        for number in range(-settings.warm_up if some else 0, settings.rounds):
            one = await _window(on, committer, SETTLE + 2 * settings.window_seconds, some)
            result.rounds.setdefault(side if number >= 0 else f"{side}_warm_up", []).append(one)
            say(
                f"round {number + 1}, {some} commits a second: sync {one['round_ms']:.0f} ms, "
                f"oldest {one['age_ms']:.0f} ms, {one['cpu_percent']:.0f} % of a core"
            )
    figures["connections"] = _connections(on) - before
    result.checked, result.problems = await _equal(on, committer)


async def _window(on: Stage, committer: Committer, seconds: float, groups: int) -> dict[str, float]:
    rounds: list[int] = []
    ages: list[int] = []

    async def look() -> None:
        await asyncio.sleep(SETTLE)
        while True:
            now = await _groups(on)
            if now.sync_age_ms is None or now.sync_ms is None:
                raise BenchError(f"a group's offsets are not followed any more: {now}")
            ages.append(now.sync_age_ms)
            rounds.append(now.sync_ms)
            await asyncio.sleep(LOOK)

    async with TaskGroup() as tasks:
        looking = tasks.create_task(look(), name="looks at groups")
        cpu, began = on.sidecar.cpu_seconds(), time.monotonic()
        longest = 0.0
        if groups:
            longest = await committer.every_second(seconds, groups)
        else:
            await asyncio.sleep(seconds)
        share = (on.sidecar.cpu_seconds() - cpu) / (time.monotonic() - began)
        looking.cancel()
    return {
        "round_ms": percentile(rounds, 0.5),
        "longest_round_ms": float(max(rounds)),
        "age_ms": percentile(ages, 0.5),
        "oldest_ms": float(max(ages)),
        "cpu_percent": 100 * share,
        "committing_ms": 1000 * longest,
    }


async def _include(on: Stage, pattern: str) -> None:
    options = LinkOptionsUpdate.model_validate({"groups_include": pattern})
    await on.update_link(UpdateLinkRequest(options=options))


async def _groups(on: Stage) -> GroupsStatus:
    [link] = (await on.status()).links
    return link.groups


async def _equal(on: Stage, committer: Committer) -> tuple[dict[str, int], list[str]]:
    """After the last commit, each group has the same commits on the target as at the source."""
    wanted = {name: _offsets(offset) for name, offset in committer.committed.items()}
    reader, deadline = GroupReader(on.target.connected), time.monotonic() + EQUAL_TIMEOUT
    while True:
        there = await reader.offsets(list(wanted), timeout=COMMIT_TIMEOUT)
        different = [name for name, offsets in wanted.items() if _plain(there.found.get(name)) != offsets]
        if not different or time.monotonic() > deadline:
            break
        await asyncio.sleep(1.0)
    problems = [
        f"{name}: {there.found.get(name) or there.failed.get(name) or there.unstable.get(name)} on the target, "
        f"{committer.committed[name]} was committed at the source"
        for name in different
    ]
    return {"groups": len(wanted)}, problems


def _plain(offsets: dict[TopicPartition, Committed] | None) -> dict[TopicPartition, Committed]:
    return {tp: Committed(one.offset) for tp, one in (offsets or {}).items()}


def _connections(on: Stage) -> int:
    """How many the sidecar has to the target's brokers."""
    files = Path(f"/proc/{on.sidecar.pid}/fd")
    sockets = set()
    for file in files.iterdir():
        try:
            sockets.add(file.readlink().name)
        except FileNotFoundError:  # closed meanwhile
            continue
    ports = {node.port() for node in on.target.brokers}
    count = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{on.sidecar.pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            there = int(words[2].rpartition(":")[2], 16)
            count += words[3] == _ESTABLISHED and there in ports and f"socket:[{words[9]}]" in sockets
    return count


def _judge(result: CaseResult, coordinators: int) -> None:
    figures, rounds = result.figures, result.rounds
    for side in SIDES:
        of = rounds[side]
        for key in ("round_ms", "age_ms", "cpu_percent"):
            figures[f"{side}_{key}"] = median_of(of, key)
        for key in ("longest_round_ms", "oldest_ms"):
            figures[f"{side}_{key}"] = max(one[key] for one in of)
    interval = 1000 * INTERVAL
    result.goals = [
        Goal(f"groups, a round, {words}", figures[f"{side}_round_ms"], interval, at_least=False, unit="ms")
        for side, words in (("fifth", "a fifth commits each second"), ("all", "all commit each second"))
    ]
    connections = coordinators + CONNECTIONS_BESIDES
    result.goals.append(
        Goal("groups, further connections", figures["connections"], connections, at_least=False)
    )
    result.plots = [
        strip("A round of the sync", "ms", rounds, "round_ms"),
        strip("CPU of the sidecar", "% of a core", rounds, "cpu_percent"),
    ]
