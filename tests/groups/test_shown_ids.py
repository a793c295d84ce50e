"""A group's id may hold anything: messages and logs show it quoted where it could mislead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from groups.gates.base import GateError

ROOT = Path(__file__).parents[2]
PACKAGES = ("admin", "controller", "fleet", "groups", "linker", "router", "wire")
_BEFORE = r"(?<![-\w])(?:group|coordinator of) $"


def is_shown(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "shown_id"


def raw_ids(source: str) -> Iterator[int]:
    """Lines that put a group's id into a text as it is: "group %s" of a log, and f"group {...}"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            text = node.args[0]
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                places = list(re.finditer(r"%[a-z]", text.value))
                for at, place in enumerate(places, 1):
                    if re.search(_BEFORE, text.value[: place.start()]) and not is_shown(node.args[at]):
                        yield node.lineno
        if isinstance(node, ast.JoinedStr):
            for before, part in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(before, ast.Constant)
                    and re.search(_BEFORE, str(before.value))
                    and isinstance(part, ast.FormattedValue)
                    and not is_shown(part.value)
                    and part.conversion != ord("r")
                ):
                    yield node.lineno


def test_no_text_has_a_raw_id() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in raw_ids(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'log.info("link %s: group %s is away", link, name)',
        'x = f"group {name} is away"',
        'x = f"no coordinator of {name}"',
    ],
)
def test_a_raw_one_is_found(source: str) -> None:
    assert list(raw_ids(source)) == [1]
    assert list(raw_ids(source.replace("name", "shown_id(name)"))) == []


def test_errors_quote_them() -> None:
    assert str(GateError("a\nb", "gone")) == 'group "a\\nb": gone'
    assert str(GateError("orders", "gone")) == "group orders: gone"
