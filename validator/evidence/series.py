"""The curves of the page out of the samples: validated offsets of all partitions per broker, lag and throughput of the
partitions that matter most. Pure; a curve is a list of (ms since 1970, value)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from validator.evidence.model import PartitionEvidence, Sample

POINTS = 240
SHOWN = 6
"""Partitions with a curve of their own; the others share one."""

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """`muted`: drawn behind the others, without a colour of its own; `dashed`: something that is aimed at."""

    name: str
    points: tuple[Point, ...]
    muted: bool = False
    dashed: bool = False


def validated(partitions: Sequence[PartitionEvidence]) -> list[Curve]:
    """Offsets validated so far, all partitions together; and the offsets that the source has.

    Per broker where each holds all partitions. Where a broker has some of them only, its own sum would lie below the
    source's for ever: there it is the slowest and the fastest replica of each partition. Counted from each partition's
    start. A partition counts from its first sample on, with its last known value.
    """
    times = _times(partitions)
    held = [_brokers(partition) for partition in partitions]
    brokers = sorted(set().union(*held))
    ends = _total(partitions, times, lambda sample, _: sample.source_end)
    curves = [Curve("source end", ends, dashed=True)] if ends else []
    if all(len(those) == len(brokers) for those in held):
        for broker in brokers:
            points = _total(partitions, times, lambda sample, _, b=broker: sample.validated.get(b))  # type: ignore[misc]
            curves.append(Curve(f"broker {broker}", points))
        return curves

    def of(choose: Callable[[Iterable[int]], int]) -> tuple[Point, ...]:
        def value(sample: Sample, index: int) -> float | None:
            if not sample.validated:
                return None
            start = partitions[index].start
            return choose([sample.validated.get(broker, start) for broker in held[index]])

        return _total(partitions, times, value)

    names = (("slowest replica of each partition", min), ("fastest replica of each partition", max))
    return [*curves, *(Curve(name, of(choose)) for name, choose in names)]


def _brokers(partition: PartitionEvidence) -> set[int]:
    """Those that hold it; without any, those that were looked at."""
    return {one.broker_id for one in partition.replicas} or {
        broker for sample in partition.samples for broker in sample.validated
    }


def lag(partitions: Sequence[PartitionEvidence]) -> list[Curve]:
    """Of the partitions with the highest peaks; of the others the highest at each time."""
    return _by_partition(partitions, lambda sample: sample.lag, max, "highest of {} others")


def throughput(partitions: Sequence[PartitionEvidence]) -> list[Curve]:
    """Of the partitions with the highest peaks; of the others the sum at each time. Bytes per second."""
    return _by_partition(partitions, lambda sample: sample.bytes_per_second, sum, "sum of {} others")


Value = Callable[[Sample], float | None]


def _times(partitions: Iterable[PartitionEvidence]) -> list[int]:
    every = sorted({sample.at_ms for partition in partitions for sample in partition.samples})
    if len(every) <= POINTS:
        return every
    last = len(every) - 1
    return [every[index * last // (POINTS - 1)] for index in range(POINTS)]


def _held(partition: PartitionEvidence, times: Sequence[int], value: Value) -> list[float | None]:
    """The last known value at each time; None before the first."""
    found: list[float | None] = []
    samples = sorted(partition.samples, key=lambda sample: sample.at_ms)
    current: float | None = None
    index = 0
    for time in times:
        while index < len(samples) and samples[index].at_ms <= time:
            known = value(samples[index])
            current = known if known is not None else current
            index += 1
        found.append(current)
    return found


def _total(
    partitions: Sequence[PartitionEvidence],
    times: Sequence[int],
    value: Callable[[Sample, int], float | None],
) -> tuple[Point, ...]:
    """`value` of a sample and of the place of its partition."""
    totals: list[float | None] = [None] * len(times)
    for place, partition in enumerate(partitions):
        for index, known in enumerate(_held(partition, times, lambda sample, p=place: value(sample, p))):  # type: ignore[misc]
            if known is not None:
                totals[index] = (totals[index] or 0) + max(0, known - partition.start)
    return tuple((time, total) for time, total in zip(times, totals, strict=True) if total is not None)


def _by_partition(
    partitions: Sequence[PartitionEvidence],
    value: Value,
    others: Callable[[Iterable[float]], float],
    others_name: str,
) -> list[Curve]:
    peaks = []
    for index, partition in enumerate(partitions):
        known = [found for sample in partition.samples if (found := value(sample)) is not None]
        if known:
            peaks.append((max(known), -index, partition))
    peaks.sort(key=lambda peak: peak[:2], reverse=True)
    curves = []
    rest = [partition for _, _, partition in peaks[SHOWN:]]
    if rest:
        times = _times(rest)
        rows = [_held(partition, times, value) for partition in rest]
        points = []
        for index, time in enumerate(times):
            column = [row[index] for row in rows]
            known = [one for one in column if one is not None]
            if known:
                points.append((time, others(known)))
        curves.append(Curve(others_name.format(len(rest)), tuple(points), muted=True))
    for _, _, partition in peaks[:SHOWN]:
        times = _times([partition])
        held = zip(times, _held(partition, times, value), strict=True)
        points = [(time, one) for time, one in held if one is not None]
        curves.append(Curve(f"{partition.topic}-{partition.partition}", tuple(points)))
    return curves
