"""A producer in a process of its own: what it did arrives, and one that cannot start says so."""

from __future__ import annotations

import asyncio
import pickle
import sys
from pathlib import Path

import pytest

from lab.bench.producer_process import STARTED, ProducerFailed, ProducerProcess
from lab.clusters.child_process import ChildError
from lab.clusters.ports import PortReservation
from lab.workload.history import History
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)

# Stands for the producer: what matters here is the exchange with the process.
CHILD = f"""
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit({{code}}))
print({STARTED!r}, flush=True)
signal.pause()
"""


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> ProducerProcess:
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(code=code))
    process = ProducerProcess("librdkafka", TP.topic, 1, 10, tmp_path)
    launch = process._launch
    monkeypatch.setattr(
        process,
        "_launch",
        lambda _command, directory, more: launch([sys.executable, str(script)], directory, more),
    )
    return process


async def test_its_history_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = child(tmp_path, monkeypatch, 0)
    theirs = History()
    theirs.ack("librdkafka", theirs.next_sequence("librdkafka", TP), TP, 7)
    history = History()
    history.ack("aiokafka", history.next_sequence("aiokafka", TP), TP, 6)
    try:
        await process.start("unused:1")
        process._file.write_bytes(pickle.dumps(theirs))
        await process.finish(history)
    finally:
        await process.abandon()
    assert {(ack.producer, ack.offset) for ack in history.acks} == {("aiokafka", 6), ("librdkafka", 7)}
    assert history.sends == {"aiokafka": [TP], "librdkafka": [TP]}
    assert history.pending() == 0


async def test_one_that_ends_badly_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = child(tmp_path, monkeypatch, 3)
    try:
        await process.start("unused:1")
        with pytest.raises(ProducerFailed, match="ended with 3"):
            await process.finish(History())
    finally:
        await process.abandon()


async def test_one_that_cannot_connect_says_so(tmp_path: Path) -> None:
    with PortReservation() as reserved:
        process = ProducerProcess("aiokafka", TP.topic, 1, 10, tmp_path)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(ChildError, match="ended while starting"):
                    await process.start(f"127.0.0.1:{reserved.port}")
        finally:
            await process.abandon()
