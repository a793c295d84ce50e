"""Stock brokers follow a link broker that took a partition over from them: they cut what nobody was acknowledged, wait while
the switch lasts, and have the other cluster's bytes then, under the epochs of their own log.

The link broker is its parts: a membership, the followers' side and a fetcher of the other cluster. Who decides when is the
test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.followers import FollowerServer
from fetcher.link_fetcher import LinkFetcher
from fetcher.source_ports import FetchLimits
from fetcher.spec import MirrorSpec
from lab.clusters.kafka_cluster import KafkaCluster
from linker.membership import AdvertisedListener, TargetCluster
from tests.fakes.batches import BatchInfo, build_batch, parse_batches
from tests.fetcher.rig import Events
from tests.real.test_membership import Member, make_member
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.frames.buffers import FramePool
from wire.frames.fetch import FetchPartition, FetchRequest, parse_fetch_request
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.offset_requests import parse_list_offsets, parse_offset_for_leader_epoch
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage
from wire.server.listener import Exchange, Listener, ListenerInfo, start_listener

UniqueTopic = Callable[[str], str]
__all__ = ["make_member"]


class Written(Events):
    """Leader epochs are in the state as soon as they are known."""

    def source_epoch(self, tp: TopicPartition, epoch: int, start_offset: int) -> bool:
        super().source_epoch(tp, epoch, start_offset)
        return False


class TakenPartition:
    """A partition of the owner's cluster, and the same of the other one."""

    def __init__(
        self, kafka: KafkaCluster, owner: Cluster, other: Cluster, target: TargetCluster, tp: TopicPartition
    ) -> None:
        self.kafka, self.owner, self.other, self.target, self.tp = kafka, owner, other, target, tp
        self.directory = MirrorDirectory()
        self.events = Written()
        self.server = FollowerServer(
            self.directory, lambda: target.image, target.broker_id, switching=lambda _key, _index: True
        )
        self.directory.listeners.append(self.server.mirror_added)
        self.fetcher = LinkFetcher(
            "link",
            other,
            MemoryBudget(32 << 20),
            self.directory,
            self.events,
            open_connection=other.open_connection,
            client_id="linker",
            limits=FetchLimits(max_wait_ms=100),
        )

    def dispatch(self, exchange: Exchange) -> None:
        frame, at, version = exchange.frame, exchange.body_offset, exchange.header.api_version
        match exchange.header.api_key:
            case 1:
                self.server.handle_fetch(exchange, parse_fetch_request(frame, at, version))
            case 2:
                self.server.handle_list_offsets(exchange, parse_list_offsets(frame, at, version))
            case 23:
                request = parse_offset_for_leader_epoch(frame, at, version)
                self.server.handle_offset_for_leader_epoch(exchange, request)

    @property
    def partition(self) -> PartitionImage:
        return self.target.image.topics_by_name[self.tp.topic].partitions[self.tp.partition]

    async def until(self, condition: Callable[[], bool], timeout: float = 40.0) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(self.state()) from None

    def state(self) -> str:
        ends = {broker: self.end(broker) for broker in (1, 2)}
        lines = [f"{self.partition}", f"ends {ends}, {self.events.failures}"]
        for copy in self.directory:
            followers = {replica: one.fetch_offset for replica, one in copy.followers.items()}
            lines.append(f"{copy} {copy.trouble} {copy.failed} {followers} {copy.spec}")
            lines += [
                f"{one.position} {one.followers} {one.fetcher} {one.wants_data}" for one in copy.cursors
            ]
        return "\n".join(lines)

    async def seen(self, condition: Callable[[], bool]) -> None:
        await self.target.metadata.wait_for(lambda _: True if condition() else None, 30)

    async def lead(self, *replicas: int) -> None:
        """These replicas, the first of which leads then."""
        await self.target.operations.reassign({self.tp: replicas})
        await self.seen(lambda: list(self.partition.replicas) == list(replicas))
        assert await self.target.operations.elect_preferred([self.tp]) == {self.tp: 0}
        await self.seen(lambda: self.partition.leader == replicas[0])

    async def produce(self, cluster: Cluster, records: bytes, acks: int = -1) -> int:
        """Its base offset. A leader that was only just elected is asked again."""
        async with asyncio.timeout(60):
            while True:
                await cluster.refresh({self.tp.topic}, timeout=20)
                leader = cluster.leader(self.tp)
                if leader is None:
                    continue
                data = [
                    {
                        "name": self.tp.topic,
                        "partition_data": [{"index": self.tp.partition, "records": records}],
                    }
                ]
                answer = await cluster.call(
                    "produce",
                    {"transactional_id": None, "acks": acks, "timeout_ms": 10_000, "topic_data": data},
                    node_id=leader.id,
                    timeout=20,
                    version=9,
                )
                (told,) = answer.responses[0].partition_responses
                if int(told.error_code) not in (3, 5, 6):
                    assert int(told.error_code) == 0
                    return int(told.base_offset)
                await asyncio.sleep(0.05)

    async def join(self, end: int) -> None:
        """In the ISR, as a replica that has everything up to the end."""
        await self.target.operations.reassign({self.tp: [1, 2, self.target.broker_id]})
        await self.seen(lambda: self.target.broker_id in self.partition.replicas)
        while self.target.broker_id not in self.partition.isr:
            asked = FetchPartition(0, self.partition.leader_epoch, end, -1, 0, 1 << 20)
            request = FetchRequest(
                version=17,
                replica_id=self.target.broker_id,
                replica_epoch=self.target.image.brokers[self.target.broker_id].epoch,
                max_wait_ms=100,
                session_epoch=-1,
                topics=[(self.target.image.topics_by_name[self.tp.topic].id, [asked])],
            )
            await self.owner.fetch(self.partition.leader, request, timeout=20)

    def log(self, broker: int) -> list[tuple[BatchInfo, bytes]]:
        """What a broker has on its disk."""
        data = b"".join(
            path.read_bytes() for path in sorted(self.kafka.partition_dir(broker, self.tp).glob("*.log"))
        )
        return [(one, data[one.position : one.position + one.size]) for one in parse_batches(data)]

    def end(self, broker: int) -> int:
        return max((one.last_offset + 1 for one, _ in self.log(broker)), default=0)


@asynccontextmanager
async def connected(kafka: KafkaCluster, name: str) -> AsyncIterator[Cluster]:
    pool = FramePool(4 << 20)
    cluster = Cluster(
        name,
        parse_bootstrap_servers(kafka.bootstrap),
        ClientSecurity.plaintext(),
        "test",
        connection_options={"alloc": pool.take},
    )
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()


async def create(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    answer = await cluster.call(
        "create_topics",
        {
            "topics": [
                {
                    "name": topic,
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": replicas}],
                    "configs": [{"name": "min.insync.replicas", "value": "1"}],
                }
            ],
            "timeout_ms": 30_000,
            "validate_only": False,
        },
        timeout=40,
    )
    assert not int(answer.topics[0].error_code), answer


async def delete(cluster: Cluster, topic: str) -> None:
    asked = {"topics": [{"name": topic, "topic_id": None}], "topic_names": [topic], "timeout_ms": 30_000}
    await cluster.call("delete_topics", asked, timeout=40)


def batch(records: int, size: int, sequence: int = -1) -> bytes:
    """Of now, or retention would take it. With a sequence number one that is sent again is written once."""
    who = {} if sequence < 0 else {"producer_id": 4242, "producer_epoch": 0, "base_sequence": sequence}
    return build_batch(records, value_size=size, timestamp=int(time.time() * 1000), **who)


def bare(raw: bytes) -> bytes:
    """Without its leader epoch."""
    return raw[:12] + raw[16:]


async def test_real_brokers_follow_who_took_their_partition_over(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: UniqueTopic,
    make_member: Callable[..., Member],
) -> None:
    topic = unique_topic("taken")
    tp = TopicPartition(topic, 0)
    links: list[Listener] = []

    async with connected(target_cluster, "owner") as owner, connected(source_cluster, "other") as other:
        holder: list[TakenPartition] = []
        listener = await start_listener(
            "127.0.0.1",
            0,
            ListenerInfo("PLAINTEXT", "PLAINTEXT"),
            ListenerSecurity.from_properties({}),
            lambda exchange: holder[0].dispatch(exchange),
        )
        links.append(listener)
        member = make_member(
            target_cluster, listener=AdvertisedListener("PLAINTEXT", "127.0.0.1", listener.port, 0)
        )
        target = await member.up()
        one = TakenPartition(target_cluster, owner, other, target, tp)
        holder.append(one)
        running = asyncio.ensure_future(one.fetcher.run())
        try:
            await create(owner, topic, [1, 2])
            await create(other, topic, [1])
            await one.seen(lambda: topic in target.image.topics_by_name)
            # The same log in both clusters, in the owner's under two leader epochs.
            written = [batch(3, 200 + n, 3 * n) for n in range(20)]
            for n, records in enumerate(written):
                if n == 8:
                    await one.lead(2, 1)
                assert await one.produce(owner, records) == await one.produce(other, records) == 3 * n
            end = 60
            own_epochs = [(info.leader_epoch, info.base_offset) for info, _ in one.log(2)]
            history = [
                entry for n, entry in enumerate(own_epochs) if not n or own_epochs[n - 1][0] < entry[0]
            ]
            assert [start for _, start in history] == [0, 24]
            await one.join(end)
            for _ in range(3):  # of these the link broker never had anything: nobody's acks=all was answered
                await one.produce(owner, batch(2, 50), acks=1)
            await one.until(lambda: one.end(1) == one.end(2) == end + 6)
            # Taken over: first among the replicas, elected, alone in the ISR.
            await one.lead(900, 1, 2)
            assert await target.operations.alter_isr({tp: [900]}) == {tp: 0}
            await one.seen(lambda: list(one.partition.isr) == [900])
            epoch = one.partition.leader_epoch
            known = LeaderEpochs.of(epoch, end, history)
            (copy,) = one.fetcher.add([spec(one, known)])
            await one.until(lambda: {1, 2} <= copy.followers.keys())
            await one.until(lambda: one.end(1) == one.end(2) == end)
            asked = {1: end, 2: end}  # a broker truncates first, and asks some time after it
            await one.until(lambda: {r: p.fetch_offset for r, p in copy.followers.items()} == asked)
            await asyncio.sleep(1.0)
            assert {replica: p.fetch_offset for replica, p in copy.followers.items()} == asked
            assert not other.leader(tp) or copy.high_watermark == end
            # The other cluster leads: it goes on there, and its brokers follow.
            for n in range(10):
                await one.produce(other, batch(4, 300, end + 4 * n))
            one.fetcher.release([tp])
            await one.until(lambda: one.end(1) == one.end(2) == end + 40)
            # One that has nothing copies it all, under the epochs that it had in its cluster.
            await target.operations.reassign({tp: [900, 1, 2, 3]})
            await one.until(lambda: 3 in copy.followers and copy.followers[3].fetch_offset == end + 40, 60)
            logs = {broker: one.log(broker) for broker in (1, 2, 3)}
            assert [raw for _, raw in logs[1]] == [raw for _, raw in logs[2]] == [raw for _, raw in logs[3]]
            assert [info.leader_epoch for info, _ in logs[3]] == [
                known.at(info.base_offset) for info, _ in logs[3]
            ]
            assert {info.leader_epoch for info, _ in logs[3]} == {history[0][0], history[1][0], epoch}
            there = TakenPartition(source_cluster, owner, other, target, tp)
            assert [bare(raw) for _, raw in logs[1]] == [bare(raw) for _, raw in there.log(1)]
            assert one.events.failures == {} and not one.events.truncations
            assert list(one.partition.isr) == [900]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await delete(owner, topic)
            await delete(other, topic)
            await member.stop()
            one.server.close()
            await listener.close()


def spec(one: TakenPartition, known: LeaderEpochs) -> MirrorSpec:
    values: dict[str, Any] = {
        "link": "link",
        "topic": one.tp.topic,
        "partition": 0,
        "topic_id": one.target.image.topics_by_name[one.tp.topic].id,
        "source_topic_id": one.other.topics[one.tp.topic].topic_id,
        "session_epoch": known.own,
        "start_offset": 0,
        "target_replicas": (1, 2, 3),
        "taken": known,
        "held": True,
    }
    return MirrorSpec(**values)
