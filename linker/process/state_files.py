"""Small JSON files of the state directory: read whole or refused, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from wire.errors import LinkerError


class StateDirError(LinkerError):
    """The state directory cannot be used, or holds files that this program has not written."""


def read_state(path: Path) -> dict[str, Any]:
    """Empty if there is no file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateDirError(f"{path}: {error.strerror or error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StateDirError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise StateDirError(f"{path} is damaged: not an object")
    return value


def write_state(path: Path, value: dict[str, Any]) -> None:
    """On the disk when it returns: a power cut must not change an identity."""
    beside = path.with_suffix(".new")
    try:
        with open(beside, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StateDirError(f"{path}: {error.strerror or error}") from error
