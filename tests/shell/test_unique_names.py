"""scripts/unique_names.py: a second class of one name is found."""

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
    assert unique_names.main(tree) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first == "class Verdict is defined 2 times: wire/a.py:1, router/b.py:1"
    assert last == "3 class names, 1 complaints"


def test_in_this_tree_a_class_name_means_one_thing(capsys: pytest.CaptureFixture[str]) -> None:
    assert unique_names.main(ROOT) == 0, capsys.readouterr().out
