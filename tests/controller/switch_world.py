"""The world of the promote driver, and in it the source as a cluster of its own that link brokers have joined.

Its brokers 1 and 2 keep logs record by record; 800 (and 801) follow them, and what these were fed the target's replicas
copy. Clients write to the source's leader all the time, acks=all, and to the target's link brokers, which forward. Nobody
writes to a link broker that leads: it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from controller.alter_partition import AlterPartitionItem
from controller.decide.reverse import reverse_name
from controller.judge.alignment import ReplicaPosition
from controller.plan.in_sync import sync_step
from controller.plan.replicas import CancelReassignment, ElectPreferred, Reassign
from fleet.link_controller import LinkController
from linker.switch.records import TakeOverRecords
from linker.switch.rescue import Rescues
from linker.switch.take_over import TakeOver
from tests.controller.kraft_model import Broker, Image, Kraft, Partition, Topic
from tests.controller.simulation import LINK, World
from wire.errors import ConnectionLost, LinkerError
from wire.frames.types import TopicPartition

BACK = reverse_name(LINK)
OWNER_ID = b"\x09" * 16
REAL = (1, 2)
MIN_INSYNC = "2"


@dataclass
class SourceChances:
    lost: float = 0.0  # a request never arrives
    late: float = 0.0  # it arrives later, and nobody is told
    unanswered: float = 0.0
    broker_fails: float = 0.0  # every 2 ms
    link_fails: float = 0.0
    rebalance: float = 0.0  # auto.leader.rebalance


@dataclass
class SwitchWorld(World):
    owner_chances: SourceChances | None = None
    controller: LinkController | None = None  # the newest
    zombies: bool = False  # calls of a process that was deposed go on
    link_brokers: tuple[int, ...] = (800,)
    rescued: bool = True  # False: a test takes over without a promote, and nobody else is to give back

    def __post_init__(self) -> None:
        super().__post_init__()
        self.source = dict.fromkeys(self.tps, 0)
        self.high_watermark = dict(self.source)
        self.positions = {tp: {1: ReplicaPosition(0, 11), 2: ReplicaPosition(0, 12)} for tp in self.tps}
        self.held = {tp: {1: 0, 2: 0} for tp in self.tps}
        self.luck = self.owner_chances or SourceChances()
        everybody = (*REAL, *self.link_brokers)
        self.owner = Kraft(min_isr=int(MIN_INSYNC), topic_ids={"t": OWNER_ID})
        self.owner.brokers.update({b: Broker(b, 50 + b) for b in everybody})
        self.owner.partitions.update(
            {
                tp: Partition(everybody, everybody, leader=1, leader_epoch=3, partition_epoch=5)
                for tp in self.tps
            }
        )
        self.overrides: dict[str, str] = {"min.insync.replicas": MIN_INSYNC}
        self.logs: dict[TopicPartition, dict[int, list[int]]] = {tp: {1: [], 2: []} for tp in self.tps}
        self.fed: dict[TopicPartition, list[int]] = {tp: [] for tp in self.tps}
        self.acked: dict[TopicPartition, list[int]] = {tp: [] for tp in self.tps}
        self.following = set(self.tps)
        self.silent: set[TopicPartition] = set()  # real brokers do not copy them from a link broker
        self.records = 0
        self.asked: dict[tuple[TopicPartition, int], tuple[int, ReplicaPosition]] = {}
        self.seen = self._owner_image()
        self._owner_written = self._owner_shown = 0
        self._led = dict.fromkeys(self.tps, 1)
        self._texts: dict[str, str] = {}
        self.owner.changed = self._owner_changed

    def start(self) -> None:
        super().start()
        self._tick()

    # --- the source's logs

    def append(self, tp: TopicPartition, count: int) -> None:
        """A client writes, by whichever way: only a real leader takes it."""
        leader = self.owner.partitions[tp].leader
        if leader in REAL:
            self.logs[tp][leader] += range(self.records, self.records + count)
            self.records += count
            self._settle(tp)

    def _tick(self) -> None:
        if self.stopped:
            return
        for tp in self.tps:
            if self.rng.random() < 0.3:
                self.append(tp, self.rng.randint(1, 2))
            self._replicate(tp)
        self._trouble()
        self.check()
        self.loop.call_later(0.002 if self.loop.time() < self.busy_until else 0.05, self._tick)

    def _trouble(self) -> None:
        luck, owner = self.luck, self.owner
        for broker, chance in (
            *((b, luck.broker_fails) for b in REAL),
            *((b, luck.link_fails) for b in self.link_brokers),
        ):
            if self.unlucky(chance) and not owner.brokers[broker].fenced:
                owner.fence(broker)
                self.loop.call_later(self.rng.choice([0.05, 0.5, 2.0]), self._returns, broker)
        if self.unlucky(luck.rebalance):
            owner.rebalance()

    def _returns(self, broker: int) -> None:
        found = self.owner.brokers[broker]
        self.owner.brokers[broker] = replace(found, epoch=found.epoch + 100)
        self.owner.unfence(broker)

    def _replicate(self, tp: TopicPartition) -> None:
        partition = self.owner.partitions[tp]
        alive = [b for b in REAL if not self.owner.brokers[b].fenced]
        if partition.leader in REAL:
            log = self.logs[tp][partition.leader]
            for broker in alive:
                self._copy(self.logs[tp][broker], log)
            if tp in self.following and self.up:
                self._copy(self.fed[tp], log)
            self._expand(tp, partition, len(log))
        elif partition.leader in self.link_brokers and self.up and tp not in self.following | self.silent:
            for broker in alive:
                self._copy(self.logs[tp][broker], self.fed[tp])
                self.asked[tp, broker] = (
                    partition.leader_epoch,
                    ReplicaPosition(len(self.logs[tp][broker]), self.owner.brokers[broker].epoch),
                )
            self.notify()
        self._settle(tp)

    def _copy(self, follower: list[int], leader: list[int]) -> None:
        """A fetch: what differs is cut off, some of the rest comes."""
        if follower is leader or (len(follower) == len(leader) and follower[-1:] == leader[-1:]):
            return
        same = next((i for i, (a, b) in enumerate(zip(follower, leader, strict=False)) if a != b), None)
        same = min(len(follower), len(leader)) if same is None else same
        del follower[same:]
        follower += leader[same : same + self.rng.randint(0, 6)]

    def _expand(self, tp: TopicPartition, partition: Partition, end: int) -> None:
        """The real leader takes followers into the ISR."""
        for broker in partition.replicas:
            if broker in partition.isr or self.owner.brokers[broker].fenced:
                continue
            at = len(self.logs[tp][broker]) if broker in REAL else self._told(tp)
            if at == end and (broker in REAL or tp in self.following):
                isr = (*partition.isr, broker)
                self.owner._put(tp, self.owner._build(partition, self.owner.active, target_isr=isr))
                self.owner.changed()
                return

    def _told(self, tp: TopicPartition) -> int:
        """What link brokers ask for: all replicas of the target have what is below."""
        return min(len(self.fed[tp]), *self.held[tp].values())

    def _settle(self, tp: TopicPartition) -> None:
        """Ends and high watermark as the source tells them; what is committed is acknowledged."""
        partition = self.owner.partitions[tp]
        fed = len(self.fed[tp])
        for broker in (1, 2):
            if self.held[tp][broker] > fed:  # told to truncate
                self.held[tp][broker] = fed
                self.positions[tp][broker] = ReplicaPosition(fed, self.brokers[broker].epoch)
            elif self.held[tp][broker] < fed:
                self.loop.call_later(self.rng.uniform(0, 0.004), self._fetched, tp, broker, fed)
        if partition.leader in REAL:
            log = self.logs[tp][partition.leader]
            ends = [len(self.logs[tp][b]) if b in REAL else self._told(tp) for b in partition.isr]
            hw = min(ends)
            self.source[tp], self.high_watermark[tp] = len(log), hw
            if len(partition.isr) >= self.owner.min_isr and hw > len(self.acked[tp]):
                self.acked[tp] += log[len(self.acked[tp]) : hw]
        elif partition.leader in self.link_brokers:
            self.source[tp] = self.high_watermark[tp] = fed

    def _fetched(self, tp: TopicPartition, broker: int, end: int) -> None:
        super()._fetched(tp, broker, min(end, len(self.fed[tp])))

    def _commit_source(self, tp: TopicPartition, end: int) -> None:
        """Not used: the logs say what is committed."""

    # --- its metadata log

    def _owner_image(self) -> Image:
        parts = {tp.partition: state for tp, state in self.owner.partitions.items()}
        return Image({"t": Topic(OWNER_ID, "t", parts)}, dict(self.owner.brokers))

    def _owner_changed(self) -> None:
        for tp in self.tps:
            partition = self.owner.partitions[tp]
            if partition.leader != self._led[tp]:
                self._led[tp] = partition.leader
                self._elected(tp, partition.leader)
        self._owner_written += 1
        number, image, overrides = self._owner_written, self._owner_image(), dict(self.overrides)

        def show() -> None:
            if number > self._owner_shown:
                self._owner_shown, self.seen, self.seen_overrides = number, image, overrides
                self.notify()

        self.loop.call_later(self.rng.uniform(0.0, 0.02), show)
        self.check()

    def _elected(self, tp: TopicPartition, leader: int) -> None:
        if leader in REAL:
            log = self.logs[tp][leader]
            if log[: len(self.acked[tp])] != self.acked[tp]:
                self.fail(f"{tp}: broker {leader} leads at the source without what was acknowledged")
        elif leader in self.link_brokers:
            if self.fed[tp][: len(self.acked[tp])] != self.acked[tp]:
                self.fail(f"{tp}: link broker {leader} leads without what was acknowledged")
            self.source[tp] = self.high_watermark[tp] = len(self.fed[tp])

    # --- invariants

    def check(self) -> None:
        if not hasattr(self, "owner"):
            return
        super().check()
        for tp in self.tps:
            partition = self.owner.partitions[tp]
            electable = set(REAL).intersection((*partition.isr, *partition.elr))
            there = any(b not in self.links for b in self.real[tp].isr)
            if electable and there:
                self.fail(f"{tp} has two owners: source {partition}, target {self.real[tp]}")
            if electable and self.phase(BACK, tp) in ("TAKEN", "ACTIVE"):
                self.fail(f"{tp} is {self.phase(BACK, tp)}, and {electable} can be elected: {partition}")
            if there and any(
                self.fed[tp][: self.held[tp][b]][: len(self.acked[tp])] != self.acked[tp] for b in (1, 2)
            ):
                self.fail(f"{tp} is the target's without what was acknowledged")

    def phase(self, link: str, tp: TopicPartition) -> str | None:
        node = self.store.nodes.get(f"/links/{link}/mirrors/{tp.topic}/{tp.partition}/state")
        return None if node is None else json.loads(node[0])["phase"]

    def take_over(self, controller: LinkController) -> TakeOver:
        port = OwnerPort(self)
        records = TakeOverRecords(controller, LINK, lambda: int(self.loop.time() * 1000))
        return TakeOver(records, port, port, port)

    async def keep_in_sync(self) -> None:
        """What linker.switch.sync_replicas does."""
        while not self.stopped:
            await asyncio.sleep(0.05)
            for tp in self.tps:
                if not self.up or self.phase(BACK, tp) is not None:
                    continue
                found = sync_step(
                    self.seen,
                    self.seen.topics_by_name["t"].partitions[tp.partition],
                    self.link_brokers,
                    self.link_brokers,
                    len(self.link_brokers),
                    int(MIN_INSYNC),
                )
                if isinstance(found.send, Reassign):
                    self.owner.reassign(tp, found.send.replicas)
                elif isinstance(found.send, CancelReassignment):
                    self.owner.reassign(tp, None)
                elif isinstance(found.send, ElectPreferred):
                    self.owner.elect_preferred([tp])
                if self.owner.partitions[tp].leader in REAL:
                    self.following.add(tp)
            if self.rescued and self.up:
                with contextlib.suppress(LinkerError, TimeoutError):
                    await self.rescues()._once()

    def rescues(self) -> Rescues:
        """Of the newest process."""
        assert self.controller is not None
        controller, take_over = self.controller, self.take_over(self.controller)
        return Rescues(LINK, controller, self._led_alone, lambda: take_over)

    def _led_alone(self) -> set[str]:
        alone = (
            one.leader in self.link_brokers and set(one.isr) <= set(self.link_brokers)
            for one in self.seen.topics_by_name["t"].partitions.values()
        )
        return {"t"} if self.up and self.phase(BACK, self.tps[0]) is None and any(alone) else set()


class OwnerPort:
    """linker.switch.owner: OwnerPorts, SyncFollower and RealFollowers of one incarnation of the process."""

    def __init__(self, world: SwitchWorld) -> None:
        self.world = world
        self.generation = world.generation

    async def _gate(self, label: str) -> None:
        await self.world.gate(self.world.generation if self.world.zombies else self.generation, label)

    def image(self) -> Image:
        return self.world.seen

    def overrides(self, topic: str) -> Mapping[str, str]:
        return getattr(self.world, "seen_overrides", self.world.overrides)

    def link_brokers(self) -> Collection[int]:
        return self.world.link_brokers

    async def caught_up(self, *, timeout: float) -> None:
        await self._gate("owner caught_up")
        wanted = self.world._owner_written
        async with asyncio.timeout(timeout):
            while self.world._owner_shown < wanted:
                await asyncio.sleep(0.001)

    async def wait_until(self, predicate: Callable[[], bool], *, timeout: float) -> bool:
        changed = asyncio.Event()
        self.world.waiters.add(changed)
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    changed.clear()
                    await changed.wait()
            return True
        except TimeoutError:
            return False
        finally:
            self.world.waiters.discard(changed)

    async def _request(self, label: str, carry_out: Callable[[], object]) -> None:
        world, luck = self.world, self.world.luck
        await self._gate(f"{label} before")
        if world.unlucky(luck.lost):
            raise ConnectionLost(f"simulated: {label} lost", sent=True)
        if world.unlucky(luck.late):
            world.loop.call_later(world.rng.choice([0.01, 0.3, 5.0]) * world.rng.random(), carry_out)
            await self._gate(f"{label} late")
            raise ConnectionLost(f"simulated: {label} late", sent=True)
        carry_out()
        await self._gate(f"{label} after")
        if world.unlucky(luck.unanswered):
            raise ConnectionLost(f"simulated: {label} unanswered", sent=True)

    async def reassign(self, replicas: Mapping[TopicPartition, Sequence[int]], *, timeout: float) -> None:
        await self._request(
            "reassign", lambda: [self.world.owner.reassign(tp, to) for tp, to in replicas.items()]
        )

    async def elect(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await self._request("elect", lambda: self.world.owner.elect_preferred(tps))

    async def alter_partition(self, items: Sequence[AlterPartitionItem], *, timeout: float) -> None:
        await self._request(
            "owner alter_partition",
            lambda: [self.world.owner.alter_partition(item.leader, [item]) for item in items],
        )

    async def set_configs(self, configs: Mapping[str, Mapping[str, str | None]], *, timeout: float) -> None:
        def carry_out() -> None:
            for changes in configs.values():
                for name, value in changes.items():
                    if value is None:
                        self.world.overrides.pop(name, None)
                    else:
                        self.world.overrides[name] = value
            self.world.owner.min_isr = int(self.world.overrides.get("min.insync.replicas", "1"))
            self.world._owner_changed()

        await self._gate("configs before")
        carry_out()
        await self._gate("configs after")
        await self.caught_up(timeout=timeout)

    async def stop(self, tps: Collection[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, int]:
        await self._gate("stop before")
        self.world.following.difference_update(tps)
        ends = {tp: len(self.world.fed[tp]) for tp in tps}
        if not await self.wait_until(
            lambda: all(self.world._told(tp) >= end for tp, end in ends.items()), timeout=timeout
        ):
            raise LinkerError("the target's replicas do not have it yet")
        await self._gate("stop after")
        return ends

    def go_on(self, tps: Collection[TopicPartition]) -> None:
        self.world.following.update(tps)

    def positions(
        self, tps: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        found: dict[TopicPartition, dict[int, ReplicaPosition]] = {}
        for tp in tps:
            epoch = self.world.seen.topics_by_name["t"].partitions[tp.partition].leader_epoch
            asked = {b: self.world.asked[tp, b] for b in REAL if (tp, b) in self.world.asked}
            found[tp] = {b: position for b, (under, position) in asked.items() if under == epoch}
        return found
