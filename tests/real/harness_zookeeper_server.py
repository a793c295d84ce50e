"""One stand-alone ZooKeeper for the tests of the store, and kazoo as a second, outside client."""

from __future__ import annotations

from pathlib import Path

from kazoo.client import KazooClient

from linker.demo.ports import PortReservation
from tests.real.harness_zookeeper import _Process, zookeeper_distribution

TICK_MS = 300  # sessions of 2 to 20 ticks: down to 0.6 s


class ZooKeeperServer(_Process):
    """Its data and its port stay over kill and start."""

    def __init__(self, command: list[str], directory: Path, port: PortReservation) -> None:
        super().__init__("zookeeper", directory, command, b"binding to port")
        self._port = port

    @classmethod
    async def prepared(cls, directory: Path) -> ZooKeeperServer:
        dist = await zookeeper_distribution()
        directory.mkdir(parents=True, exist_ok=True)
        port = PortReservation()
        command = dist.command(
            "org.apache.zookeeper.server.ZooKeeperServerMain",
            str(port.port),
            str(directory / "data"),
            str(TICK_MS),
            jvm_options=["-Dzookeeper.admin.enableServer=false", "-Dzookeeper.maxClientCnxns=0"],
        )
        return cls(command, directory, port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port.port}"

    async def close(self) -> None:
        if self.running:
            self.resume()
            await self.kill()
        self._port.release()

    def outsider(self, session: tuple[int, bytes] | None = None) -> KazooClient:
        """A started client of nobody's; stop and close it. With a session's id and password it takes that over."""
        client = KazooClient(hosts=self.address, timeout=5.0, client_id=session)
        client.start(timeout=10)
        return client
