"""MirrorMaker 2 of the same Kafka version as a process beside the link, with the configuration that lies beside this file.

One JVM serves all rounds, so that it is as warm as the brokers; each round gives it a new topic with the same bytes.
It is stopped (SIGSTOP) whenever it is not measured, so that it takes nothing from the others. It has a target of its own:
a broker that also serves its producers follows a sixth slower than one that does nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from lab.bench.cluster import BenchCluster, nap
from lab.bench.growth import GrowthWatch
from lab.bench.page_cache import give_back
from lab.clusters.child_process import ChildProcess
from lab.clusters.kafka_jars import (
    DEFAULT_VERSION,
    KafkaDistribution,
    default_cache,
    ensure_distribution,
    fetch_jars,
)
from wire.client.cluster import Cluster
from wire.frames.types import TopicPartition

CONFIG = Path(__file__).with_name("mirror-maker.properties")
HEAP_MB = 1024
START_TIMEOUT = 90.0
END_TIMEOUT = 60.0
STARTED = re.compile(rb"Finished starting connectors and tasks|Kafka MirrorMaker started")
# Its batches are other ones than the source's, so its bytes differ a little; the records are counted afterwards.
NEARLY_ALL = 0.99
RENAMED = "source."  # what MirrorMaker's default policy puts before a topic's name
PARTITIONS = 4


async def mirror_maker_distribution(say: Callable[[str], None]) -> KafkaDistribution:
    """Its jars, by Maven when it is asked for the first time; they are more than a broker's."""
    broker = await ensure_distribution()
    home = default_cache().absolute() / f"mirror-maker-{DEFAULT_VERSION}"
    found = KafkaDistribution(DEFAULT_VERSION, home, broker.java, broker.java_build)
    if (home / "complete").exists():
        return found
    say(f"fetching MirrorMaker {DEFAULT_VERSION} by Maven into {home}")
    await fetch_jars("connect-mirror", DEFAULT_VERSION, home)
    (home / "complete").touch()
    return found


class MirrorMaker(ChildProcess):
    """`async with MirrorMaker(source, target, directory, say):` started and stopped, to be woken by each `round`."""

    PREFIX: ClassVar[str] = "maker-"  # of the topics that it copies

    def __init__(
        self, source: BenchCluster, target: BenchCluster, directory: Path, say: Callable[[str], None]
    ) -> None:
        super().__init__("MirrorMaker 2", directory / "mirror-maker.log")
        self._source = source
        self._target = target
        self._directory = directory
        self._say = say
        self._number = 0

    async def __aenter__(self) -> Self:
        distribution = await mirror_maker_distribution(self._say)
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "mirror-maker.properties"
        clusters = (("source", self._source), ("target", self._target))
        servers = [f"{name}.bootstrap.servers = {cluster.bootstrap}\n" for name, cluster in clusters]
        config.write_text(CONFIG.read_text() + "".join(servers))
        command = distribution.command(
            "org.apache.kafka.connect.mirror.MirrorMaker", str(config), heap_mb=HEAP_MB, quick_start=False
        )
        self._launch(command, self._directory)
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while not STARTED.search(self._log_since_start()):
                await self._nap("starting", deadline, START_TIMEOUT)
        except BaseException:
            await self.__aexit__()
            raise
        self.pause()
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self.running:
            await self.kill()

    async def round(self, total: int) -> dict[str, Any]:
        """Copy the topic that was produced last."""
        source, target = self._source, self._target
        topic = f"{self.PREFIX}{self._number}"
        self._number += 1
        copy = f"{RENAMED}{topic}"
        watch = GrowthWatch(
            target.replica_dirs(copy, PARTITIONS, 1),
            int(total * NEARLY_ALL),
            {
                "leader": source.nodes[1].cpu_seconds,
                "follower": target.nodes[1].cpu_seconds,
                "mirror_maker": self.cpu_seconds,
            },
            exact=False,
        )
        self.resume()
        try:
            growth = await watch.done()
            await self._wait_complete(topic, copy)
        finally:
            self.pause()
        await asyncio.to_thread(
            give_back,
            [*source.replica_dirs(topic, PARTITIONS, 1), *target.replica_dirs(copy, PARTITIONS, 1)],
        )
        return {
            "mb_per_second": growth.mb_per_second,
            "seconds": growth.seconds,
            **{f"{name}_cpu_per_gb": growth.cpu_per_gb(name) for name in growth.cpu_seconds},
            "copier_cpu_per_gb": growth.cpu_per_gb("mirror_maker"),
            "rss_mib": self.resident_bytes() / (1 << 20),
        }

    async def _wait_complete(self, topic: str, copy: str) -> None:
        deadline = time.monotonic() + END_TIMEOUT
        ends = await log_ends(self._source.connected, topic)
        while (found := await log_ends(self._target.connected, copy)) != ends:
            await nap(deadline, f"MirrorMaker 2 has copied {found} of {ends} records of {topic}", 0.1)


async def log_ends(cluster: Cluster, topic: str) -> list[int]:
    """Log end offsets of the partitions."""
    await cluster.refresh([topic], timeout=10)
    answers = await cluster.list_offsets({TopicPartition(topic, index): -1 for index in range(PARTITIONS)})
    return [answers[TopicPartition(topic, index)].offset for index in range(PARTITIONS)]
