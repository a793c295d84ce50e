"""What doctor says of a promote before there is one."""

from __future__ import annotations

from admin.models import CheckResult
from linker.checks.doctor import validator_check
from linker.links.source_writers import AtSource
from linker.promote.producer_states import ProducerState
from linker.promote.rehearsal import Measured, pause_check, producer_checks
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)


def test_a_quiet_source() -> None:
    [check] = producer_checks(AtSource(1000))
    assert check.result is CheckResult.OK


def test_producers_and_transactions_are_warned_of_by_name() -> None:
    one = ProducerState(7, 1, 3, 900, -1, 40)
    seen = AtSource(1000, direct={TP: [one]}, open={TP: [one]}, transactional_ids={7: "billing"})
    writers, transactions = producer_checks(seen)
    assert (writers.name, writers.result) == ("producers", CheckResult.WARN)
    assert (
        "topic orders: 1 producer wrote to the source itself in the last quarter of an hour" in writers.detail
    )
    assert transactions.name == "transactions"
    assert 'transactional.id "billing"' in transactions.detail
    assert "from offset 40" in transactions.detail
    assert "--abort-open-transactions" in (transactions.remedy or "")


def test_the_pause_is_what_was_measured() -> None:
    short = pause_check(Measured(0.010, 0.005, 1))
    assert short.result is CheckResult.OK
    assert "about 30 ms" in short.detail
    assert "batches" not in short.detail
    long = pause_check(Measured(0.5, 0.1, 2))
    assert long.result is CheckResult.WARN
    assert "about 1200 ms" in long.detail
    assert "2 batches" in long.detail


def test_a_validator_that_nobody_asks_for_is_no_finding() -> None:
    assert validator_check(None, "require").result is CheckResult.OK
    assert validator_check("no PySpark", "require").result is CheckResult.FAIL
    assert validator_check("no PySpark", "warn").result is CheckResult.WARN
    skipped = validator_check("no PySpark", "skip")
    assert (skipped.result, skipped.remedy) == (CheckResult.OK, None)
    assert "no PySpark" in skipped.detail
    assert "validation.policy is skip" in skipped.detail
