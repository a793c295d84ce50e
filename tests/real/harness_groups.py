"""Consumer groups on real clusters, small: one link, topics with numbered records, readers that say what they got."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka
from confluent_kafka.admin import NewTopic

from admin.client import AdminError
from admin.models import GroupDescription, GroupState, MirrorState, PromoteGroupsRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from tests.real.kafka_admin import kafka_admin
from wire.frames.types import TopicPartition

LINK = "old"
PATIENCE = 60.0


class Reader:
    """A member of a group, in a thread: commits what it has read, every half second and when it closes."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], client_id: str, **more: Any
    ) -> None:
        self.client_id = client_id
        self.got: list[tuple[TopicPartition, int, float]] = []
        self.errors: list[str] = []
        self.assigned: set[TopicPartition] = set()
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": client_id,
                "auto.offset.reset": "error",  # a reset would hide what this is about
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,  # by which it hears of a rebalance; 3 s by default, as other tests have it
                "fetch.wait.max.ms": 100,
                **more,
            }
        )
        self._topics = list(topics)
        self._thread = threading.Thread(target=self._run, name=client_id, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._consumer.subscribe(self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke)
        try:
            while not self._stopping.is_set():
                for message in self._consumer.consume(500, 0.1):
                    if message.error() is not None:
                        self.errors.append(str(message.error()))
                        continue
                    tp = TopicPartition(message.topic(), message.partition())
                    self.got.append((tp, message.offset(), time.monotonic()))
        finally:
            self._consumer.close()

    def _on_assign(self, _consumer: Any, partitions: Sequence[Any]) -> None:
        self.assigned.update(TopicPartition(one.topic, one.partition) for one in partitions)

    def _on_revoke(self, _consumer: Any, partitions: Sequence[Any]) -> None:
        self.assigned.difference_update(TopicPartition(one.topic, one.partition) for one in partitions)

    async def close(self) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join, 30)
        assert not self._thread.is_alive(), f"{self.client_id} does not close"


class GroupScene:
    """One link between the clusters, and what the tests of groups do with it."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, sidecar: SidecarProcess) -> None:
        self.source = source
        self.target = target
        self.sidecar = sidecar
        self.readers: list[Reader] = []
        self._producer = confluent_kafka.Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 5})
        self.produced: Counter[TopicPartition] = Counter()

    async def link(self, include: str, *options: str) -> None:
        """`options`: more of them, as NAME=VALUE."""
        more = [word for option in options for word in ("--option", option)]
        await self.sidecar.linker(
            "link",
            "create",
            LINK,
            "--bootstrap-servers",
            self.source.bootstrap,
            "--option",
            f"groups_include={include}",
            *more,
        )

    async def create(self, cluster: KafkaCluster, topic: str, partitions: int = 3) -> None:
        """A topic that no link knows of."""
        admin = await asyncio.to_thread(kafka_admin, cluster.bootstrap)
        [made] = admin.create_topics([NewTopic(topic, partitions, 2)]).values()
        await asyncio.to_thread(made.result, 20)

    async def topic(self, name: str, partitions: int = 3, *, mirror: bool = True) -> None:
        await self.create(self.source, name, partitions)
        self.write(name, partitions, 20)
        if mirror:
            await self.sidecar.linker("mirror", "create", name, "--link", LINK, "--replication-factor", "2")

    async def wait_active(self, *topics: str) -> None:
        def active(mirrors: Any) -> bool:
            states = {one.topic: one for one in mirrors}
            return all(
                name in states and states[name].state is MirrorState.ACTIVE and states[name].lag is not None
                for name in topics
            )

        await self.until("mirrors are active", lambda client: client.list_mirrors(LINK), active)

    def write(self, topic: str, partitions: int, each: int, bootstrap: str | None = None) -> None:
        """Numbered records, the same number to every partition."""
        producer = (
            self._producer
            if bootstrap is None
            else confluent_kafka.Producer({"bootstrap.servers": bootstrap})
        )
        for partition in range(partitions):
            tp = TopicPartition(topic, partition)
            for _ in range(each):
                producer.produce(topic, str(self.produced[tp]).encode(), partition=partition)
                self.produced[tp] += 1
        assert producer.flush(30) == 0

    def reader(
        self, cluster: KafkaCluster, group: str, topics: Sequence[str], client_id: str, **more: Any
    ) -> Reader:
        reader = Reader(cluster.bootstrap, group, topics, client_id, **more)
        self.readers.append(reader)
        return reader

    async def close(self) -> None:
        await asyncio.gather(*(reader.close() for reader in self.readers), return_exceptions=True)

    # --- waiting --------------------------------------------------------------------------------------------------

    async def ask(self, call: Callable[[Any], Any]) -> Any:
        def run() -> Any:
            with self.sidecar.client() as client:
                return call(client)

        return await asyncio.to_thread(run)

    async def until(
        self,
        what: str,
        call: Callable[[Any], Any],
        condition: Callable[[Any], bool],
        timeout: float = PATIENCE,
    ) -> Any:
        deadline = time.monotonic() + timeout
        found: Any = None
        while True:
            try:
                found = await self.ask(call)
                if condition(found):
                    return found
            except AdminError as error:
                found = error
            assert time.monotonic() < deadline, f"{what}: not within {timeout:.0f} s, last {found}"
            await asyncio.sleep(0.1)

    async def state(self, group: str, *states: GroupState, timeout: float = PATIENCE) -> GroupDescription:
        found: GroupDescription = await self.until(
            f"group {group} is {' or '.join(states)}",
            lambda client: client.describe_group(LINK, group),
            lambda one: one.state in states,
            timeout,
        )
        return found

    async def gated(self, group: str) -> GroupDescription:
        """Until it is held and the target has the source's offsets."""
        found: GroupDescription = await self.until(
            f"group {group} is held and synced",
            lambda client: client.describe_group(LINK, group),
            lambda one: one.state is GroupState.GATED and one.sync_age_ms is not None and one.difference == 0,
        )
        return found

    async def promote(self, *groups: str, **more: Any) -> None:
        request = PromoteGroupsRequest(groups=list(groups), **more)
        await self.ask(lambda client: client.promote_groups(LINK, request))

    async def waits(self, group: str, client_id: str) -> GroupDescription:
        """Until a client is in the group on the target, beside the gate."""
        found: GroupDescription = await self.until(
            f"{client_id} is in group {group} on the target",
            lambda client: client.describe_group(LINK, group),
            lambda one: client_id in {member.client_id for member in one.members_at_target},
        )
        return found

    async def joined(self, reader: Reader) -> None:
        """Until a reader is in its group, wherever that is, and has partitions."""
        deadline = time.monotonic() + PATIENCE
        while not reader.assigned:
            assert time.monotonic() < deadline, f"{reader.client_id} was given nothing: {reader.errors}"
            await asyncio.sleep(0.1)

    async def all_read(
        self, readers: Sequence[Reader], topic: str, timeout: float = PATIENCE, *, since: int = 0
    ) -> None:
        """Until the readers together have read everything of the topic, from an offset on."""
        deadline = time.monotonic() + timeout
        while missing := self.missing(readers, topic, since):
            assert time.monotonic() < deadline, f"not read within {timeout:.0f} s: {missing}"
            await asyncio.sleep(0.1)

    def missing(self, readers: Sequence[Reader], topic: str, since: int = 0) -> dict[TopicPartition, int]:
        got = defaultdict(set)
        for reader in readers:
            for tp, offset, _ in reader.got:
                got[tp].add(offset)
        return {
            tp: left
            for tp, count in self.produced.items()
            if tp.topic == topic and (left := len(set(range(since, count)) - got[tp]))
        }

    @staticmethod
    def repeated(readers: Sequence[Reader]) -> list[tuple[TopicPartition, int]]:
        counts = Counter((tp, offset) for reader in readers for tp, offset, _ in reader.got)
        return sorted(key for key, count in counts.items() if count > 1)

    def committed(self, cluster: KafkaCluster, group: str, topic: str) -> dict[int, int]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": group, "isolation.level": "read_uncommitted"}
        )
        try:
            asked = [
                confluent_kafka.TopicPartition(topic, tp.partition)
                for tp in self.produced
                if tp.topic == topic
            ]
            return {one.partition: one.offset for one in consumer.committed(asked, 20)}
        finally:
            consumer.close()
