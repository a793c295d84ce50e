"""The logs of one cluster's own brokers: they lead, follow whoever leads, die and come back.

A follower's position is known to its leader from the next fetch on, so a high watermark lags behind as it does in Kafka.
A log is compared with its leader's record by record, where Kafka compares epochs and offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.controller.kraft_model import Partition
from wire.frames.error_codes import NONE, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

FETCH = 0.05
LAG = 1.5  # replica.lag.time.max.ms

Done = Callable[[int], None]


def common(one: list[str], other: list[str]) -> int:
    """How many records from the first on are the same."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    return next(i for i in range(most) if one[i] != other[i])


@dataclass
class Led:
    """What the leader of a partition knows of its followers, under one leader epoch."""

    epoch: int
    told: dict[int, int] = field(default_factory=dict)  # the offset that each asked for last
    caught_up: dict[int, float] = field(default_factory=dict)
    waiting: list[tuple[int, Done]] = field(default_factory=list)


@dataclass(frozen=True)
class Served:
    """Of a log that a link broker serves. `cut`: what a follower has behind its end is not of this log. `newest`: of the
    leader epochs that are written down, where these alone tell where logs part; it is judged that nothing is committed
    beyond, and the rest stays here: of a log that a new process has found the end of, no broker would ever have it all."""

    log: list[str] | None  # None: nobody has all of it
    end: int
    cut: bool
    newest: int | None = None


class Replicas:
    """Of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.logs: dict[TopicPartition, dict[int, list[str]]] = {
            tp: {broker: [] for broker in cluster.real} for tp in self.world.tps
        }
        #: Of each record that a broker of this cluster took as leader, the leader epoch.
        self.epochs: dict[TopicPartition, dict[str, int]] = {tp: {} for tp in self.world.tps}
        self.committed: dict[TopicPartition, int] = dict.fromkeys(self.world.tps, 0)
        self.led: dict[TopicPartition, Led] = {tp: Led(-1) for tp in self.world.tps}
        self.down: set[int] = set()
        self.lazy: dict[int, float] = {}  # followers that do not fetch before this time
        self.spared_until = 0.0  # nobody else has all of what these brokers have

    def start(self) -> None:
        for broker in self.cluster.real:
            self._round(broker)

    def leader_log(self, tp: TopicPartition) -> list[str] | None:
        """None: none of its own brokers leads it."""
        leader = self.cluster.kraft.partitions[tp].leader
        return self.logs[tp][leader] if leader in self.cluster.real else None

    def history(self, tp: TopicPartition) -> list[str]:
        """What the partition's log is as far as its own brokers know; while a link broker leads, what one has that has most
        of what was committed."""
        found = self.leader_log(tp)
        if found is not None:
            return found
        replicas = self.cluster.kraft.partitions[tp].replicas
        return max((self.logs[tp][b] for b in self.cluster.real if b in replicas), key=len, default=[])

    def held(self, tp: TopicPartition) -> dict[int, list[str]]:
        """The logs of the replicas that stay."""
        partition = self.cluster.kraft.partitions[tp]
        stay = [b for b in self.cluster.real if b in partition.replicas and b not in partition.removing]
        return {broker: self.logs[tp][broker] for broker in stay}

    def changed(self, tp: TopicPartition, partition: Partition) -> None:
        """The metadata log has another state of the partition."""
        for broker, log in self.logs[tp].items():
            if broker not in partition.replicas:
                log.clear()  # it deletes its copy
        led = self.led[tp]
        if led.epoch != partition.leader_epoch:
            self.led[tp] = Led(
                partition.leader_epoch,
                caught_up=dict.fromkeys(partition.isr, self.world.loop.time()),
            )
            for _, done in led.waiting:
                done(NOT_LEADER_OR_FOLLOWER)
            if partition.leader in self.cluster.real:
                self.world.elected(self.cluster, tp, self.logs[tp][partition.leader])
        self._advance(tp)

    # Leaders.

    def produce(self, tp: TopicPartition, broker: int, record: str, done: Done) -> None:
        """acks=all. What the log has already (a sequence number) it does not take twice. A broker that is down tells
        nothing."""
        partition = self.cluster.kraft.partitions[tp]
        if broker in self.down:
            return
        if partition.leader != broker or broker not in self.cluster.real:
            done(NOT_LEADER_OR_FOLLOWER)
            return
        if len(partition.isr) < self.cluster.min_isr(tp):
            done(NOT_ENOUGH_REPLICAS)
            return
        log = self.logs[tp][broker]
        end = log.index(record) + 1 if record in log else len(log) + 1
        if end > len(log):
            log.append(record)
            self.epochs[tp].setdefault(record, partition.leader_epoch)
            for follower in partition.replicas:
                self._soon(tp, follower)
        self.led[tp].waiting.append((end, done))
        self._advance(tp)

    def _advance(self, tp: TopicPartition) -> None:
        partition, led = self.cluster.kraft.partitions[tp], self.led[tp]
        log = self.leader_log(tp)
        if log is None or len(partition.isr) < self.cluster.min_isr(tp):
            return
        ends = [len(log) if b == partition.leader else led.told.get(b, 0) for b in partition.isr]
        if min(ends) > self.committed[tp]:
            self.committed[tp] = min(ends)
            self.world.committed(self.cluster, tp, log)
        over = [one for one in led.waiting if one[0] <= self.committed[tp]]
        led.waiting = [one for one in led.waiting if one[0] > self.committed[tp]]
        for _, done in over:
            done(NONE)

    def heard(self, tp: TopicPartition, broker: int, offset: int) -> None:
        """A follower, one of ours or a link broker, asks a leader that is its own for what comes after an offset."""
        led, partition = self.led[tp], self.cluster.kraft.partitions[tp]
        led.told[broker] = offset
        if offset >= len(self.logs[tp][partition.leader]):
            led.caught_up[broker] = self.world.loop.time()
        self._advance(tp)
        if (
            broker not in partition.isr
            and broker in partition.replicas
            and offset >= self.committed[tp]
            and self.cluster.kraft.active(broker)
        ):
            self.cluster.alter_isr(tp, (*partition.isr, broker))

    def look_after_isr(self) -> None:
        now = self.world.loop.time()
        for tp, partition in self.cluster.kraft.partitions.items():
            if partition.leader not in self.cluster.real or partition.leader in self.down:
                continue
            caught_up = self.led[tp].caught_up
            late = [b for b in partition.isr if b != partition.leader and now - caught_up.get(b, 0.0) > LAG]
            if late:
                self.cluster.alter_isr(tp, tuple(b for b in partition.isr if b not in late))

    # Followers.

    def _round(self, broker: int) -> None:
        for tp in self.world.tps:
            self._follow(tp, broker)
        self.world.loop.kernel(FETCH * self.cluster.rng.uniform(0.5, 1.5), self._round, broker)

    def news(self, tp: TopicPartition) -> None:
        """A link broker has records that its followers wait for."""
        for broker in self.cluster.kraft.partitions[tp].replicas:
            self._soon(tp, broker)

    def _soon(self, tp: TopicPartition, broker: int) -> None:
        if broker in self.cluster.real:
            self.world.loop.kernel(self.cluster.rng.uniform(0.001, 0.008), self._follow, tp, broker)

    def _follow(self, tp: TopicPartition, broker: int) -> None:
        partition = self.cluster.kraft.partitions[tp]
        leader = partition.leader
        if broker in self.down or self.lazy.get(broker, 0.0) > self.world.loop.time():
            return
        if broker not in partition.replicas or leader in (broker, -1) or leader in self.down:
            return
        log = self.logs[tp][broker]
        if leader not in self.cluster.real:
            self._follow_link_broker(tp, broker, leader, log)
            return
        there = self.logs[tp][leader]
        del log[common(log, there) :]
        news = there[len(log) :]
        self.heard(tp, broker, len(log))
        log += news
        if news:
            self._soon(tp, broker)

    def _follow_link_broker(self, tp: TopicPartition, broker: int, leader: int, log: list[str]) -> None:
        sidecar = self.world.sidecar_of(self.cluster.sidecar_at(leader))
        served = None if sidecar is None else sidecar.serve(self.cluster, tp)
        if sidecar is None:
            return
        if served is None:
            if sidecar.leads(self.cluster, tp):  # it has nothing, but hears who asks
                sidecar.fetched(self.cluster, tp, broker, len(log), self.cluster.kraft.brokers[broker].epoch)
            return
        keep = len(log)
        if served.log is not None and (same := common(log, served.log)) < min(keep, served.end):
            keep = same
        if served.cut:
            keep = min(keep, served.end)
        known = self._known(tp, log[:keep], served.newest)
        if known < len(log):
            self.world.truncated(self.cluster, tp, broker, log, known)
        del log[keep:]
        sidecar.fetched(self.cluster, tp, broker, keep, self.cluster.kraft.brokers[broker].epoch)
        if served.log is None:
            return
        news = served.log[keep : served.end]
        log += news
        if news and self.world.switching:
            self._soon(tp, broker)

    def _known(self, tp: TopicPartition, log: list[str], newest: int | None) -> int:
        """Where the records begin whose leader epoch is not written down. Copies have epochs that always are."""
        epochs, known = self.epochs[tp], len(log)
        while newest is not None and known and epochs.get(log[known - 1], -1) > newest:
            known -= 1
        return known

    # What goes wrong.

    def stop(self, broker: int, seconds: float, *, unclean: bool) -> None:
        """A broker dies. Unclean: with the end of its logs, which only one may lose that is in no ISR."""
        if broker in self.down or self.world.loop.time() < self.spared_until:
            return
        if unclean and any(broker in p.isr for p in self.cluster.kraft.partitions.values()):
            return
        self.down.add(broker)
        for tp in self.world.tps if unclean else ():
            log = self.logs[tp][broker]
            del log[max(0, len(log) - self.cluster.rng.randrange(4)) :]
        self.world.note(f"{self.cluster.name}: broker {broker} is down for {seconds:.2f} s")
        self.cluster.kraft.fence(broker)

        def back() -> None:
            self.down.discard(broker)
            self.cluster.kraft.register(broker)

        self.world.loop.kernel(seconds, back)
