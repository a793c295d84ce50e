"""Clients that write, and all that goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.cluster import KRAFT, REAL, SOURCE, Cluster
from tests.sim.sidecar import Sidecar
from tests.sim.store import STORE
from tests.sim.world import World
from wire.frames.types import TopicPartition

_CLIENTS = ("c0", "c1", "c2")


class Clients:
    """Producers: they ask whoever leads, or who they think does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng_clients
        self.number = 0
        self.silent = False

    def start(self) -> None:
        for client in _CLIENTS:
            self.world.loop.kernel(self.rng.random() * 0.1, self._tick, client)

    def _tick(self, client: str) -> None:
        world, rng = self.world, self.rng
        world.loop.kernel(rng.uniform(0.04, 0.16), self._tick, client)
        if self.silent:
            return
        tp = rng.choice(world.tps)
        self.number += 1
        record = f"{client}.{self.number}"
        cluster = rng.choice(world.clusters) if world.switching else world.target
        leader = cluster.kraft.partitions[tp].leader
        if rng.random() < 0.15:
            leader = rng.choice(list(cluster.links.values()))
        if leader in REAL:
            cluster.replicas.produce(tp, leader, record, lambda code: self._told(tp, record, code))
            return
        world.network.deliver(
            client,
            str(cluster.sidecar_at(leader)),
            lambda: self._produce(client, cluster, leader, tp, record),
            0.001,
        )

    def _told(self, tp: TopicPartition, record: str, code: int) -> None:
        if code == 0:
            self.world.written(tp, record)

    def _produce(self, client: str, cluster: Cluster, leader: int, tp: TopicPartition, record: str) -> None:
        sidecar = self.world.sidecar_of(cluster.sidecar_at(leader))
        if sidecar is not None:
            router = sidecar.place(cluster).router
            sidecar.process.call(router.produce, client, tp, record, client == "c2", lambda code: None)


class Faults:
    """What goes wrong."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng_faults
        self.over = False
        self.kinds: list[tuple[float, Callable[[], None]]] = [
            (1.0, self.crash),
            (1.2, self.pause),
            (1.5, self.cut_some),
            (2.0, self.lonely),
            (2.0, self.slow_and_lonely),
            (0.7, self.reset),
            (1.0, self.store_trouble),
            (0.8, self.lose_seat),
            (0.6, self.store_away),
            (1.0, self.slow_source),
            (0.5, self.source_connections),
            (1.5, self.controller_trouble),
            (0.8, self.elections),
            (0.4, self.real_broker),
            (0.4, self.lazy_follower),
            (0.8, self.outside_writer),
            (0.6, self.leave),
            (3.0, self.elsewhere),
        ]
        if world.switching:
            self.kinds.append((0.8, self.all_real_brokers))

    def start(self) -> None:
        self.world.loop.kernel(self.rng.uniform(0.3, 2.0), self._next)
        self.world.loop.kernel(self.rng.uniform(0.5, 5.0), self._promote)

    def _next(self) -> None:
        if self.over:
            return
        weights = [weight for weight, _ in self.kinds]
        (chosen,) = self.rng.choices([kind for _, kind in self.kinds], weights)
        chosen()
        self.world.loop.kernel(self.rng.uniform(0.1, 2.0), self._next)

    def _promote(self) -> None:
        if self.over:
            return
        self.ask_promote()
        self.world.loop.kernel(self.rng.uniform(0.7, 4.0), self._promote)

    def ask_promote(self) -> None:
        for sidecar in self.world.sidecars.values():
            sidecar.process.call(sidecar.promote)

    # One by one.

    def _anybody(self) -> Sidecar | None:
        return self.rng.choice(list(self.world.sidecars.values())) if self.world.sidecars else None

    def _leader(self) -> Sidecar | None:
        cluster = self._cluster()
        leader = cluster.kraft.partitions[self.rng.choice(self.world.tps)].leader
        return self.world.sidecar_of(cluster.sidecar_at(leader)) or self._anybody()

    def _cluster(self) -> Cluster:
        """That trouble comes to."""
        return self.rng.choice(self.world.clusters) if self.world.switching else self.world.target

    def _head(self) -> Sidecar | None:
        seat = self.world.store.seat
        return None if seat is None else self.world.sidecar_of(seat.holder.broker_id)

    def crash(self) -> None:
        broker = self.rng.choice(self.world.sidecar_ids)
        self.world.kill(broker)
        self.world.loop.kernel(self.rng.choice([0.02, 0.3, 1.0, 4.0]), self._start, broker)

    def _start(self, broker: int) -> None:
        if broker not in self.world.sidecars:
            self.world.start(broker)

    def leave(self) -> None:
        sidecar, head = self._anybody(), self._head()
        if sidecar is not None:
            if head is not None and self.rng.random() < 0.7:
                # What it is told is on its way while it goes.
                self.world.network.cut(
                    str(head.broker_id), str(sidecar.broker_id), self.rng.uniform(0.4, 0.9)
                )
            self.world.loop.kernel(0.35, self._leaves, sidecar)

    def _leaves(self, sidecar: Sidecar) -> None:
        if self.world.sidecar_of(sidecar.broker_id) is sidecar:
            self.world.note(f"{sidecar.broker_id}: leaves")
            sidecar.process.call(sidecar.leave)
            self.world.loop.kernel(self.rng.uniform(0.05, 2.0), self._left, sidecar)

    def _left(self, sidecar: Sidecar) -> None:
        if self.world.sidecar_of(sidecar.broker_id) is sidecar:
            self.world.kill(sidecar.broker_id)
            self.world.loop.kernel(self.rng.uniform(0.05, 1.0), self._start, sidecar.broker_id)

    def pause(self) -> None:
        sidecar = self.rng.choice([self._anybody(), self._leader(), self._head()])
        if sidecar is not None and not sidecar.process.paused:
            seconds = self.rng.choice([0.2, 1.0, 2.5, 5.0]) * self.rng.uniform(0.7, 1.3)
            self.world.note(f"{sidecar.broker_id}: stopped for {seconds:.2f} s")
            sidecar.process.pause()
            self.world.loop.kernel(seconds, self._go_on, sidecar)

    def _go_on(self, sidecar: Sidecar) -> None:
        if sidecar.process.paused and not sidecar.process.dead:
            self.world.note(f"{sidecar.broker_id}: goes on")
            sidecar.process.go_on()

    def _cut(self, one: str, other: str, seconds: float) -> None:
        way = self.rng.random()
        self.world.note(
            f"cut {one} {'-' if way < 0.7 else '>' if way < 0.85 else '<'} {other} for {seconds:.2f} s"
        )
        if way < 0.85:
            self.world.network.cut(one, other, seconds)
        if way < 0.7 or way >= 0.85:
            self.world.network.cut(other, one, seconds)

    def _seconds(self) -> float:
        return self.rng.choice([0.3, 1.5, 3.0, 6.0]) * self.rng.uniform(0.7, 1.3)

    def _others(self, sidecar: Sidecar) -> list[str]:
        peers = [str(b) for b in self.world.sidecar_ids if b != sidecar.broker_id]
        return [STORE, KRAFT, *([SOURCE] if self.world.switching else []), *peers]

    def cut_some(self) -> None:
        sidecar = self._anybody()
        if sidecar is not None:
            for other in self._others(sidecar):
                if self.rng.random() < 0.4:
                    self._cut(str(sidecar.broker_id), other, self._seconds())

    def lonely(self, sidecar: Sidecar | None = None) -> None:
        """Source and clients are all that it has."""
        sidecar = sidecar or self.rng.choice([self._leader(), self._head(), self._anybody()])
        if sidecar is not None and not sidecar.process.dead:
            seconds = self.rng.uniform(1.5, 7.0)
            self.world.note(f"{sidecar.broker_id}: alone for {seconds:.2f} s")
            for other in self._others(sidecar):
                self.world.network.cut(str(sidecar.broker_id), other, seconds)
                self.world.network.cut(other, str(sidecar.broker_id), seconds)

    def slow_and_lonely(self) -> None:
        """What it has sent lands when others have given it up."""
        sidecar = self._leader()
        if sidecar is not None:
            self._slow(sidecar.process.name, self.rng.uniform(0.5, 4.0))
            self.world.loop.kernel(
                self.rng.uniform(0.1, 1.0), self.rng.choice([self.lonely, self.lonely, self._stop]), sidecar
            )
            if self.rng.random() < 0.3:
                head = self._head()
                if head is not None and head is not sidecar:
                    self.world.loop.kernel(self.rng.uniform(0.1, 1.0), self.world.kill, head.broker_id)
                    self.world.loop.kernel(3.0, self._start, head.broker_id)
            self.world.loop.kernel(self.rng.uniform(0.1, 3.0), self.ask_promote)

    def _stop(self, sidecar: Sidecar) -> None:
        if sidecar.process.runs:
            sidecar.process.pause()
            self.world.note(f"{sidecar.broker_id}: stopped")
            self.world.loop.kernel(self.rng.uniform(2.0, 6.0), self._go_on, sidecar)

    def reset(self) -> None:
        sidecar = self._anybody()
        if sidecar is not None:
            self.world.note(f"{sidecar.broker_id}: its connections are reset")
            self.world.network.reset(lambda end: sidecar.process in (end.process, end.there))

    def store_trouble(self) -> None:
        store = self.world.store
        store.fail_before, store.fail_after, store.late = (self.rng.choice([0.0, 0.1, 0.4]) for _ in range(3))
        self.world.loop.kernel(self.rng.uniform(0.5, 4.0), self._store_well)

    def _store_well(self) -> None:
        store = self.world.store
        store.fail_before = store.fail_after = store.late = 0.0

    def lose_seat(self) -> None:
        seated = self.world.store.seated
        if seated is not None:
            self.world.store.expire(seated)

    def store_away(self) -> None:
        seconds = self._seconds()
        for broker in self.world.sidecar_ids:
            self._cut(str(broker), STORE, seconds)

    def _slow(self, name: str, seconds: float) -> None:
        self.world.note(f"source: slow for {name}, {seconds:.2f} s")
        self._forwarded_to().slow_until[name] = self.world.loop.time() + seconds

    def _forwarded_to(self) -> Cluster:
        return self.world.owner[self.world.tps[0]] if self.world.switching else self.world.source

    def slow_source(self) -> None:
        seconds = self.rng.uniform(0.3, 4.0)
        for broker in self.world.sidecar_ids:
            if self.rng.random() < 0.6:
                self._slow(str(broker), seconds)

    def source_connections(self) -> None:
        sidecar = self._leader()
        if sidecar is not None:
            self.world.note(f"{sidecar.broker_id}: loses its connections to the source")
            for place in sidecar.places.values():
                sidecar.process.call(place.router.connections_lost)

    def controller_trouble(self) -> None:
        cluster = self._cluster()
        cluster.alter_late, cluster.alter_doubled, cluster.not_controller = (
            self.rng.choice([0.0, 0.3, 0.8]) for _ in range(3)
        )
        self.world.loop.kernel(self.rng.uniform(1.0, 6.0), self._controller_well)

    def _controller_well(self) -> None:
        for cluster in self.world.clusters:
            cluster.alter_late = cluster.alter_doubled = cluster.not_controller = 0.0

    def elections(self) -> None:
        cluster = self._cluster()
        if self.rng.random() < 0.5:
            cluster.kraft.rebalance()
        else:
            cluster.kraft.fence(self.rng.choice(list(cluster.links.values())))

    def real_broker(self) -> None:
        """One that follows, with the end of its logs; or one of the owner's."""
        cluster = self._cluster()
        unclean = not self.world.switching or self.rng.random() < 0.5
        cluster.replicas.stop(self.rng.choice(REAL), self._seconds(), unclean=unclean)

    def all_real_brokers(self) -> None:
        """One right after the other; none of them loses anything."""
        cluster, seconds = self._cluster(), self._seconds()
        for broker in self.rng.sample(REAL, len(REAL)):
            stays_away = seconds + self.rng.uniform(0, 2)
            self.world.loop.kernel(self.rng.uniform(0, 0.1), self._dies, cluster, broker, stays_away)

    def _dies(self, cluster: Cluster, broker: int, seconds: float) -> None:
        if not self.over:
            cluster.replicas.stop(broker, seconds, unclean=False)

    def lazy_follower(self) -> None:
        until = self.world.loop.time() + self._seconds()
        self._cluster().replicas.lazy[self.rng.choice(REAL)] = until

    def elsewhere(self) -> None:
        """Somebody moves replicas: the link controller as an operator asks it, or another tool, which may cancel too."""
        tp = self.rng.choice(self.world.tps)
        replicas = tuple(self.rng.sample(REAL, self.rng.choice([1, 2, 2, 2])))
        head = self._head()
        if self.world.owned(tp) or self.world.ambushed:
            return
        if head is not None and self.rng.random() < 0.5:
            self.world.note(f"{tp} is to be moved to {replicas}")
            head.process.call(head.move, tp, replicas)
        else:
            # Nobody may take the copies away that are about to lead, while the rest of a topic can only follow them.
            # Nor those that alone tell how far a log was acknowledged that link brokers lead.
            cancel = self.rng.random() < 0.2 and not (
                self.world.switching and (self.world.may_land(tp) or self._without_owner(tp))
            )
            self.world.note(f"a tool {'cancels' if cancel else f'reassigns to {replicas}'}: {tp}")
            self.world.target.kraft.reassign(tp, None if cancel else replicas)

    def _without_owner(self, tp: TopicPartition) -> bool:
        owner = self.world.owner[tp]
        return owner.kraft.partitions[tp].leader not in owner.real

    def outside_writer(self) -> None:
        """A producer that was not moved, for a moment; what it is told is no business of a sidecar's."""
        tp = self.rng.choice(self.world.tps)
        for number in range(self.rng.choice([1, 1, 5])):
            self.world.loop.kernel(
                number * self.rng.uniform(0, 0.2),
                self.world.source.append,
                tp,
                f"outside.{self.world.loop.time()}.{number}",
            )

    def peace(self) -> None:
        self.over = True
        world = self.world
        world.note("peace")
        self._store_well()
        self._controller_well()
        for cluster in world.clusters:
            cluster.slow_until.clear()
        world.network.heal()
        for broker in world.sidecar_ids:
            sidecar = world.sidecars.get(broker)
            if sidecar is None:
                world.start(broker)
            else:
                self._go_on(sidecar)
