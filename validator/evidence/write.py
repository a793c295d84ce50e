"""Evidence into a directory: `evidence.html`, `evidence.json`, `evidence.parquet`. Each appears whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from validator.evidence.model import Evidence
from validator.evidence.page import render
from validator.evidence.verdict import verdict_of


@dataclass(frozen=True, slots=True)
class Written:
    """Where the three forms are, as absolute paths."""

    html: Path
    json_path: Path
    parquet: Path


def as_json(evidence: Evidence) -> str:
    """The model as it is (`Evidence.model_validate` reads it back without the two keys), with `verdict` and
    `verdict_reason` in front."""
    verdict, reason = verdict_of(evidence)
    whole = {"verdict": verdict.value, "verdict_reason": reason, **evidence.model_dump(mode="json")}
    return json.dumps(whole, indent=1, ensure_ascii=True) + "\n"


def write_evidence(evidence: Evidence, directory: str | Path) -> Written:
    """Write all three; the directory is made. Blocking. Raises OSError with the path if something cannot be written."""
    from validator.evidence import parquet  # pyarrow: only the validator process has to have it

    place = Path(directory).absolute()
    place.mkdir(parents=True, exist_ok=True)
    written = Written(place / "evidence.html", place / "evidence.json", place / "evidence.parquet")
    _whole(written.html, lambda path: _text(path, render(evidence)))
    _whole(written.json_path, lambda path: _text(path, as_json(evidence)))
    _whole(written.parquet, lambda path: parquet.write(evidence, path))
    return written


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _whole(path: Path, write: Callable[[Path], None]) -> None:
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(half)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
