"""A store in memory that refuses what is too much for one transaction of ZooKeeper, byte by byte as its client counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from controller.operations import Operation
from fleet.stores.base import StoreError
from fleet.stores.zookeeper.client import MAX_TRANSACTION_BYTES, ZooKeeperClient
from fleet.stores.zookeeper.plan import Znode, plan_commit, prepare
from tests.controller.memory_store import MemoryStore

ROOT = "/a/path/of/its/own/for/kafka-linker"
RIGHTS = 31  # bytes of the rights of a znode that anybody may change


class BoundedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self._znodes: dict[str, Znode] = {}
        self._client: Any = object.__new__(ZooKeeperClient)
        self._client.root = ROOT
        self._client._acl_bytes = RIGHTS

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        plan = plan_commit(self._znodes, prepare(operations))
        size = sum(cast("int", self._client._size(step)) for step in plan.steps)
        if size > MAX_TRANSACTION_BYTES:
            raise StoreError(f"{len(plan.steps)} operations make {size} bytes: commit fewer at once")
        await super().commit(operations, controller_epoch=controller_epoch)
        self.commits += 1
        self._znodes |= {path: node for path, node in plan.changed.items() if node is not None}
        for path in [path for path, node in plan.changed.items() if node is None]:
            self._znodes.pop(path, None)
