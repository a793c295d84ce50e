"""A ZooKeeper in a dict, with as much of ZooKeeperClient as a membership uses."""

from __future__ import annotations

import json
from collections.abc import Sequence

from fleet.stores.zookeeper.client import Rejected, Stored
from fleet.stores.zookeeper.plan import Create, Remove, Step
from wire.errors import LinkerError


class FakeZooKeeper:
    def __init__(self) -> None:
        self.nodes: dict[str, Stored] = {}
        self.session = 1
        self.connected = True
        self.granted = 6.0
        self.transactions = 100
        self.reads: list[str] = []
        self.broken: LinkerError | None = None

    def put(self, path: str, value: object, *, owner: int = 0) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        before = self.nodes.get(path)
        self.transactions += 1
        if before is None:
            self.nodes[path] = Stored(data, 0, 0, owner, self.transactions)
        else:
            self.nodes[path] = before._replace(data=data, version=before.version + 1)

    def broker(self, broker_id: int, rack: str | None = None, *names: str, owner: int = 9) -> None:
        listeners = names or ("PLAINTEXT",)
        fields: dict[str, object] = {
            "version": 5,
            "endpoints": [f"{name}://127.0.0.1:{9000 + broker_id}" for name in listeners],
            "listener_security_protocol_map": dict.fromkeys(listeners, "PLAINTEXT"),
        }
        self.put(f"/brokers/ids/{broker_id}", fields | ({} if rack is None else {"rack": rack}), owner=owner)

    def topic(self, name: str, replicas: Sequence[Sequence[int]], **more: object) -> None:
        partitions = {str(index): list(one) for index, one in enumerate(replicas)}
        self.put(f"/brokers/topics/{name}", {"version": 3, "partitions": partitions, **more})
        for index, one in enumerate(replicas):
            self.state(name, index, one[0], 0, one)

    def state(self, name: str, index: int, leader: int, epoch: int, isr: Sequence[int]) -> None:
        fields = {
            "controller_epoch": 1,
            "leader": leader,
            "leader_epoch": epoch,
            "isr": list(isr),
            "version": 1,
        }
        self.put(f"/brokers/topics/{name}/partitions/{index}/state", fields)

    def remove(self, path: str) -> None:
        for found in [one for one in self.nodes if one == path or one.startswith(f"{path}/")]:
            del self.nodes[found]

    # --- ZooKeeperClient

    async def sync(self) -> None:
        if self.broken is not None:
            raise self.broken

    async def read(self, path: str) -> Stored | None:
        await self.sync()
        return self.nodes.get(path)

    async def read_many(self, wanted: Sequence[str]) -> list[Stored | None]:
        self.reads += wanted
        return [await self.read(path) for path in wanted]

    async def children(self, wanted: Sequence[str]) -> list[list[str] | None]:
        await self.sync()
        found: list[list[str] | None] = []
        for parent in wanted:
            below = [path.removeprefix(f"{parent}/") for path in self.nodes if path.startswith(f"{parent}/")]
            found.append(sorted({path.partition("/")[0] for path in below}))
        return found

    async def transact(self, what: str, steps: Sequence[Step]) -> list[object]:
        await self.sync()
        for step in steps:
            if isinstance(step, Create):
                if step.path in self.nodes:
                    raise Rejected(0, LinkerError(what))
                self.put(step.path, step.data, owner=self.session if step.ephemeral else 0)
            elif isinstance(step, Remove):
                self.remove(step.path)
        return []
