"""Check how pages are written: short lines, an opening that says who needs the page, no sentence that begins with "What".

    python scripts/check_docs.py             # every page of this repository; exit 1 and one line per problem
    python scripts/check_docs.py PAGE...     # only these

A page is read at night, in a terminal, by somebody in a hurry: long lines cannot be compared in a diff, and a sentence whose
subject is "What ..." or "Who ..." withholds what it is about. Questions as headings are fine. docs/reference/ is made of
texts of the code, so its sentences are not checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 200
OPENING = "For "

_SENTENCE = re.compile(
    r"(?:^|(?<=[.!?:;] )|(?<=\| ))[*_[(]*(What|Who|Whoever|Whatever|Whose|Whom)\b[^.!?|]*[.!?|]?"
)
_MARKER = re.compile(r"^(?:[-*+]|\d+\.) +")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and table rows with the number of their first line; no code, no headings, no comments."""
    fenced, first, lines = False, 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
            bare = ""
        row = bare.startswith("|")
        if (fenced or not bare or row or bare.startswith(("#", "<!--")) or _MARKER.match(bare)) and lines:
            yield first, " ".join(lines)
            lines = []
        if fenced or not bare or bare.startswith(("#", "<!--")):
            continue
        if row:
            yield number, bare
            continue
        if not lines:
            first = number
        lines.append(_MARKER.sub("", bare))


def long_lines(text: str) -> list[str]:
    return [
        f"{number}: {len(line)} characters, at most {LONGEST} outside tables"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST and not line.lstrip().startswith("|")
    ]


def beginnings(text: str) -> list[str]:
    """Sentences that begin with What or Who and ask nothing. Where a paragraph begins is said, which is near enough."""
    return [
        f'{number}: a sentence begins with "{found[1]}": {found[0][:60]}'
        for number, paragraph in prose(text)
        for found in _SENTENCE.finditer(paragraph)
        if not found[0].endswith("?")
    ]


def opening(text: str) -> list[str]:
    """The first sentence says for whom the page is."""
    paragraphs = [paragraph for _, paragraph in prose(text)]
    if paragraphs and paragraphs[0].startswith(OPENING):
        return []
    return [f'1: the page does not open with a sentence that says who needs it ("{OPENING}...")']


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def problems(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    place = page.resolve().relative_to(ROOT).parts if page.resolve().is_relative_to(ROOT) else (page.name,)
    found = long_lines(text)
    if "reference" not in place:
        found += beginnings(text)
    if place[0] == "docs":
        found += opening(text)
    return [f"{'/'.join(place)}:{one}" for one in found]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    found = [one for page in chosen or pages() for one in problems(page)]
    for one in found:
        print(one, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
