"""Tables at the width of a terminal: nothing is wider, nothing is lost, and what does not fit becomes blocks."""

from __future__ import annotations

import io
import os
import re

import pytest

from admin.models import (
    Check,
    CheckResult,
    DoctorReport,
    LagReport,
    PartitionLag,
    PromotePhase,
    PromotePlan,
    PromoteTopic,
    SourceProducer,
)
from linker.cli import output, promote_tables, tables, verdict
from linker.cli.layout import blocks, fit, hanging, shortened, wrapped

LONG = "orders." + "x" * 235 + ".events"  # 249 characters, as long as Kafka takes
REASON = "broker 3 has not asked for it for 41 s: it is down, or the partition has failed there (see that broker's log)"


@pytest.fixture(params=[80, 100, 180])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A terminal of that width."""
    monkeypatch.setattr(output, "terminal_width", lambda: request.param)
    monkeypatch.setattr(verdict, "terminal_width", lambda: request.param)
    return int(request.param)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("topic", ["orders", LONG])
def test_a_table_is_never_wider_than_the_terminal(width: int, topic: str) -> None:
    text = output.columns(
        ("LINK", "TOPIC", "STATE", "PARTITIONS", "LAG", "MAX LAG", "TIME LAG", "ETA", "REASON"),
        [
            ("east", topic, "LINKING", 12, 123456, 99999, "41.0 s", "12 min", REASON),
            ("east", "t", "ACTIVE", 1, 0, 0, None, None, None),
        ],
    )
    assert max(map(len, text.splitlines())) <= width
    for word in (*REASON.split(), "123456", "41.0", "LINKING", topic[:6], topic[-6:]):
        assert squeezed(word) in squeezed(text)


def test_a_row_that_fits_no_table_is_a_block(width: int) -> None:
    headers = [f"HEADER {at}" for at in range(18)]
    row = [f"value-{at}" for at in range(17)] + [REASON]
    text = output.columns(headers, [row, row])
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("HEADER 0 value-0") for line in lines) == 2, "each row begins at the margin"
    assert all(line.startswith(("HEADER 0", "  ")) for line in lines)
    assert squeezed(REASON) in squeezed(text)


def test_a_mirror_of_many_columns_and_the_longest_name(width: int) -> None:
    one = PartitionLag(
        topic=LONG, partition=0, state="LINKING", reason=REASON, source_start_offset=0, source_end_offset=10**12,
        target_end_offset=None, lag=None, lag_ms=None,
    )  # fmt: skip
    report = LagReport(link="east", at="2026-01-01T00:00:00Z", partitions=[one])
    text = tables.lag([report])
    assert max(map(len, text.splitlines())) <= width
    assert "1000000000000" in text


def test_doctor_is_a_block_per_finding_with_the_worst_last_and_a_verdict(width: int) -> None:
    report = DoctorReport(
        link="east",
        checks=[
            Check(
                name=f"mirror {LONG}",
                result=CheckResult.FAIL,
                detail=REASON,
                remedy="linker mirror delete " + LONG,
            ),
            Check(name="source", result=CheckResult.OK, detail="cluster abc answers"),
            Check(name="pause", result=CheckResult.WARN, detail="long", remedy="look for load"),
        ],
    )
    text = verdict.doctor([report])
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    starts = [line[:4].strip() for line in lines if line[:4] in ("OK  ", "WARN", "FAIL")]
    assert starts == ["OK", "WARN", "FAIL"]
    assert squeezed(LONG) in squeezed(text), "to be copied from it, whole"
    assert "1 OK, 1 WARN, 1 FAIL" in lines[-1]


def test_without_a_terminal_a_row_is_a_line() -> None:
    assert output.terminal_width() is None
    text = output.columns(("TOPIC", "REASON"), [(LONG, REASON)])
    assert text.splitlines()[1] == f"{LONG}  {REASON}"


def test_the_width_is_the_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", type("Tty", (io.StringIO,), {"isatty": lambda self: True})())
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((91, 24)))
    assert output.terminal_width() == 91
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((0, 0)))
    assert output.terminal_width() == 40, "of one that does not tell"


def test_the_widest_columns_give_way_first() -> None:
    rows = [["a" * 10, "b " * 40, "c " * 20]]
    assert fit(("A", "B", "C"), rows, 90) == [10, 36, 40]
    assert fit(("A", "B", "C"), rows, None) == [10, 80, 40]
    assert fit(("A", "B", "C"), rows, 60) is None


def test_names_keep_both_ends_and_sentences_break_between_words() -> None:
    assert shortened("abcdefghij", 8) == "abc..hij"
    assert wrapped("one two three", 8) == ["one two", "three"]
    assert wrapped("a" * 30, 10) == ["aaaa..aaaa"]
    assert hanging("x: ", "one two three", 10) == ["x: one two", "   three"]
    assert blocks(("A", "B"), [("1", "-")], 40) == ["A 1"]


def test_the_producers_of_a_dry_run_stay_a_table(width: int) -> None:
    producer = SourceProducer(
        topic="orders", partition=0, producer_id=4001, producer_epoch=0, transactional_id=None, last_write_ms=900,
        open_since_offset=None, direct=True,
    )  # fmt: skip
    plan = PromotePlan(
        link="east",
        topics=[PromoteTopic(topic="orders", partitions=1, phase=PromotePhase.CATCHING_UP, lag=0)],
        blockers=[],
        warnings=["w " * 60],
        producers=[producer, producer],
        validation="require",
        unproved=["orders-0: nothing of broker 1's replica is validated yet"],
    )
    lines = promote_tables.plan(plan).splitlines()
    assert max(map(len, lines)) <= width
    [header] = [at for at, line in enumerate(lines) if "PRODUCER" in line and "4001" not in line] or [0]
    rows = [line for line in lines[header:] if "4001" in line]
    assert len(rows) == 2, lines
