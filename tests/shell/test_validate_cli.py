"""`linker validate` and `--validation`, over HTTP: what is asked, what is shown, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest

from admin.models import PromotePhase
from admin.validation_models import Policy, PromoteValidation
from linker.cli.validate import interval_ms
from tests.shell.conftest import Cli, Running
from tests.shell.test_cli import COMMAND, environment, make, pytestmark_fork, read_terminal


def test_a_run_is_followed_to_its_end(cli: Cli, api: Running) -> None:
    make(cli, "orders", "payments")
    result = cli("validate", "a")
    assert result.code == 0, result.err
    assert api.service.calls[-1] == "validate all batches"
    assert "RUNNING, 1 of 2 partitions, 2 of 4 tasks, 2.0 KiB read" in result.err
    assert "40 batches, 400 records, 4.0 KiB" in result.out
    result = cli("validate", "a", "orders", "--mode", "records", "-o", "json")
    assert json.loads(result.out)["mode"] == "records"
    assert api.service.calls[-1] == "validate orders records"
    assert cli("validate", "--mode", "records", "a", "payments").code == 0
    assert api.service.calls[-1] == "validate payments records"


def test_topics_of_both_owners_are_two_runs(cli: Cli, api: Running) -> None:
    """Of one owner's alone it is one run of all; exit code 1 if either is bad."""
    make(cli, "orders", "payments")
    api.service.reversed = {"payments"}
    assert cli("validate", "a").code == 0
    assert api.service.calls[-2:] == ["validate orders batches", "validate payments batches"]
    api.service.reversed = {"orders", "payments"}
    assert cli("validate", "a").code == 0
    assert api.service.calls[-1] == "validate all batches"
    api.service.reversed = {"payments"}
    api.service.differs = "the CRCs differ"
    assert cli("validate", "a").code == 1


@pytest.mark.parametrize("options", [[], ["--no-wait"]])
def test_two_runs_are_one_document(cli: Cli, api: Running, options: list[str]) -> None:
    """A list of two; one run is itself, as ever."""
    make(cli, "orders", "payments")
    api.service.reversed = {"payments"}
    both = json.loads(cli("validate", "a", "-o", "json", *options).out)
    assert [one["topics"] for one in both] == [["orders"], ["payments"]]
    assert "payments" in cli("validate", "a", *options).out
    alone = json.loads(cli("validate", "a", "orders", "-o", "json", *options).out)
    assert alone["topics"] == ["orders"]


def test_what_differs_is_loud(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.differs = "the CRCs differ"
    result = cli("validate", "a")
    assert result.code == 1
    assert result.err.splitlines()[-1] == "linker: 1 replicas differ from the source"
    assert "the CRCs differ" in result.out
    shown = cli("validate", "status", "a")
    assert "DIFFERS: orders-1: the CRCs differ" in shown.out


def test_a_run_that_fails(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.abandon = "the source h:9092: connection refused"
    result = cli("validate", "a", "-o", "yaml")
    assert result.code == 1
    assert "is FAILED: the source h:9092: connection refused" in result.err.splitlines()[-1]


def test_without_waiting_and_attach(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    begun = json.loads(cli("validate", "a", "--no-wait", "-o", "json").out)
    assert begun["state"] == "QUEUED"
    assert cli("validate", "attach", begun["id"]).code == 0
    assert cli("validate", "attach", "a-v9-9").code == 1


def test_continuous(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    assert cli("validate", "a", "--continuous", "--interval", "45s", "--dry-run").code == 0
    assert api.service.interval is None
    assert cli("validate", "a", "--continuous", "--interval", "45s").code == 0
    assert api.service.interval == 45_000
    assert "every 45.0 s" in cli("validate", "status", "a").out
    assert cli("validate", "a", "--stop").code == 0
    assert api.service.interval is None


@pytest.mark.parametrize(
    "wrong",
    [
        ("a", "--continuous", "--stop"),
        ("a", "--interval", "30s"),
        ("a", "--continuous", "--interval", "30"),
        ("a", "--continuous", "--interval", "10ms"),
        ("a", "orders", "--continuous"),
        ("a", "--stop", "--mode", "records"),
        ("a", "--dry-run"),
        ("a", "--mode", "bytes"),
        ("a", "orders", "orders"),
        ("--nonsense", "a"),
    ],
)
def test_wrong_use(cli: Cli, wrong: tuple[str, ...]) -> None:
    make(cli, "orders")
    assert cli("validate", *wrong).code == 2


def test_its_help_says_what_a_dry_run_goes_with(cli: Cli) -> None:
    told = " ".join(cli("validate", "run", "--help").out.split())
    assert "--dry-run With --continuous or --stop: " in told
    assert "`linker validate LINK` is the same as `linker validate run LINK`." in told


def test_intervals() -> None:
    assert [interval_ms(text) for text in ("500ms", "30s", "5m", "2min", "1h")] == [
        500,
        30_000,
        300_000,
        120_000,
        3_600_000,
    ]


def test_a_promote_waits_for_its_evidence(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.evidence = PromoteValidation(
        policy="require", state="CLOSED", replicas=9, batches=70, html="/state/evidence/a-1/evidence.html"
    )
    result = cli("mirror", "promote", "orders", "-l", "a", "--validation", "require")
    assert result.code == 0, result.err
    assert "the last validation, with exact ends" in result.err
    assert "CLOSED: 9 replicas, 70 batches, 0 mismatches" in result.out
    listed = cli("validate", "report")
    assert "/state/evidence/a-1/evidence.html" in listed.out
    assert cli("validate", "report", "p1").code == 0
    assert cli("mirror", "promote", "orders", "-l", "a", "--validation", "maybe").code == 2


def test_a_difference_after_the_hand_over_is_no_success(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.evidence = PromoteValidation(
        policy="warn", state="CLOSED", replicas=8, mismatches=1, html="/e.html"
    )
    result = cli("mirror", "promote", "orders", "-l", "a")
    assert result.code == 1
    assert "1 replicas DIFFER from what the source held at the hand-over; see /e.html" in result.err
    assert cli("validate", "report", "p1").code == 1


def test_evidence_that_is_not_complete_is_said(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.evidence = PromoteValidation(policy="warn", state="INCOMPLETE", reason="the source is away")
    api.service.warnings = ["orders-0: not proved"]
    result = cli("mirror", "promote", "orders", "-l", "a")
    assert result.code == 0
    assert "warning: orders-0: not proved" in result.err
    assert "not all of promote p1 is proved: the source is away" in result.err


def test_evidence_that_was_required_and_is_not_complete_is_no_success(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.evidence = PromoteValidation(
        policy="require", state="INCOMPLETE", reason="the source is away"
    )
    result = cli("mirror", "promote", "orders", "-l", "a", "--validation", "require")
    assert result.code == 1
    assert "linker: promote p1 is done, but not all of it is proved" in result.err
    assert "the source is away" in result.err
    assert "PROMOTED" in result.out
    abandoned = {"phase": PromotePhase.ABANDONED, "validation": api.service.evidence}
    api.service.jobs["p1"] = api.service.jobs["p1"].model_copy(update=abandoned)
    result = cli("mirror", "promote", "--attach", "p1")
    assert (result.code, "is done" in result.err) == (1, False)
    assert "promote p1 was abandoned" in result.err


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        ({"state": "CLOSED", "replicas": 9}, None),
        ({"state": "CLOSED", "replicas": 9, "mismatches": 2}, "2 replicas DIFFER"),
        ({"state": "CLOSED"}, "no replica was compared"),
        ({"state": "INCOMPLETE", "replicas": 8, "reason": "broker 3 is down"}, "proved: broker 3 is down"),
        ({"state": "PENDING"}, "is not proved yet"),
        ({}, "it was not validated"),
        (None, "it was not validated"),
    ],
)
@pytest.mark.parametrize("policy", ["require", "warn"])
def test_a_report_of_what_is_not_proved_is_no_success(
    cli: Cli, api: Running, policy: Policy, evidence: dict[str, Any] | None, told: str | None
) -> None:
    make(cli, "orders")
    cli("mirror", "promote", "orders", "-l", "a")
    proved = None if evidence is None else PromoteValidation(policy=policy, **evidence)
    api.service.evidence = proved
    api.service.jobs["p1"] = api.service.jobs["p1"].model_copy(update={"validation": proved})
    one, every = cli("validate", "report", "p1"), cli("validate", "report")
    assert one.code == (0 if told is None else 1)
    assert "promote" in one.out
    assert (told or "") in one.err
    differs = told is not None and "DIFFER" in told
    assert (every.code, "DIFFER" in every.err) == (int(differs), differs)


def test_a_report_of_what_was_abandoned_is_no_success(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.abandon = "the source is away"
    cli("mirror", "promote", "orders", "-l", "a")
    result = cli("validate", "report", "p1")
    assert result.code == 1
    assert "promote p1 was abandoned, it proves nothing: the source is away" in result.err
    assert cli("validate", "report").code == 0


def test_a_report_of_what_goes_on_is_no_success(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.evidence = PromoteValidation(policy="require")
    cli("mirror", "promote", "orders", "-l", "a", "--no-wait")
    api.service.stuck = True
    api.service.jobs["p1"] = api.service.jobs["p1"].model_copy(update={"validation": api.service.evidence})
    result = cli("validate", "report", "p1")
    assert (result.code, "is not proved yet" in result.err) == (1, True)


def test_warnings_are_told_of_a_promote_without_validation(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.warnings = ["orders-0: written to after the hand-over"]
    result = cli("mirror", "promote", "orders", "-l", "a", "--validation", "skip")
    assert result.code == 0
    assert "warning: orders-0: written to after the hand-over" in result.err
    assert "orders-0: written to after the hand-over" in result.out


def test_ctrl_c_cancels(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.stuck = True
    process = subprocess.Popen(
        [*COMMAND, "validate", "a"],
        env=environment(api.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        seen = ""
        while "RUNNING" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert api.service.calls[-1] == "cancel a-v1-1"
    assert "CANCELLED" in out
    assert "is CANCELLED: it was cancelled" in rest


@pytestmark_fork
def test_a_bar_on_a_terminal(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    code, seen = read_terminal(["validate", "a"], api.url, b"1 of 2 partitions")
    assert code == 0
    assert b"DONE" in seen
