"""The link broker as a follower in the ISR of the source: what is acknowledged there is on all replicas here."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fetcher.followed import SourceLeader
from fetcher.follower_answers import FollowerAnswers
from fetcher.in_sync import InSyncFollower
from fetcher.partition_copy import PartitionCopy
from fetcher.source_log import MAX_OFFSET
from fetcher.source_ports import FetchLimits
from tests.fakes.cluster import FakeCluster
from tests.fetcher.replicated import US, ReplicatedPartition, listen
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually, with_epoch
from wire.client.connection import Connection
from wire.errors import LocalProtocolError
from wire.frames.types import Node, TopicPartition

TP = TopicPartition("t", 0)


class Ports:
    """As a metadata log has it that follows at once."""

    def __init__(self, rig: Rig, parts: dict[TopicPartition, ReplicatedPartition]) -> None:
        self.rig = rig
        self.parts = parts
        self.away: set[int] = set()
        #: Who was away when the last request was sent to a node. What is on its way nobody can call back.
        self.away_when_sent: dict[int, frozenset[int]] = {}
        self.registered = True

    def leader_of(self, tp: TopicPartition) -> SourceLeader | None:
        part = self.parts[tp].partition
        if part.leader == US or US not in part.replicas:
            return None
        node = self.rig.source.brokers[part.leader]
        return SourceLeader(Node(node.id, node.host, node.port, None), part.leader_epoch, US in part.isr)

    def led_by_us(self, tp: TopicPartition) -> bool:
        return self.parts[tp].partition.leader == US

    def identity(self) -> tuple[int, int] | None:
        return (US, 4711) if self.registered else None

    async def open_connection(self, node: Node) -> Connection:
        connection = await self.rig.cluster.open_connection(node)
        channel: Any = connection.channel
        send = channel.send

        def noting(*args: Any) -> None:
            self.away_when_sent[node.id] = frozenset(self.away)
            send(*args)

        channel.send = noting
        return connection

    def must_hold(self, copy: PartitionCopy) -> Collection[int]:
        return [replica for replica in copy.spec.target_replicas if replica not in self.away]

    must_tell = must_hold


class Gate(asyncio.Event):
    """A follower's `running`, which knows whether it stands there."""

    stands = False

    async def wait(self) -> Literal[True]:
        self.stands = not self.is_set()
        try:
            return await super().wait()
        finally:
            self.stands = False


@pytest.fixture(autouse=True)
def _no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read as before, or tried again, because a few seconds are over."""
    monkeypatch.setattr("fetcher.in_sync._HELD_UP", 60.0)
    monkeypatch.setattr("fetcher.in_sync._NEXT_TRY", 60.0)


class Scene:
    def __init__(
        self,
        source: FakeCluster,
        replicas: tuple[int, ...] = (1, 2),
        partitions: int = 1,
        *,
        poll_ms: int = 100,
    ) -> None:
        source.add_topic("t", partitions)
        self.source = source
        self.limits = FetchLimits(max_wait_ms=poll_ms, request_timeout=2.0, reconnect_backoff=(0.02, 0.2))
        self.rig = Rig(source, replicas=replicas, limits=self.limits)
        self.parts = {TopicPartition("t", i): ReplicatedPartition(source, index=i) for i in range(partitions)}
        self.part = self.parts[TP]
        self.ports = Ports(self.rig, self.parts)
        self.sync = self.follower()
        self.wrong: list[str] = []
        self.tells = 0
        listen(source, list(self.parts.values()), self._told)

    def follower(self) -> InSyncFollower:
        return InSyncFollower(
            self.rig.manager,
            self.ports,
            client_id="linker",
            limits=self.limits,
        )

    def _told(self, part: ReplicatedPartition, asked: Any) -> None:
        """The invariant: each replica that had to hold it when it was sent has the leader's log up to there."""
        self.tells += 1
        offset = asked.fetch_offset
        if offset > part.leader_log.log_end_offset or offset <= part.told:
            return  # said before, when other replicas had to have it, maybe
        expected = leader_bytes(part, offset)
        for replica in self.rig.followers:
            if replica in self.ports.away_when_sent[part.partition.leader]:
                continue
            log = self.log(replica, part.key[1])
            had = b"".join(raw for _, last, _, raw in log.batches if last < offset)
            if log.end < offset or had != expected:
                self.wrong.append(
                    f"told {offset}, broker {replica} ends at {log.end}, equal: {had == expected}"
                )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Scene]:
        async with self.rig.running():
            self.rig.mirror("t")
            for replica in self.rig.replicas:
                self.rig.follow(replica, max_wait_ms=self.limits.max_wait_ms).running = gate = Gate()
                gate.set()
            task = asyncio.create_task(self.sync.run())
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def stall(self, *replicas: int) -> None:
        """They ask no more, and what they asked for has been answered."""
        gates: list[Any] = [self.rig.followers[replica].running for replica in replicas]
        for gate in gates:
            gate.clear()
        await eventually(lambda: all(gate.stands for gate in gates), 25, self.state)

    def log(self, replica: int, index: int = 0) -> Any:
        return self.rig.followers[replica].logs[self.rig.image.topics_by_name["t"].id, index]

    async def in_sync(self) -> None:
        self.sync.follow(self.parts)
        await eventually(lambda: all(part.in_sync for part in self.parts.values()), 25, self.state)

    def equal(self) -> bool:
        return all(
            self.log(replica, part.key[1]).data() == leader_bytes(part)
            for replica in self.rig.replicas
            for part in self.parts.values()
        )

    def state(self) -> str:
        states = [str(self.sync.state(tp)) for tp in self.parts]
        source = [
            f"{part.partition.isr} told {part.told} hw {part.leader_log.high_watermark}"
            for part in self.parts.values()
        ]
        return "\n".join([*states, *source, self.rig.state()])


def leader_bytes(part: ReplicatedPartition, until: int = 1 << 62) -> bytes:
    return b"".join(
        with_epoch(stored.data, SESSION_EPOCH)
        for stored in part.leader_log.batches
        if stored.info.last_offset < until
    )


async def test_acknowledged_only_when_all_replicas_have_it() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await scene.stall(2)
            scene.part.write(acks_all=True)
            scene.part.write(acks_all=True)
            await eventually(lambda: scene.log(1).end == 2 or scene.log(1).end == 3, 25, scene.state)
            await asyncio.sleep(0.3)
            assert scene.part.leader_log.high_watermark < 3
            assert scene.part.in_sync
            scene.rig.followers[2].running.set()
            await eventually(lambda: not scene.part.waiting, 25, scene.state)
            assert scene.part.leader_log.high_watermark == 3
            assert scene.equal()
            assert scene.wrong == []
            state = scene.sync.state(TP)
            assert state == (True, True, 3, 3, "")


async def test_a_lonely_record_is_acknowledged_at_once() -> None:
    """Not with the end of somebody's long poll."""
    async with FakeCluster(1) as source:
        scene = Scene(source, partitions=3, poll_ms=2000)
        async with scene.running():
            for part in scene.parts.values():
                part.write(acks_all=True)
            await scene.in_sync()
            waits = []
            for i in range(20):
                part = list(scene.parts.values())[i % 3]
                await asyncio.sleep(0.03)
                began = time.monotonic()
                part.write(acks_all=True)
                while part.waiting:
                    await asyncio.sleep(0)
                waits.append(time.monotonic() - began)
            assert sorted(waits)[10] < 1.0, waits  # polls take 2 s
            assert scene.wrong == []


async def test_consumers_read_up_to_the_high_watermark_only() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source, replicas=(1, 2))
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            await eventually(lambda: copy.high_watermark == 1, 25, scene.state)
            await scene.stall(2)
            for _ in range(3):
                scene.part.write(acks_all=True)
            await eventually(lambda: copy.log_end_offset > 1, 25, scene.state)
            assert copy.high_watermark < copy.log_end_offset
            # They are not at the end of what may be told: listeners hear of more.
            assert copy.read(copy.high_watermark, 1 << 20) == ([], 0)
            await eventually(lambda: scene.log(1).end == copy.log_end_offset, 25, scene.state)
            await asyncio.sleep(0.3)
            assert scene.log(1).high_watermark <= copy.high_watermark < scene.log(1).end
            scene.rig.followers[2].running.set()
            await eventually(lambda: copy.high_watermark == 4, 25, scene.state)
            await eventually(lambda: scene.log(1).high_watermark == 4, 25, scene.state)


async def test_an_idle_partition_keeps_fetching() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            tells = scene.tells
            await eventually(lambda: scene.tells >= tells + 3, 25, scene.state)


async def test_a_new_leader_with_a_shorter_log_truncates_all() -> None:
    async with FakeCluster(2) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            scene.part.replicate(2)
            await scene.in_sync()
            for _ in range(5):
                scene.part.write(acks_all=False)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 6, 25, scene.state)
            scene.part.elect(2)
            scene.part.write(acks_all=True, value_size=333)
            await eventually(scene.equal, 25, scene.state)
            await eventually(lambda: not scene.part.waiting, 25, scene.state)
            assert scene.part.leader_log.log_end_offset == 2
            assert scene.log(1).truncations
            assert scene.log(2).truncations
            assert scene.wrong == []
            assert scene.rig.events.failures == {}
            assert dict(scene.rig.directory("t", 0).untruncated) == {}  # type: ignore[union-attr]


async def test_nothing_more_is_told_before_replicas_have_truncated() -> None:
    """They are further than the new leader's log, with records that it does not have."""
    async with FakeCluster(2) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            scene.part.replicate(2)
            await scene.in_sync()
            for _ in range(5):
                scene.part.write(acks_all=False)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 6, 25, scene.state)
            await eventually(lambda: scene.part.told == 6, 25, scene.state)
            await scene.stall(*scene.rig.followers)
            scene.part.elect(2)
            for _ in range(3):
                scene.part.write(acks_all=True, value_size=333)
                await asyncio.sleep(0.1)
            assert scene.part.told <= 1
            assert scene.wrong == []
            for follower in scene.rig.followers.values():
                follower.running.set()
            await eventually(lambda: not scene.part.waiting and scene.equal(), 25, scene.state)
            assert scene.wrong == []


async def test_nothing_is_told_of_a_leader_epoch_that_is_not_written_down() -> None:
    """Who leads the partition next tells its followers by the epochs that are written where their logs part from it."""
    async with FakeCluster(2) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            scene.part.replicate(2)
            await scene.in_sync()
            await eventually(lambda: scene.part.told == 1, 25, scene.state)
            scene.rig.events.write = lambda _tp: None  # the store is slow
            scene.part.elect(2)
            scene.part.write(acks_all=True)
            await eventually(lambda: scene.sync.state(TP).end == 2, 25, scene.state)
            await asyncio.sleep(0.15)
            assert scene.part.told == 1
            # Nor do replicas get it: the next one that leads would hear of it from them.
            assert scene.log(1).end == scene.log(2).end == 1
            assert scene.sync.stop([TP]) == {TP: 2}
            assert scene.sync.state(TP).told == 1
            scene.rig.write_epochs(TP)
            await eventually(lambda: scene.sync.state(TP).told == 2, 25, scene.state)
            assert scene.log(1).end == scene.log(2).end == 2
            scene.sync.begin([TP])
            await eventually(lambda: not scene.part.waiting and scene.equal(), 25, scene.state)
            assert scene.wrong == []


async def test_a_replica_that_is_slow_for_long_lets_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fetcher.in_sync._HELD_UP", 0.3)
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            scene.rig.followers[2].running.clear()
            for _ in range(3):
                await asyncio.sleep(0.15)
                scene.part.write(acks_all=False)
            await asyncio.sleep(0.5)
            assert scene.sync.state(TP).fed  # it waits, as long as the source's leader does
            scene.part.partition.isr.remove(US)
            scene.part.advance()
            await eventually(lambda: not scene.sync.state(TP).fed, 25, scene.state)
            assert "do not have offset" in scene.sync.state(TP).reason
            await eventually(lambda: scene.log(1).end == 4, 25, scene.state)


async def test_a_replica_that_is_away_does_not_count() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await scene.stall(2)
            for _ in range(2):
                scene.part.write(acks_all=True)
            await asyncio.sleep(0.2)
            assert scene.part.waiting
            scene.ports.away.add(2)
            await eventually(lambda: not scene.part.waiting, 25, scene.state)
            scene.ports.away.add(1)  # nobody has it then
            await asyncio.sleep(0.3)
            scene.part.write(acks_all=True)
            await asyncio.sleep(0.3)
            assert scene.part.waiting


async def test_nothing_is_told_of_a_replica_that_is_back_when_the_leader_can_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did not count when the position was judged, and the connection to the new leader was not open yet."""
    async with FakeCluster(2) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 1, 25, scene.state)
            await scene.stall(2)
            scene.ports.away.add(2)
            scene.part.replicate(2)
            for _ in range(2):
                scene.part.write(acks_all=True)
                scene.part.replicate(2)
            await eventually(lambda: scene.part.told == 3, 25, scene.state)
            scene.part.replicate(2)
            opening, reached = asyncio.Event(), asyncio.Event()
            open_connection = scene.ports.open_connection

            async def open_late(node: Node) -> Connection:
                opening.set()
                await reached.wait()
                return await open_connection(node)

            monkeypatch.setattr(scene.ports, "open_connection", open_late)
            scene.part.elect(2)
            async with asyncio.timeout(25):
                await opening.wait()
            # Nobody looks after it before the connection is open.
            monkeypatch.setattr("fetcher.in_sync._TICK", 60.0)
            scene.sync.wake()
            await asyncio.sleep(0.05)
            scene.ports.away.clear()
            reached.set()
            await asyncio.sleep(0.3)
            assert scene.log(2).end < 3
            assert scene.wrong == []
            assert scene.part.told == -1
            monkeypatch.setattr("fetcher.in_sync._TICK", 0.1)
            scene.sync.wake()
            scene.rig.followers[2].running.set()
            await eventually(lambda: scene.part.told == 3 and scene.equal(), 25, scene.state)
            assert scene.wrong == []


async def test_stop_is_exact_and_can_be_undone() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            for _ in range(10):
                scene.part.write(acks_all=False)
                await asyncio.sleep(0)
            end = scene.sync.stop([TP])[TP]
            for _ in range(10):
                scene.part.write(acks_all=False)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == end, 25, scene.state)
            await eventually(lambda: scene.sync.state(TP).told == end, 25, scene.state)
            await asyncio.sleep(0.3)
            assert scene.log(1).end == scene.log(2).end == end
            assert scene.sync.stop([TP]) == {TP: end}
            scene.sync.begin([TP])
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 21, 25, scene.state)
            scene.sync.end([TP])
            await asyncio.sleep(0.3)
            with pytest.raises(LocalProtocolError, match="not followed"):
                scene.sync.stop([TP])
            scene.part.partition.isr.remove(US)
            scene.part.write(acks_all=False)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 22, 25, scene.state)


async def test_a_new_process_that_leads_it_ends_where_the_replicas_do() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            for _ in range(3):
                scene.part.write(acks_all=True)
            await scene.in_sync()
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 3, 25, scene.state)
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            led = scene.part.partition
            scene.sync.end([TP])
            scene.rig.manager.remove([TP])
            led.leader, led.leader_epoch = US, led.leader_epoch + 1
            scene.sync.follow([TP])
            scene.rig.manager.add([scene.rig.spec("t", 0, source_epochs=copy.source_epochs, fetch_offset=3)])
            again = scene.rig.directory("t", 0)
            assert again is not None
            with pytest.raises(LocalProtocolError):
                scene.sync.stop([TP])
            again.load(3, 3, 0, time.monotonic())
            await eventually(lambda: scene.sync.state(TP).told == 3, 25)
            assert scene.sync.stop([TP]) == {TP: 3}


async def test_who_has_the_copy_tells_where_another_link_broker_ends() -> None:
    """That one's process has none, for the mirror has gone to this one, which is not even a replica at the source."""
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 1, 25, scene.state)
            led = scene.part.partition
            scene.sync.end([TP])
            led.replicas.remove(US)
            led.leader, led.leader_epoch = 801, led.leader_epoch + 1
            with pytest.raises(LocalProtocolError):
                scene.sync.stop([TP])
            scene.sync.find_end(TopicPartition("t", 7))
            scene.sync.find_end(TP)
            assert scene.sync.stop([TP]) == {TP: 1}
            assert scene.sync.state(TP).told == 1
            led.leader = 1
            led.replicas.append(US)
            scene.sync.follow([TP])
            scene.sync.begin([TP])
            scene.part.write(acks_all=False)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 2, 25, scene.state)


async def test_what_ended_for_a_while_is_read_on_at_once_when_it_is_not_followed_any_more() -> None:
    """A copy that came while the log had an end was asked for nothing. Then its own brokers lead, without this one."""
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 1, 25, scene.state)
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            assert scene.sync.stop([TP]) == {TP: 1}
            led = scene.part.partition
            scene.rig.manager.remove([TP])
            scene.rig.manager.add([scene.rig.spec("t", 0, source_epochs=copy.source_epochs, fetch_offset=1)])
            again = scene.rig.directory("t", 0)
            assert again is not None
            await eventually(lambda: again.fetch_until == 1, 25, scene.state)
            await eventually(lambda: any(cursor.fetcher for cursor in again.cursors), 25, scene.state)
            for cursor in again.cursors:  # as any news of the source does
                assert cursor.fetcher is not None
                cursor.fetcher.touch(cursor)
            fetchers = [(cursor, cursor.fetcher) for cursor in again.cursors]
            await eventually(
                lambda: not any(by is not None and by.follows(one) for one, by in fetchers), 25, scene.state
            )
            led.replicas.remove(US)
            led.isr.remove(US)
            scene.sync.end([TP])
            scene.part.write(acks_all=False)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 2, 25, scene.state)


@pytest.mark.parametrize("pause", [0.0, 0.3])
async def test_an_end_that_went_with_its_copy_is_found_anew(pause: float) -> None:
    """It led the partition and had read more than the replicas have when the mirror went to another sidecar and came back.
    Nobody can read that again, and nobody was told of it."""
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 1, 25, scene.state)
            await scene.stall(*scene.rig.followers)
            for _ in range(2):
                scene.part.write(acks_all=False)
            await eventually(lambda: scene.sync.state(TP).end > 1, 25, scene.state)
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            led = scene.part.partition
            led.leader, led.leader_epoch = US, led.leader_epoch + 1
            await eventually(lambda: "leads it" in scene.sync.state(TP).reason, 25, scene.state)
            assert scene.sync.stop([TP])[TP] > 1
            scene.rig.manager.remove([TP])
            await asyncio.sleep(pause)
            scene.rig.manager.add([scene.rig.spec("t", 0, source_epochs=copy.source_epochs, fetch_offset=1)])
            again = scene.rig.directory("t", 0)
            assert again is not None
            again.load(1, 1, 0, time.monotonic())
            for follower in scene.rig.followers.values():
                follower.running.set()

            def found_anew() -> bool:
                with contextlib.suppress(LocalProtocolError):
                    return scene.sync.stop([TP]) == {TP: 1} and scene.sync.state(TP).told == 1
                return False

            await eventually(found_anew, 25, scene.state)


async def test_batches_of_another_log_are_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position alone: behind it lie records that the source never had."""
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await eventually(lambda: scene.log(1).end == scene.log(2).end == 1, 25, scene.state)
            stranger = scene.rig.followers[2]

            async def nothing(*_: object) -> None: ...

            monkeypatch.setattr(stranger, "_take", nothing)  # it does not truncate as it is told
            (base, last, _, raw) = scene.log(2).batches[0]
            scene.log(2).batches.append((base + 1, last + 1, SESSION_EPOCH - 1, raw))
            scene.log(2).end = 2
            scene.part.write(acks_all=True)
            scene.sync.follow([TP])
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            await eventually(lambda: copy.followers[2].fetch_offset == 2, 25, scene.state)
            await asyncio.sleep(0.5)
            assert copy.followers[2].copied_to < 2
            assert scene.part.told < 2


async def test_nothing_is_read_while_we_lead_it() -> None:
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            led = scene.part.partition
            led.leader, led.leader_epoch = US, led.leader_epoch + 1
            await eventually(lambda: "leads it" in scene.sync.state(TP).reason, 25, scene.state)
            end = scene.sync.stop([TP])[TP]
            scene.sync.begin([TP])
            led.leader = 1
            # What was written meanwhile, by whatever means, was not read before it is somebody else's again.
            assert scene.log(1).end == end
            scene.part.write(acks_all=True)
            await eventually(lambda: not scene.part.waiting and scene.equal(), 25, scene.state)
            assert scene.wrong == []


async def test_begins_again_with_the_replicas_that_have_more_than_others() -> None:
    """A new process: one replica has a tail beyond the high watermark, and the other can get it as a replica only."""
    async with FakeCluster(1) as source:
        scene = Scene(source)
        async with scene.running():
            scene.part.write(acks_all=True)
            await scene.in_sync()
            await scene.stall(2)
            for _ in range(5):
                scene.part.write(acks_all=True)
            await eventually(lambda: scene.log(1).end > scene.part.told, 25, scene.state)
            ahead = scene.log(1).end
            copy = scene.rig.directory("t", 0)
            assert copy is not None
            spec = scene.rig.spec(
                "t", 0, source_epochs=copy.source_epochs, untruncated=tuple(copy.untruncated.items())
            )
            scene.rig.manager.remove([TP])
            scene.rig.manager.add([spec])
            await eventually(
                lambda: scene.rig.directory("t", 0).followers.get(1) is not None, 25, scene.state
            )  # type: ignore[union-attr]
            assert scene.part.leader_log.high_watermark < ahead
            scene.rig.followers[2].running.set()
            await eventually(lambda: not scene.part.waiting, 25, scene.state)
            # The one that was ahead waits for what comes next where nobody reads it any more.
            scene.part.write(acks_all=True)
            await eventually(lambda: not scene.part.waiting, 25, scene.state)
            assert scene.equal()
            assert scene.wrong == []


STEPS = ["write", "write all", "replicate", "elect", "stall", "restart", "again", "away", "sleep", "drop out"]


# A history takes a second, and times decide what happens in it: nothing to be shrunk.
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(st.lists(st.sampled_from(STEPS), min_size=10, max_size=60), st.integers(0, 1 << 30))
def test_nothing_is_told_that_a_replica_lacks(steps: list[str], seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fetcher.in_sync._HELD_UP", 1.0)
        patch.setattr("fetcher.in_sync._NEXT_TRY", 0.5)
        asyncio.run(_history(steps, random.Random(seed)))


async def _history(steps: list[str], chance: random.Random) -> None:
    async with FakeCluster(3) as source:
        scene = Scene(source, replicas=(1, 2))
        part = scene.part
        async with scene.running():
            scene.sync.follow([TP])
            for step in steps:
                await _do(step, scene, part, chance)
                await asyncio.sleep(chance.choice([0, 0, 0.005, 0.02]))
            scene.ports.away.clear()
            for follower in scene.rig.followers.values():
                follower.running.set()
            part.write(acks_all=True)
            for node in source.brokers:
                part.replicate(node)

            def followed() -> bool:
                # A replica that was away may lack what only an in-sync follower can read: the leader goes on without us.
                part.drop_silent(2.0)
                return part.in_sync and not part.waiting

            await eventually(followed, 25, scene.state)
            await eventually(scene.equal, 25, scene.state)
            assert scene.wrong == []
            assert scene.rig.events.failures == {}
            assert part.truncated_acked == []
            kept = {stored.data for stored in part.leader_log.batches}
            assert all(data in kept for data in part.acked)
            for replica in scene.rig.replicas:
                assert scene.log(replica).failed is None


async def _do(step: str, scene: Scene, part: ReplicatedPartition, chance: random.Random) -> None:
    follower = scene.rig.followers[chance.choice(scene.rig.replicas)]
    others = [node for node in part.partition.isr if node not in (US, part.partition.leader)]
    if step in ("write", "write all"):
        for _ in range(chance.randrange(1, 6)):
            part.write(
                acks_all=step == "write all",
                records=chance.randrange(1, 4),
                value_size=chance.choice([10, 900]),
            )
    elif step == "replicate":
        part.replicate(chance.choice(list(scene.source.brokers)))
    elif step == "elect" and others:
        part.elect(chance.choice(others))
    elif step == "stall":
        follower.running.clear() if follower.running.is_set() else follower.running.set()
    elif step == "restart":
        follower.restart()
    elif step == "again":
        # A new process: it knows what was persisted.
        copy = scene.rig.directory("t", 0)
        if copy is not None:
            spec = scene.rig.spec(
                "t", 0, source_epochs=copy.source_epochs, untruncated=tuple(copy.untruncated.items())
            )
            scene.rig.manager.remove([TP])
            scene.rig.manager.add([spec])
    elif step == "away":
        scene.ports.away = set() if scene.ports.away else {follower.replica_id}
    elif step == "drop out" and part.in_sync and chance.random() < 0.5:
        part.partition.isr.remove(US)
        part.advance()
    elif step == "sleep":
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(("until", "now"), [(MAX_OFFSET, False), (100, True)])
def test_a_follower_is_woken_by_the_last_high_watermark_alone(until: int, now: bool) -> None:
    """While records come the next one brings it; where the log was taken over none comes any more."""
    partition: Any = SimpleNamespace(
        mirror=SimpleNamespace(feed=object(), fed_cursor=object(), fetch_until=until),
        request=SimpleNamespace(fetch_offset=100),
        high_watermark_sent=90,
        log_start_sent=0,
    )
    result: Any = SimpleNamespace(high_watermark=100, log_start_offset=0)
    assert FollowerAnswers._quiet(partition, result).now is now
