"""Programs as child processes: lines into transcripts, and what is made of one that breaks its word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lab.workload.history import Outcome
from tests.clients.program import Program, ProgramError, Transcript
from tests.clients.programs.lines import Arguments, Pace, identity
from wire.frames.types import TopicPartition

GOOD = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
first = int(dict(a.split("=", 1) for a in sys.argv[1:])["first"])
print('{"e":"ready","t":1000,"version":"1.2"}', flush=True)
print('{"e":"acked","t":1500,"r":[[%d,7,1250]]}' % first, flush=True)
signal.sigwait([signal.SIGTERM])
print('{"e":"closed","t":2000,"next":%d}' % (first + 1), flush=True)
"""


def program(tmp_path: Path, code: str) -> Program:
    return Program([sys.executable, "-c", code], Transcript("p", 2, "t"), {}, tmp_path / "log")


async def test_numbers_go_on_over_a_move(tmp_path: Path) -> None:
    one = program(tmp_path, GOOD)
    await one.start("a:1", "source")
    await one.move("b:1", "target")
    await one.stop()
    said = one.transcript
    assert [(ack.sequence, ack.offset, ack.time) for ack in said.acks] == [(0, 7, 1.25), (1, 7, 1.25)]
    assert (said.version, said.next, said.closed) == ("1.2", 2, True)
    assert said.history().sends == {"p": [TopicPartition("t", 0), TopicPartition("t", 1)]}


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("raise SystemExit('no broker')", "no broker"),
        ('print(\'{"e":"closed","t":1,"next":0}\')', "it was to be ready"),
        ("print('{')", "it was to be ready"),
    ],
)
async def test_one_that_ends_instead_of_being_ready(tmp_path: Path, code: str, what: str) -> None:
    one = program(tmp_path, code)
    with pytest.raises(ProgramError, match=what):
        await one.start("a:1", "source")
    await one.kill()


async def test_one_that_ends_without_saying_so(tmp_path: Path) -> None:
    code = 'import time\nprint(\'{"e":"ready","t":1,"version":""}\', flush=True)\ntime.sleep(60)'
    one = program(tmp_path, code)
    await one.start("a:1", "source")
    with pytest.raises(ProgramError, match="ended without saying so"):
        await one.stop()


async def test_nonsense_is_not_passed_over(tmp_path: Path) -> None:
    code = GOOD.replace('"r":[[%d,7,1250]]}\' % first', '"r":17}\'')
    one = program(tmp_path, code)
    await one.start("a:1", "source")
    with pytest.raises(ProgramError, match="said"):
        await one.stop()
    await one.kill()


def test_failed_is_unknown_unless_certainly_not_written() -> None:
    said = Transcript("p", 2, "t")
    said.feed({"e": "failed", "t": 1, "r": [0], "written": True, "error": "x"}, "source", 1)
    said.feed({"e": "failed", "t": 1, "r": [1], "written": False, "error": "x"}, "source", 1)
    assert [one.outcome for one in said.unacked] == [Outcome.UNKNOWN, Outcome.FAIL]


def test_ack_without_an_offset() -> None:
    said = Transcript("p", 1, "t")
    said.feed({"e": "acked", "t": 1, "r": [[0, -1, 5]]}, "source", 1)
    assert said.acks[0].offset is None


def test_records_of_nobody() -> None:
    said = Transcript("p", 1, "t")
    said.feed(
        {"e": "records", "t": 2000, "topic": "t", "p": 3, "r": [[9, "", -1], [10, "w", 4]]}, "target", 2
    )
    assert [(r.offset, r.producer, r.number, r.cluster, r.run) for r in said.reads] == [
        (9, None, -1, "target", 2),
        (10, "w", 4, "target", 2),
    ]
    assert said.reads[0].partition == TopicPartition("t", 3)


def test_unknown_event() -> None:
    with pytest.raises(ProgramError, match="nobody knows"):
        Transcript("p").feed({"e": "dance", "t": 1}, "source", 1)


@pytest.mark.parametrize("value", [None, b"", b"live|w", b"dead|w|1|x", b"\xff\x00"])
def test_values_of_nobody(value: bytes | None) -> None:
    assert identity(value) == ("", -1)


def test_pace_goes_on_at_the_given_number() -> None:
    now = [0.0]
    arguments = Arguments(["name=w", "topic=t", "partitions=4", "rate=100", "first=6", "set.linger.ms=5"])
    pace = Pace(arguments, lambda: now[0])
    assert pace.due() == []
    now[0] = 0.031
    due = pace.due()
    assert [(number, partition) for number, partition, _ in due] == [(6, 2), (7, 3), (8, 0)]
    assert identity(due[0][2]) == ("w", 6)
    assert pace.next == 9
    now[0] = 60.0
    assert len(pace.due()) == 100  # what was missed is made up for in bursts, not at once
