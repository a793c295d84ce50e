"""What is installed is named with its hashes, and installed by them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    """Version by package; each with a hash, and nothing else in the file."""
    found = {}
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / name).read_text(encoding="utf-8"))
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(
            r"([a-z0-9-]+)==(\S+)( ; [^#]*?)?((?: --hash=sha256:[0-9a-f]{64})+)", line.rstrip()
        )
        assert match is not None, line[:100]
        found[match[1]] = match[2]
    return found


def test_every_dependency_is_pinned_with_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runtime, everything = pins("requirements.lock"), pins("requirements-dev.lock")
    assert runtime.items() <= everything.items()
    for wanted, lock in (
        (project["dependencies"], runtime),
        (project["optional-dependencies"]["dev"], everything),
    ):
        for one in wanted:
            name = re.split(r"[\[<>=]", one)[0].lower().replace("_", "-")
            assert name == "kafka-linker" or name in lock, name
    assert not {"pytest", "mypy"} & runtime.keys()
    assert pins("requirements-build.lock").keys() == {"setuptools"}


@pytest.mark.parametrize(
    "name", ["Makefile", "deploy/Dockerfile", "docs/operations.md", "docs/quick-start.md"]
)
def test_nothing_is_installed_without(name: str) -> None:
    text = re.sub(r"\\\n\s*", " ", (ROOT / name).read_text(encoding="utf-8"))
    installs = re.findall(r"pip install [^\n&`]*", text)
    assert installs
    for one in installs:
        ours = "--no-deps" in one or one.rstrip() == "pip install aiokafka"  # a tool beside it
        assert ours or ("--require-hashes" in one and re.search(r"-r \S*requirements", one)), one
        if "requirements-build" not in one and "--require-hashes" in one:
            assert "--no-build-isolation" in one, one
