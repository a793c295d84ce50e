"""Each rule about transactions with a history that breaks it, and one that looks as if and is lawful."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.workload.replica_log import open_replica
from tests.chaos.committed import (
    TransactionHistory,
    TransactionLog,
    TransactionVerdict,
    Written,
    judge_transactions,
    read_transactions,
)
from tests.chaos.failed_over import FailedOver
from tests.chaos.transactions import CommittedRead, End, Sent, Transaction, make_value, parse
from tests.fakes.batches import build_batch, control_batch
from wire.frames.types import TopicPartition

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def transaction(end: End, *places: tuple[int, int], tp: TopicPartition = TP) -> Transaction:
    """Of p: (sequence, offset)."""
    return Transaction("p", [Sent(s, tp) for s, _ in places], {s: o for s, o in places if o >= 0}, end)


def written(*places: tuple[int, int], producer_id: int = 7) -> list[Written]:
    return [Written(offset, producer_id, "p", sequence) for sequence, offset in places]


def judged(
    transactions: list[Transaction],
    owner: TransactionLog,
    *,
    reads: list[tuple[int, int]] | None = None,
    drained: bool = False,
    source: TransactionLog | None = None,
    taken: FailedOver | None = None,
) -> TransactionVerdict:
    history = TransactionHistory(
        transactions=transactions,
        reads=[CommittedRead(TP, offset, "p", sequence, 0.0) for sequence, offset in reads or []],
        drained=drained,
    )
    return judge_transactions(
        history, {TP: owner}, None if source is None else {TP: source}, None if taken is None else {TP: taken}
    )


def test_what_was_committed_is_there_and_what_was_not_is_not() -> None:
    verdict = judged(
        [transaction(End.COMMITTED, (0, 0), (1, 1)), transaction(End.ABORTED, (2, 3))],
        TransactionLog(5, written((0, 0), (1, 1)), written((2, 3))),
        reads=[(0, 0), (1, 1)],
        drained=True,
    )
    assert not verdict.findings
    assert (verdict.committed, verdict.aborted, verdict.unknown, verdict.read) == (1, 1, 0, 2)


def test_a_committed_record_that_is_not_committed_is_lost() -> None:
    one = transaction(End.COMMITTED, (0, 0), (1, 1))
    assert set(judged([one], TransactionLog(2, written((0, 0)))).findings) == {"txn_lost"}
    assert set(judged([one], TransactionLog(3, (), written((0, 0), (1, 1)))).findings) == {"txn_lost"}


def test_an_aborted_record_must_be_seen_nowhere() -> None:
    one = transaction(End.ABORTED, (0, 0))
    assert set(judged([one], TransactionLog(2, written((0, 0)))).findings) == {"txn_aborted_seen"}
    assert (
        "txn_aborted_seen" in judged([one], TransactionLog(2, (), written((0, 0))), reads=[(0, 0)]).findings
    )
    assert not judged([one], TransactionLog(2, (), written((0, 0)))).findings


def test_one_of_unknown_outcome_is_all_or_nothing() -> None:
    one = transaction(End.UNKNOWN, (0, 0), (1, 1))
    assert not judged([one], TransactionLog(0)).findings
    assert not judged([one], TransactionLog(3, written((0, 0), (1, 1)))).findings
    assert set(judged([one], TransactionLog(3, written((0, 0)))).findings) == {"txn_torn"}


def test_once_and_in_order() -> None:
    one = transaction(End.COMMITTED, (0, 0), (1, 1))
    assert set(judged([one], TransactionLog(4, written((0, 0), (1, 1), (1, 2)))).findings) == {"txn_twice"}
    assert set(judged([one], TransactionLog(4, written((1, 0), (0, 1)))).findings) == {"txn_order"}


def test_a_transaction_that_stays_open_is_found() -> None:
    log = TransactionLog(2, (), (), written((0, 0)))
    assert set(judged([transaction(End.ABORTED, (0, 0))], log).findings) == {"txn_open"}


@pytest.mark.parametrize(
    ("reads", "ok"),
    [
        ([(0, 0), (1, 1)], True),
        ([(0, 0)], False),  # not all
        ([(1, 1), (0, 0)], False),  # backwards
        ([(0, 0), (0, 0), (1, 1)], False),  # twice
        ([(0, 0), (5, 1)], False),  # something else
    ],
)
def test_a_reader_gets_what_is_committed(reads: list[tuple[int, int]], ok: bool) -> None:
    one = transaction(End.COMMITTED, (0, 0), (1, 1))
    verdict = judged([one], TransactionLog(3, written((0, 0), (1, 1))), reads=reads, drained=True)
    assert set(verdict.findings) == (set() if ok else {"txn_reader"})


# --- what a failover may cost


def test_beyond_the_take_over_what_the_source_has_committed_is_gone() -> None:
    one = transaction(End.COMMITTED, (0, 0), (1, 5))
    owner, source = TransactionLog(1, written((0, 0))), TransactionLog(7, written((0, 0), (1, 5)))
    verdict = judged([one], owner, source=source, taken=FailedOver(4, 3))
    assert not verdict.findings
    assert (verdict.lost_by_failover, verdict.torn_by_failover) == (1, 1)
    for taken in (FailedOver(6, 1), None):
        assert set(judged([one], owner, source=source, taken=taken).findings) == {"txn_lost"}, taken
    at_the_target = TransactionLog(7, written((0, 0)))
    assert set(judged([one], owner, source=at_the_target, taken=FailedOver(4, 3)).findings) == {"txn_lost"}


def test_where_only_the_marker_was_not_copied_the_report_names_the_transaction() -> None:
    one = transaction(End.COMMITTED, (0, 0), (1, 1))
    owner = TransactionLog(3, (), written((0, 0), (1, 1)))
    verdict = judged([one], owner, taken=FailedOver(2, 1, ((7, 0),)), reads=[])
    assert not verdict.findings
    assert verdict.lost_by_failover == 2
    assert set(judged([one], owner, taken=FailedOver(2, 1)).findings) == {"txn_lost"}
    assert set(judged([one], owner, taken=FailedOver(2, 1, ((8, 0),))).findings) == {"txn_lost"}
    its_own = FailedOver(0, 1, ((7, 0),))
    assert set(judged([one], owner, taken=its_own).findings) == {"txn_lost"}, (
        "one of the target's own was aborted"
    )


def test_a_fail_over_excuses_no_aborted_record() -> None:
    one = transaction(End.ABORTED, (0, 5))
    assert set(judged([one], TransactionLog(9, written((0, 5))), taken=FailedOver(4, None)).findings) == {
        "txn_aborted_seen"
    }


def test_a_reader_may_have_been_ahead_of_the_failover() -> None:
    old, new = transaction(End.COMMITTED, (0, 5)), transaction(End.COMMITTED, (1, 4), (2, 5))
    owner, source = TransactionLog(7, written((1, 4), (2, 5))), TransactionLog(7, written((0, 5)))
    reads = [(0, 5), (1, 4), (2, 5)]
    told = FailedOver(4, 3)
    assert not judged([old, new], owner, reads=reads, drained=True, source=source, taken=told).findings
    verdict = judged([old, new], owner, reads=reads, drained=True, source=source, taken=FailedOver(6, 1))
    assert set(verdict.findings) == {"txn_lost", "txn_reader"}


# --- reading a log


def test_a_log_as_a_reader_of_committed_records_sees_it(tmp_path: Path) -> None:
    def batch(base: int, producer_id: int, sequence: int) -> bytes:
        return build_batch(
            [make_value("p", sequence)],
            base_offset=base,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=base,
            transactional=True,
        )

    directory = tmp_path / "orders-0"
    directory.mkdir()
    parts = [
        batch(0, 7, 0),
        batch(1, 8, 1),
        control_batch(8, 0, commit=False, base_offset=2),
        control_batch(7, 0, commit=True, base_offset=3),
        batch(4, 9, 2),
    ]
    (directory / f"{0:020}.log").write_bytes(b"".join(parts))
    found = read_transactions(open_replica(tmp_path, TP))
    assert found == TransactionLog(
        5, [Written(0, 7, "p", 0)], [Written(1, 8, "p", 1)], [Written(4, 9, "p", 2)]
    )


def test_a_value_says_whose_it_is() -> None:
    assert parse(make_value("some app", 12)) == ("some app", 12)
    for other in (None, b"", b"live|p|1|x", b"txn|p|x|"):
        assert parse(other) is None
