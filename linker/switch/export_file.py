"""Records that are taken out of a log, in two files: the batches as they were, and the same records as JSON lines.

The file of batches has the form of a Kafka segment (`kafka-dump-log.sh` reads it). A line is one record: offset, timestamp,
key, value, headers; bytes that are not UTF-8 as {"base64": ...}. Records count as written only when they are on the disk.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from pathlib import Path
from typing import Any

from wire.errors import LinkerError, MalformedFrame
from wire.frames.batch import BatchHeader, iter_batch_headers, iter_records
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

_CONTROL = {0: "ABORT", 1: "COMMIT"}


class ExportFile:
    """The two files of one partition, from one offset on. The calls block, so they belong in a thread."""

    def __init__(self, directory: Path, tp: TopicPartition, start: int) -> None:
        self.path = directory / str(tp) / f"{start:020d}.log"
        self._lines = self.path.with_suffix(".jsonl")
        self.start = start
        self.records = 0
        self._sizes: tuple[int, int] | None = None  # of both files, as far as they count

    @property
    def name(self) -> str:
        """The path of the file of batches; empty if there was nothing to write."""
        return "" if self._sizes is None else str(self.path)

    def append(self, batches: memoryview) -> None:
        """Write whole batches. LinkerError if they are not on the disk afterwards; then all earlier ones are, and the caller
        may try again."""
        lines = bytearray()
        records = 0
        for header in iter_batch_headers(batches, 0, len(batches)):
            records += 0 if header.is_control else header.record_count
            for line in _lines_of(batches, header):
                lines += json.dumps(line, ensure_ascii=False).encode() + b"\n"
        try:
            if self._sizes is None:
                self._make()
            sizes = self._sizes or (0, 0)
            _write_at(self.path, sizes[0], batches)
            _write_at(self._lines, sizes[1], lines)
        except OSError as error:
            raise LinkerError(f"cannot write {error.filename or self.path}: {error.strerror}") from error
        self._sizes = sizes[0] + len(batches), sizes[1] + len(lines)
        self.records += records

    def _make(self) -> None:
        """Make new files. Files of an earlier attempt are kept under other names."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() or self._lines.exists():
            number = 1
            while any(_earlier(path, number).exists() for path in (self.path, self._lines)):
                number += 1
            for path in (self.path, self._lines):
                if path.exists():
                    path.rename(_earlier(path, number))
            log.warning(
                "%s is the file of an earlier attempt: renamed to %s", self.path, _earlier(self.path, number)
            )
        for path in (self.path, self._lines):
            path.touch(mode=0o600)
        for directory in (self.path.parent, self.path.parent.parent):
            fd = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._sizes = 0, 0


def _earlier(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _write_at(path: Path, size: int, data: memoryview | bytearray) -> None:
    with path.open("r+b") as file:
        file.truncate(size)  # beyond it may be the beginning of a write that failed
        file.seek(size)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _lines_of(batches: memoryview, header: BatchHeader) -> list[dict[str, Any]]:
    try:
        records = list(iter_records(batches, header))
    except MalformedFrame as error:
        return [{"offset": header.base_offset, "last_offset": header.last_offset, "unreadable": str(error)}]
    lines = []
    for record in records:
        line: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
        if header.is_control:
            kind = int.from_bytes(record.key[2:4], "big") if record.key is not None else -1
            line |= {"control": _CONTROL.get(kind, kind), "producer_id": header.producer_id}
        else:
            line |= {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
            }
            if header.is_transactional:
                line |= {"transaction_of": header.producer_id}
        lines.append(line)
    return lines


def _text(data: memoryview | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    raw = bytes(data)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
