"""Partitions taken over from real brokers and given back: elections, eligible leaders and configs on a real controller.

The link broker here is a member that follows at the log's end and serves nobody, which is enough for these steps: writes
wait for a leader that answers. `test_switch` has the whole of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from controller.decide.reverse import reverse_name
from controller.judge.alignment import ReplicaPosition
from controller.judge.hand_over import find
from controller.judge.take_over import held_by_link
from controller.phases import Phase
from controller.state import Link, MirrorPartition, MirrorTopic
from fleet.stored_controller import StoredController
from lab.clusters.kafka_cluster import KafkaCluster
from linker.membership import AdvertisedListener, Identity, TargetCluster
from linker.switch import take_over as steps
from linker.switch.owner import OwnerCluster
from linker.switch.records import TakeOverRecords
from linker.switch.take_over import TakeOver
from tests.controller.memory_store import MemoryStore
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.fetch_request import FetchPartition, FetchRequest
from wire.frames.types import TopicPartition

StartCluster = Callable[..., Awaitable[KafkaCluster]]
OURS = frozenset({800})
REAL = {1, 2}
CONFIGS = {"min.insync.replicas": "2", "retention.ms": "86400000"}


class Follower:
    """Link broker 800 as a follower of every leader: what comes it has, and it asks for what is next."""

    def __init__(self, member: TargetCluster, tps: Collection[TopicPartition]) -> None:
        self.member = member
        self.at = dict.fromkeys(tps, 0)
        self.stopped: set[TopicPartition] = set()

    async def run(self) -> None:
        while True:
            by_leader: dict[int, list[TopicPartition]] = {}
            for tp in self.at:
                partition = find(self.member.image, tp)
                if tp not in self.stopped and partition is not None and partition.leader in REAL:
                    by_leader.setdefault(partition.leader, []).append(tp)
            with contextlib.suppress(LinkerError):
                await asyncio.gather(*(self._fetch(leader, tps) for leader, tps in by_leader.items()))
            await asyncio.sleep(0.002)

    async def _fetch(self, leader: int, tps: list[TopicPartition]) -> None:
        connection = await self.member.cluster.connection(leader)
        topics: dict[str, list[FetchPartition]] = {}
        for tp in tps:
            topics.setdefault(tp.topic, []).append(
                FetchPartition(tp.partition, -1, self.at[tp], -1, 0, 1 << 20)
            )
        request = FetchRequest(12, replica_id=800, max_wait_ms=20, min_bytes=1, topics=list(topics.items()))
        frame, response = await connection.fetch(request, timeout=5)
        for one in response.partitions:
            tp = TopicPartition(str(one.key), one.index)
            if one.error == 0 and one.records_end > one.records_start and tp not in self.stopped:
                records = bytes(frame[one.records_start : one.records_end])
                self.at[tp] = max(self.at[tp], end_of(records))

    # linker.switch.owner.SyncFollower and RealFollowers

    async def stop(self, tps: Collection[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, int]:
        self.stopped.update(tps)
        return {tp: self.at[tp] for tp in tps}

    def go_on(self, tps: Collection[TopicPartition]) -> None:
        self.stopped.difference_update(tps)

    def positions(
        self, tps: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        """They were in the ISR, and nothing came since: they have all that was acknowledged."""
        brokers = self.member.image.brokers
        return {
            tp: {b: ReplicaPosition(self.at[tp], brokers[b].epoch) for b in REAL if not brokers[b].fenced}
            for tp in tps
        }


def end_of(records: bytes) -> int:
    """One more than the last offset of whole batches."""
    at = end = 0
    while at + 61 <= len(records):
        base, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            break
        end = base + int(struct.unpack_from(">i", records, at + 23)[0]) + 1
        at += 12 + length
    return end


class Rig:
    def __init__(
        self,
        kafka: KafkaCluster,
        member: TargetCluster,
        take_over: TakeOver,
        tps: list[TopicPartition],
        controller: StoredController,
    ) -> None:
        self.kafka, self.member, self.take_over, self.tps, self.controller = (
            kafka,
            member,
            take_over,
            tps,
            controller,
        )

    def partitions(self) -> list[Any]:
        return [find(self.member.image, tp) for tp in self.tps]

    async def until(self, condition: Callable[[Any], bool], timeout: float = 30.0) -> float:
        """All partitions fulfil it; seconds that it took."""
        began = time.monotonic()
        assert await self.member.metadata.becomes(
            lambda _: all(map(condition, self.partitions())), timeout
        ), self.partitions()
        return time.monotonic() - began

    async def measured(self) -> dict[str, float]:
        """Take over; milliseconds of each step, as the metadata log shows it."""
        began = time.monotonic()
        taking = asyncio.create_task(self.take_over.take(["t"], timeout=10))
        took: dict[str, float] = {}
        for name, condition in (
            ("reorder", lambda one: one.replicas[0] == 800),
            ("election", lambda one: one.leader == 800),
            ("shrink", lambda one: held_by_link(one, OURS)),
        ):
            await self.until(condition)
            took[name] = (time.monotonic() - began) * 1000 - sum(took.values())
        await taking
        took["all"] = (time.monotonic() - began) * 1000
        return {name: round(ms) for name, ms in took.items()}


@asynccontextmanager
async def rig_of(start_cluster: StartCluster, partitions: int) -> AsyncIterator[Rig]:
    kafka = await start_cluster(name="source", brokers=2, controllers=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    [made] = admin.create_topics([NewTopic("t", partitions, 2, config=CONFIGS)]).values()
    await asyncio.to_thread(made.result, 30)
    security = ClientSecurity.plaintext()
    member = TargetCluster(
        Cluster("source", parse_bootstrap_servers(kafka.bootstrap), security, "linker-test"),
        controller_security=security,
        identity=Identity.create(800),
        save=_forget,
        listeners=[AdvertisedListener("PLAINTEXT", "127.0.0.1", 9, 0)],
    )
    running = asyncio.ensure_future(member.run())
    tps = [TopicPartition("t", index) for index in range(partitions)]
    follower = Follower(member, tps)
    following = asyncio.ensure_future(follower.run())
    try:
        await member.join(60)
        await member.serve(30)
        controller = await linked(tps)
        take_over = TakeOver(
            TakeOverRecords(controller, "l"),
            OwnerCluster(member, lambda: OURS),
            follower,
            follower,
        )
        rig = Rig(kafka, member, take_over, tps, controller)
        await rig.until(lambda one: one is not None)
        await member.operations.reassign({tp: (*find(member.image, tp).replicas, 800) for tp in tps})
        await rig.until(lambda one: 800 in one.isr and not one.adding, 60)
        yield rig
    finally:
        for task in (following, running):
            task.cancel()
        await asyncio.gather(following, running, return_exceptions=True)
        await member.close()
        await member.cluster.close()


async def _forget(_identity: Identity) -> None: ...


async def linked(tps: list[TopicPartition]) -> StoredController:
    controller = await StoredController.open(MemoryStore())
    await controller.create_link("l", "s", {})
    back = Link(name=reverse_name("l"), source_cluster_id="t", properties={}, reverse_of="l")
    mirror = MirrorTopic(
        link="l", topic="t", topic_id=b"\x07" * 16, source_topic_id=None, partitions=len(tps)
    )
    states = [
        MirrorPartition(
            link="l", topic="t", partition=tp.partition, phase=Phase.ACTIVE, session_epoch=0, start_offset=0
        )
        for tp in tps
    ]
    await controller.decide(lambda _: ([back, mirror, *states], None))
    return controller


class Writer:
    """An idempotent librdkafka producer; each record's delivery, and how long the longest took."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 300,
                "log_level": 0,
            }
        )
        self._partitions = partitions
        self.sent = 0
        self.errors: list[str] = []
        self.acked = 0
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            self._producer.produce(
                "t",
                str(self.sent),
                partition=self.sent % self._partitions,
                on_delivery=self._told(time.monotonic()),
            )
            self.sent += 1
            self._producer.poll(0)
            await asyncio.sleep(0.005)

    def _told(self, sent: float) -> Callable[[Any, Any], None]:
        def told(error: Any, _message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            self.acked += 1
            self.longest = max(self.longest, time.monotonic() - sent)

        return told

    async def flush(self) -> int:
        return await asyncio.to_thread(self._producer.flush, 60)


def read_all(bootstrap: str, partitions: int) -> dict[int, list[int]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "enable.partition.eof": True}
    )
    found: dict[int, list[int]] = {}
    try:
        consumer.assign([confluent_kafka.TopicPartition("t", index, 0) for index in range(partitions)])
        ended: set[int] = set()
        deadline = time.monotonic() + 60
        while len(ended) < partitions and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                ended.add(message.partition())
            else:
                found.setdefault(message.partition(), []).append(int(message.value()))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.slow), 100])
async def test_there_and_back_under_a_producer(
    start_cluster: StartCluster, partitions: int, record_property: Callable[[str, object], None]
) -> None:
    async with rig_of(start_cluster, partitions) as rig:
        writer = Writer(rig.kafka.bootstrap, partitions)
        writing = asyncio.create_task(writer.run())
        await asyncio.sleep(2)
        took = await rig.measured()
        states = rig.controller.image.topic_partitions(reverse_name("l"), "t")
        assert {state.phase for state in states} == {Phase.TAKEN}
        before = writer.acked
        await asyncio.sleep(0.5)
        assert writer.acked == before, "somebody acknowledges what link brokers hold"
        began = time.monotonic()
        await rig.take_over.give_back(["t"], timeout=20)
        took["back"] = round((time.monotonic() - began) * 1000)
        record_property("ms", took)
        await rig.until(
            lambda one: one.leader in REAL and one.replicas[-1] == 800 and one.replicas[0] in REAL
        )
        assert (reverse_name("l"), "t") not in rig.controller.image.mirrors
        assert rig.member.image.configs[2, "t"] == CONFIGS
        await asyncio.sleep(2)
        writing.cancel()
        assert await writer.flush() == 0
        assert not writer.errors
        found = await asyncio.to_thread(read_all, rig.kafka.bootstrap, partitions)
        wanted: dict[int, list[int]] = {}
        for number in range(writer.sent):
            wanted.setdefault(number % partitions, []).append(number)
        assert found == wanted
        print(f"\n{partitions} partitions: {took} ms; {writer.sent} records, longest {writer.longest:.2f} s")


async def test_no_real_broker_is_elected_while_it_is_taken(start_cluster: StartCluster) -> None:
    async with rig_of(start_cluster, 4) as rig:
        await rig.take_over.take(["t"], timeout=10)
        seen: list[Any] = []
        unsubscribe = rig.member.metadata.subscribe(lambda *_: seen.extend(rig.partitions()))
        for _ in range(2):
            await rig.member.operations.fence_broker(800, rig.member.registration.broker_epoch)
            await rig.until(lambda one: one.leader == -1)
            await rig.until(lambda one: one.leader == 800)  # with its next heartbeat
        unsubscribe()
        assert any(one.leader == -1 for one in seen)
        for one in seen:
            assert not REAL.intersection({one.leader, *one.isr, *one.elr, *one.last_known_elr}), one
        await rig.take_over.give_back(["t"], timeout=20)
        await rig.until(lambda one: one.leader in REAL)


@pytest.mark.slow
async def test_below_min_insync_replicas_it_is_not_taken(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that leave the ISR stay eligible: without the configs of a take-over it does not count as one."""
    monkeypatch.setattr(steps, "TAKEN_CONFIGS", {"unclean.leader.election.enable": "false"})
    async with rig_of(start_cluster, 2) as rig:
        with pytest.raises(LinkerError, match="not possible"):
            await rig.take_over.take(["t"], timeout=4)
        assert all(one.leader == 800 and set(one.elr) == REAL for one in rig.partitions())
        await rig.take_over.give_back(["t"], timeout=20)
        await rig.until(lambda one: one.leader in REAL and not one.elr)
        assert rig.member.image.configs[2, "t"] == CONFIGS
