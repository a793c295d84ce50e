"""Cluster against fake brokers: metadata, connections, retries, unreachable clusters, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes import FakeCluster
from wire.client.cluster import REFRESH_INTERVAL, Cluster
from wire.client.cluster_metadata import ClusterMetadata
from wire.client.security import ClientSecurity, SaslCredentials
from wire.errors import (
    AuthenticationFailed,
    BrokerError,
    ClusterUnreachable,
    ConnectionLost,
    RequestTimedOut,
    UnsupportedApi,
)
from wire.frames.list_offsets import EARLIEST, LATEST, OffsetResult
from wire.frames.types import Node, TopicPartition
from wire.schema.codec import decode_response, encode_response


@asynccontextmanager
async def seen(fake: FakeCluster, **options: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster("source", fake.bootstrap, ClientSecurity.plaintext(), "me", **options)
    try:
        await cluster.connect(timeout=5)
        yield cluster
    finally:
        await cluster.close()


async def test_connect_learns_who_is_there() -> None:
    async with FakeCluster(3, cluster_id="abc", racks={1: "a"}) as fake, seen(fake) as cluster:
        assert cluster.cluster_id == "abc"
        assert cluster.controller_id == 1
        assert cluster.nodes[1] == Node(1, "127.0.0.1", fake.brokers[1].port, "a")
        assert cluster.nodes[2].rack is None
        assert cluster.topics == {}


async def test_refresh_of_some_and_of_all() -> None:
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        made = fake.add_topic("t", 2)
        fake.add_topic("u")
        await cluster.refresh(["t", "none"], timeout=5)
        assert set(cluster.topics) == {"t", "none"}
        assert cluster.topics["t"].topic_id == made.topic_id
        assert cluster.topics["none"].error == 3
        assert cluster.topics["none"].topic_id is None
        assert cluster.leader(TopicPartition("t", 1)) == cluster.nodes[2]
        assert cluster.leader(TopicPartition("t", 9)) is None
        assert cluster.leader(TopicPartition("u", 0)) is None
        await cluster.refresh(timeout=5)
        assert set(cluster.topics) == {"t", "u"}
        fake.delete_topic("t")
        await cluster.refresh(timeout=5)
        assert set(cluster.topics) == {"u"}


async def test_concurrent_refreshes_share_requests_and_keep_their_distance() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        for i in range(20):
            fake.add_topic(f"t{i}")
        before = fake.counts["metadata"]
        await asyncio.gather(*(cluster.refresh([f"t{i}"], timeout=5) for i in range(20)))
        assert fake.counts["metadata"] == before + 1
        assert len(cluster.topics) == 20
        start = time.monotonic()
        for _ in range(3):
            await cluster.refresh(["t0"], timeout=5)
        assert time.monotonic() - start >= 2 * REFRESH_INTERVAL


async def test_an_old_broker_without_topic_ids() -> None:
    async with FakeCluster(1, api_versions={"metadata": (1, 5)}) as fake, seen(fake) as cluster:
        fake.add_topic("t")
        await cluster.refresh(["t"], timeout=5)
        assert cluster.topics["t"].topic_id is None
        assert cluster.leader(TopicPartition("t", 0)) is not None


def metadata(topic_id: bytes, leader: int, epoch: int) -> Any:
    partition = {"partition_index": 0, "leader_id": leader, "leader_epoch": epoch, "replica_nodes": [1, 2]}
    fields = {
        "brokers": [{"node_id": i, "host": "h", "port": i} for i in (1, 2)],
        "topics": [{"name": "t", "topic_id": topic_id, "partitions": [partition]}],
    }
    return decode_response("metadata", 12, encode_response("metadata", 12, 1, fields))


def test_a_stale_answer_does_not_bring_an_old_leader_back() -> None:
    known = ClusterMetadata()
    tp = TopicPartition("t", 0)
    known.apply(metadata(b"a" * 16, 1, 5), all_topics=False)
    known.apply(metadata(b"a" * 16, 2, 4), all_topics=True)
    assert known.topics["t"].partitions[0].leader == 1
    assert known.learn_leader(tp, 2, 6)
    assert not known.learn_leader(tp, 1, 6)
    assert not known.learn_leader(TopicPartition("none", 0), 1, 6)
    assert known.leader(tp) == known.nodes[2]
    # a re-created topic starts anew
    known.apply(metadata(b"b" * 16, 1, 0), all_topics=False)
    assert known.topics["t"].partitions[0].leader_epoch == 0


def test_epochs_that_stay_where_they_went_back_to_are_believed() -> None:
    """The cluster's metadata were restored: no answer will ever tell the epoch that is known."""
    now = 0.0
    known = ClusterMetadata(lambda: now)

    def epoch_after(leader_epoch: int, *, seconds: float = 2.0) -> int:
        nonlocal now
        now += seconds
        known.apply(metadata(b"a" * 16, 1, leader_epoch), all_topics=False)
        return known.topics["t"].partitions[0].leader_epoch

    assert epoch_after(7) == 7
    assert [epoch_after(5) for _ in range(5)] == [7] * 5
    assert epoch_after(7) == 7  # it was a stale node
    assert [epoch_after(5, seconds=60) for _ in range(5)] == [7] * 5  # nobody asked for long: few answers
    assert epoch_after(5) == 5
    assert epoch_after(6) == 6
    assert [epoch_after(5) for _ in range(7)] == [6] * 5 + [5] * 2
    assert [epoch_after(4) for _ in range(5)] == [5] * 5
    assert known.learn_leader(
        TopicPartition("t", 0), 1, 6
    )  # by the answer to a fetch: the nodes above are stale
    assert [epoch_after(4) for _ in range(5)] == [6] * 5


def test_a_topic_of_which_nothing_new_is_told_is_not_made_anew() -> None:
    """Thousands are asked for again and again."""
    known = ClusterMetadata()
    known.apply(metadata(b"a" * 16, 1, 5), all_topics=False)
    first = known.topics["t"]
    known.apply(metadata(b"a" * 16, 1, 5), all_topics=True)
    assert known.topics["t"] is first
    for answer in (metadata(b"a" * 16, 2, 5), metadata(b"a" * 16, 2, 6), metadata(b"b" * 16, 2, 6)):
        known.apply(answer, all_topics=False)
        now = known.topics["t"]
        assert now is not first
        told = answer.topics[0]
        assert now.topic_id == told.topic_id.bytes
        assert now.partitions[0][:2] == (told.partitions[0].leader_id, told.partitions[0].leader_epoch)
        first = now


def test_an_answer_without_brokers_keeps_the_known_ones() -> None:
    known = ClusterMetadata()
    known.apply(metadata(b"a" * 16, 1, 5), all_topics=False)
    known.apply(decode_response("metadata", 12, encode_response("metadata", 12, 1, {})), all_topics=False)
    assert set(known.nodes) == {1, 2}
    with pytest.raises(BrokerError, match="REBOOTSTRAP_REQUIRED"):
        known.apply(
            decode_response("metadata", 13, encode_response("metadata", 13, 1, {"error_code": 129})),
            all_topics=False,
        )


async def test_connections_are_shared_per_node_and_purpose() -> None:
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        many = await asyncio.gather(*(cluster.connection(1) for _ in range(10)))
        assert len({id(c) for c in many}) == 1
        assert await cluster.connection(1, purpose="other") is not many[0]
        assert await cluster.connection(2) is not many[0]
        assert await cluster.connection(None) in (many[0], await cluster.connection(2))
        own = await cluster.open_connection(cluster.nodes[1])
        assert own is not many[0]
        own.close()
        many[0].close()
        again = await cluster.connection(1)
        assert again is not many[0]
        assert not again.closed


async def test_an_expiring_connection_is_replaced() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        first = await cluster.connection(1)
        first.expires_at = time.monotonic() + 1
        assert await cluster.connection(1) is not first
        assert first.closed


async def test_a_node_that_moved_is_found_at_its_new_address() -> None:
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        first = await cluster.connection(2)
        await fake.brokers[2].close()  # and its port goes
        await fake.brokers[2].start()
        await cluster.refresh((), timeout=5)
        second = await cluster.connection(2)
        assert second.peer != first.peer


async def test_an_unreachable_cluster_is_named_with_every_address() -> None:
    async with FakeCluster(2) as fake:
        addresses = fake.bootstrap
    cluster = Cluster("source", addresses, ClientSecurity.plaintext(), "me")
    with pytest.raises(ClusterUnreachable, match="cluster source cannot be reached") as caught:
        await cluster.connect(timeout=5)
    for host, port in addresses:
        assert f"{host}:{port}: cannot connect" in str(caught.value)
    await cluster.close()


async def test_one_dead_bootstrap_address_does_no_harm() -> None:
    async with FakeCluster(2) as fake:
        await fake.brokers[1].stop()
        async with seen(fake) as cluster:
            assert set(cluster.nodes) == {2}
            with pytest.raises(ClusterUnreachable, match="no live node 1"):
                await cluster.connection(1)


async def test_a_silent_node_costs_its_connect_timeout_and_no_more() -> None:
    async with FakeCluster(2) as fake:
        fake.inject("api_versions", drop=True, node=1, times=None)
        async with seen(fake, connect_timeout=0.2) as cluster:
            assert cluster.cluster_id == fake.cluster_id


async def test_wrong_credentials_are_not_tried_elsewhere() -> None:
    async with FakeCluster(3, sasl_users={"u": "p"}) as fake:
        security = ClientSecurity("SASL_PLAINTEXT", SaslCredentials("PLAIN", "u", "wrong"))
        cluster = Cluster("source", fake.bootstrap, security, "me")
        with pytest.raises(AuthenticationFailed, match="cluster source"):
            await cluster.connect(timeout=5)
        assert fake.counts["sasl_authenticate"] == 1
        await cluster.close()


async def test_call_repeats_what_may_be_repeated() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        fake.inject("describe_cluster", close_after=0, times=2)
        answer = await cluster.call("describe_cluster", {}, timeout=5)
        assert answer.cluster_id == fake.cluster_id
        assert fake.counts["describe_cluster"] == 3


async def test_call_does_not_repeat_what_may_have_happened() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        fake.inject("init_producer_id", close_after=0)
        with pytest.raises(ConnectionLost) as caught:
            await cluster.call("init_producer_id", {"transactional_id": None}, timeout=5)
        assert caught.value.sent
        assert fake.counts["init_producer_id"] == 1
        # what certainly was not sent is tried again
        (await cluster.connection(1)).close()
        await cluster.call("init_producer_id", {"transactional_id": None}, timeout=5)
        assert fake.counts["init_producer_id"] == 2


async def test_call_waits_for_a_node_that_returns() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        await fake.brokers[1].stop()
        calling = asyncio.create_task(cluster.call("describe_cluster", {}, node_id=1, timeout=5))
        await asyncio.sleep(0.1)
        await fake.brokers[1].start()
        assert (await calling).cluster_id == fake.cluster_id


async def test_call_ends_at_its_deadline() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        fake.inject("describe_cluster", drop=True, times=None)
        start = time.monotonic()
        with pytest.raises(RequestTimedOut):
            await cluster.call("describe_cluster", {}, timeout=0.2)
        await fake.brokers[1].stop()
        with pytest.raises((ConnectionLost, ClusterUnreachable)):
            await cluster.call("describe_cluster", {}, timeout=0.2)
        assert time.monotonic() - start < 10


async def test_refresh_ends_at_its_deadline_and_the_next_one_works() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        fake.add_topic("t")
        fake.inject("metadata", delay_answer=0.3)
        with pytest.raises(RequestTimedOut, match="source"):
            await cluster.refresh(["t"], timeout=0.1)
        await cluster.refresh(["t"], timeout=5)
        assert "t" in cluster.topics


async def test_a_cancelled_caller_does_not_cancel_the_others() -> None:
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        fake.add_topic("t")
        fake.inject("metadata", delay_answer=0.05)
        fake.inject("api_versions", delay_answer=0.05, node=2)
        for make in (lambda: cluster.refresh(["t"], timeout=5), lambda: cluster.connection(2, purpose="x")):
            first, second = asyncio.create_task(make()), asyncio.create_task(make())
            await asyncio.sleep(0.02)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            async with asyncio.timeout(30):
                await second


async def test_close_ends_what_waits_with_an_error_not_a_cancellation() -> None:
    async with FakeCluster(2) as fake, seen(fake, connect_timeout=60) as cluster:
        fake.inject("metadata", drop=True, times=None)
        fake.inject("api_versions", drop=True, times=None, node=2)
        waiting = [
            asyncio.create_task(cluster.refresh(["t"], timeout=60)),
            asyncio.create_task(cluster.connection(2, purpose="x")),
        ]
        await asyncio.sleep(0.1)
        await cluster.close()
        async with asyncio.timeout(25):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        for result in results:
            assert isinstance(result, ConnectionLost)
            assert "closed" in str(result)
        with pytest.raises(ConnectionLost, match="closed"):
            await cluster.refresh(["t"])
        for broker in fake.brokers.values():
            async with asyncio.timeout(25):
                while broker.connections:
                    await asyncio.sleep(0.01)


# --- ListOffsets

T0, T1, T2 = (TopicPartition("t", i) for i in range(3))


async def test_list_offsets_asks_every_leader_once() -> None:
    async with FakeCluster(3) as fake, seen(fake) as cluster:
        fake.add_topic("t", 3)
        for _ in range(2):
            fake.add("t", 0, 5, timestamp=1000)
        fake.add("t", 1, 3, timestamp=2000)
        fake.partition(T0).log.high_watermark = 5
        fake.partition(T1).log.delete_until(2)
        latest = await cluster.list_offsets({T0: LATEST, T1: LATEST, T2: LATEST}, timeout=5)
        assert {tp: r.offset for tp, r in latest.items()} == {T0: 5, T1: 3, T2: 0}
        assert fake.counts["list_offsets"] == 3
        ends = await cluster.list_offsets({T0: LATEST}, replica_id=-2, timeout=5)
        assert ends[T0].offset == 10
        mixed = await cluster.list_offsets({T0: 1000, T1: EARLIEST, T2: 5}, timeout=5)
        assert mixed[T0] == OffsetResult(0, 1000, 0, 0)
        assert mixed[T1].offset == 2
        assert mixed[T2] == OffsetResult(-1, -1, -1, 0)


async def test_list_offsets_read_committed() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        fake.add_topic("t")
        fake.add("t", 0, 3)
        fake.add("t", 0, 2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        assert (await cluster.list_offsets({T0: LATEST}, timeout=5))[T0].offset == 5
        assert (await cluster.list_offsets({T0: LATEST}, isolation_level=1, timeout=5))[T0].offset == 3


async def test_list_offsets_follows_a_moved_leader() -> None:
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        fake.add_topic("t", 2)
        fake.add("t", 0, 5)
        await cluster.list_offsets({T0: LATEST, T1: LATEST}, timeout=5)
        fake.move_leader("t", 0, 2)
        result = await cluster.list_offsets({T0: LATEST, T1: LATEST}, timeout=5)
        assert (result[T0].offset, result[T0].leader_epoch, result[T0].error) == (5, 1, 0)


async def test_list_offsets_survives_a_dying_leader() -> None:
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        fake.add_topic("t", 1)
        fake.add("t", 0, 5)
        await cluster.list_offsets({T0: LATEST}, timeout=5)
        await fake.brokers[1].stop()
        fake.move_leader("t", 0, 2)
        assert (await cluster.list_offsets({T0: LATEST}, timeout=5))[T0].offset == 5


async def test_list_offsets_reports_what_stays_wrong() -> None:
    async with FakeCluster(1) as fake, seen(fake) as cluster:
        fake.add_topic("t")
        none = TopicPartition("none", 0)
        result = await cluster.list_offsets({T0: LATEST, none: LATEST}, timeout=0.5)
        assert result[T0].error == 0
        assert result[none].error == 3
        fake.inject("list_offsets", error=29)
        assert (await cluster.list_offsets({T0: LATEST}, timeout=5))[T0].error == 29
        fake.inject("list_offsets", drop=True, times=None)
        start = time.monotonic()
        result = await cluster.list_offsets({T0: LATEST}, timeout=0.3)
        assert result[T0].error == 13
        assert time.monotonic() - start < 10


async def test_list_offsets_says_what_no_retry_cures() -> None:
    async with FakeCluster(1, api_versions={"list_offsets": None}) as fake, seen(fake) as cluster:
        fake.add_topic("t")
        with pytest.raises(UnsupportedApi):
            await cluster.list_offsets({T0: LATEST}, timeout=5)


async def test_work_cancelled_at_any_moment_leaves_the_cluster_usable() -> None:
    """Cancel after every possible number of event-loop turns until the work gets through."""
    async with FakeCluster(2) as fake, seen(fake) as cluster:
        fake.add_topic("t", 2)
        for turns in itertools.count():
            for purpose_node in (1, 2):
                (await cluster.connection(purpose_node)).close()
            cluster.topics.clear()
            cluster._last_refresh = 0.0  # else the pause between refreshes would take thousands of turns
            work = asyncio.create_task(cluster.list_offsets({T0: LATEST, T1: LATEST}, timeout=5))
            for _ in range(turns):
                await asyncio.sleep(0)
            if work.done():
                assert [r.error for r in (await work).values()] == [0, 0]
                break
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            result = await cluster.list_offsets({T0: LATEST, T1: LATEST}, timeout=5)
            assert [r.error for r in result.values()] == [0, 0], f"after {turns} turns"
        assert turns > 3
    assert not cluster._connections._kept._opening
    assert not cluster._rounds
