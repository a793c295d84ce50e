"""The store of a fleet in ZooKeeper. The contract is in `fleet.stores.base`, the layout in `plan`.

A commit is one ZooKeeper transaction, and all commits are numbered by the version of `/commits`:

    check  /controller_epoch   has the version that the claimed epoch gave it, else: fenced
    set    /commits            has the version of the snapshot that the commit was planned on
    create, set, delete        each with the exact version it was planned on

So a transaction finds the versions, missing parents and empty znodes that its plan assumed, or it does nothing and
is planned anew on a new snapshot. The snapshot is kept
between commits, since the one writer's own commits are all that changes: a commit is one round trip.

- A transaction without an answer may still arrive. Before anything is read again `/commits` is raised: what
  was lost is visible then, or can never be done, as its number is too low.
- ZooKeeper cannot read several znodes at one moment: a tree is read until `/commits` had the same version
  before and after.
- An empty commit is a transaction too, with the check only: it goes through the quorum, unlike a read.
- A transaction is limited by the server's `jute.maxbuffer` (1 MiB): see MAX_TRANSACTION_BYTES.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller import keys
from controller.errors import CorruptState
from controller.operations import Operation, Versioned
from fleet.stores.base import Candidate, ControllerFenced, NodeNotEmpty, Seat, StoreError, VersionConflict
from fleet.stores.nodes import prefix
from fleet.stores.zookeeper.client import Rejected, Stored, ZooKeeperClient
from fleet.stores.zookeeper.plan import (
    COMMITS,
    LIVE,
    MARK,
    PINNED,
    RESERVED,
    Create,
    Step,
    TransactionPlan,
    VersionCheck,
    Write,
    Znode,
    open_envelope,
    parent_of,
    plan_commit,
    prepare,
)
from fleet.stores.zookeeper.seat import Epoch, FleetNodes, raise_epoch, read_epoch
from wire.shown_id import listed

ATTEMPTS = 20  # of a commit or claim that others disturb, each time with progress for them
TREE_TIMEOUT = 60.0


@dataclass(slots=True)
class _Snapshot:
    number: int  # the version of /commits
    nodes: dict[str, Znode]

    def apply(self, plan: TransactionPlan) -> None:
        self.number += 1
        for path, node in plan.changed.items():
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node


class ZooKeeperStore:
    """A `FleetStore`. Make one with `open`; it belongs to the event loop it was opened on."""

    def __init__(self, client: ZooKeeperClient, fleet: FleetNodes) -> None:
        self._client = client
        self._fleet = fleet
        self._turn = asyncio.Lock()  # one at a time plans, commits, or reads a tree
        self._epoch: Epoch | None = None  # as last seen; a wrong one only costs a round trip
        self._snapshot: _Snapshot | None = None
        self._unsettled = False  # a commit of ours got no answer

    @classmethod
    async def open(
        cls,
        connect: str,
        *,
        session_timeout: float = 6.0,
        connect_timeout: float = 10.0,
        auth: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> ZooKeeperStore:
        """`connect` is host:port,host:port/path; the path is created. Seconds; `auth` is user and password
        (scheme digest), which then own every node.

        A server accepts a session timeout of 2 to 20 ticks of its own (`tickTime`), and corrects others.
        """
        client = await ZooKeeperClient.open(
            connect, session_timeout=session_timeout, connect_timeout=connect_timeout, auth=auth, tls=tls
        )
        fleet = FleetNodes(client)
        try:
            await _prepare(client)
            await fleet.start()
        except BaseException:
            await asyncio.shield(client.close())
            raise
        return cls(client, fleet)

    async def close(self) -> None:
        await self._fleet.close()
        async with self._turn:
            await self._client.close()

    # Reading.

    async def get(self, path: str) -> Versioned | None:
        """Also a sidecar that is alive, `/sidecars/ids/N`, and the store's own nodes."""
        keys.split(path)
        await self._settle()
        stored = await self._client.read(path)
        return None if stored is None else self._node(path, stored)

    async def children(self, path: str) -> list[str]:
        """`/sidecars/ids` has the sidecars that are alive now."""
        below = prefix(path)
        await self._settle()
        await self._client.sync()
        (names,) = await self._client.children([path])
        found = []
        for name in names or ():
            if f"{below}{name}" in PINNED:
                if not await self.children(f"{below}{name}"):
                    continue  # always there, also without a node
            elif f"{below}{name}" in RESERVED:
                continue
            found.append(name)
        return sorted(found)

    async def tree(self, path: str) -> Mapping[str, Versioned]:
        """The committed nodes: without those that are alive, and the store's own."""
        prefix(path)
        async with self._turn:
            number, znodes = await self._read_tree(path)
            nodes = {name: self._node(name, stored) for name, stored in znodes.items()}
            if path == "/":
                self._snapshot = self._snapshot_of(number, znodes)
        return {name: node for name, node in sorted(nodes.items()) if node is not None}

    async def _read_tree(self, path: str) -> tuple[int, dict[str, Stored]]:
        """Every znode strictly below, and the number of the last commit; in our turn."""
        try:
            async with asyncio.timeout(TREE_TIMEOUT):
                while True:
                    await self._settle_in_turn()
                    before = await self._commits()
                    znodes = await self._walk(path)
                    if znodes is not None and await self._commits() == before:
                        return before, znodes
        except TimeoutError:
            raise StoreError(
                f"{self._client.where(path)} could not be read between two commits of others "
                f"within {TREE_TIMEOUT:.0f} s"
            ) from None

    async def _walk(self, path: str) -> dict[str, Stored] | None:
        """Level by level; None if something has gone meanwhile."""
        found: dict[str, Stored] = {}
        parents = [path]
        while parents:
            level: list[str] = []
            for parent, names in zip(parents, await self._client.children(parents), strict=True):
                if names is None:
                    if parent == path:
                        continue  # nothing is there
                    return None
                below = prefix(parent)
                level.extend(f"{below}{name}" for name in names if f"{below}{name}" not in RESERVED)
            parents = []
            for name, stored in zip(level, await self._client.read_many(level), strict=True):
                if stored is None:
                    return None
                found[name] = stored
                if stored.children:
                    parents.append(name)
        return found

    async def _commits(self) -> int:
        stored = await self._client.read(COMMITS)
        if stored is None:
            raise StoreError(f"{self._client.where(COMMITS)} is gone: somebody has emptied the state store")
        open_envelope(self._client.where(COMMITS), stored.data)  # a newer version's is refused
        return stored.version

    def _node(self, path: str, stored: Stored) -> Versioned | None:
        opened = open_envelope(self._client.where(path), stored.data)
        if opened is None:
            return None
        if opened.base > stored.version:
            raise CorruptState(
                f"{self._client.where(path)} in ZooKeeper has base {opened.base} above its version"
            )
        return Versioned(opened.value, stored.version - opened.base)

    def _snapshot_of(self, number: int, znodes: Mapping[str, Stored]) -> _Snapshot:
        nodes: dict[str, Znode] = {}
        for path, stored in znodes.items():
            node = self._node(path, stored)
            base = None if node is None else stored.version - node.version
            nodes[path] = Znode(stored.version, base, stored.children)
        return _Snapshot(number, nodes)

    # Writing.

    async def claim(self) -> int:
        for _ in range(ATTEMPTS):
            epoch, steps = raise_epoch(await read_epoch(self._client))
            try:
                await self._client.transact("claiming the controller epoch", steps)
            except Rejected:
                continue
            self._epoch = epoch
            return epoch.value
        raise StoreError(f"{ATTEMPTS} attempts to claim the controller epoch lost against others")

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        prepared = prepare(operations)
        if not prepared:
            await self._prove(controller_epoch)
            return
        async with self._turn:
            for _ in range(ATTEMPTS):
                epoch = await self._claimed(controller_epoch)
                snapshot = await self._current()
                steps: list[Step] = [VersionCheck(keys.CONTROLLER_EPOCH, epoch.version)]
                refusal: VersionConflict | NodeNotEmpty | None = None
                try:
                    plan = plan_commit(snapshot.nodes, prepared)
                    steps += [Write(COMMITS, MARK, snapshot.number), *plan.steps]
                except (VersionConflict, NodeNotEmpty) as error:
                    refusal = error
                    steps += [VersionCheck(COMMITS, snapshot.number)]  # is it true still?
                if await self._transact(steps):
                    if refusal is not None:
                        raise refusal
                    snapshot.apply(plan)
                    return
        raise StoreError(f"others have changed the state store under each of {ATTEMPTS} attempts to commit")

    async def _prove(self, controller_epoch: int) -> None:
        for _ in range(ATTEMPTS):
            epoch = await self._claimed(controller_epoch)
            try:
                await self._client.transact(
                    "proving the epoch", [VersionCheck(keys.CONTROLLER_EPOCH, epoch.version)]
                )
                return
            except Rejected:
                self._epoch = None
        raise StoreError(f"the controller epoch was claimed under each of {ATTEMPTS} attempts to prove it")

    async def _transact(self, steps: Sequence[Step]) -> bool:
        """Whether it was done. If not, the snapshot was wrong and is forgotten."""
        try:
            await self._client.transact(f"a commit of {len(steps)} steps", steps)
        except Rejected as rejected:
            self._snapshot = None
            if rejected.index == 0:
                self._epoch = None
            return False
        except BaseException:  # a cancellation too
            self._snapshot = None
            self._unsettled = True
            raise
        return True

    async def _claimed(self, controller_epoch: int) -> Epoch:
        """The current epoch, which has to be this one."""
        if self._epoch is None or self._epoch.value != controller_epoch:
            self._epoch = await read_epoch(self._client)
        current = 0 if self._epoch is None else self._epoch.value
        if controller_epoch < current:
            self._fleet.fenced(current)
            raise ControllerFenced(controller_epoch, current)
        if self._epoch is None or controller_epoch > current:
            raise StoreError(
                f"controller epoch {controller_epoch} was never claimed at {self._client.where('/')}, "
                f"which knows epochs up to {current}: was the state store emptied or replaced?"
            )
        return self._epoch

    async def _current(self) -> _Snapshot:
        if self._snapshot is None:
            number, znodes = await self._read_tree("/")
            self._snapshot = self._snapshot_of(number, znodes)
        return self._snapshot

    async def _settle(self) -> None:
        if self._unsettled:
            async with self._turn:
                await self._settle_in_turn()

    async def _settle_in_turn(self) -> None:
        if self._unsettled:
            await self._client.transact("settling a commit without an answer", [Write(COMMITS, MARK, -1)])
            self._unsettled = False

    # The fleet.

    @property
    def seat(self) -> Seat | None:
        return self._fleet.seat

    async def seat_changed(self, known: Seat | None, *, timeout: float) -> Seat | None:
        return await self._fleet.seat_changed(known, timeout=timeout)

    async def announce(self, me: Candidate) -> None:
        await self._fleet.announce(me)

    async def take_seat(self, me: Candidate) -> int:
        return await self._fleet.take_seat(me)

    async def seat_lost(self) -> str:
        return await self._fleet.seat_lost()

    async def resign(self) -> None:
        await self._fleet.resign()


async def _prepare(client: ZooKeeperClient) -> None:
    """Create the store's own nodes. A path in other use is refused: Kafka's own ZooKeeper nodes have the same names as
    ours."""
    for _ in range(ATTEMPTS):
        marked = await client.read(COMMITS)
        if marked is not None:
            open_envelope(client.where(COMMITS), marked.data)
            return
        (names,) = await client.children(["/"])
        if names is None:
            await client.create_root()
            continue
        if COMMITS[1:] in names:
            continue  # another sidecar was quicker
        if set(names) - {"zookeeper"}:
            raise StoreError(
                f"{client.where('/')} holds {listed(sorted(names))} and is no state store of this program: "
                "end the connect string with a path of its own, such as /kafka-linker"
            )
        try:
            await client.transact(
                "creating the store", [Create(COMMITS, MARK), Create(parent_of(LIVE), b""), Create(LIVE, b"")]
            )
        except Rejected:
            continue
        return
    raise StoreError(f"{client.where('/')} is created and deleted by somebody all the time")
