"""A source comes back after a failover, with records beyond it: they are exported and truncated, then it follows."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import compare_clusters, compare_followers, placements
from lab.workload.replica_log import open_replica
from lab.workload.source_data import SourceTopic
from tests.real.test_switch import real
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(420)
LINK = "east"
PARTITIONS = 3
TPS = [TopicPartition("orders", index) for index in range(PARTITIONS)]


async def eventually(what: str, look: Callable[[], Awaitable[bool]], timeout: float = 90) -> None:
    deadline = time.monotonic() + timeout
    while not await look():
        assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s"
        await asyncio.sleep(0.3)


async def equal(owner: KafkaCluster, other: KafkaCluster, topic: SourceTopic) -> None:
    """All logs of the topic, those of followers included, come to hold the same bytes; each cluster has two brokers."""
    placed, there = await asyncio.gather(
        *(asyncio.to_thread(placements, one.bootstrap, [topic]) for one in (owner, other))
    )
    placed, copies = real(placed, owner), real(there, other)

    async def same() -> bool:
        compared = await asyncio.to_thread(compare_clusters, owner, other, [topic], placed, copies)
        compared += await asyncio.to_thread(compare_followers, owner, [topic], placed)
        return len(compared) == 3 * topic.partitions and all(one.identical for one in compared)

    await eventually("all logs are equal", same)


StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


@dataclass
class Writer:
    """Numbered records, round the partitions; the acknowledged ones by value."""

    cluster: KafkaCluster
    name: str
    acks: str = "all"
    acked: set[str] = field(default_factory=set)
    errors: list[KafkaError] = field(default_factory=list)
    rate: float = 0.01
    _task: asyncio.Task[None] | None = None
    _sent: int = 0

    def start(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "acks": self.acks,
                "enable.idempotence": self.acks == "all",
                "linger.ms": 0,
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._task = asyncio.create_task(self._run())

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked.add((message.value() or b"").decode())
        else:
            self.errors.append(error)

    async def _run(self) -> None:
        while True:
            value = f"{self.name}-{self._sent}"
            self._producer.produce(
                "orders",
                value,
                key=b"\xff" + self.name.encode(),
                partition=self._sent % PARTITIONS,
                headers={"from": self.name},
                on_delivery=self._told,
            )
            self._sent += 1
            self._producer.poll(0)
            await asyncio.sleep(self.rate)

    async def more(self, count: int) -> None:
        before = len(self.acked)

        async def acked() -> bool:
            return len(self.acked) >= before + count

        await eventually(f"{count} more of {self.name} acknowledged", acked)

    async def stop(self) -> None:
        """All that was sent has its outcome, if there is somebody to tell it."""
        if self._task is not None:
            self._task.cancel()
        await asyncio.to_thread(self._producer.flush, 20)
        self._producer.purge()
        self._producer.poll(0)


def values(cluster: KafkaCluster, broker: int, tp: TopicPartition, start: int = 0) -> list[tuple[int, str]]:
    """The records of a broker's own log from an offset on."""
    log = open_replica(cluster.log_dir(broker), tp)
    return [
        (record.offset, bytes(record.value or b"").decode())
        for batch in log.batches()
        if not batch.header.is_control
        for record in batch.records()
        if record.offset >= start
    ]


@dataclass
class Scene:
    source: KafkaCluster
    target: KafkaCluster
    sidecar: SidecarProcess
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    async def cli(self, *words: str, ok: bool = True) -> Any:
        run = self.sidecar.linker if ok else self.sidecar.run
        return (await run(*words, "--link", LINK, "-o", "json")).json()

    async def mirror(self) -> dict[str, Any]:
        return {one["topic"]: one for one in await self.cli("mirror", "list")}.get("orders", {})

    async def failed_over(self) -> None:
        """Everything of the source and the sidecar dies under writers that nobody copies any more; the target takes over."""
        first = Writer(self.source, "first", "1")
        first.start()
        await first.more(300)
        await self.sidecar.kill()
        await first.more(300)
        for node in self.source.nodes.values():
            await node.kill()
        await first.stop()
        await self.sidecar.start()
        done = await self.sidecar.linker(
            "mirror", "failover", "orders", "--link", LINK, "--yes", "-o", "json"
        )
        self.ends = {
            TopicPartition(one["topic"], one["partition"]): one["end"] for one in done.json()["failover"]
        }
        at_target = Writer(self.target, "target")
        at_target.start()
        await at_target.more(200)
        await at_target.stop()

    async def source_returns(self) -> None:
        await asyncio.gather(*(node.start() for node in self.source.nodes.values() if not node.running))

        async def whole() -> bool:
            placed = await asyncio.to_thread(placements, self.source.bootstrap, [TOPIC])
            return all(one.leader >= 0 for one in placed.values())

        await eventually("the source leads again", whole, 60)

    async def planned(self, *words: str) -> Any:
        return await self.cli("mirror", "restore", "orders", "--dry-run", *words, ok=False)

    async def could_start(self) -> Any:
        """A dry run that nothing is in the way of."""
        found: Any = None

        async def clear() -> bool:
            nonlocal found
            found = await self.planned()
            return not found["blockers"]

        try:
            await eventually("nothing is in the way", clear, 60)
        except AssertionError:
            raise AssertionError(found) from None
        return found

    async def equal(self, owner: KafkaCluster, other: KafkaCluster) -> None:
        await equal(owner, other, TOPIC)


TOPIC = SourceTopic("orders", PARTITIONS, lambda _filler, _topic: None)


async def scene_of(start_cluster: StartCluster, start_sidecar: StartSidecar) -> Scene:
    source, target = await asyncio.gather(
        start_cluster(name="source", brokers=2), start_cluster(name="target", brokers=2)
    )
    sidecar = await start_sidecar(
        target.bootstrap, sources={LINK: {"broker.id": 800}}, validation={"policy": "skip"}
    )
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    [made] = admin.create_topics([NewTopic("orders", PARTITIONS, 2)]).values()
    await asyncio.to_thread(made.result, 30)
    await sidecar.linker("link", "create", LINK, "-b", source.bootstrap, "--join-source")
    await sidecar.linker("mirror", "create", "orders", "--link", LINK)
    scene = Scene(source, target, sidecar)

    async def active() -> bool:
        return (await scene.mirror()).get("state") == "ACTIVE"

    await eventually("the mirror is active", active, 60)
    return scene


def exports(sidecar: SidecarProcess, earlier: bool = False) -> dict[TopicPartition, list[dict[str, Any]]]:
    """The JSON lines by partition; `earlier`: of attempts that were cut short, too."""
    found: dict[TopicPartition, list[dict[str, Any]]] = {tp: [] for tp in TPS}
    for path in sorted(Path(sidecar.directory).rglob("exports/**/*.jsonl*")):
        if path.suffix == ".jsonl" or earlier:
            topic, _, index = path.parent.name.rpartition("-")
            found[TopicPartition(topic, int(index))] += [
                json.loads(line) for line in path.read_text().splitlines()
            ]
    return found


def exported(
    lines: Mapping[TopicPartition, list[dict[str, Any]]],
) -> dict[TopicPartition, list[tuple[int, str]]]:
    return {tp: [(one["offset"], one["value"]) for one in of] for tp, of in lines.items()}


def written(cluster: KafkaCluster, placed: Mapping[TopicPartition, Any]) -> list[str]:
    """The values in the leaders' logs."""
    return [value for tp in TPS for _, value in values(cluster, placed[tp].leader, tp)]


async def test_a_source_that_comes_back(start_cluster: StartCluster, start_sidecar: StartSidecar) -> None:
    """Exactly what it has beyond the failover is counted and exported; then it has the target's bytes, its clients write
    on, and a switch goes back."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.failed_over()
    await scene.source_returns()
    left = Writer(scene.source, "left", "1")  # a client that found its source again
    left.start()
    await left.more(60)
    await left.stop()
    plan = await scene.could_start()
    leaders = await asyncio.to_thread(placements, scene.source.bootstrap, [TOPIC])
    beyond = {tp: values(scene.source, leaders[tp].leader, tp, scene.ends[tp]) for tp in TPS}
    assert sum(map(len, beyond.values())) > 150
    for one in plan["partitions"]:
        tp = TopicPartition(one["topic"], one["partition"])
        assert (one["end"], one["agreed"]) == (scene.ends[tp], scene.ends[tp])
        assert one["records"] == len(beyond[tp]), one
    racing = Writer(scene.source, "racing", "1", rate=0.002)
    racing.start()
    await racing.more(50)
    done = await scene.cli("mirror", "restore", "orders", "--yes")
    found = exported(exports(scene.sidecar))
    assert {tp: [one for one in of if "racing" not in one[1]] for tp, of in found.items()} == beyond
    for one in done["partitions"]:
        tp = TopicPartition(one["topic"], one["partition"])
        assert (one["state"], one["records"]) == ("RESTORED", len(found[tp])), one
        assert one["source_end"] == found[tp][-1][0] + 1
    await racing.more(100)
    await racing.stop()
    line = exports(scene.sidecar)[TPS[0]][0]
    assert line["key"] == {"base64": "/2ZpcnN0"} and line["headers"] == [["from", "first"]], line
    late = Writer(scene.source, "late")
    late.start()
    await late.more(100)
    shown = await scene.mirror()
    assert (shown["direction"], shown["state"]) == ("REVERSED", "ACTIVE"), shown
    await late.stop()
    await scene.equal(scene.target, scene.source)
    kept = written(scene.target, await asyncio.to_thread(placements, scene.target.bootstrap, [TOPIC]))
    saved = {value for of in found.values() for _, value in of}
    lost = (left.acked | racing.acked | late.acked) - saved - set(kept)
    assert not lost, sorted(lost)[:10]
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    late.start()
    await late.more(50)
    await late.stop()
    await scene.equal(scene.source, scene.target)
    assert not late.errors
    placed = await asyncio.to_thread(placements, scene.source.bootstrap, [TOPIC])
    assert all(one.leader in scene.source.nodes for one in real(placed, scene.source).values())


@pytest.mark.slow
async def test_killed_on_the_way_under_writers(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """The next process goes on, and all that was acknowledged at the source is in a file or in the log, and nothing twice
    in one file."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.failed_over()
    await scene.source_returns()
    writer = Writer(scene.source, "again")
    writer.start()
    await writer.more(60)
    await scene.could_start()
    await scene.sidecar.linker("mirror", "restore", "orders", "--link", LINK, "--yes", "--no-wait")
    for pause in (0.5, 1.2, 2.0):
        await asyncio.sleep(pause)
        await scene.sidecar.kill()
        files = [len(lines) for lines in exports(scene.sidecar).values()]
        await scene.sidecar.start()
        print(f"killed after {pause} s, with so many records in the files: {files}")

    async def restored() -> bool:
        found = await scene.mirror()
        return (found.get("direction"), found.get("state")) == ("REVERSED", "ACTIVE")

    await eventually("it is restored", restored, 120)
    await writer.more(100)
    await writer.stop()
    await scene.equal(scene.target, scene.source)
    placed = await asyncio.to_thread(placements, scene.target.bootstrap, [TOPIC])
    kept = written(scene.target, placed)
    assert len(kept) == len(set(kept))
    last = exported(exports(scene.sidecar))
    for of in last.values():
        assert [offset for offset, _ in of] == sorted({offset for offset, _ in of})
    saved = {value for of in exported(exports(scene.sidecar, earlier=True)).values() for _, value in of}
    lost = writer.acked - saved - set(kept)
    assert not lost, sorted(lost)[:10]
    assert not writer.errors, writer.errors[:3]
    await scene.sidecar.linker("mirror", "switch", "orders", "--link", LINK)
    await scene.equal(scene.source, scene.target)


@pytest.mark.slow
async def test_a_source_that_has_lost_its_disks(
    start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """It has other records where the target has those that it took over: refused, unless somebody says so."""
    scene = await scene_of(start_cluster, start_sidecar)
    await scene.failed_over()
    empty = TPS[1]
    for broker in scene.source.nodes:
        shutil.rmtree(scene.source.partition_dir(broker, empty))
    first, second = scene.source.nodes.values()
    await first.start()

    async def one_is_missing() -> bool:
        found = await scene.planned()
        return any("not in its ISR" in line or "nobody leads" in line for line in found["blockers"])

    await eventually("a missing broker is in the way", one_is_missing, 60)
    await second.start()
    await scene.source_returns()
    writer = Writer(scene.source, "after")
    writer.start()
    await writer.more(30)
    await writer.stop()

    async def differs() -> bool:
        found = await scene.planned()
        return len(found["blockers"]) == 1 and "other records than the target from offset 0 on" in str(found)

    await eventually("other records are in the way", differs, 60)
    refused = await scene.sidecar.run("mirror", "restore", "orders", "--link", LINK, "--yes")
    assert refused.exit_code and "--force" in refused.output + refused.errors, refused
    done = await scene.cli("mirror", "restore", "orders", "--yes", "--force")
    found = {one["partition"]: one for one in done["partitions"]}[empty.partition]
    own = [one["value"] for one in exports(scene.sidecar)[empty]]
    assert found["agreed"] == 0 and found["records"] == len(own) >= 10, found
    assert set(own) <= writer.acked
    await scene.equal(scene.target, scene.source)
