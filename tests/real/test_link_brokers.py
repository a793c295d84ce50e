"""Several link brokers in a real KRaft cluster: each step of the replica plan, fences, elections, hand-overs.

The link brokers are TargetCluster objects without a sidecar around them; one of them does what the link
controller does, on behalf of all. Nothing serves the followers, so the copies are empty, but they are there:
their directories show whether a step kept them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any

import pytest
import pytest_asyncio

from controller.cluster_view import ImageView
from controller.judge.hand_over import Settlement, plan_hand_over, settle
from controller.plan.elections import SidecarBroker
from controller.plan.replicas import (
    AlterIsr,
    CancelReassignment,
    ElectPreferred,
    LiveBrokers,
    Reassign,
    Step,
    is_open,
)
from fleet.balancer import Balancer
from fleet.balancer_ports import Mirrored
from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from linker.membership import AdvertisedListener, Identity, TargetCluster
from linker.promote.fleet_ports import TargetHandOver
from tests.controller.steps import next_step
from tests.fakes.mirror_topic import create_mirror_topic
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage

LINK = frozenset({900, 901, 902})
TARGETS = {0: (1, 2), 1: (2, 1)}
REBALANCE_SECONDS = 1
COPIES_LOOKED_AT = 0.3  # seconds after a step: a broker drops a copy when it has read the record
UNCLEAN = {"unclean.leader.election.enable": "false"}


class LinkBroker:
    """One registered link broker that can die and come back."""

    def __init__(self, kafka: KafkaCluster, broker_id: int) -> None:
        self._kafka = kafka
        self.identity = Identity.create(broker_id)
        self.target: TargetCluster = self._make()
        self._task: asyncio.Task[None] | None = None

    def _make(self) -> TargetCluster:
        security = ClientSecurity.plaintext()

        async def save(value: Identity) -> None:
            self.identity = value

        return TargetCluster(
            Cluster("target", parse_bootstrap_servers(self._kafka.bootstrap), security, "linker-test"),
            controller_security=security,
            identity=self.identity,
            save=save,
            listeners=[AdvertisedListener("PLAINTEXT", "127.0.0.1", 19000 + self.identity.broker_id, 0)],
            heartbeat_interval=0.5,
        )

    async def up(self) -> None:
        if self._task is not None:
            self.target = self._make()
        self._task = asyncio.ensure_future(self.target.run())
        await self.target.join(60)
        await self.target.serve(30)

    async def fall_silent(self) -> None:
        """No heartbeat any more, and nobody told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def die(self) -> None:
        await self.fall_silent()
        await self.target.close()
        await self.target.cluster.close()


class Fleet:
    """Link brokers, and one that acts for all. Also the ports of a balancer over them."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self.kafka = kafka
        self.members = {broker_id: LinkBroker(kafka, broker_id) for broker_id in sorted(LINK)}
        self.dead: set[int] = set()
        self.topic = topic
        self.tps = [TopicPartition(topic, index) for index in TARGETS]
        self.steps: list[Step] = []
        self.port = TargetHandOver(self.head, lambda: LINK)

    @property
    def head(self) -> TargetCluster:
        return self.members[900].target

    def partition(self, tp: TopicPartition) -> PartitionImage:
        return self.head.image.topics_by_name[tp.topic].partitions[tp.partition]

    async def create(self, *brokers: int) -> None:
        """On these link brokers, each partition led by another one; then the copies are asked for."""
        await create_mirror_topic(
            self.head.operations,
            self.topic,
            {i: (*brokers[i % len(brokers) :], *brokers[: i % len(brokers)]) for i in TARGETS},
            UNCLEAN,
        )
        await self.head.operations.reassign({tp: TARGETS[tp.partition] for tp in self.tps})
        await self.until(lambda: all(self.partition(tp).adding for tp in self.tps))
        await self.until(lambda: all(path.is_dir() for path in self.copies()))

    def copies(self) -> list[Any]:
        return [self.kafka.partition_dir(broker, tp) for tp in self.tps for broker in (1, 2)]

    def inodes(self) -> list[int]:
        """Of the copies' directories: a copy that is dropped is renamed, and made anew."""
        return [path.stat().st_ino for path in self.copies()]

    async def until(self, predicate: Callable[[], bool], timeout: float = 20.0) -> None:
        await self.head.metadata.wait_for(lambda _: True if predicate() else None, timeout)

    def brokers(self) -> LiveBrokers:
        seen = self.head.image.brokers
        return LiveBrokers(
            link=LINK,
            alive={b for b in LINK if b in seen and not seen[b].fenced and b not in self.dead},
            registered=seen.keys(),
        )

    async def carry_out(self, tp: TopicPartition, step: Step) -> None:
        before = self.partition(tp)
        operations = self.head.operations
        match step:
            case Reassign(replicas):
                await operations.reassign({tp: replicas})
            case CancelReassignment():
                await operations.reassign({tp: None})
            case AlterIsr(new_isr):
                assert await operations.alter_isr({tp: new_isr}) == {tp: 0}, (step, before)
            case ElectPreferred():
                assert await operations.elect_preferred([tp]) == {tp: 0}
        await self.until(lambda: self.partition(tp).partition_epoch > before.partition_epoch)
        after = self.partition(tp)
        assert set(after.isr) <= LINK, (before, step, after)
        assert after.isr
        assert after.leader in LINK
        assert {1, 2} <= set(after.replicas), (before, step, after)

    async def plan(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, list[Step]]:
        """Steps until all is as wanted; none may touch a copy."""
        done: dict[TopicPartition, list[Step]] = {tp: [] for tp in wanted}
        before = self.inodes()
        for tp, order in wanted.items():
            while True:
                step = next_step(self.partition(tp), order, TARGETS[tp.partition], self.brokers())
                if step is None:
                    break
                await self.carry_out(tp, step)
                done[tp].append(step)
                assert len(done[tp]) < 12, done
        await asyncio.sleep(COPIES_LOOKED_AT)
        assert self.inodes() == before, "a copy was dropped"
        return done

    async def open(self) -> None:
        await self.port.open({tp: TARGETS[tp.partition] for tp in self.tps}, timeout=10)
        for tp in self.tps:
            assert is_open(self.partition(tp), TARGETS[tp.partition], LINK), self.partition(tp)

    async def hand_over(self) -> float:
        """All partitions; seconds until the metadata log shows it."""
        topic_id = self.head.image.topics_by_name[self.topic].id
        plan = plan_hand_over(
            self.head.image,
            dict.fromkeys(self.tps, topic_id),
            LINK,
            {tp: TARGETS[tp.partition] for tp in self.tps},
        )
        assert not plan.obstacles, plan.obstacles
        before = self.inodes()
        started = time.monotonic()
        codes = await self.port.alter_partition(list(plan.items.values()), timeout=10)
        assert codes == dict.fromkeys(self.tps, 108)
        await self.until(lambda: all(not set(self.partition(tp).replicas) & LINK for tp in self.tps))
        took = time.monotonic() - started
        for tp in self.tps:
            after = self.partition(tp)
            assert after.replicas == TARGETS[tp.partition]
            assert set(after.isr) == {1, 2}
            assert after.leader == TARGETS[tp.partition][0]
            assert (after.adding, after.removing) == ((), ())
            assert settle(self.head.image, tp, topic_id, LINK, None) is Settlement.HANDED_OVER
        assert self.inodes() == before
        return took

    async def close(self) -> None:
        """Take the brokers out of the cluster again, whatever the test left."""
        seen = self.head.image
        if self.topic in seen.topics_by_name:
            await self.head.operations.delete_topic(self.topic)
        # One that still sends heartbeats registers again, and its id is taken for the next test.
        for member in self.members.values():
            await member.fall_silent()
        for broker_id in sorted(LINK & seen.brokers.keys()):
            await self.head.channel.call(
                "unregister_broker", {"broker_id": broker_id}, timeout=10, idempotent=True
            )
        for member in self.members.values():
            await member.die()

    # The ports of a balancer.

    def image(self) -> ImageView:
        return self.head.image

    def partitions(self) -> Mapping[TopicPartition, Mirrored]:
        return {tp: Mirrored(targets=TARGETS[tp.partition]) for tp in self.tps}

    def sidecars(self) -> Sequence[SidecarBroker]:
        return [
            SidecarBroker(id=b, alive=b not in self.dead)
            for b in sorted(LINK)
            if b in self.head.image.brokers
        ]

    def link_brokers(self) -> Collection[int]:
        return LINK

    async def wait_changed(self, *, timeout: float) -> None:
        await asyncio.sleep(min(timeout, 0.05))

    async def wait_until(self, predicate: Callable[[ImageView], bool], *, timeout: float) -> bool:
        return await self.port.wait_until(predicate, timeout=timeout)

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        await self.head.operations.reassign(wanted, timeout=timeout)

    async def alter_isr(
        self, wanted: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self.head.operations.alter_isr(wanted, timeout=timeout)

    async def elect_preferred(
        self, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self.head.operations.elect_preferred(tps, timeout=timeout)

    async def fence_broker(self, broker_id: int, broker_epoch: int, *, timeout: float) -> bool:
        return await self.head.operations.fence_broker(broker_id, broker_epoch, timeout=timeout)

    async def move_fence(self, tps: Collection[TopicPartition], origin: int, *, timeout: float) -> None: ...

    async def move_done(self, tps: Collection[TopicPartition], origin: int, *, timeout: float) -> None: ...

    async def adopt(self, tps: Collection[TopicPartition]) -> None: ...


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kafka(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[KafkaCluster]:
    """Two real brokers, whose controller balances leaders every second."""
    spec = KafkaClusterSpec(
        name="target",
        brokers=2,
        properties={
            "broker.session.timeout.ms": "6000",
            "auto.leader.rebalance.enable": "true",
            "leader.imbalance.check.interval.seconds": str(REBALANCE_SECONDS),
        },
    )
    async with KafkaCluster(spec, tmp_path_factory.mktemp("link-brokers")) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(kafka: KafkaCluster, unique_topic: Callable[[str], str]) -> AsyncIterator[Fleet]:
    made = Fleet(kafka, unique_topic("m")[:60])
    try:
        for member in made.members.values():
            await member.up()
        await made.until(
            lambda: all(b in made.head.image.brokers and not made.head.image.brokers[b].fenced for b in LINK)
        )
        yield made
    finally:
        await made.close()


async def test_leaders_move_one_returns_and_both_hand_over_what_was_never_closed(fleet: Fleet) -> None:
    """Shape D from the creation to the hand-over, each partition led by another link broker."""
    await fleet.create(900, 901)
    first, second = fleet.tps
    assert [fleet.partition(tp).leader for tp in fleet.tps] == [900, 901]

    # Leadership by order and election.
    started = time.monotonic()
    moved = await fleet.plan({first: (901, 900)})
    print(f"\nplanned move, two steps: {(time.monotonic() - started - COPIES_LOOKED_AT) * 1000:.1f} ms")
    assert [type(step) for step in moved[first]] == [Reassign, ElectPreferred]
    assert is_open(fleet.partition(first), TARGETS[0], LINK)

    # Fenced in its name: leadership leaves it at once, and the controller's own balancing does not bring it back.
    broker = fleet.head.image.brokers[901]
    await fleet.members[901].die()
    fleet.dead.add(901)
    started = time.monotonic()
    assert await fleet.head.operations.fence_broker(901, broker.epoch)
    await fleet.until(lambda: all(fleet.partition(tp).leader == 900 for tp in fleet.tps))
    print(f"\nfailover by WantFence: {(time.monotonic() - started) * 1000:.1f} ms")
    assert fleet.head.image.brokers[901].cordoned_log_dirs, "or placement would use it"
    assert all(fleet.partition(tp).isr == (900,) for tp in fleet.tps)

    await fleet.members[901].up()
    fleet.dead.clear()
    await fleet.until(lambda: not fleet.head.image.brokers[901].fenced)
    assert fleet.head.image.brokers[901].epoch == broker.epoch, "the same incarnation, amended"
    await fleet.plan(dict.fromkeys(fleet.tps, (900, 901)))
    assert {frozenset(fleet.partition(tp).isr) for tp in fleet.tps} == {frozenset({900, 901})}
    await asyncio.sleep(2.5 * REBALANCE_SECONDS)
    assert [fleet.partition(tp).leader for tp in fleet.tps] == [900, 900]
    # Because it stands first: with another one of the ISR there, the controller elects that by itself.
    await fleet.head.operations.reassign({first: (901, 900, 1, 2)})
    await fleet.until(lambda: fleet.partition(first).leader == 901, 4 * REBALANCE_SECONDS)
    await fleet.plan({first: (900, 901)})

    await fleet.plan({second: (901, 900)})
    assert [fleet.partition(tp).leader for tp in fleet.tps] == [900, 901]
    await fleet.open()
    print(f"hand-over from D, two leaders: {await fleet.hand_over() * 1000:.1f} ms")


async def test_one_is_added_one_removed_and_unregistered_and_the_rest_hands_over(fleet: Fleet) -> None:
    """D is laundered into P; one that was unregistered while it was listed is in nobody's way."""
    await fleet.create(900, 901)
    steps = await fleet.plan(dict.fromkeys(fleet.tps, (900, 901, 902)))
    assert [type(step) for step in steps[fleet.tps[0]]] == [Reassign, CancelReassignment, Reassign, AlterIsr]
    for tp in fleet.tps:
        assert sorted(fleet.partition(tp).isr) == [900, 901, 902]
        assert (fleet.partition(tp).adding, fleet.partition(tp).removing) == ((), ())
    # A cancel by somebody finds nothing to cancel: the copies are plain replicas now.
    await fleet.head.operations.reassign(dict.fromkeys(fleet.tps))

    await fleet.plan(dict.fromkeys(fleet.tps, (900, 902)))
    assert all(fleet.partition(tp).removing == (901,) for tp in fleet.tps)
    assert all(901 not in fleet.partition(tp).isr for tp in fleet.tps)
    await fleet.members[901].die()
    await fleet.head.channel.call("unregister_broker", {"broker_id": 901}, timeout=10, idempotent=True)
    await fleet.until(lambda: 901 not in fleet.head.image.brokers)
    # It is still listed, and leadership moves around it.
    await fleet.plan({fleet.tps[0]: (902, 900)})
    assert fleet.partition(fleet.tps[0]).leader == 902
    assert 901 in fleet.partition(fleet.tps[0]).replicas

    await fleet.open()
    assert all(fleet.partition(tp).removing == (900, 901, 902) for tp in fleet.tps)
    print(f"\nhand-over from P, one unregistered: {await fleet.hand_over() * 1000:.1f} ms")


@pytest.mark.slow
async def test_a_swap_drops_one_that_is_gone_and_a_revoke_leaves_all_open(fleet: Fleet) -> None:
    await fleet.create(900, 901)
    first = fleet.tps[0]
    await fleet.members[901].die()
    await fleet.head.channel.call("unregister_broker", {"broker_id": 901}, timeout=10, idempotent=True)
    await fleet.until(lambda: 901 not in fleet.head.image.brokers)
    assert all(fleet.partition(tp).leader == 900 for tp in fleet.tps)
    steps = await fleet.plan(dict.fromkeys(fleet.tps, (900, 902)))
    print(f"\nswap out of D: {[type(step).__name__ for step in steps[first]]}")
    assert all(fleet.partition(tp).replicas[0] == 900 for tp in fleet.tps)
    assert all(901 not in fleet.partition(tp).replicas for tp in fleet.tps)

    await fleet.open()
    before = {tp: fleet.partition(tp) for tp in fleet.tps}
    await fleet.port.revoke(fleet.tps, timeout=10)
    for tp in fleet.tps:
        await fleet.until(lambda tp=tp: fleet.partition(tp).partition_epoch == before[tp].partition_epoch + 2)  # type: ignore[misc]
        assert is_open(fleet.partition(tp), TARGETS[tp.partition], LINK)
        assert fleet.partition(tp).leader_epoch == before[tp].leader_epoch
    await fleet.hand_over()


async def test_the_balancer_spreads_fails_over_and_takes_back(fleet: Fleet) -> None:
    await fleet.create(900)
    balancer = Balancer(fleet)
    running = asyncio.ensure_future(balancer.run())
    try:
        started = time.monotonic()
        await fleet.until(
            lambda: (
                all(len(fleet.partition(tp).isr) == 3 for tp in fleet.tps)
                and len({fleet.partition(tp).leader for tp in fleet.tps}) == 2
            )
        )
        print(f"\none to three link brokers, two partitions: {time.monotonic() - started:.2f} s")
        victim = max(fleet.partition(tp).leader for tp in fleet.tps)
        await fleet.members[victim].die()
        started = time.monotonic()
        fleet.dead.add(victim)
        await fleet.until(
            lambda: all(
                fleet.partition(tp).leader not in (-1, victim) and victim not in fleet.partition(tp).isr
                for tp in fleet.tps
            )
        )
        print(f"failover by the balancer: {(time.monotonic() - started) * 1000:.1f} ms")
        await fleet.members[victim].up()
        fleet.dead.clear()
        await fleet.until(lambda: all(victim in fleet.partition(tp).isr for tp in fleet.tps))
        assert not balancer.trouble
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await fleet.open()
    await fleet.hand_over()
