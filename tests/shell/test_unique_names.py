"""scripts/unique_names.py: a second class of one name is found, and so is an exception that is not needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import unique_names  # noqa: E402


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for module, text in (
        ("wire/a", "class Verdict: ...\nclass _Own: ...\n"),
        ("router/b", "class Verdict: ...\nclass _Own: ...\nclass Lane:\n    class Inner: ...\n"),
        ("linker/deep/c", "class Other:\n    class Inner: ...\n"),
    ):
        path = tmp_path / f"{module}.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


def test_a_second_class_of_a_name_is_found(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unique_names.main(tree, {}) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first == "class Verdict is defined 2 times: wire/a.py:1, router/b.py:1"
    assert last == "3 class names, 0 of them exceptions, 1 complaints"


@pytest.mark.parametrize(
    ("exceptions", "told"),
    [
        ({"Verdict": 2}, None),
        ({"Verdict": 3}, "lower it or take it out"),
        ({"Verdict": 2, "Gone": 2}, "lower it or take it out"),
        ({"Verdict": 2, "Lane": 1}, "which needs no exception"),
    ],
)
def test_exceptions_only_shrink(
    exceptions: dict[str, int], told: str | None, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unique_names.main(tree, exceptions) == (0 if told is None else 1)
    assert told is None or told in capsys.readouterr().out


def test_this_tree_has_no_more_than_its_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert unique_names.main(ROOT) == 0, capsys.readouterr().out
