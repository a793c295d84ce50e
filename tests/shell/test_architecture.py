"""docs/architecture.md names files that are there, in each of them what it says stands there, and every folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"

_TOKEN = re.compile(r"`([\w./]+/(?:\w+\.py)?|[\w/]+\.py|[A-Za-z_]\w*(?:\.\w+)?)`")


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def wrong(text: str, root: Path) -> list[str]:
    """A sentence for each file that is not there, and for each name that its file does not have.

    A name belongs to the last file before it in its step. A method may stand under its own name if its class is the only one
    that has it.
    """
    problems = []
    for step in re.split(r"\n(?=\d+\. |\n|\|)", text):
        file: Path | None = None
        for token in _TOKEN.findall(step):
            if "/" in token:
                file = root / token
                if not file.exists():
                    problems.append(f"{token}: no such file")
                    file = None
            elif file is not None and file.suffix == ".py":
                names = defined(file)
                short = {name.partition(".")[2] for name in names}
                if token not in names | short:
                    problems.append(f"{token}: not in {file.relative_to(root)}")
    return problems


def test_every_file_and_name_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert wrong(text, ROOT) == []
    assert len(re.findall(r"^\d+\. ", text, re.MULTILINE)) >= 50  # the five ways have not been lost


def test_the_file_map_names_every_folder() -> None:
    """Packages and the folders right inside them; `tests` has a row of its own."""
    text = PAGE.read_text(encoding="utf-8")
    file_map = re.search(r"^## The file map\n(.*?)\n## ", text, re.MULTILINE | re.DOTALL)
    assert file_map is not None
    rows = "\n".join(line for line in file_map[1].splitlines() if line.startswith("|"))
    named = {token.rstrip("/") for token in _TOKEN.findall(rows) if token.endswith("/")}
    found = [*ROOT.glob("*/__init__.py"), *ROOT.glob("*/*/__init__.py")]
    folders = {path.parent.relative_to(ROOT).as_posix() for path in found}
    assert {name for name in folders if name.partition("/")[0] != "tests"} <= named


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("1. `wire/gone.py` `Channel.close` does it.", "wire/gone.py: no such file"),
        (
            "1. `wire/client/channel.py` `Channel.gone` does it.",
            "Channel.gone: not in wire/client/channel.py",
        ),
        ("1. `wire/client/channel.py` `Gone` does it.", "Gone: not in wire/client/channel.py"),
        (
            "1. `wire/client/channel.py`: first.\n2. `wire/frames/batch.py` `Channel` does it.",
            "Channel: not in wire/frames/batch.py",
        ),
        ("| `nowhere/` | nothing |", "nowhere/: no such file"),
    ],
)
def test_what_is_not_there_is_found(step: str, problem: str) -> None:
    assert wrong(step, ROOT) == [problem]


def test_the_page_names_every_package() -> None:
    """A folder that nobody put on the map is found by nobody."""
    text = PAGE.read_text(encoding="utf-8")
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in text} == set()
