"""One stand-alone ZooKeeper for the tests of the store, and kazoo as a second, outside client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kazoo.client import KazooClient

from lab.clusters.ports import PortReservation
from tests.real.harness_zookeeper import _Process, zookeeper_distribution

TICK_MS = 300  # sessions of 2 to 20 ticks: down to 0.6 s


class ZooKeeperServer(_Process):
    """Its data and its port stay over kill and start."""

    def __init__(self, command: list[str], directory: Path, port: PortReservation) -> None:
        super().__init__("zookeeper", directory, command, b"binding to port")
        self._port = port

    @classmethod
    async def prepared(cls, directory: Path, more: Mapping[str, object] | None = None) -> ZooKeeperServer:
        """`more` are properties of its configuration; with `secure` among them its port takes TLS only."""
        dist = await zookeeper_distribution()
        directory.mkdir(parents=True, exist_ok=True)
        port = PortReservation()
        properties = {
            "tickTime": TICK_MS,
            "dataDir": directory / "data",
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            **(more or {}),
        }
        properties["secureClientPort" if properties.pop("secure", False) else "clientPort"] = port.port
        config = directory / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = dist.command("org.apache.zookeeper.server.ZooKeeperServerMain", str(config))
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
