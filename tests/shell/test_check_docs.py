"""The check of the pages finds each thing that it is for, lets through what only looks like it, and the pages pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_docs.py"
spec = importlib.util.spec_from_file_location("check_docs", SCRIPT)
assert spec is not None
assert spec.loader is not None
check_docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_docs)


def test_the_pages_pass() -> None:
    assert [one for page in check_docs.pages() for one in check_docs.problems(page)] == []
    assert len(check_docs.pages()) > 20


@pytest.mark.parametrize(
    "text",
    [
        "What is copied is equal.\n",
        "It is copied. What is copied is equal.\n",
        "- Who writes waits.\n",
        "1. Whoever writes\n   waits.\n",
        "A line\nthat ends. Who writes waits.\n",
        "| a | b |\n| --- | --- |\n| c | What is copied |\n",
        "Note: **What is copied** is equal.\n",
        "[What was measured](a.md).\n",
    ],
)
def test_a_sentence_that_begins_so_is_found(text: str) -> None:
    assert len(check_docs.beginnings(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "## What is measured\n",
        "What is it? A copy.\n",
        "It says what is copied, and who writes.\n",
        "```\nWhat is copied is equal.\n```\n",
        "<!-- What is copied -->\n",
        "Whatsoever.\n",
    ],
)
def test_what_only_looks_like_it_is_let_through(text: str) -> None:
    assert check_docs.beginnings(text) == []


def test_long_lines_are_found_but_not_in_tables() -> None:
    assert check_docs.long_lines("a" * 200 + "\n| " + "a" * 300 + " |\n") == []
    assert check_docs.long_lines("short\n" + "a" * 201 + "\n") == [
        "2: 201 characters, at most 200 outside tables"
    ]


def test_an_opening_that_names_no_reader_is_found() -> None:
    assert check_docs.opening("# Title\n\nFor operators: how to.\n") == []
    assert len(check_docs.opening("# Title\n\nThis page is about it.\n")) == 1
    assert len(check_docs.opening("# Title\n")) == 1


def test_a_page_with_a_problem_fails_the_check(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("What is copied is equal.\n")
    assert check_docs.main([str(page)]) == 1
    page.write_text("All copies are equal.\n")
    assert check_docs.main([str(page)]) == 0
