"""A whole fetcher on real sockets: fake source cluster, manager, listener, fake followers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.followers import FollowerServer
from fetcher.link_fetcher import LinkFetcher
from fetcher.partition_copy import PartitionCopy
from fetcher.source_fetcher import SourceFetcher
from fetcher.source_ports import FetchLimits
from fetcher.spec import MirrorSpec
from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FakeFollower, FollowerLog
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.frames.buffers import FramePool
from wire.frames.fetch import parse_fetch_request
from wire.frames.offset_requests import parse_list_offsets, parse_offset_for_leader_epoch
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from wire.server.listener import Exchange, ListenerInfo, start_listener

BROKER_ID = 900
SESSION_EPOCH = 7


class Events:
    """Records what the fetcher reports."""

    def __init__(self) -> None:
        self.failures: dict[TopicPartition, str] = {}
        self.epochs: list[tuple[TopicPartition, int, int]] = []
        self.damages: list[tuple[TopicPartition, str]] = []
        self.truncations: list[tuple[TopicPartition, int, tuple[int, ...]]] = []
        self.losses: list[tuple[TopicPartition, int]] = []
        self.availability: list[tuple[TopicPartition, bool]] = []
        #: Writes down the leader epochs of a partition.
        self.write: Callable[[TopicPartition], None] = lambda _tp: None

    def failed(self, tp: TopicPartition, reason: str) -> None:
        self.failures[tp] = reason

    def source_damaged(self, tp: TopicPartition, reason: str) -> None:
        self.damages.append((tp, reason))

    def source_epoch(self, tp: TopicPartition, epoch: int, start_offset: int) -> bool:
        self.epochs.append((tp, epoch, start_offset))
        self.write(tp)
        return True

    def source_truncated(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        self.losses.append((tp, offset))
        self.truncations.append((tp, offset, replicas))
        self.write(tp)

    def truncation_seen(self, tp: TopicPartition, offset: int, replicas: tuple[int, ...]) -> None:
        self.truncations.append((tp, offset, replicas))

    def source_unavailable(self, tp: TopicPartition, since: float) -> None:
        self.availability.append((tp, False))

    def source_available(self, tp: TopicPartition) -> None:
        self.availability.append((tp, True))


def fill(source: FakeCluster, count: int, *, partition: int = 0, size: int = 1000) -> None:
    """So many batches more in a partition of the topic `t`."""
    for _ in range(count):
        source.add("t", partition, records=2, value_size=size)


class Rig:
    def __init__(
        self,
        source: FakeCluster,
        *,
        replicas: tuple[int, ...] = (1, 2, 3),
        budget: int = 32 << 20,
        rack: str | None = None,
        limits: FetchLimits | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        self.source = source
        self.replicas = replicas
        self.events = Events()
        self.budget = MemoryBudget(budget)
        self.directory = MirrorDirectory()
        self.image = ClusterImage()
        for replica in replicas:
            self.image.brokers[replica] = BrokerImage(
                replica, 100 + replica, bytes(16), None, {}, False, False, ()
            )
        pool = FramePool(4 << 20)
        self.cluster = Cluster(
            "source",
            source.bootstrap,
            ClientSecurity.from_properties({}),
            "linker",
            connect_timeout=2.0,
            connection_options={"alloc": pool.take},
            topic_prefix=prefix,
        )
        self.manager = LinkFetcher(
            "link",
            self.cluster,
            self.budget,
            self.directory,
            self.events,
            open_connection=self.cluster.open_connection,
            client_id="linker",
            rack=rack,
            limits=limits or FetchLimits(max_wait_ms=100, request_timeout=2.0, reconnect_backoff=(0.02, 0.2)),
            **({"attach_grace": 0.2, "detach_after": 0.3, "deleted_after": 0.6} | options),
        )
        self.server = FollowerServer(self.directory, lambda: self.image, BROKER_ID)
        self.directory.listeners.append(self.server.mirror_added)
        self.events.write = lambda tp: asyncio.get_running_loop().call_soon(self.write_epochs, tp)
        self.followers: dict[int, FakeFollower] = {}
        self.port = 0
        self.tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        listener = await start_listener(
            "127.0.0.1",
            0,
            ListenerInfo("PLAINTEXT", "PLAINTEXT"),
            ListenerSecurity.from_properties({}),
            self._dispatch,
        )
        self.port = listener.port
        await self.cluster.connect(timeout=25)
        manager = asyncio.create_task(self.manager.run())
        try:
            yield self
        finally:
            for task in [*self.tasks, manager]:
                task.cancel()
            results = await asyncio.gather(*self.tasks, manager, return_exceptions=True)
            self.server.close()
            await listener.close()
            await self.cluster.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def write_epochs(self, tp: TopicPartition) -> None:
        copy = self.manager.partitions.get(tp)
        if copy is not None:
            copy.epochs_written(copy.source_epochs)

    def _dispatch(self, exchange: Exchange) -> None:
        key = exchange.header.api_key
        if key == 1:
            request = parse_fetch_request(exchange.frame, exchange.body_offset, exchange.header.api_version)
            self.server.handle_fetch(exchange, request)
            return
        parse, handle = {
            2: (parse_list_offsets, self.server.handle_list_offsets),
            23: (parse_offset_for_leader_epoch, self.server.handle_offset_for_leader_epoch),
        }[key]
        handle(exchange, parse(exchange.frame, exchange.body_offset, exchange.header.api_version))

    # --- mirrors and followers ---

    def add_image(self, topic: str, partitions: int, *, leader_epoch: int = SESSION_EPOCH) -> bytes:
        topic_id = ("t-" + topic).encode().ljust(16, b"\0")[:16]
        image = TopicImage(
            topic_id,
            topic,
            {
                i: PartitionImage(
                    i,
                    (BROKER_ID, *self.replicas),
                    (BROKER_ID,),
                    self.replicas,
                    (),
                    BROKER_ID,
                    leader_epoch,
                    1,
                )
                for i in range(partitions)
            },
        )
        self.image.topics_by_id[topic_id] = image
        self.image.topics_by_name[topic] = image
        return topic_id

    def spec(self, topic: str, partition: int, **changes: Any) -> MirrorSpec:
        found = self.source.topics[topic]
        values: dict[str, Any] = {
            "link": "link",
            "topic": topic,
            "partition": partition,
            "topic_id": self.image.topics_by_name[topic].id,
            "source_topic_id": found.topic_id,
            "session_epoch": SESSION_EPOCH,
            "start_offset": 0,
            "target_replicas": self.replicas,
        }
        return MirrorSpec(**(values | changes))

    def mirror(self, topic: str, partitions: int | None = None, **changes: Any) -> list[PartitionCopy]:
        count = partitions or len(self.source.topics[topic].partitions)
        self.add_image(topic, count)
        return self.manager.add([self.spec(topic, i, **changes) for i in range(count)])

    def follow(self, replica: int, *, start: bool = True, **options: Any) -> FakeFollower:
        """A follower of every mirrored partition."""
        logs = [
            FollowerLog(m.spec.topic, m.spec.topic_id, m.spec.partition, SESSION_EPOCH, m.spec.segment_bytes)
            for m in self.directory
        ]
        follower = FakeFollower(self.port, replica, 100 + replica, logs, **({"max_wait_ms": 100} | options))
        self.followers[replica] = follower
        if start:
            self.start(follower)
        return follower

    def follow_on(self, replica: int, logs: Iterable[FollowerLog]) -> FakeFollower:
        """A follower that has the logs of an earlier run."""
        follower = self.follow(replica, start=False)
        follower.logs = {log.key: log for log in logs}
        self.start(follower)
        return follower

    def start(self, follower: FakeFollower) -> None:
        self.tasks.append(asyncio.create_task(follower.run()))

    # --- checks ---

    def expected(self, topic: str, partition: int, start: int = 0) -> bytes:
        """The source's bytes with E0 for its leader epochs."""
        return b"".join(
            with_epoch(batch.data, SESSION_EPOCH)
            for batch in self.source.partition(topic, partition).log.batches
            if batch.info.last_offset >= start
        )

    def copied(self, follower: FakeFollower) -> bool:
        for log in follower.logs.values():
            source = self.source.partition(log.topic, log.index).log
            if log.end != source.high_watermark or log.high_watermark != source.high_watermark:
                return False
        return True

    def check(self, follower: FakeFollower) -> None:
        """Byte for byte, and nothing that a stock follower would mind."""
        assert follower.protocol_errors == [], f"replica {follower.replica_id}: {follower.protocol_errors}"
        for log in follower.logs.values():
            assert log.failed is None, f"{log.topic}-{log.index} failed on the follower: {log.failed}"
            assert log.data() == self.expected(log.topic, log.index, log.log_start), (
                f"{log.topic}-{log.index}"
            )

    async def settled(self, timeout: float = 25.0) -> None:
        """Every follower has everything, and it is the same."""
        await eventually(lambda: all(self.copied(f) for f in self.followers.values()), timeout, self.state)
        for follower in self.followers.values():
            self.check(follower)

    @property
    def fetchers(self) -> Mapping[tuple[int, int], SourceFetcher]:
        return self.manager._fetchers.at_work

    def state(self) -> str:
        lines = [f"budget {self.budget.used} fetchers {self.fetchers}"]
        for mirror in self.directory:
            topic = self.source.topics.get(mirror.spec.topic)
            end = topic and topic.partitions[mirror.spec.partition].log.log_end_offset
            lines.append(f"{mirror} failed={mirror.failed} trouble={mirror.trouble} source_end={end}")
            lines += [
                f"   cursor {x.window.start} to {x.position}, {x.window.bytes} bytes, {x.followers}, "
                f"{x.fetcher}, suspended={x.suspended}"
                for x in mirror.cursors
            ]
            for replica, follower in self.followers.items():
                log = follower.logs[mirror.spec.topic_id, mirror.spec.partition]
                lines += [f"   replica {replica}: end {log.end} hw {log.high_watermark} {log.failed}"]
        return "\n".join(lines)


def with_epoch(batch: bytes, epoch: int) -> bytes:
    return batch[:12] + epoch.to_bytes(4, "big") + batch[16:]


async def eventually(
    condition: Callable[[], bool], timeout: float = 25, state: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s\n{state()}")
        await asyncio.sleep(0.01)
