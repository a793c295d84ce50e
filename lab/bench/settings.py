"""How much is measured: a full run, or a quick one that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    bytes: int  # of each copy
    rounds: int  # measured, of either side
    # Rounds of either side before: the first is slower by a factor, the next ones still gain on it.
    warm_up: int
    copy_warm_up: int  # the same where throughput is measured: brokers gain on it for longer
    copy_rounds: int  # measured there: single ones differ by a tenth and more
    promotes: int
    load_seconds: float  # that producers write before a promote
    promoted: tuple[int, ...] = (1, 100, 1000)  # partitions of the topics that are promoted
    # Its partitions, of those that are switched together; None: the case's own.
    largest_topic: int | None = None
    many: int = 1000  # partitions of the case with many of them
    topics: tuple[int, ...] = (500, 1000, 2000, 5000)  # of one partition, that one link has
    clients: int = 5000  # that only hold a connection
    groups: int = 2000  # whose offsets are followed
    window_seconds: float = 5.0  # of each look at latencies, lags and idle CPU
    warm_seconds: float = 30.0  # of the same load before the first look at a latency
    soak_seconds: float = 1800.0
    quick_start: bool = False  # of the JVMs: up in half the time, and slow


FULL = Settings(
    bytes=1_000_000_000, rounds=5, warm_up=3, copy_warm_up=8, copy_rounds=11, promotes=5, load_seconds=3.0
)
QUICK = Settings(
    bytes=50_000_000,
    rounds=1,
    warm_up=0,
    copy_warm_up=0,
    copy_rounds=1,
    promotes=1,
    load_seconds=1.0,
    promoted=(4,),
    many=40,
    topics=(50,),
    clients=50,
    groups=20,
    window_seconds=1.0,
    warm_seconds=1.0,
    soak_seconds=20.0,
    quick_start=True,
)
