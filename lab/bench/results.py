"""Results of cases: raw rounds, figures made of them, and goals that a figure meets or misses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure with its bound."""

    name: str
    value: float
    bound: float
    at_least: bool  # else: at most
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": rounded(self.value),
            "goal": f"{'>=' if self.at_least else '<='} {self.bound:g}{f' {self.unit}' if self.unit else ''}",
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Strip:
    """A plot of single rounds: one row per side, one dot per round."""

    title: str
    unit: str
    values: Mapping[str, Sequence[float]]  # by side


@dataclass(frozen=True, slots=True)
class Line:
    """A plot over time: (seconds, value) per curve."""

    title: str
    unit: str
    curves: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(slots=True)
class CaseResult:
    """One case of the benchmark."""

    name: str
    what: str  # one line: what was done and how it was measured
    rounds: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)  # by side or kind, in order
    figures: dict[str, Any] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    #: Against something measured in the same run, larger is better: what the regression guard watches.
    ratios: dict[str, float] = field(default_factory=dict)
    plots: list[Strip | Line] = field(default_factory=list)
    checked: dict[str, int] = field(
        default_factory=dict
    )  # what was compared afterwards: replicas, batches, bytes
    problems: list[str] = field(default_factory=list)  # wrong results: a fast copy that is no copy

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "figures": {name: rounded(value) for name, value in self.figures.items()},
            "goals": [goal.as_json() for goal in self.goals],
            "ratios": {name: rounded(value) for name, value in self.ratios.items()},
            "checked": self.checked,
            "problems": self.problems,
            "rounds": {side: [rounded(one) for one in rounds] for side, rounds in self.rounds.items()},
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` (0 to 1) of the values do not exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def strip(title: str, unit: str, rounds: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> Strip:
    """The figure of that name, of every measured round of every side that has it."""
    return Strip(
        title,
        unit,
        {
            side: [float(one[key]) for one in of if one.get(key) is not None]
            for side, of in rounds.items()
            if not side.endswith("warm_up")
        },
    )


def median_of(rounds: Sequence[Mapping[str, Any]], key: str) -> float:
    """Median of one figure over rounds."""
    return float(median(one[key] for one in rounds))


def rounded(value: Any) -> Any:
    """Figures as they are read: four significant digits, at least whole numbers."""
    if isinstance(value, float):
        return (
            round(value, 3) if abs(value) < 10 else round(value, 2) if abs(value) < 100 else round(value, 1)
        )
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value
