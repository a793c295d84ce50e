"""How much is measured: a full run, or a quick one that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    bytes: int  # of each copy
    rounds: int  # measured, of either side
    warm_up: int  # rounds of either side before: the first are slower by a factor
    promotes: int
    load_seconds: float  # that producers write before a promote


FULL = Settings(bytes=1_000_000_000, rounds=5, warm_up=1, promotes=5, load_seconds=5.0)
QUICK = Settings(bytes=100_000_000, rounds=1, warm_up=1, promotes=1, load_seconds=2.0)
