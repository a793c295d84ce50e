"""A source from before KRaft: one ZooKeeper and brokers, of Kafka 2.8 if no other is asked for, as far as tests need it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.clusters import kafka_jars
from lab.clusters.child_process import ChildProcess
from lab.clusters.kafka_cluster import KafkaClusterSpec
from lab.clusters.kafka_jars import KafkaDistribution, default_cache
from lab.clusters.ports import PortReservation

VERSION = "2.8.2"
START_TIMEOUT = 90.0


async def zookeeper_distribution(version: str = VERSION) -> KafkaDistribution:
    """Its jars, fetched once. Prepared for quick starts it is not: that starts a KRaft node."""
    home = default_cache().absolute() / f"kafka-{version}"
    java = kafka_jars._find_java()
    dist = KafkaDistribution(version, home, java, await kafka_jars._java_build(java))
    ready = home / "complete"
    if not ready.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        async with kafka_jars.locked(home.parent / f".{home.name}.lock"):
            if not ready.exists():
                await kafka_jars.fetch_jars(f"kafka_{kafka_jars.SCALA}", version, home)
                ready.touch()
    return dist


class _Process(ChildProcess):
    def __init__(self, name: str, directory: Path, command: list[str], started: bytes) -> None:
        super().__init__(name, directory / f"{name}.log")
        self._command = command
        self._directory = directory
        self._started = started

    async def start(self) -> None:
        self._launch(self._command, self._directory)
        deadline = time.monotonic() + START_TIMEOUT
        while self._started not in self._log_since_start():
            await self._nap("starting", deadline, START_TIMEOUT)


class OldBroker(_Process):
    """One broker."""

    def __init__(
        self, dist: KafkaDistribution, node_id: int, zookeeper: int, directory: Path, more: Mapping[str, str]
    ) -> None:
        self.node_id = node_id
        self.is_controller = False  # any may be
        self.data = directory / f"broker-{node_id}"
        self.port = PortReservation()
        self._file = directory / f"broker-{node_id}.properties"
        self._properties: dict[str, object] = {
            "broker.id": node_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port.port}",
            "zookeeper.connect": f"127.0.0.1:{zookeeper}",
            "log.dirs": self.data,
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.cleaner.dedupe.buffer.size": 4194304,
            "zookeeper.session.timeout.ms": 6000,
        }
        super().__init__(f"old-{node_id}", directory, [], b"[KafkaServer id=%d] started" % node_id)
        self._become(dist, more)

    def _become(self, dist: KafkaDistribution, more: Mapping[str, str]) -> None:
        self._properties |= more
        self._file.write_text("".join(f"{key}={value}\n" for key, value in self._properties.items()))
        self._command = dist.command("kafka.Kafka", str(self._file))

    async def restart_as(self, dist: KafkaDistribution, more: Mapping[str, str]) -> None:
        """Controlled shutdown, and a start with the jars of another version, with further properties."""
        await self.stop()
        self._become(dist, more)
        await self.start()


class ZooKeeperKafka:
    """`async with ZooKeeperKafka(2, directory) as source:` with as much of KafkaCluster as scenes use."""

    def __init__(
        self,
        brokers: int,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        version: str = VERSION,
    ) -> None:
        self.spec = KafkaClusterSpec(name="source", brokers=brokers)
        self._version = version
        self._more = dict(properties or {})
        self._directory = directory
        self._port = PortReservation()
        self._zookeeper: _Process | None = None
        self.brokers: list[OldBroker] = []

    @property
    def zookeeper(self) -> str:
        return f"127.0.0.1:{self._port.port}"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port.port}" for broker in self.brokers)

    def log_dir(self, broker: int) -> Path:
        return next(one.data for one in self.brokers if one.node_id == broker)

    async def __aenter__(self) -> Self:
        dist = await zookeeper_distribution(self._version)
        self._directory.mkdir(parents=True)
        command = dist.command(
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(self._port.port),
            str(self._directory / "zookeeper"),
            jvm_options=["-Dzookeeper.admin.enableServer=false"],
        )
        self._zookeeper = _Process("zookeeper", self._directory, command, b"binding to port")
        try:
            await self._zookeeper.start()
            for node_id in range(1, self.spec.brokers + 1):
                self.brokers.append(OldBroker(dist, node_id, self._port.port, self._directory, self._more))
            await asyncio.gather(*(broker.start() for broker in self.brokers))
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return self

    async def close(self) -> None:
        for process in (*self.brokers, self._zookeeper):
            if process is not None and process.running:
                await process.kill()
        for broker in self.brokers:
            broker.port.release()
        self._port.release()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())
