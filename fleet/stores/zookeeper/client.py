"""ZooKeeper's reads, watches and transactions, each with a deadline.

Paths are the store's; the path at the end of the connect string is put in front of them here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency

from controller import keys
from fleet.stores.base import StoreError
from fleet.stores.zookeeper.plan import Create, Remove, Step, Write
from fleet.stores.zookeeper.session import NODE_ERRORS, Disconnected, Issue, ZooKeeperSession

#: A server refuses packets beyond `jute.maxbuffer`, 1 MiB - 1 by default, by closing the connection.
MAX_TRANSACTION_BYTES = 1_000_000
_IN_FLIGHT = 100  # reads asked for at once
_FOLLOW_ERRORS = (RolledBackError, RuntimeInconsistency)  # of the steps beside the one that failed


class Rejected(Exception):
    """A transaction that certainly did nothing, and the first step that did not fit."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"step {index}: {type(error).__name__}")
        self.index = index


class Stored(NamedTuple):
    """A znode as read."""

    data: bytes
    version: int
    children: int
    owner: int  # session id of an ephemeral one, else 0
    created: int  # the transaction that made it (czxid)


class ZooKeeperClient(ZooKeeperSession):
    """Make one with `open`."""

    # Reading. Repeated while the connection is lost, until the deadline.

    async def read(self, path: str) -> Stored | None:
        """One znode, not older than this call."""
        _, result = await self._read(f"reading {path}", [self._sync(), self._get(path)])
        return _stored(result)

    async def read_many(self, wanted: Sequence[str]) -> list[Stored | None]:
        """Znodes as this server has them now: not from one moment, and maybe behind the others."""
        found: list[Stored | None] = []
        for start in range(0, len(wanted), _IN_FLIGHT):
            chunk = wanted[start : start + _IN_FLIGHT]
            results = await self._read(f"reading {chunk[0]}", [self._get(path) for path in chunk])
            found.extend(_stored(result) for result in results)
        return found

    async def children(self, wanted: Sequence[str]) -> list[list[str] | None]:
        """The names below each of these znodes."""
        found: list[list[str] | None] = []
        for start in range(0, len(wanted), _IN_FLIGHT):
            chunk = wanted[start : start + _IN_FLIGHT]
            results = await self._read(f"listing {chunk[0]}", [self._list(path) for path in chunk])
            found.extend(None if isinstance(result, NoNodeError) else list(result) for result in results)
        return found

    async def sync(self) -> None:
        """Later reads are not older than this call."""
        await self._read("reading", [self._sync()])

    async def watch(self, path: str) -> Stored | None:
        """The znode; `changed` is sent when it changes, appears or goes, and at any loss of connection."""
        watching = _on(self.full(path), "exists_async", self._on_watch)
        _, result = await self._read(f"watching {path}", [watching, self._get(path)])
        return _stored(result)

    def _get(self, path: str) -> Issue:
        return _on(self.full(path), "get_async")

    def _list(self, path: str) -> Issue:
        return _on(self.full(path), "get_children_async")

    def _sync(self) -> Issue:
        return _on(self.full("/"), "sync_async")

    async def _read(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        try:
            async with asyncio.timeout(self.deadline):
                while True:
                    await self.until_connected()
                    try:
                        return await self.ask(what, issues)
                    except Disconnected:
                        await asyncio.sleep(0.05)  # until the loss has come to us by the other thread too
        except TimeoutError:
            raise Disconnected(self._silent(what)) from None

    # Writing.

    async def transact(self, what: str, steps: Sequence[Step]) -> list[Any]:
        """One transaction, never repeated: the result of each step.

        Rejected: nothing was done. Disconnected: the outcome is unknown. Other StoreErrors: nothing was done.
        """
        size = 17 + sum(self._size(step) for step in steps)
        if size > MAX_TRANSACTION_BYTES:
            raise StoreError(
                f"{what}: {len(steps)} operations make {size} bytes, and ZooKeeper takes no transaction beyond "
                f"{MAX_TRANSACTION_BYTES}: commit fewer at once"
            )
        try:
            async with asyncio.timeout(self.deadline):
                await self.until_connected()
                (results,) = await self.ask(what, [lambda kazoo: self._transaction(kazoo, steps)])
        except TimeoutError:
            raise Disconnected(self._silent(what)) from None
        if isinstance(results, Exception):
            raise Rejected(0, results)
        for index, result in enumerate(results):
            if isinstance(result, NODE_ERRORS):
                raise Rejected(index, result)
            if isinstance(result, Exception) and not isinstance(result, _FOLLOW_ERRORS):
                raise self._translated(what, result)
        return list(results)

    def _transaction(self, kazoo: Any, steps: Sequence[Step]) -> Any:
        transaction = kazoo.transaction()
        for step in steps:
            path = self.full(step.path)
            if isinstance(step, Create):
                transaction.create(path, step.data, acl=self._acl, ephemeral=step.ephemeral)
            elif isinstance(step, Write):
                transaction.set_data(path, step.data, step.version)
            elif isinstance(step, Remove):
                transaction.delete(path, step.version)
            else:
                transaction.check(path, step.version)
        return transaction.commit_async()

    def _size(self, step: Step) -> int:
        """Bytes of the step in a request: a header of 9, strings and data with their length, numbers of 4."""
        size = 17 + len(self.root) + len(step.path)
        if isinstance(step, Create):
            return size + 4 + len(step.data) + self._acl_bytes
        return size + 4 + len(step.data) if isinstance(step, Write) else size

    async def create_root(self) -> None:
        """The path at the end of the connect string, missing parents first."""
        path = ""
        for segment in keys.split(self.root) if self.root else ():
            path = f"{path}/{segment}"
            (found,) = await self._read(f"looking for {path}", [_on(path, "exists_async")])
            if found is None:
                await self._read(f"creating {path}", [_on(path, "create_async", b"", self._acl)])


def _on(path: str, method: str, *arguments: Any) -> Issue:
    return lambda kazoo: getattr(kazoo, method)(path, *arguments)


def _stored(result: Any) -> Stored | None:
    if isinstance(result, NoNodeError):
        return None
    data, stat = result
    return Stored(data or b"", stat.version, stat.numChildren, stat.ephemeralOwner, stat.czxid)
