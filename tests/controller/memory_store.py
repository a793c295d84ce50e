"""A store in memory: the contract in its simplest form, beside which the real ones are tested."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from controller import keys
from controller.operations import Delete, Operation, Put, Versioned
from fleet.stores.base import ControllerFenced, NodeNotEmpty, StoreError, VersionConflict


class MemoryStore:
    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, int]] = {}

    async def get(self, path: str) -> Versioned | None:
        keys.split(path)
        node = self.nodes.get(path)
        return None if node is None else Versioned(json.loads(node[0]), node[1])

    async def children(self, path: str) -> list[str]:
        prefix = "/" if path == "/" else f"{path}/"
        return sorted({p[len(prefix) :].split("/")[0] for p in self.nodes if p.startswith(prefix)})

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        prefix = "/" if path == "/" else f"{path}/"
        return {
            p: Versioned(json.loads(text), version)
            for p, (text, version) in sorted(self.nodes.items())
            if p.startswith(prefix)
        }

    async def claim(self) -> int:
        text, version = self.nodes.get(keys.CONTROLLER_EPOCH, ("0", -1))
        epoch = int(text) + 1
        self.nodes[keys.CONTROLLER_EPOCH] = (str(epoch), version + 1)
        return epoch

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        nodes = dict(self.nodes)
        current = int(nodes.get(keys.CONTROLLER_EPOCH, ("0", 0))[0])
        if controller_epoch < current:
            raise ControllerFenced(controller_epoch, current)
        for operation in operations:
            keys.split(operation.path)
            if operation.path == keys.CONTROLLER_EPOCH:
                raise StoreError("the epoch changes by claim() only")
            node = nodes.get(operation.path)
            found = None if node is None else node[1]
            if found != operation.expect:
                raise VersionConflict(operation.path, operation.expect, found)
            if isinstance(operation, Delete):
                if any(p.startswith(f"{operation.path}/") for p in nodes):
                    raise NodeNotEmpty(operation.path)
                del nodes[operation.path]
            elif isinstance(operation, Put):
                try:
                    text = json.dumps(operation.value, allow_nan=False)
                except (TypeError, ValueError) as error:
                    raise StoreError(str(error)) from error
                nodes[operation.path] = (text, 0 if found is None else found + 1)
        self.nodes = nodes

    async def close(self) -> None:
        """Nothing is open."""
