"""The meaning of the records in the state topic. Bytes in, nodes out; no I/O and no clock.

A record's key is a node's path, its value the envelope {"format", "version", "value"}; a tombstone deletes. A
commit is one transaction, and its records take effect together when its marker has been read. `/beat` is no
node: it says that the link controller lives, and its transaction proves that nobody fenced it.

Kafka's rules that this rests on: a read_committed fetch ends at the last stable offset, below which every
transaction is decided, and names the aborted ones by producer id and first offset (KIP-98, the consumer's
CompletedFetch). The log cleaner drops a commit marker only after all data of its transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import NamedTuple

from crc32c import crc32c

from controller import keys
from controller.errors import ControllerError, CorruptState, InvalidName
from controller.state import JsonValue
from fleet.stores.base import Candidate, Seat, StoreTooNew
from fleet.stores.nodes import StoredNode, encode
from wire.errors import MalformedFrame
from wire.frames.batch import BATCH_OVERHEAD, LENGTH_OVERHEAD, BatchHeader, iter_batch_headers, iter_records
from wire.frames.primitives import varint

FORMAT = 1
BEAT = "/beat"
CONTROLLER = "/controller"
FLEET = "/fleet"
MAX_STATE_BYTES = 512 << 20
"""Keys and values of all nodes together; a topic with more than that is not ours."""
MAX_BAD_KEYS = 1000
_ABORT_MARKER, _COMMIT_MARKER = 0, 1
_NODE_OVERHEAD = 200  # bytes of memory beside key and value, roughly


class Item(NamedTuple):
    """A record: its key, and its value or None for a tombstone."""

    key: bytes
    value: bytes | None


class Aborted(NamedTuple):
    """A transaction that a fetch names as aborted."""

    producer_id: int
    first_offset: int


# --- writing ------------------------------------------------------------------------------------------------


def item_of(path: str, node: StoredNode | None) -> Item:
    """The record of a node, or of its absence."""
    if node is None:
        return Item(path.encode(), None)
    return Item(path.encode(), b'{"format":%d,"value":%b,"version":%d}' % (FORMAT, node.raw, node.version))


def beat_item(session: str, epoch: int) -> Item:
    return item_of(BEAT, StoredNode(encode(BEAT, {"session": session, "epoch": epoch}), 0))


def seat_value(seat: Seat) -> JsonValue:
    return {**asdict(seat.holder), "epoch": seat.epoch}


def batches_of(items: Sequence[Item], limit: int) -> Iterator[Sequence[Item]]:
    """The items in runs of about `limit` bytes; one that is larger is alone."""
    run: list[Item] = []
    size = 0
    for item in items:
        weight = len(item.key) + len(item.value or b"") + 24
        if run and size + weight > limit:
            yield run
            run, size = [], 0
        run.append(item)
        size += weight
    if run:
        yield run


def build_batch(
    items: Sequence[Item],
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    timestamp: int,
    transactional: bool = True,
) -> bytes:
    """One v2 record batch, uncompressed; layout in wire.frames.batch."""
    body = bytearray()
    for index, item in enumerate(items):
        record = bytearray(b"\0\0") + varint(index)
        for part in (item.key, item.value):
            record += varint(-1) if part is None else varint(len(part)) + part
        record += b"\0"
        body += varint(len(record)) + record
    tail = b"".join(
        (
            (0x10 if transactional else 0).to_bytes(2, "big"),  # attributes
            (len(items) - 1).to_bytes(4, "big"),
            timestamp.to_bytes(8, "big", signed=True) * 2,
            producer_id.to_bytes(8, "big", signed=True),
            producer_epoch.to_bytes(2, "big", signed=True),
            base_sequence.to_bytes(4, "big", signed=True),
            len(items).to_bytes(4, "big"),
            body,
        )
    )
    length = BATCH_OVERHEAD - LENGTH_OVERHEAD + len(body)
    head = bytes(8) + length.to_bytes(4, "big") + b"\xff\xff\xff\xff" + b"\x02"
    return head + int(crc32c(tail)).to_bytes(4, "big") + tail


# --- reading ------------------------------------------------------------------------------------------------


class Replay:
    """The tree that results from the log up to `position`.

    An unreadable record is kept in `bad` under its key and does not stop the replay: a later record of the same key,
    or a tombstone written for it, mends it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.position = 0
        self.leader_epoch = -1  # of the last batch that was read
        self.nodes: dict[str, StoredNode] = {}
        self.bad: dict[bytes, ControllerError] = {}
        self.commits = 0  # transactions seen to be committed: the holder's signs of life
        self._bytes = 0
        self._open: dict[int, list[tuple[int, Item]]] = {}

    @property
    def epoch(self) -> int:
        node = self.nodes.get(keys.CONTROLLER_EPOCH)
        return 0 if node is None else int(json.loads(node.raw))

    @property
    def seat(self) -> Seat | None:
        node = self.nodes.get(CONTROLLER)
        return None if node is None else _seat(json.loads(node.raw))

    def feed(self, data: bytes, aborted: Iterable[Aborted], stable_offset: int) -> None:
        """The records of one read_committed fetch from `position` on. CorruptState if they are no batches."""
        queue = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        dropped: set[int] = set()
        try:
            for header in iter_batch_headers(data, 0, len(data)):
                if header.next_offset <= self.position:
                    continue
                if not header.crc_ok(data):
                    raise MalformedFrame("the batch's CRC does not match", offset=header.base_offset)
                while queue and queue[-1].first_offset <= header.last_offset:
                    dropped.add(queue.pop().producer_id)
                self._batch(data, header, dropped)
                self.position = header.next_offset
                self.leader_epoch = header.leader_epoch
        except MalformedFrame as error:
            raise CorruptState(f"topic {self.name}: {error}") from error
        if self.position >= stable_offset:
            # All below is decided, and aborted transactions were named: the rest is committed, marker seen or not.
            for producer_id in list(self._open):
                self._commit(producer_id)

    def _batch(self, data: bytes, header: BatchHeader, dropped: set[int]) -> None:
        producer_id = header.producer_id
        if header.is_control:
            for record in iter_records(data, header):
                kind = int.from_bytes(bytes(record.key or b"")[2:4], "big")
                if kind == _COMMIT_MARKER:
                    self._commit(producer_id)
                elif kind == _ABORT_MARKER:
                    self._open.pop(producer_id, None)
                    dropped.discard(producer_id)
            return
        if header.is_transactional and producer_id in dropped:
            return
        found = [
            (r.offset, Item(bytes(r.key or b""), None if r.value is None else bytes(r.value)))
            for r in iter_records(data, header)
        ]
        if header.is_transactional:
            self._open.setdefault(producer_id, []).extend(found)
            return
        for offset, item in found:
            # Never ours. A tombstone may take away what is garbage anyway; nothing else of theirs counts.
            if item.value is None and item.key in self.bad:
                del self.bad[item.key]
            else:
                self._bad(item.key, CorruptState(self._at(offset, "was not written by a link controller")))

    def _commit(self, producer_id: int) -> None:
        for offset, item in self._open.pop(producer_id, ()):
            self._apply(offset, item)
        self.commits += 1

    def _apply(self, offset: int, item: Item) -> None:
        try:
            path = item.key.decode("ascii")
            keys.split(path)
            node = None if item.value is None else self._read(path, item.value)
        except StoreTooNew as error:
            self._bad(item.key, error)
            return
        except (ValueError, TypeError, InvalidName, RecursionError) as error:
            self._bad(item.key, CorruptState(self._at(offset, f"cannot be read: {error}")))
            return
        self.bad.pop(item.key, None)
        if path == BEAT:
            return
        old = self.nodes.pop(path, None)
        if old is not None:
            self._bytes -= len(path) + len(old.raw) + _NODE_OVERHEAD
        if node is not None:
            self.nodes[path] = node
            self._bytes += len(path) + len(node.raw) + _NODE_OVERHEAD
            if self._bytes > MAX_STATE_BYTES:
                raise CorruptState(self._at(offset, f"makes the state larger than {MAX_STATE_BYTES} bytes"))

    def _read(self, path: str, raw: bytes) -> StoredNode:
        envelope = json.loads(raw)
        if not isinstance(envelope, dict):
            raise TypeError("its value is no envelope")
        written = envelope.get("format")
        if not isinstance(written, int) or not _is_count(written):
            raise ValueError("its value has no format")
        if written > FORMAT:
            raise StoreTooNew(f"in topic {self.name}", written, FORMAT)
        version = envelope.get("version")
        if envelope.keys() != {"format", "version", "value"} or not isinstance(version, int) or version < 0:
            raise ValueError("its value is no envelope of format, version and value")
        value = envelope["value"]
        if path == keys.CONTROLLER_EPOCH and not (_is_count(value) and value >= self.epoch):
            raise ValueError(f"the epoch goes from {self.epoch} to {value!r}")
        if path == CONTROLLER:
            _seat(value)
        return StoredNode(encode(path, value), version)

    def _bad(self, key: bytes, error: ControllerError) -> None:
        if key not in self.bad and len(self.bad) >= MAX_BAD_KEYS:
            return  # one is enough to refuse; which one is named does not matter
        self.bad[key] = error

    def _at(self, offset: int, what: str) -> str:
        return f"topic {self.name}: the record at offset {offset} {what}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _seat(value: object) -> Seat:
    if not isinstance(value, Mapping):
        raise TypeError("it names no holder of the seat")
    known = {field.name for field in fields(Candidate)}
    if value.keys() != known | {"epoch"} or not _is_count(value["epoch"]):
        raise ValueError("it names no holder of the seat")
    if not all(
        _is_count(value[name]) if name == "broker_id" else isinstance(value[name], str) for name in known
    ):
        raise TypeError("it names no holder of the seat")
    holder = Candidate(**{name: value[name] for name in known})
    return Seat(holder=holder, epoch=value["epoch"])
