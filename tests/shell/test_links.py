"""Links between the pages of the documentation lead to files and headings that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def _headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them: lower case, punctuation gone, spaces to hyphens; the second of a name gets -1."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", _FENCED.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        number = 0
        while (name := anchor if not number else f"{anchor}-{number}") in anchors:
            number += 1
        anchors.add(name)
    return anchors


def broken(page: Path) -> list[str]:
    found = []
    for target, anchor in _LINK.findall(_FENCED.sub("", page.read_text())):
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            found.append(f"{target}: no such file")
        elif anchor and path.suffix == ".md" and anchor not in _headings(path):
            found.append(f"{target}#{anchor}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_into_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# Here's *one*: `x_y`\n```\n# not a heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[a](b.md) [a](b.md#heres-one-x_y) [a](#gone) [a](c.md) [a](b.md#not-a-heading) [a](https://x.y/#z)\n"
    )
    assert broken(page) == [
        "#gone: no such heading",
        "c.md: no such file",
        "b.md#not-a-heading: no such heading",
    ]


def test_only_the_page_of_the_newest_run_is_kept() -> None:
    """Raw rounds are no documents, and a page that no other page names is read by nobody."""
    told = {
        (page.parent / target).resolve() for page in PAGES for target, _ in _LINK.findall(page.read_text())
    }
    kept = [path for path in (ROOT / "docs" / "benchmarks").iterdir() if path.suffix != ".md"]
    assert [path.name for path in kept] == ["report.html"]
    assert kept[0].resolve() in told
