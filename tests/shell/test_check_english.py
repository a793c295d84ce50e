"""Sentences of docstrings and comments that begin with a clause are found, and the clean packages have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_english


def test_the_clean_packages_are_clean() -> None:
    assert check_english.main([]) == 0


@pytest.mark.parametrize(
    "text",
    [
        '"""What a broker holds."""',
        '"""The broker. Who leads is looked up."""',
        '"""A list:\n\n- Whoever comes first is served\n"""',
        '"""One.\n\nThat a node has left is seen late."""',
        "x = 1\n# The first line of two. What the\n# second says comes after.",
        "x = 1  # What is left",
        'x = f"{y} is gone. What a broker holds is lost."',
    ],
)
def test_a_clause_as_the_subject_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(text)
    assert len(check_english.problems(page)) == 1
    assert check_english.main([str(tmp_path)]) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""The broker holds what it was sent. That is why it answers."""',
        '"""What if nobody leads?"""',
        'x = "What a"',
        "x = 1  # nobody knows what",
    ],
)
def test_other_sentences_are_left_alone(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(text)
    assert check_english.problems(page) == []
