"""A validator process without Spark, under the test's control."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from linker.config.check import ValidationConfig
from linker.validation.process import ValidatorProcess
from validator import messages as m

FAKE = Path(__file__).with_name("fake_validator.py")


class FakeWorld:
    """What the fake validator finds, and what it was asked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now: dict[str, Any] = {"ends": {}}
        directory.mkdir(parents=True, exist_ok=True)
        self.say()

    def say(self, **changes: Any) -> None:
        self.now |= changes
        scratch = self.directory / "world.tmp"
        scratch.write_text(json.dumps(self.now))
        scratch.replace(self.directory / "world.json")

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(FAKE), str(self.directory)]

    def asked(self) -> list[m.Command]:
        path = self.directory / "asked.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [m.decode_command(line) for line in lines]

    def runs(self) -> list[m.Run]:
        return [one for one in self.asked() if isinstance(one, m.Run)]


@pytest_asyncio.fixture
async def fake(tmp_path: Path) -> FakeWorld:
    return FakeWorld(tmp_path / "fake")


@pytest_asyncio.fixture
async def process(fake: FakeWorld, tmp_path: Path) -> AsyncIterator[ValidatorProcess]:
    made = ValidatorProcess(
        ValidationConfig(),
        tmp_path / "validator",
        command=fake.command,
        start_timeout=50,
        silence=30,
        first_pause=0.05,
    )
    yield made
    await made.close()
