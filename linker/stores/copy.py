"""Copies the state from one store to another while no sidecar runs.

Crash safe: the target is marked as unfinished until the copy is complete, and the source is marked as moved only after
the target was read back. A repeated copy goes on. Versions begin at 0 again; the controller epoch of the target is
above the source's, because partitions carry the epoch that wrote them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import BaseModel, Field

from controller import keys
from controller.operations import Delete, Operation, Put, Versioned
from controller.state import JsonValue
from fleet.stores.base import Candidate, FleetStore, StoreError, StoreLocked, StoreMissing
from linker.stores import COPYING, MOVED_TO, StoreMoved, _place
from linker.stores.location import Location

ALIVE = f"{keys.SIDECARS}/ids"
IDENTITIES = f"{keys.SIDECARS}/identities"
#: Of the store, not of the state: each store makes its own.
_OWN = frozenset({keys.CONTROLLER_EPOCH, "/controller", "/fleet", "/beat", "/commits", MOVED_TO, COPYING})
_COMMIT_NODES = 100
_COMMIT_BYTES = 200_000  # ZooKeeper takes 1 MiB in one transaction
_MARGIN = 10.0

Values = Mapping[str, JsonValue]


class CopyResult(BaseModel):
    """The result of a copy, or with dry_run the expected one."""

    source: str
    target: str
    nodes: int = Field(description="Nodes of the state, links and all that is below them.")
    links: list[str]
    controller_epoch: int = Field(description="The source's; the target's is above it.")
    replaced: int = Field(default=0, description="Nodes of the target that were thrown away.")
    already_there: bool = Field(default=False, description="The target had the same state before.")
    dry_run: bool


class TargetNotEmpty(StoreError):
    """The store to copy to has another state."""


async def copy_store(
    source: Location, target: Location, *, dry_run: bool = False, force: bool = False
) -> CopyResult:
    """Copy everything, verify, mark the source. StoreError if a sidecar runs, or the target has another state.

    `force` replaces the target's state, if that is marked as moved away itself.
    """
    if source.same_place(target):
        raise StoreError(f"{source} and {target} are the same store")
    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(_opened(source, create=False))
        await _check_source(old, source)
        if dry_run:
            await _check_nobody(old, source)
            return await _look(old, source, target, force=force)
        source_epoch = await _take(old, source)
        # Their sidecars are gone, and the target may not have noticed.
        link_brokers = [int(one) for one in await old.children(IDENTITIES)]
        new = await stack.enter_async_context(_opened(target, create=True, link_brokers=link_brokers))
        target_epoch = await _take(new, target)
        values = _state(await old.tree("/"))
        result = _compare(values, await new.tree("/"), source, target, source_epoch, force=force)
        while target_epoch <= source_epoch:
            target_epoch = await new.claim()
        if not result.already_there:
            await _fill(new, values, str(source), target_epoch)
        await new.close()
        await _verify(values, target)
        mark: JsonValue = {"store": str(target), "at": datetime.now(UTC).isoformat(timespec="seconds")}
        await old.commit([Put(MOVED_TO, mark, None)], controller_epoch=source_epoch)
        return result


async def reopen_store(location: Location) -> str:
    """Remove the mark of a moved state; returns where it was moved to. StoreError if it was not."""
    async with _opened(location, create=False) as store:
        epoch = await _take(store, location)
        moved = await store.get(MOVED_TO)
        if moved is None:
            raise StoreError(f"the state in {location} was not moved anywhere")
        await store.commit([Delete(MOVED_TO, moved.version)], controller_epoch=epoch)
        return _place(moved.value)


# --- who uses it ----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _opened(
    location: Location, *, create: bool, link_brokers: Collection[int] = ()
) -> AsyncIterator[FleetStore]:
    try:
        store = await location.open(
            client_id="kafka-linker-store-copy", create=create, link_brokers=link_brokers
        )
    except StoreLocked as error:
        raise StoreError(f"{error}. Stop the sidecars first") from error
    try:
        yield store
    finally:
        await store.close()


async def _check_nobody(store: FleetStore, location: Location) -> None:
    """Check that no sidecar is alive, as far as that shows without taking the seat."""
    alive = await store.children(ALIVE)
    if alive:
        raise StoreError(f"sidecars {', '.join(alive)} are alive in {location}: stop the sidecars first")
    seat = store.seat
    if seat is not None:
        # Entries of a dead sidecar go away by themselves.
        seat = await store.seat_changed(seat, timeout=_patience(location))
    if seat is not None:
        raise _in_use(store, location)


async def _take(store: FleetStore, location: Location) -> int:
    """The epoch, with the seat taken, so that no sidecar begins meanwhile."""
    alive = await store.children(ALIVE)
    if alive:
        raise StoreError(f"sidecars {', '.join(alive)} are alive in {location}: stop the sidecars first")
    me = Candidate(broker_id=0, session=f"store-copy-{uuid.uuid4().hex}")
    try:
        async with asyncio.timeout(_patience(location)):
            return await store.take_seat(me)
    except TimeoutError:
        raise _in_use(store, location) from None


def _in_use(store: FleetStore, location: Location) -> StoreError:
    seat = store.seat
    who = f"sidecar {seat.holder.broker_id} is" if seat is not None else "somebody is"
    return StoreError(f"{who} the link controller in {location}: stop the sidecars first")


def _patience(location: Location) -> float:
    """Seconds after which a seat that is still held is held by a live sidecar."""
    timeout = max(location.store.session_timeout_ms, location.store.seat_timeout_ms)
    return 1.5 * timeout / 1000 + _MARGIN


# --- what is in it --------------------------------------------------------------------------------------------


def _state(nodes: Mapping[str, Versioned]) -> Values:
    return {
        path: node.value
        for path, node in nodes.items()
        if path not in _OWN and not path.startswith(f"{ALIVE}/")
    }


async def _check_source(store: FleetStore, location: Location) -> None:
    moved = await store.get(MOVED_TO)
    if moved is not None:
        raise StoreMoved(str(location), _place(moved.value))
    copying = await store.get(COPYING)
    if copying is not None:
        raise StoreError(f"{location} is the target of a copy that did not come to its end")


async def _look(old: FleetStore, source: Location, target: Location, *, force: bool) -> CopyResult:
    nodes = await old.tree("/")
    epoch = _epoch(nodes)
    try:
        async with _opened(target, create=False) as new:
            await _check_nobody(new, target)
            there = await new.tree("/")
    except StoreMissing:
        there = {}
    result = _compare(_state(nodes), there, source, target, epoch, force=force)
    return result.model_copy(update={"dry_run": True})


def _compare(
    values: Values,
    there: Mapping[str, Versioned],
    source: Location,
    target: Location,
    epoch: int,
    *,
    force: bool,
) -> CopyResult:
    present = _state(there)
    same = present == values and COPYING not in there
    replaceable = COPYING in there or (force and MOVED_TO in there)
    if present and not same and not replaceable:
        moved = MOVED_TO in there
        raise TargetNotEmpty(
            f"{target} has another state ({len(present)} nodes, {_first_difference(values, present)} differs): "
            + ("it was moved away itself, --force replaces it" if moved else "give an empty one")
        )
    return CopyResult(
        source=str(source),
        target=str(target),
        nodes=len(values),
        links=sorted({path.split("/")[2] for path in values if path.startswith(f"{keys.LINKS}/")}),
        controller_epoch=epoch,
        replaced=0 if same else len(present),
        already_there=same and MOVED_TO not in there and bool(present),
        dry_run=False,
    )


def _first_difference(left: Values, right: Values) -> str:
    return next(
        path
        for path in sorted({*left, *right})
        if path not in left or path not in right or left[path] != right[path]
    )


def _epoch(nodes: Mapping[str, Versioned]) -> int:
    node = nodes.get(keys.CONTROLLER_EPOCH)
    return node.value if node is not None and isinstance(node.value, int) else 0


async def _fill(store: FleetStore, values: Values, source: str, epoch: int) -> None:
    """Make the store hold exactly these values; it is marked as unfinished meanwhile."""
    there = await store.tree("/")
    if COPYING not in there:
        await store.commit([Put(COPYING, {"store": source}, None)], controller_epoch=epoch)
    old = [path for path in there if path in _state(there) or path == MOVED_TO]
    # Children first: a node with something below it is not deleted.
    old.sort(key=lambda path: path.count("/"), reverse=True)
    deletes: list[Operation] = [Delete(path, there[path].version) for path in old]
    puts: list[Operation] = [Put(path, values[path], None) for path in sorted(values)]
    for operations in (*_portions(deletes), *_portions(puts)):
        await store.commit(operations, controller_epoch=epoch)
    mark = await store.get(COPYING)
    if mark is not None:
        await store.commit([Delete(COPYING, mark.version)], controller_epoch=epoch)


def _portions(operations: Sequence[Operation]) -> Iterator[Sequence[Operation]]:
    portion: list[Operation] = []
    size = 0
    for operation in operations:
        weight = len(operation.path) + (len(json.dumps(operation.value)) if isinstance(operation, Put) else 0)
        if portion and (len(portion) >= _COMMIT_NODES or size + weight > _COMMIT_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(operation)
        size += weight
    if portion:
        yield portion


async def _verify(values: Values, target: Location) -> None:
    """Read it back as a starting sidecar would."""
    async with _opened(target, create=False) as store:
        there = await store.tree("/")
    found = _state(there)
    if found != values:
        raise StoreError(
            f"{target} does not hold what was written to it: {_first_difference(values, found)} differs. "
            "The source is unchanged and still the one to use"
        )
