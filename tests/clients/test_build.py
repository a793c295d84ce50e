"""Programs are built once, whoever asks at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients import build
from tests.clients.build import Builder
from tests.clients.catalog import SARAMA


async def test_two_cases_of_one_library_build_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[str] = []

    async def run(command: Sequence[str], what: str, *_: Any) -> str:
        builds.append(what)
        await asyncio.sleep(0.01)
        Path(command[command.index("-o") + 1]).touch()
        return ""

    monkeypatch.setattr(build, "_run", run)
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/bin/{name}")
    builder = Builder(tmp_path)
    first, second = await asyncio.gather(builder.command(SARAMA), builder.command(SARAMA))
    assert first == second
    assert builds == ["go build for sarama"]
