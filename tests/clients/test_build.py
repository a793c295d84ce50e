"""Programs are built once, whoever asks at the same time, and fail once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients import build
from tests.clients.build import Builder, CannotBuildError
from tests.clients.catalog import KAFKAJS, SARAMA


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


async def test_a_build_that_failed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have taken an hour; each case of the library says what it said."""
    tried: list[str] = []

    async def run(_: Sequence[str], what: str, *__: Any) -> str:
        tried.append(what)
        raise CannotBuildError("no compiler")

    monkeypatch.setattr(build, "_run", run)
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/bin/{name}")
    builder = Builder(tmp_path)
    await builder.build([SARAMA, SARAMA])
    with pytest.raises(CannotBuildError, match="no compiler"):
        await builder.command(SARAMA)
    assert tried == ["go build for sarama"]


async def test_checkouts_of_one_machine_share_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Sequence[str]] = []

    async def run(command: Sequence[str], *_: Any) -> str:
        if "--version" in command:
            return "v22.1.0\n"
        builds.append(command)
        await asyncio.sleep(0.01)
        return ""

    monkeypatch.setenv("KAFKA_LINKER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_run", run)
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/bin/{name}")
    one, other = Builder(tmp_path / "one"), Builder(tmp_path / "other")
    first, second = await asyncio.gather(one.command(KAFKAJS), other.command(KAFKAJS))
    assert first == second
    assert Path(first[1]).exists()
    assert len(builds) == 1
