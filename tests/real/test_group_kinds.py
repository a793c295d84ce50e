"""On stock brokers: groups that cannot be held are found with their topics, and commits that are too large or too long."""

from __future__ import annotations

import asyncio
import struct
import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from controller.groups import GateKind
from controller.mirror_group import GroupProtocol
from groups import other_kinds
from groups.gates.base import NO_OFFSET, CommitFailed, OffsetAndMetadata
from groups.gates.coordinators import Coordinators, KeyType
from groups.gates.pieces import smaller
from groups.gates.requests import by_topic, failed_partitions, offset_commit, offset_fetch
from groups.group_reader import GroupReader
from groups.members import coordinator_can_read
from lab.clusters.kafka_cluster import KafkaCluster
from linker.checks import group_kinds as kinds
from tests.real.harness_gates import sidecar
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.frames.error_codes import (
    GROUP_ID_NOT_FOUND,
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicPartition

TIMEOUT = 30.0


async def make_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    futures = admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=TIMEOUT)
    await asyncio.gather(*(asyncio.to_thread(future.result, TIMEOUT) for future in futures.values()))


def cluster_of(bootstrap: str) -> Cluster:
    return Cluster("target", parse_bootstrap_servers(bootstrap), ClientSecurity.plaintext(), "kinds")


async def joined(reader: GroupReader, api: str, group: str, **fields: object) -> None:
    """A member of the new kinds, by the request that its client would send, once its coordinator is there."""
    member = {"group_id": group, "member_id": str(uuid.uuid4()), "member_epoch": 0}
    codes: list[int] = []

    async def ask(node: int, _: object) -> None:
        answer = await reader.cluster.call(api, {**member, **fields}, node_id=node, timeout=TIMEOUT)
        codes.append(int(answer.error_code))

    for _ in range(40):
        failed: dict[str, str] = {}
        await reader.by_node([group], failed, TIMEOUT, ask)
        if codes and codes[-1] == 0:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"{api} {group}: {codes} {failed}")


def streams_member(topic: str) -> dict[str, object]:
    """As a Streams client of one subtopology says it."""
    part = {
        "subtopology_id": "0",
        "source_topics": [topic],
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    tasks: dict[str, object] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    return {
        **tasks,
        "rebalance_timeout_ms": 60_000,
        "topology": {"epoch": 0, "subtopologies": [part]},
        "process_id": str(uuid.uuid4()),
        "client_tags": [],
    }


@pytest.mark.parametrize("kind", [GateKind.CONSUMER, GateKind.CLASSIC])
async def test_no_member_of_ours_makes_streams_and_share_members_wait(
    target_cluster: KafkaCluster, kind: GateKind
) -> None:
    """Their coordinator answers what ends their applications, so the gates of other groups are none for theirs."""
    topic = f"kinds-{uuid.uuid4().hex[:8]}"
    await make_topic(target_cluster.bootstrap, topic)
    async with sidecar(target_cluster.bootstrap, {}) as one:
        gate = one.plan(topic, kind)
        await gate.close({TopicPartition(topic, 0): NO_OFFSET})
        member = {"group_id": topic, "member_id": str(uuid.uuid4()), "member_epoch": 0}
        cluster = one.coordinators.cluster
        codes: dict[str, int] = {}

        async def ask(node: int, _: object) -> None:
            for api, fields in (
                ("streams_group_heartbeat", streams_member(topic)),
                ("share_group_heartbeat", {"subscribed_topic_names": [topic]}),
            ):
                answer = await cluster.call(api, {**member, **fields}, node_id=node, timeout=TIMEOUT)
                codes[api] = int(answer.error_code)

        failed: dict[str, str] = {}
        await GroupReader(cluster).by_node([topic], failed, TIMEOUT, ask)
        assert set(codes.values()) == {GROUP_ID_NOT_FOUND}, (codes, failed)
        await gate.release()


async def test_streams_and_share_groups_are_found_with_what_they_read(target_cluster: KafkaCluster) -> None:
    topic = f"kinds-{uuid.uuid4().hex[:8]}"
    await make_topic(target_cluster.bootstrap, topic)
    cluster = cluster_of(target_cluster.bootstrap)
    await cluster.connect()
    reader = GroupReader(cluster)
    try:
        await joined(reader, "streams_group_heartbeat", f"streams-{topic}", **streams_member(topic))
        await joined(reader, "share_group_heartbeat", f"share-{topic}", subscribed_topic_names=[topic])
        listing = await reader.list_groups(timeout=TIMEOUT)
        others = {name: one for name, one in listing.groups.items() if topic in name}
        assert {name: one.protocol for name, one in others.items()} == {
            f"streams-{topic}": GroupProtocol.STREAMS,
            f"share-{topic}": GroupProtocol.SHARE,
        }
        answer = await other_kinds.read_by(reader, others, timeout=TIMEOUT)
        assert {name: answer.topics(name) for name in others} == dict.fromkeys(others, frozenset({topic})), (
            answer.failed
        )
        assert {name: len(view.members) for name, view in answer.views.items()} == dict.fromkeys(others, 1)
        details = [one.detail for one in await kinds.unheld_checks(reader, listing, [topic])]
        assert len(details) == 2
        assert all("is not held on the target" in line for line in details)
        assert not set(others) & set(kinds.held(listing))
    finally:
        await cluster.close()


@pytest.mark.parametrize("kind", [GateKind.CONSUMER_AND_TRANSACTION, GateKind.CLASSIC_AND_TRANSACTION])
async def test_a_commit_that_is_too_large_for_one_batch_goes_in_pieces(
    target_cluster: KafkaCluster, kind: GateKind
) -> None:
    """And what the coordinator refuses of it keeps no other partition from being committed."""
    count, group = 300, f"wide-{uuid.uuid4().hex[:8]}"
    await make_topic(target_cluster.bootstrap, group, count)
    async with sidecar(target_cluster.bootstrap, {}) as one:
        gate = one.plan(group, kind)
        await gate.close({TopicPartition(group, index): NO_OFFSET for index in range(count)})
        wanted = {TopicPartition(group, n): OffsetAndMetadata(n, "y" * 4000) for n in range(count)}
        await gate.commit(wanted)
        long, absent = TopicPartition(group, 0), TopicPartition(group, count + 5)
        with pytest.raises(CommitFailed) as refused:
            await gate.commit(
                {tp: OffsetAndMetadata(commit.offset + 1) for tp, commit in wanted.items()}
                | {long: OffsetAndMetadata(1000, "z" * 10_000), absent: OffsetAndMetadata(7)}
            )
        assert refused.value.codes == {long: OFFSET_METADATA_TOO_LARGE, absent: UNKNOWN_TOPIC_OR_PARTITION}
        fetched = await offset_fetch(one.coordinators, group, wanted, require_stable=False, timeout=TIMEOUT)
        assert {tp.partition: commit.offset for tp, commit in fetched.offsets.items()} == {
            **{n: n + 1 for n in range(1, count)},
            0: 0,
        }
        await gate.release()
    cluster = cluster_of(target_cluster.bootstrap)
    await cluster.connect()
    coordinators = Coordinators(cluster)
    try:
        empty = f"{group}-empty"
        fields = {"group_id": empty, "generation_id_or_member_epoch": -1, "member_id": ""}
        whole = await coordinators.call(
            KeyType.GROUP,
            empty,
            "offset_commit",
            {**fields, "topics": by_topic(wanted)},
            timeout=TIMEOUT,
            max_version=9,
        )
        codes = failed_partitions(whole)
        assert len(codes) == count, "the broker takes it in one piece: the test shows nothing"
        assert [len(half) for half in smaller(empty, wanted, codes.values())] == [count // 2] * 2
        assert await offset_commit(coordinators, empty, wanted, timeout=TIMEOUT) == {}
    finally:
        await coordinators.close()
        await cluster.close()


@pytest.mark.parametrize(
    ("metadata", "taken"),
    [
        (struct.pack(">hih6si", 1, 1, 6, b"orders", 0), False),  # kafka-go
        (struct.pack(">hih6si", 0, 1, 6, b"orders", 0), True),  # kafkajs
        (struct.pack(">hih6sii", 1, 1, 6, b"orders", 0, 0), True),
        (struct.pack(">hih6siiih", 9, 1, 6, b"orders", -1, 0, 3, -1), True),
        (b"opaque", False),
    ],
)
async def test_the_coordinator_reads_what_we_say_that_it_can_read(
    target_cluster: KafkaCluster, metadata: bytes, taken: bool
) -> None:
    topic = f"read-{uuid.uuid4().hex[:8]}"
    await make_topic(target_cluster.bootstrap, topic)
    assert coordinator_can_read(metadata) is taken
    async with sidecar(target_cluster.bootstrap, {}) as one:
        gate = one.plan(topic, GateKind.CONSUMER)
        await gate.close({TopicPartition(topic, 0): NO_OFFSET})
        answer = await one.coordinators.call(
            KeyType.GROUP,
            topic,
            "join_group",
            {
                "group_id": topic,
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": metadata}],
            },
            timeout=TIMEOUT,
            max_version=1,
        )
        assert int(answer.error_code) == (0 if taken else -1)
        await gate.release()
