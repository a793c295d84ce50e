"""Topics that cannot be mirrored, and those that only look like it: said before anything is made."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest

from linker.checks.message_format import check_formats, first_formats
from linker.checks.topic_names import collisions, is_internal
from tests.fakes.batches import BatchInfo
from tests.fakes.cluster import FakeCluster
from tests.fakes.log import StoredBatch
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import MalformedFrame
from wire.frames.batch import patch_batches
from wire.frames.types import TopicPartition


@pytest.fixture
async def fake() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(2) as made:
        yield made


@pytest.fixture
async def source(fake: FakeCluster) -> AsyncIterator[Cluster]:
    cluster = Cluster("source", fake.bootstrap, ClientSecurity.plaintext(), "me")
    await cluster.connect(timeout=5)
    yield cluster
    await cluster.close()


def old_entry(offset: int, magic: int = 1) -> bytes:
    """offset, size, crc, magic, attributes, timestamp, key, value"""
    body = struct.pack(">IbbqiI", 0, magic, 0, 0, -1, 3) + b"abc"
    return struct.pack(">qi", offset, len(body)) + body


def store_old(fake: FakeCluster, topic: str, partition: int, magic: int = 1) -> None:
    log = fake.partition(topic, partition).log
    info: BatchInfo = FakeLogInfo(log.log_end_offset)  # type: ignore[assignment]
    log.batches.append(StoredBatch(info, old_entry(log.log_end_offset, magic)))
    log.log_end_offset += 1


class FakeLogInfo:
    def __init__(self, offset: int) -> None:
        self.base_offset = self.last_offset = offset


async def test_old_formats_are_found_by_what_the_log_begins_with(fake: FakeCluster, source: Cluster) -> None:
    for name in ("old", "new", "empty", "large"):
        fake.add_topic(name, 4)
    store_old(fake, "old", 2)
    fake.add("old", 2)
    fake.add("old", 0)
    for partition in range(4):
        fake.add("new", partition)
        fake.add("large", partition, records=1, value_size=20_000)
    store_old(fake, "new", 3)  # behind what was written later: a mirror finds it when it comes there
    findings = await check_formats(source, {name: {} for name in ("old", "new", "empty", "large")})
    assert [(one.fatal, "topic old" in one.detail) for one in findings] == [(True, True)]
    assert "partition 2 at offset 0" in findings[0].detail
    assert "format v1" in findings[0].detail
    found = await first_formats(source, [TopicPartition("large", index) for index in range(4)])
    assert {magic for _, magic in found.values()} == {2}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("version", "told"), [("0.10.2-IV0", 1), ("0.9.0", 1), ("0.11.0-IV2", 0), ("1.1", 0), ("3.0-IV1", 0)]
)
async def test_a_config_that_makes_brokers_write_old_formats_is_told(
    fake: FakeCluster, source: Cluster, version: str, told: int
) -> None:
    fake.add_topic("t")
    findings = await check_formats(source, {"t": {"message.format.version": version}})
    assert [one.fatal for one in findings] == [False] * told


def test_the_failure_says_what_it_is() -> None:
    data = bytearray(old_entry(0) * 3)
    with pytest.raises(
        MalformedFrame, match=r"message format v1, from before Kafka 0\.11: only v2 can be mirrored"
    ):
        patch_batches(data, 0, len(data), 7, 1 << 20, -1)


def test_names_that_a_cluster_takes_for_one() -> None:
    assert collisions(["a.b", "a_b"], []) == [("a_b", "a.b")]
    assert collisions(["a.b"], ["a_b", "c"]) == [("a.b", "a_b")]
    assert collisions(["a.b", "c", "a.b"], ["a.b", "d.e_f"]) == []
    assert collisions(["a.b_c", "a_b.c"], []) == [("a_b.c", "a.b_c")]


def test_only_kafkas_own_topics_are_internal() -> None:
    assert is_internal("__consumer_offsets")
    assert is_internal("__transaction_state")
    assert is_internal("__kafka_linker_state", {"__kafka_linker_state"})
    assert not is_internal("__debezium-heartbeat.inventory")
    assert not is_internal("__connect-offsets")
