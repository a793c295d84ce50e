"""Exported records: on the disk as they were and as lines, once each, whatever came before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from linker.switch.export_file import ExportFile
from tests.fakes.batches import build_batch
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 3)


def batch(base: int, *values: bytes | None) -> memoryview:
    return memoryview(build_batch([(b"k\xff", value) for value in values], base_offset=base))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]


def test_batches_and_lines(tmp_path: Path) -> None:
    file = ExportFile(tmp_path, TP, 7)
    assert file.name == ""
    assert not list(tmp_path.iterdir())
    file.append(batch(7, b"one", None))
    file.append(batch(9, "zwei ü".encode()))
    assert file.path == tmp_path / "t-3" / f"{7:020d}.log"
    assert file.path.read_bytes() == bytes(batch(7, b"one", None)) + bytes(batch(9, "zwei ü".encode()))
    found = lines(file.path)
    assert [(one["offset"], one["value"]) for one in found] == [(7, "one"), (8, None), (9, "zwei ü")]
    assert found[0]["key"] == {"base64": "a/8="}
    assert file.records == 3
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_an_earlier_attempt_is_kept_under_another_name(tmp_path: Path) -> None:
    for value in (b"first", b"second", b"third"):
        ExportFile(tmp_path, TP, 7).append(batch(7, value))
    path = ExportFile(tmp_path, TP, 7).path
    assert [one["value"] for one in lines(path)] == ["third"]
    earlier = [json.loads(path.with_name(f"{path.stem}.jsonl.{n}").read_text())["value"] for n in (1, 2)]
    assert earlier == ["first", "second"]


def test_a_write_that_fails_in_the_middle_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ExportFile(tmp_path, TP, 7)
    file.append(batch(7, b"one"))

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(LinkerError, match="No space left"):
            file.append(batch(8, b"two"))
    assert file.records == 1
    file.append(batch(8, b"two"))
    assert [one["value"] for one in lines(file.path)] == ["one", "two"]
    assert file.path.read_bytes() == bytes(batch(7, b"one")) + bytes(batch(8, b"two"))


def test_records_that_cannot_be_read_are_kept_as_they_are(tmp_path: Path) -> None:
    broken = bytearray(batch(7, b"one"))
    broken[21 + 1] |= 7  # a codec that there is not
    file = ExportFile(tmp_path, TP, 7)
    file.append(memoryview(broken))
    assert file.path.read_bytes() == bytes(broken)
    assert "unreadable" in lines(file.path)[0]
