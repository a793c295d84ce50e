"""A worker of Kafka Connect in distributed mode, with the connectors for files; its jars come by Maven, once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from lab.clusters import kafka_jars
from lab.clusters.child_process import ChildProcess
from lab.clusters.kafka_jars import DEFAULT_VERSION, KafkaDistribution, default_cache, ensure_distribution
from lab.clusters.ports import PortReservation

START_TIMEOUT = 90.0
FETCH_TIMEOUT = 600.0
_DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
    "<version>{version}</version></dependency>"
)


async def connect_distribution() -> KafkaDistribution:
    """Its jars. Prepared for quick starts it is not: that starts a broker."""
    broker = await ensure_distribution()
    home = default_cache().absolute() / f"connect-{DEFAULT_VERSION}"
    found = KafkaDistribution(DEFAULT_VERSION, home, broker.java, broker.java_build)
    async with kafka_jars.locked(home.parent / f".{home.name}.lock"):
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            wanted = [
                ("org.apache.kafka", "connect-runtime", DEFAULT_VERSION),
                ("org.apache.kafka", "connect-file", DEFAULT_VERSION),
                ("org.slf4j", "slf4j-simple", kafka_jars.SLF4J_VERSION),
            ]
            dependencies = [_DEPENDENCY.format(group=g, name=n, version=v) for g, n, v in wanted]
            (home / "pom.xml").write_text(
                '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                "<groupId>kafka-linker</groupId><artifactId>connect</artifactId><version>1</version>"
                f"<dependencies>{''.join(dependencies)}</dependencies></project>"
            )
            command = ["mvn", "-q", "-B", "-f", str(home / "pom.xml"), "dependency:copy-dependencies"]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={home / 'libs'}"]
            await kafka_jars.run_to_end(command, FETCH_TIMEOUT, "fetching Kafka Connect")
            (home / "complete").touch()
    return found


class ConnectWorker(ChildProcess):
    """`async with ConnectWorker(bootstrap, properties, directory) as worker:` one that answers and has joined its group."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str], directory: Path) -> None:
        super().__init__(f"connect at {bootstrap}", directory / "connect.log")
        self._directory = directory
        self._port = PortReservation()
        self._properties = {
            "bootstrap.servers": bootstrap,
            "listeners": f"http://127.0.0.1:{self._port.port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.flush.interval.ms": "500",
            **properties,
        }
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self._port.port}", timeout=30.0, trust_env=False
        )

    async def __aenter__(self) -> Self:
        dist = await connect_distribution()
        self._directory.mkdir(parents=True)
        plugins = self._directory / "plugins"
        plugins.mkdir()
        for jar in (dist.home / "libs").glob("connect-file-*.jar"):
            shutil.copy(jar, plugins)
        file = self._directory / "worker.properties"
        properties = {**self._properties, "plugin.path": plugins, "plugin.discovery": "service_load"}
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = dist.command("org.apache.kafka.connect.cli.ConnectDistributed", str(file), heap_mb=256)
        self._launch(command, self._directory)
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while not await self._answers():
                await self._nap("starting", deadline, START_TIMEOUT)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def _answers(self) -> bool:
        try:
            return (await self.http.get("/connectors", timeout=5.0)).status_code == 200
        except httpx.HTTPError:
            return False

    async def configure(self, name: str, config: Mapping[str, str]) -> None:
        answer = await self.http.put(f"/connectors/{name}/config", json=dict(config))
        assert answer.status_code in (200, 201), answer.text

    async def status(self, name: str) -> Any:
        return (await self.http.get(f"/connectors/{name}/status")).json()

    async def running_tasks(self, name: str) -> None:
        """Wait until the connector and its one task run here."""
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            found = await self.status(name)
            states = [one["state"] for one in (found.get("connector"), *found.get("tasks", ())) if one]
            if states == ["RUNNING", "RUNNING"]:
                return
            assert "FAILED" not in states, found
            await self._nap(f"starting {name} ({states})", deadline, START_TIMEOUT)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()
        if self.running:
            await self.stop()
        self._port.release()
