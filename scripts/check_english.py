"""Check docstrings, comments and messages: no sentence begins with "What comes back ..." or "That it works ...".

    python scripts/check_english.py             # the packages below; exit 1 and one line per problem
    python scripts/check_english.py PATH...     # only these files and folders

Such a sentence withholds its subject until the end. Name the subject first: "The answer ...". A question may begin so.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLEAN = (
    *("wire", "controller", "fleet", "fetcher", "router", "groups", "validator", "admin", "linker"),
    *("lab", "scripts"),
)

_CLAUSE = re.compile(
    r"(?:^|(?<=[.!?:;] ))(?:(?:What|Who|Whoever|Whatever|Whose|Whom|Whichever)\b"
    r"|That (?=(?:an?|the|it|its|they|this|these|there|he|some|no|nobody|nothing|each|every|all|only|[A-Z]\w+) ))"
    r"[^.!?]*[.!?]?"
)


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings by paragraph, other texts, and blocks of comments, with the number of their first line."""
    tree = ast.parse(source)
    docstrings = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            docstrings |= {id(part) for part in ast.walk(node.body[0])}
            for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] )", text):
                yield node.body[0].lineno, " ".join(paragraph.split()).lstrip("-*` ")
    yield from _messages(tree, docstrings)
    first, block = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.line.lstrip().startswith("#") and token.start[0] == first + len(block):
                block.append(token.string.lstrip("#: "))
                continue
            if block:
                yield first, " ".join(block)
            first, block = token.start[0], [token.string.lstrip("#: ")]
    if block:
        yield first, " ".join(block)


def _messages(tree: ast.AST, seen: set[int]) -> Iterator[tuple[int, str]]:
    """Texts of several words, with {} where a value stands; a part of such a text is none of its own."""
    parts = seen | {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        if text.count(" ") > 2:
            yield node.lineno, " ".join(text.split())


def problems(path: Path) -> list[str]:
    place = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
    return [
        f"{place}:{line}: {found[0][:90]}"
        for line, text in prose(path.read_text(encoding="utf-8"))
        for found in _CLAUSE.finditer(text)
        if not found[0].endswith("?")
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    files = [file for one in chosen or [ROOT / name for name in CLEAN] for file in _files(one)]
    found = [one for file in files for one in problems(file)]
    for one in found:
        print(one, file=sys.stderr)
    return 1 if found else 0


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


if __name__ == "__main__":
    sys.exit(main())
