"""The page on switching names a test for each row of what dies: it is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_row_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "switching.md").read_text()
    rows = page.split("### What happens when something dies")[1].split("###")[0].splitlines()
    tests = [(path.name, path.read_text()) for path in (ROOT / "tests").rglob("test_*.py")]
    named = [row.split("|")[5] for row in rows if row.startswith("| ") and "---" not in row][1:]
    assert len(named) > 10
    for cell in named:
        assert "test_" in cell or "the same" in cell, cell
        for name, test in re.findall(r"`(test_\w+\.py)` `(test_\w+)`", cell):
            assert any(f"def {test}(" in text for file, text in tests if file == name), (name, test)
