"""What a run does, out of nothing but its seed: topics, clients, promotes, and which fault strikes when.

Only decisions live here. When a fault is aimed at a phase, what it then meets is the machine's business: the report
says in which phase it struck.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

SESSION = 6.0  # of brokers in the target, seconds
SAME_STORE = 4  # so many seeds in a row use one kind of store, so that a fleet can be kept over runs
LONG_EVERY = 10  # one seed in so many sleeps longer than its lease and its broker session together
DEATH_EVERY = 4  # in one seed in so many the source dies, and a failover takes the place of the last promote
PHASES = ("CATCHING_UP", "FENCED", "ALIGNED", "VALIDATED", "HANDED_OVER")
LIBRARIES = ("librdkafka", "aiokafka", "kafka-python")
TRANSACTIONAL = ("librdkafka",)


class Store(StrEnum):
    """Where the link state is. SQLITE means one sidecar, the others three."""

    SQLITE = "sqlite"
    ZOOKEEPER = "zookeeper"
    TOPIC = "topic"

    @property
    def sidecars(self) -> int:
        return 1 if self is Store.SQLITE else 3


class Kind(StrEnum):
    """Every fault there is."""

    KILL_SIDECAR = "kill -9 a sidecar"
    PAUSE_SIDECAR = "stop and continue a sidecar"
    RESTART_SIDECAR = "restart a sidecar"
    DRAIN_SIDECAR = "drain a sidecar"
    NET_CUT = "cut the network"
    NET_BLACKHOLE = "hold the network"
    NET_DEAF = "hold the network's answers"
    NET_SLOW = "slow the network"
    KILL_TARGET_BROKER = "kill -9 a target broker"
    PAUSE_TARGET_BROKER = "stop and continue a target broker"
    KILL_TARGET_CONTROLLER = "kill -9 the target's controller"
    PAUSE_TARGET_CONTROLLER = "stop and continue the target's controller"
    RESTART_TARGET_BROKER = "restart a target broker"
    KILL_SOURCE_BROKER = "kill -9 a source broker"
    PAUSE_SOURCE_BROKER = "stop and continue a source broker"
    KILL_SOURCE_CONTROLLER = "kill -9 the source's controller"
    PAUSE_SOURCE_CONTROLLER = "stop and continue the source's controller"
    RESTART_SOURCE_BROKER = "restart a source broker"
    KILL_ZOOKEEPER = "kill -9 ZooKeeper"
    PAUSE_ZOOKEEPER = "stop and continue ZooKeeper"


SIDECAR_KINDS = frozenset({Kind.KILL_SIDECAR, Kind.PAUSE_SIDECAR, Kind.RESTART_SIDECAR, Kind.DRAIN_SIDECAR})
NET_KINDS = frozenset({Kind.NET_CUT, Kind.NET_BLACKHOLE, Kind.NET_DEAF, Kind.NET_SLOW})
FLEET_KINDS = frozenset({Kind.DRAIN_SIDECAR})  # need somebody who takes over


class Role(StrEnum):
    """Which sidecar, decided when the fault strikes."""

    HEAD = "head"  # the link controller
    LEADER = "leader"  # of most partitions of the run's topics
    OTHER = "other"  # neither, if there is one
    ALL = "all"


class Path(StrEnum):
    """Between a sidecar and whom."""

    SOURCE = "source"
    TARGET = "target"
    CONTROLLER = "controller"  # the target's
    STORE = "store"
    HEAD = "head"
    CLIENTS = "clients"
    FOLLOWERS = "followers"
    SOURCE_CONTROLLER = (
        "the source's controller"  # these three: of a sidecar that is a broker of the source, too
    )
    SOURCE_CLIENTS = "clients of the source"
    SOURCE_FOLLOWERS = "followers at the source"


SOURCE_PATHS = frozenset({Path.SOURCE_CONTROLLER, Path.SOURCE_CLIENTS, Path.SOURCE_FOLLOWERS})


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """One fault. `phase`: strike when a promote is first seen there (or has gone past it); None: at a time."""

    kind: Kind
    role: Role | None = None
    path: Path | None = None
    phase: str | None = None
    promote: int = 0  # of which promote, or switch, the phase is meant
    after: float = 0.0  # seconds after the phase, or after the workload has begun
    seconds: float = 0.0  # until it heals
    pick: float = 0.0  # which of several brokers: a fraction of their number

    def __str__(self) -> str:
        where = " ".join(
            part for part in (self.role and f"({self.role})", self.path and f"to {self.path}") if part
        )
        when = f"at {self.phase}" if self.phase else "while mirroring"
        return f"{self.kind}{' ' if where else ''}{where} {when} for {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    partitions: int
    producers: Sequence[str]  # libraries, each writing at the target
    source_producers: Sequence[str]  # these begin at the source and are moved before the topic's promote
    rate: float  # records per second and producer
    transactional: Sequence[str] = ()  # libraries; these begin at the source too


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathPlan:
    """The source is killed, all of it at once, and comes back only when everything is over."""

    before: float  # seconds between the death and the first try of a failover
    #: Whether the applications with transactions are still at the source then, in the middle of one.
    transactions_stay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotePlan:
    """One promote, or a failover if the source dies; it is repeated until it is done."""

    topics: Sequence[int]  # indices
    delay: float  # after the workload has begun, or the promote before is over
    fence_timeout: float
    #: A first try with limits that can hardly be kept: it is abandoned, most likely under way.
    hopeless_fence_ms: int | None = None
    death: DeathPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchStep:
    """One switch; it is repeated until the other cluster owns the topics."""

    topics: Sequence[int]  # indices
    delay: float  # after the workload has begun, or the switch before is over
    fence_timeout: float
    batch_partitions: int | None = None  # 1: topics that go together are waves of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    seed: int
    store: Store
    keep: bool  # go on with the fleet of the run before, if it has the same store
    lease: float
    copies: int  # of each partition at the target
    topics: Sequence[TopicPlan]
    consumer: str
    promotes: Sequence[PromotePlan]
    faults: Sequence[FaultPlan]
    linger: float  # seconds of writing to the owner after the last promote
    #: Instead of promotes: the topics go to the other cluster, and back. Nobody is moved.
    switches: Sequence[SwitchStep] = ()


def plan_run(seed: int, stores: Sequence[Store] = tuple(Store)) -> RunPlan:
    """The run of a seed. `stores`: those to choose from."""
    block = random.Random(f"store {seed // SAME_STORE}")
    weights = {Store.SQLITE: 15, Store.ZOOKEEPER: 50, Store.TOPIC: 35}
    store = block.choices(stores, [weights[one] for one in stores])[0]
    rng = random.Random(f"run {seed}")
    lease = rng.choices([4.0, 6.0, 10.0], [5, 3, 2])[0]
    # One or two topics; two are promoted together or one after the other.
    topics = [_topic(rng) for _ in range(rng.choice([1, 2, 2]))]
    order = [[index] for index in range(len(topics))]
    if len(topics) > 1 and rng.random() < 0.5:
        order = [list(range(len(topics)))]
    promotes = [_promote(rng, indices) for indices in order]
    # What came later has a die of its own, so that a seed's faults stay what they were.
    more = random.Random(f"transactions {seed}")
    topics = [replace(topic, transactional=_transactional(more)) for topic in topics]
    dies = seed % DEATH_EVERY == 1
    if dies:
        promotes[-1] = replace(promotes[-1], hopeless_fence_ms=None, death=_death(more))
    faults = [
        _fault(rng, store, len(promotes), source_dies=dies)
        for _ in range(rng.choices([1, 2, 3], [30, 45, 25])[0])
    ]
    if seed % LONG_EVERY == 3:
        faults[0] = _long_sleep(rng, store, lease, len(promotes))
    if seed % LONG_EVERY == 7 and store is not Store.SQLITE:
        faults[:1] = _cut_off(rng, lease)
    return RunPlan(
        seed=seed,
        store=store,
        keep=rng.random() < 0.65,
        lease=lease,
        copies=rng.choice([2, 3, 3]),
        topics=topics,
        consumer=rng.choice(["librdkafka", "aiokafka"]),
        promotes=promotes,
        faults=faults,
        linger=rng.uniform(0.5, 1.5),
    )


def _topic(rng: random.Random) -> TopicPlan:
    producers = [rng.choices(LIBRARIES, [5, 3, 2])[0] for _ in range(rng.choice([1, 2]))]
    moved = [rng.choice(LIBRARIES)] if rng.random() < 0.4 else []
    return TopicPlan(
        partitions=rng.randint(2, 4),
        producers=producers,
        source_producers=moved,
        rate=rng.choice([40.0, 80.0, 150.0]),
    )


def _transactional(rng: random.Random) -> list[str]:
    return [rng.choice(TRANSACTIONAL)] if rng.random() < 0.75 else []


def _death(rng: random.Random) -> DeathPlan:
    return DeathPlan(before=rng.choice([0.0, rng.uniform(0.0, 2.0)]), transactions_stay=rng.random() < 0.6)


def _promote(rng: random.Random, topics: Sequence[int]) -> PromotePlan:
    return PromotePlan(
        topics=topics,
        delay=rng.uniform(0.3, 2.0),
        fence_timeout=rng.choice([4.0, 10.0, 10.0, 20.0]),
        hopeless_fence_ms=rng.choice([1, 20, 100]) if rng.random() < 0.25 else None,
    )


_WEIGHTS = {
    Kind.KILL_SIDECAR: 20,
    Kind.PAUSE_SIDECAR: 20,
    Kind.RESTART_SIDECAR: 7,
    Kind.DRAIN_SIDECAR: 6,
    Kind.NET_CUT: 8,
    Kind.NET_BLACKHOLE: 10,
    Kind.NET_DEAF: 8,
    Kind.NET_SLOW: 6,
    Kind.KILL_TARGET_BROKER: 4,
    Kind.PAUSE_TARGET_BROKER: 4,
    Kind.KILL_TARGET_CONTROLLER: 4,
    Kind.PAUSE_TARGET_CONTROLLER: 4,
    Kind.KILL_SOURCE_BROKER: 2,
    Kind.RESTART_SOURCE_BROKER: 2,
    Kind.KILL_ZOOKEEPER: 5,
    Kind.PAUSE_ZOOKEEPER: 5,
}


def _possible(store: Store, source_dies: bool) -> list[Kind]:
    # A source that dies for good is not started again by another fault.
    without: set[Kind] = {Kind.KILL_SOURCE_BROKER, Kind.RESTART_SOURCE_BROKER} if source_dies else set()
    if store is not Store.ZOOKEEPER:
        without |= {Kind.KILL_ZOOKEEPER, Kind.PAUSE_ZOOKEEPER}
    if store is Store.SQLITE:
        without |= FLEET_KINDS
    return [kind for kind in _WEIGHTS if kind not in without]


def _fault(rng: random.Random, store: Store, promotes: int, *, source_dies: bool) -> FaultPlan:
    kinds = _possible(store, source_dies)
    kind = rng.choices(kinds, [_WEIGHTS[one] for one in kinds])[0]
    aimed = rng.random() < 0.7
    return FaultPlan(
        kind=kind,
        role=_role(rng) if kind in SIDECAR_KINDS | NET_KINDS else None,
        path=rng.choice(paths_of(store)) if kind in NET_KINDS else None,
        phase=rng.choice(PHASES) if aimed else None,
        promote=rng.randrange(promotes),
        after=rng.choice([0.0, 0.0, rng.uniform(0.0, 0.1)]) if aimed else rng.uniform(0.0, 3.0),
        seconds=round(seconds_of(rng, kind), 2),
        pick=rng.random(),
    )


def _role(rng: random.Random) -> Role:
    return rng.choices([Role.HEAD, Role.LEADER, Role.OTHER], [40, 35, 25])[0]


def paths_of(store: Store) -> list[Path]:
    without = {Path.HEAD, Path.STORE} if store is Store.SQLITE else set()
    if store is Store.TOPIC:
        without = {Path.STORE}  # it is the path to the target
    return [path for path in Path if path not in without | SOURCE_PATHS]


def seconds_of(rng: random.Random, kind: Kind) -> float:
    match kind:
        case Kind.PAUSE_SIDECAR:
            return rng.choice([rng.uniform(1.0, 2.0), rng.uniform(2.0, 6.0), rng.uniform(2.0, 15.0)])
        case Kind.KILL_SIDECAR:
            return rng.choice([0.0, 0.0, rng.uniform(0.5, 6.0)])
        case Kind.RESTART_SIDECAR:
            return rng.choice([0.0, rng.uniform(0.5, 3.0)])
        case Kind.DRAIN_SIDECAR:
            return rng.uniform(1.0, 4.0)
        case Kind.NET_CUT | Kind.NET_BLACKHOLE | Kind.NET_DEAF:
            return rng.choice([rng.uniform(0.1, 1.0), rng.uniform(1.0, 5.0), rng.uniform(2.0, 12.0)])
        case Kind.NET_SLOW:
            return rng.uniform(1.0, 5.0)
        case (
            Kind.PAUSE_TARGET_BROKER
            | Kind.PAUSE_TARGET_CONTROLLER
            | Kind.PAUSE_SOURCE_BROKER
            | Kind.PAUSE_SOURCE_CONTROLLER
            | Kind.PAUSE_ZOOKEEPER
        ):
            return rng.choice([rng.uniform(0.5, 2.0), rng.uniform(2.0, 8.0)])
        case _:
            return rng.choice([0.0, rng.uniform(0.0, 3.0)])


def _long_sleep(rng: random.Random, store: Store, lease: float, promotes: int) -> FaultPlan:
    """Long enough for the lease and for the broker session to end: the others have gone on without it."""
    seconds = lease + SESSION + rng.uniform(1.0, 5.0)
    if rng.random() < 0.2:
        seconds = rng.uniform(max(seconds, 30.0), 60.0)
    network = store is not Store.SQLITE and rng.random() < 0.3
    return FaultPlan(
        kind=Kind.NET_BLACKHOLE if network else Kind.PAUSE_SIDECAR,
        role=rng.choices([Role.HEAD, Role.LEADER], [1, 1])[0],
        path=rng.choice([Path.HEAD, Path.SOURCE]) if network else None,
        phase=rng.choice(PHASES),
        promote=rng.randrange(promotes),
        seconds=round(seconds, 2),
    )


def _cut_off(rng: random.Random, lease: float) -> list[FaultPlan]:
    """A leader that its link controller cannot reach any more, while clients can, and whose source answers late or not
    at all: it has produces on their way when its lease ends, and a promote may go on without it."""
    after = rng.uniform(0.0, 0.5)
    head = FaultPlan(
        kind=Kind.NET_BLACKHOLE,
        role=Role.LEADER,
        path=Path.HEAD,
        after=after,
        seconds=round(lease + rng.uniform(3.0, 6.0), 2),
    )
    source = FaultPlan(
        kind=rng.choice([Kind.NET_DEAF, Kind.NET_BLACKHOLE, Kind.NET_SLOW]),
        role=Role.LEADER,
        path=Path.SOURCE,
        after=after + rng.choice([0.0, rng.uniform(0.0, 1.0)]),
        seconds=round(lease + rng.uniform(1.0, 8.0), 2),
    )
    return [head, source]
