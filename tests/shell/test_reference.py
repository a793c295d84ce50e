"""The reference pages say what the code does, and the files to deploy fit the program."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_reference_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_reference.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_options_are_shown_with_what_they_take() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for name in (
        "`-o, --output table\\|json\\|yaml`",
        "`--validation require\\|warn\\|skip`",
        "`--timeout SECONDS`",
        "`--link, -l LINK`",
        "`--fence-source`",
    ):
        assert f"| {name} |" in page
    assert not re.search(
        r"(TEXT|INTEGER|FLOAT|PATH|RANGE)`", page
    )  # what a parser calls it tells nobody anything


def test_links_between_the_reference_pages_lead_somewhere() -> None:
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^a-z0-9]", "", heading.lower()) for heading in re.findall(r"^#+ (.*)$", text, re.M)
        }
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if target.startswith("#"):
                assert target[1:] in headings, (page.name, target)
            else:
                assert (page.parent / target.partition("#")[0]).exists(), (page.name, target)


def test_the_unit_starts_a_command_that_exists() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "linker.service")
    words = unit["Service"]["ExecStart"].split()
    assert words[1:] == ["run", "--config", "/etc/linker/linker.yaml"]


def test_what_the_image_is_built_of_is_sent_to_the_builder() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.M) for name in line.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in ignored if line and not line.startswith("#")]
    assert {"requirements.lock", "linker"} <= copied
    assert {name for name in copied for one in patterns if fnmatch.fnmatch(name, one)} == set()
    assert {".git", ".venv", "build", "**/*.so"} <= set(patterns)


PACKAGES = sorted(
    str(path.parent.relative_to(ROOT))
    for top in (
        "wire",
        "controller",
        "fleet",
        "fetcher",
        "router",
        "groups",
        "validator",
        "admin",
        "linker",
        "lab",
    )
    for path in (ROOT / top).rglob("__init__.py")
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_file_map_names_every_module_and_nothing_else(package: str) -> None:
    """One sentence, then a line for each module and folder: "- `name`: a phrase"."""
    place = ROOT / package
    told = ast.get_docstring(ast.parse((place / "__init__.py").read_text(encoding="utf-8"))) or ""
    modules = {path.stem for path in place.glob("*.py")} - {"__init__"}
    folders = {f"{path.parent.name}/" for path in place.glob("*/__init__.py")}
    named = re.findall(r"^- `([a-z_]+/?)`: \S", told, re.M)
    assert sorted(named) == sorted(modules | folders)


def test_the_image_copies_every_package() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "lab"}
    assert packages <= set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.M))
