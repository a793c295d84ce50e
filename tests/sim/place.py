"""A sidecar as a broker of one cluster, with the link whose mirrors lie there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from controller.judge.alignment import ReplicaPosition, SourceEnd
from controller.phases import LED_ELSEWHERE, SWITCHING
from controller.state import MirrorPartition
from fetcher.epochs import EpochHistory, EpochNoted
from fleet.progress import CopyReport, FleetProgress, FollowerReport
from linker.fleet.hand_overs import HandOvers, Leading
from linker.fleet.ports import ClusterPorts, StateFences
from linker.links.source_events import SourceEvents
from linker.links.source_sync import SourceSync
from linker.links.switching import LinkSwitch
from linker.promote.taken_source import TakenSource
from tests.fakes.copy_marks import marks_of
from tests.sim.cluster import Cluster
from tests.sim.follower import Follower
from tests.sim.replicas import Served
from tests.sim.router import SimRouter
from tests.sim.seen import SeenCluster
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from tests.sim.sidecar import Sidecar


class Copy:
    """fetcher.partition_copy.PartitionCopy, as far as a switch has to do with it."""

    def __init__(self, place: Place, tp: TopicPartition) -> None:
        self._place = place
        self.tp = tp
        self.spec = self
        self.link = place.link
        self.partition = tp.partition
        self.ended: int | None = None
        self.untruncated: dict[int, int] = {}
        state = place.state(tp)
        self._epochs = EpochHistory(() if state is None else state.source_epochs)
        self.epochs_unwritten = False

    @property
    def feed(self) -> object | None:
        follower = self._place.sync.follower
        return follower if self.tp in follower.followed else None

    def serve_all(self) -> None:
        """What is served here does not wait for the store."""

    @property
    def topic_id(self) -> bytes:
        mirror = self._place.sidecar.shared.image.mirrors.get((self.link, self.tp.topic))
        return b"" if mirror is None else mirror.topic_id

    @property
    def target_replicas(self) -> Sequence[int]:
        mirror = self._place.sidecar.shared.image.mirrors.get((self.link, self.tp.topic))
        return () if mirror is None else mirror.replicas_of(self.tp.partition)

    @property
    def high_watermark(self) -> int:
        committed = self._place.owner.replicas.committed[self.tp]
        return committed if self.ended is None else max(committed, self.ended)

    @property
    def source_epochs(self) -> tuple[tuple[int, int], ...]:
        return self._epochs.entries

    def took(self, records: Sequence[str], offset: int) -> None:
        """These were read of the owner's leader, from an offset on."""
        of = self._place.owner.replicas.epochs[self.tp]
        for at, record in enumerate(records, offset):
            epoch = of.get(record, -1)
            if epoch > self._epochs.before(at) and self._epochs.note(epoch, at) is not EpochNoted.KNOWN:
                self.epochs_unwritten = True
                self._place.events.source_epoch(self.tp, epoch, at)

    def truncate(self, offset: int) -> None:
        self._epochs.truncate(offset)
        self.epochs_unwritten = True
        self._place.events.truncation_seen(self.tp, offset, ())

    def epochs_written(self, entries: tuple[tuple[int, int], ...]) -> None:
        if entries == self._epochs.entries:
            self.epochs_unwritten = False

    def held_by(self, replicas: Collection[int], offset: int) -> bool:
        return self._place.held_by(self.tp, replicas, offset)

    def note_answer(self, end: int, _stable: int, _start: int) -> None:
        self.ended = end

    def notify(self) -> None:
        """Whoever looks, looks often."""


class Ports(ClusterPorts):
    """The product's, with copies out of the simulation."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.broker_id, lambda: place.sidecar.shared.image)
        self._place = place

    def marks(self) -> dict[str, dict[TopicPartition, int]]:
        return marks_of(self.copies(None, ()))

    def copies(self, link: str | None, tps: Collection[TopicPartition]) -> list[CopyReport]:
        return self._place.reports(tps or self._place.world.tps)


class Place:
    def __init__(self, sidecar: Sidecar, cluster: Cluster, owner: Cluster, link: str) -> None:
        self.sidecar = sidecar
        self.world = sidecar.world
        self.process = sidecar.process
        self.cluster = cluster
        self.owner = owner
        self.link = link
        self.broker_id = cluster.links[sidecar.broker_id]
        self.seen = SeenCluster(cluster, self.process, self.broker_id)
        self.membership = self.seen
        self.ports = Ports(self)
        self.router = SimRouter(self)
        self.ports.router = cast(Any, self.router)
        self.hand_overs = HandOvers(cast(Any, self.router), self._known)
        self.ports.hand_overs = self.hand_overs
        self.ports.target = cast(Any, self.seen)
        self.ports.link_brokers = self.link_brokers
        self.seen.metadata.subscribe(lambda _image, _topics: self.hand_overs.look(self.world.tps))
        self.fences = StateFences(
            cast(Any, self.router), lambda: sidecar.shared.image, self.hand_overs.look, cluster.at
        )
        sidecar.shared.listeners.add(self.fences.on_records)
        #: What followers of ours asked for last, by partition and leader epoch.
        self._positions: dict[tuple[TopicPartition, int], dict[int, tuple[int, int]]] = {}
        self.copies: dict[TopicPartition, Copy] = {}
        self.events = SourceEvents(link, sidecar.shared, cast(Any, self.copies.get))
        self.there: Place
        self.sync: SourceSync
        self.switch: LinkSwitch

    def link_brokers(self) -> frozenset[int]:
        return frozenset(self.cluster.links.values())

    def join(self, there: Place) -> None:
        """This sidecar is a broker of the cluster that the link mirrors, too."""
        self.there = there
        shared = self.sidecar.shared
        fetcher = SimpleNamespace(directory=SimpleNamespace(listeners=[]), partitions=self.copies)
        self.sync = SourceSync(
            self.link,
            cast(Any, there.seen.cluster),
            cast(Any, self.seen),
            cast(Any, fetcher),
            cast(Any, SimpleNamespace(take=None)),
            cast(Any, lambda: there.seen),
            cast(Any, None),
            lambda: shared.image,
        )
        self.sync.follower = cast(Any, Follower(self))
        self.switch = LinkSwitch(
            self.link,
            shared,
            self.sync,
            cast(Any, lambda: there),
            lambda _topic: None,
            lambda: there.progress(),
            cast(Any, self.copies),
            lambda: self.sidecar.runner.fleet_controller,
            2,
            cast(Any, there.seen.cluster),
            Path("/nowhere"),
            cast(Any, None),
        )
        self.switch.replicas._clock = self.process.clock
        self.ports.links = {self.link: cast(Any, SimpleNamespace(sync=self.sync, served=dict))}
        shared.listeners.add(self._look)
        shared.listeners.add(self.switch.on_records)
        self.seen.metadata.subscribe(lambda _image, _topics: self._look())
        self.process.spawn(self.sync.run())
        self.process.spawn(self.events.run())

    def progress(self) -> FleetProgress | None:
        """On the link controller."""
        head = self.sidecar.runner.fleet_controller
        if head is None:
            return None
        return FleetProgress(
            self.link,
            head.book,
            head.commands.ask_progress,
            lambda: self.seen.image,
            lambda tp: self.replicas_of(tp),
            poll=0.03,
            sidecar_of=self.cluster.sidecar_at,
        )

    def replicas_of(self, tp: TopicPartition) -> Sequence[int]:
        mirror = self.sidecar.shared.image.mirrors.get((self.link, tp.topic))
        return () if mirror is None else mirror.replicas_of(tp.partition)

    def without_owner(self, tp: TopicPartition) -> bool:
        return self.world.switching and self.switch.without_owner(tp)

    def _look(self, _records: object = ()) -> None:
        """Copies are those that this sidecar leads."""
        for tp in self.world.tps:
            state = self.state(tp)
            serves = self.leads(tp) and state is not None and state.phase not in LED_ELSEWHERE | SWITCHING
            if not serves:
                self.copies.pop(tp, None)
            elif tp not in self.copies:
                self.copies[tp] = copy = Copy(self, tp)
                self.sync._copy_added(cast(Any, copy))

    async def _known(self, tps: Collection[TopicPartition], leading: Leading, timeout: float) -> bool:
        """Real brokers take their time to know who leads."""
        takes = self.world.rng_carried.choice([0.01, 0.1, 0.4, 5.0])
        if takes > timeout:
            await asyncio.sleep(timeout)
            return False
        await asyncio.sleep(takes / 2)
        leading(tps)
        await asyncio.sleep(takes / 2)
        return True

    # Whom it serves.

    def view(self, tp: TopicPartition) -> Any:
        return self.seen.image.topics_by_name[tp.topic].partitions[tp.partition]

    def state(self, tp: TopicPartition) -> MirrorPartition | None:
        return self.sidecar.shared.image.partitions.get((self.link, tp))

    def leads(self, tp: TopicPartition) -> bool:
        """KRaft says so and the link state agrees, as far as this process knows."""
        state = self.state(tp)
        return self.view(tp).leader == self.broker_id and state is not None and state.leader == self.broker_id

    def serve(self, tp: TopicPartition) -> Served | None:
        """The log that its cluster's own brokers follow; None: they hear nothing."""
        state = self.state(tp)
        if not self.process.runs or not self.leads(tp) or state is None:
            return None
        if state.phase in SWITCHING:
            if state.taken is None:
                return None
            newest = max((epoch for epoch, _ in state.taken.epochs), default=-1)
            return replace(self._taken(tp, state.taken.end), newest=newest)
        fed = self.sync.follower.fed(tp) if self.world.switching else None  # type: ignore[attr-defined]
        if fed is not None:
            return Served(fed, len(fed), cut=False)
        log = self.owner.replicas.leader_log(tp)
        if log is not None:
            return Served(log, self.owner.replicas.committed[tp], cut=False)
        other = self.there.state(tp) if self.world.switching else None
        return None if other is None or other.taken is None else self._taken(tp, other.taken.end)

    def _taken(self, tp: TopicPartition, end: int) -> Served:
        """The link brokers lead in the other cluster, or here: the log ends where it was taken over."""
        return Served(self.world.taken.get((tp, end)), end, cut=True)

    def fetched(self, tp: TopicPartition, broker: int, offset: int, epoch: int) -> None:
        self._positions.setdefault((tp, self.view(tp).leader_epoch), {})[broker] = (offset, epoch)

    def position(self, tp: TopicPartition, broker: int) -> int:
        return self._positions.get((tp, self.view(tp).leader_epoch), {}).get(broker, (-1, -1))[0]

    def forget_positions(self, tp: TopicPartition) -> None:
        self._positions.pop((tp, self.view(tp).leader_epoch), None)

    def held_by(self, tp: TopicPartition, replicas: Collection[int], offset: int) -> bool:
        return bool(replicas) and all(self.position(tp, broker) >= offset for broker in replicas)

    def reports(self, tps: Collection[TopicPartition]) -> list[CopyReport]:
        found = []
        for tp in tps:
            view, state = self.view(tp), self.state(tp)
            if view.leader != self.broker_id or state is None:
                continue
            end = self.owner.replicas.committed[tp]
            if state.phase in SWITCHING and state.taken is not None:
                end = state.taken.end
            elif tp in self.copies:
                end = self.copies[tp].high_watermark
            positions = self._positions.get((tp, view.leader_epoch), {})
            found.append(
                CopyReport(
                    link=self.link,
                    topic=tp.topic,
                    partition=tp.partition,
                    leader_epoch=view.leader_epoch,
                    loaded=True,
                    high_watermark=end,
                    log_start_offset=0,
                    followers={
                        broker: FollowerReport(fetch_offset=offset, broker_epoch=epoch)
                        for broker, (offset, epoch) in positions.items()
                    },
                )
            )
        return found

    # Source ends, tails and configs for the promote driver.

    async def ends(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, SourceEnd]:
        taken: dict[TopicPartition, int] = {}
        if self.world.switching:
            of = TakenSource(self.link, lambda: self.sidecar.shared.image, cast(Any, None))
            taken = of.ends(tps)
        found = {tp: await self._taken_end(tp, end, timeout) for tp, end in taken.items()}
        rest = [tp for tp in tps if tp not in taken]
        if rest:
            found |= await self.owner.ends(self.process, rest, timeout=timeout)
        return found

    async def _taken_end(self, tp: TopicPartition, end: int, timeout: float) -> SourceEnd:
        """A broker there that has followed to the end."""

        def read() -> SourceEnd:
            logs, down = self.owner.replicas.held(tp), self.owner.replicas.down
            if not any(len(log) >= end for broker, log in logs.items() if broker not in down):
                raise LinkerError(f"no broker has followed to offset {end} yet")
            return SourceEnd(end, end, end)

        deadline = self.world.loop.time() + timeout
        while True:
            try:
                return await self.world.network.request(self.process.name, self.owner.name, read, timeout)
            except LinkerError:
                if self.world.loop.time() > deadline:
                    raise
                await asyncio.sleep(0.02)

    async def check(
        self, ends: Mapping[TopicPartition, int], *, timeout: float
    ) -> Mapping[TopicPartition, str]:
        await asyncio.sleep(self.owner.rng.uniform(0.001, 0.02))
        found = {}
        for tp, end in ends.items():
            log = self.world.taken.get((tp, end)) or self.owner.replicas.history(tp)
            for broker, held in self.cluster.replicas.held(tp).items():
                if held[max(0, end - 1) : end] != log[max(0, end - 1) : end]:
                    found[tp] = f"broker {broker} differs"
        return found

    async def restore(self, topic: str, configs: Mapping[str, str | None], *, timeout: float) -> None:
        if self.world.switching:
            await self.seen.operations.set_configs_of_topics({topic: configs}, timeout=timeout)
        else:
            await asyncio.sleep(0.005)


__all__ = ["Place", "ReplicaPosition"]
