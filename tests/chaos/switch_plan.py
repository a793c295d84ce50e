"""The run of a seed in which topics are switched between the clusters, there and back, instead of being promoted."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.chaos.plan import (
    FLEET_KINDS,
    NET_KINDS,
    PHASES,
    SIDECAR_KINDS,
    SOURCE_PATHS,
    FaultPlan,
    Kind,
    Role,
    RunPlan,
    Store,
    SwitchStep,
    TopicPlan,
    paths_of,
    plan_run,
    seconds_of,
)

#: Of a switch: topics are brought in sync before, and are reversed after.
SWITCH_PHASES = ("SYNCING", *PHASES, "PROMOTED")
LIBRARIES = ("librdkafka", "aiokafka")
SWITCHES, PROMOTES = "switch", "promote"

_WEIGHTS = {
    Kind.KILL_SIDECAR: 24,
    Kind.PAUSE_SIDECAR: 16,
    Kind.RESTART_SIDECAR: 8,
    Kind.DRAIN_SIDECAR: 6,
    Kind.NET_CUT: 8,
    Kind.NET_BLACKHOLE: 8,
    Kind.NET_DEAF: 8,
    Kind.NET_SLOW: 5,
    Kind.KILL_TARGET_BROKER: 6,
    Kind.PAUSE_TARGET_BROKER: 4,
    Kind.RESTART_TARGET_BROKER: 4,
    Kind.KILL_TARGET_CONTROLLER: 5,
    Kind.PAUSE_TARGET_CONTROLLER: 4,
    Kind.KILL_SOURCE_BROKER: 6,
    Kind.PAUSE_SOURCE_BROKER: 4,
    Kind.RESTART_SOURCE_BROKER: 4,
    Kind.KILL_SOURCE_CONTROLLER: 5,
    Kind.PAUSE_SOURCE_CONTROLLER: 4,
    Kind.KILL_ZOOKEEPER: 4,
    Kind.PAUSE_ZOOKEEPER: 4,
}
_STORES = {Store.SQLITE: 50, Store.ZOOKEEPER: 25, Store.TOPIC: 25}


def plan_any(seed: int, stores: Sequence[Store], only: str | None = None) -> RunPlan:
    """About every second seed switches. `only`: all of them do, or none."""
    kind = only or random.Random(f"kind {seed}").choice([SWITCHES, PROMOTES])
    return plan_switches(seed, stores) if kind == SWITCHES else plan_run(seed, stores)


def plan_switches(seed: int, stores: Sequence[Store] = tuple(Store)) -> RunPlan:
    rng = random.Random(f"switches {seed}")
    store = rng.choices(stores, [_STORES[one] for one in stores])[0]
    topics = [_topic(rng) for _ in range(rng.choice([1, 1, 2]))]
    rounds = rng.choice([2, 2, 3])
    # Two topics go together, or one after the other.
    order = [list(range(len(topics)))]
    if len(topics) > 1 and rng.random() < 0.4:
        order, rounds = [[0], [1]], 2
    waves = random.Random(f"waves {seed}")
    steps = [_step(rng, indices, waves) for _ in range(rounds) for indices in order]
    faults = [_fault(rng, store, len(steps)) for _ in range(rng.choices([1, 2, 3, 4], [15, 35, 30, 20])[0])]
    return RunPlan(
        seed=seed,
        store=store,
        keep=False,
        lease=rng.choice([4.0, 6.0, 10.0]),
        copies=rng.choice([2, 3, 3]),
        topics=topics,
        consumer=rng.choice(["librdkafka", "aiokafka"]),
        promotes=(),
        faults=faults,
        linger=rng.uniform(0.5, 1.5),
        switches=steps,
    )


def _topic(rng: random.Random) -> TopicPlan:
    """The source's producers stay where they are, too."""
    return TopicPlan(
        partitions=rng.randint(1, 4),
        producers=[rng.choice(LIBRARIES)],
        source_producers=[rng.choice(LIBRARIES) for _ in range(rng.choice([1, 2]))],
        rate=rng.choice([40.0, 80.0, 150.0]),
    )


def _step(rng: random.Random, topics: Sequence[int], waves: random.Random) -> SwitchStep:
    return SwitchStep(
        topics=topics,
        delay=rng.uniform(0.3, 3.0),
        fence_timeout=rng.choice([4.0, 10.0, 10.0, 20.0]),
        batch_partitions=1 if len(topics) > 1 and waves.random() < 0.75 else None,
    )


def kinds_of(store: Store) -> list[Kind]:
    without: set[Kind] = set() if store is Store.ZOOKEEPER else {Kind.KILL_ZOOKEEPER, Kind.PAUSE_ZOOKEEPER}
    if store is Store.SQLITE:
        without |= FLEET_KINDS
    return [kind for kind in _WEIGHTS if kind not in without]


def _fault(rng: random.Random, store: Store, steps: int) -> FaultPlan:
    kinds = kinds_of(store)
    kind = rng.choices(kinds, [_WEIGHTS[one] for one in kinds])[0]
    roles = [Role.HEAD, Role.LEADER] if store is Store.SQLITE else [Role.HEAD, Role.LEADER, Role.OTHER]
    aimed = rng.random() < 0.85
    return FaultPlan(
        kind=kind,
        role=rng.choice(roles) if kind in SIDECAR_KINDS | NET_KINDS else None,
        path=rng.choice([*paths_of(store), *sorted(SOURCE_PATHS)]) if kind in NET_KINDS else None,
        phase=rng.choice(SWITCH_PHASES) if aimed else None,
        promote=rng.randrange(steps),
        # A take-over takes a third of a second, in the phase FENCED.
        after=rng.choice([0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, 0.6)])
        if aimed
        else rng.uniform(0.0, 15.0),
        seconds=round(seconds_of(rng, kind), 2),
        pick=rng.random(),
    )
