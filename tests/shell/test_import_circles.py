"""scripts/import_circles.py: it finds every kind of circle, and this tree has none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import import_circles  # noqa: E402


def tree(root: Path, **files: str) -> Path:
    (root / "wire").mkdir()
    for name, text in files.items():
        (root / "wire" / f"{name}.py").write_text(text)
    return root


@pytest.mark.parametrize(
    "back",
    [
        "import wire.one\n",
        "from wire import one\n",
        "from . import one\n",
        "from .one import Thing\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from wire.one import Thing\n",
        "def late() -> None:\n    from wire.one import Thing\n",
    ],
)
def test_a_planted_circle_is_found(back: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tree(tmp_path, __init__="", one="from wire.two import x\n", two="import wire.three\n", three=back)
    assert import_circles.main(root) == 1
    told = capsys.readouterr().out
    assert "a circle of 3 modules" in told
    assert "wire.three imports wire.one" in told


def test_modules_that_share_one_are_no_circle(tmp_path: Path) -> None:
    root = tree(
        tmp_path, __init__="", one="from wire import two, three\n", two="from wire import three\n", three=""
    )
    assert import_circles.main(root) == 0


def test_a_package_is_a_module_of_its_own(tmp_path: Path) -> None:
    root = tree(tmp_path, __init__="from wire.one import x\n", one="from wire import y\n")
    assert import_circles.main(root) == 1


def test_this_tree_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert import_circles.main(ROOT) == 0, capsys.readouterr().out
