"""The tables in docs/ say what was measured, and a report changes only the rows that ran."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "scripts" / "client_tables.py"
spec = importlib.util.spec_from_file_location("client_tables", SCRIPT)
assert spec is not None
assert spec.loader is not None
client_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client_tables)

ROW: dict[str, Any] = {
    "version": "1.2",
    "acked": 5,
    "errors": 1,
    "error_texts": ["a|b"],
    "unknown": 0,
    "lost": 0,
    "duplicated": 2,
    "reordered": 0,
    "largest_ack_gap_ms": 99.6,
    "gap_goal_met": False,
}


def test_pages_say_what_was_measured() -> None:
    assert client_tables.main(["--check"]) == 0


def test_a_report_leaves_rows_alone_that_did_not_run() -> None:
    measured: dict[str, dict[str, Any]] = {"producers": {"one": ROW, "two": ROW}}
    before = copy.deepcopy(measured)
    report = {
        "kafka": "4.3.1",
        "load_average_after": 3.0,
        "producers": {
            "one": {"skipped": "no go"},
            "three": ROW,
        },
    }
    client_tables.merge(measured, report)
    assert {name: measured["producers"][name] for name in ("one", "two")} == before["producers"]
    assert measured["producers"]["three"]["load_average"] == 3.0


def test_a_case_that_did_not_end_is_shown() -> None:
    """The figures of an earlier run would say that it did."""
    measured: dict[str, dict[str, Any]] = {"producers": {"lib": ROW}}
    broken = {"version": "1.2", "ok": False, "broke": "no answer"}
    client_tables.merge(measured, {"kafka": "4.3.1", "producers": {"lib": broken}})
    row = client_tables.tables(measured)["producers"].splitlines()[2]
    assert row.startswith("| lib 1.2 | did not end: no answer | - |")


def test_a_row() -> None:
    made = client_tables.tables({"producers": {"lib": ROW, "lib-transactions": ROW}})
    assert (
        made["producers"].splitlines()[2]
        == "| lib 1.2 | 5 | 1 (a\\|b) | 0 | 0 / 2 / 0 | 100 | - | - | - | missed | - | - |"
    )
    assert len(made["transactions"].splitlines()) == 3
    when = client_tables.tables({"producers": {"lib": ROW | {"errors_at": {"kill": 1}}}})["producers"]
    assert "| 1 (1 at the kill; a\\|b) |" in when


def test_only_what_is_between_the_marks_changes() -> None:
    page = "a\n<!-- clients: producers -->\nold\n<!-- end -->\nb\n<!-- end -->\n"
    assert client_tables.filled(page, {"producers": "new"}) == page.replace("old", "new")


GROUP: dict[str, Any] = ROW | {
    **dict.fromkeys(("records", "missed", "repeated", "too_early"), 0),
    "gate": "consumer+transaction",
    "join_ms": 900.0,
    "opening_ms": 3100.0,
}


def test_an_opening_beside_the_longer_of_the_clients_own_times() -> None:
    """Whether the sidecar was killed makes no difference to what the members need themselves."""
    measured: dict[str, dict[str, Any]] = {"groups": {"lib": GROUP, "lib with a crash": GROUP}}
    assert client_tables.tables(measured)["groups"].count("| 3100 | - | - | 900 | - | missed |") == 2
    client_tables.merge(measured, {"kafka": "4.3.1", "standbys": {"lib": {"takeover_ms": 2100.0}}})
    assert client_tables.tables(measured)["groups"].count("| 3100 | - | - | 900 | 2100 | met |") == 2


def test_a_gate_that_was_closed_for_minutes_has_a_table_of_its_own() -> None:
    measured: dict[str, dict[str, Any]] = {"groups": {"lib": GROUP}}
    client_tables.merge(measured, {"kafka": "4.3.1", "groups": {"lib": GROUP | {"held_ms": 1_200_000}}})
    assert "held_ms" not in measured["groups"]["lib"]
    made = client_tables.tables(measured)
    assert "| 3100 | - | - | 900 |" in made["groups"]
    assert "| lib 1.2 | consumer+transaction | 20.0 | - | 0 | 0 | 0 | 0 |" in made["held"]


SWITCHED: dict[str, Any] = ROW | {
    "duplicated": 0,
    "errors": 0,
    "error_texts": [],
    "before_gap_ms": 20.4,
    "join_gap_ms": 31.0,
    "mirror_gap_ms": None,
    "sync_gap_ms": 77.7,
    "there_gap_ms": 912.6,
    "back_gap_ms": 640.2,
    "there_partition_gap_ms": 950.0,
    "back_partition_gap_ms": 700.0,
    "records": 5,
    "missed": 0,
    "repeated": 0,
    "rejoins": 2,
    "there_read_pause_ms": 960.0,
    "back_read_pause_ms": 710.0,
}


def test_a_switch_has_a_table_and_a_column_beside_the_client_s_other_figures() -> None:
    measured: dict[str, dict[str, Any]] = {"producers": {"lib": ROW, "other": ROW}}
    report = {"kafka": "4.3.1", "load_average_after": 3.0, "switches": {"lib": SWITCHED}}
    client_tables.merge(measured, report)
    made = client_tables.tables(measured)
    assert made["switches"].splitlines()[2] == (
        "| lib 1.2 | 5 | 0 | 0 | 0 / 0 / 0 | 20 | 78 | 913 | 640 | 950 / 700 | 5 | 0 / 0 / 2 | 960 / 710 | 3 |"
    )
    with_it, without = made["producers"].splitlines()[2:]
    assert with_it.endswith("| missed | 913 / 640 | - |")
    assert without.endswith("| missed | - | - |")


def test_errors_at_a_switch_are_said_and_whose_they_are() -> None:
    bad = SWITCHED | {
        "lost": 1,
        "errors": 3,
        "own_errors": 2,
        "error_texts": ["a|b"],
        "errors_at": {"back": 3},
    }
    made = client_tables.tables({"producers": {"lib": ROW}, "switches": {"lib": bad}})
    assert "| 913 / 640 (3 errors, 1 lost) |" in made["producers"]
    assert "| 3 (2 its own; 3 at the switch back; a\\|b) |" in made["switches"]
    broken = {"version": "1.2", "ok": False, "broke": "no answer"}
    made = client_tables.tables({"producers": {"lib": ROW}, "switches": {"lib": broken}})
    assert "| did not end |" in made["producers"]
    assert "| did not end: no answer |" in made["switches"]
