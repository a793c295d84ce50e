"""Reading spans from brokers that answer, refuse, die, move, or hold damaged logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.log import FakeLog
from tests.validator import logs
from validator.compare.columns import ARROW_TYPES, MOVED, PUBLIC, UNREADABLE
from validator.read.endpoint import ClusterEndpoint, SideFailed
from validator.read.reader import SpanReader
from validator.read.spans import LEADER, Span

END = logs.BATCHES * logs.RECORDS


def endpoint(cluster: FakeCluster, **properties: str) -> ClusterEndpoint:
    return ClusterEndpoint("target", "a", tuple(f"{h}:{p}" for h, p in cluster.bootstrap), properties)


def span(
    start: int = 0, end: int = END, *, node: int = LEADER, partition: int = 0, read_from: int | None = None
) -> Span:
    return Span(
        0, "t", partition, 0, node, start, end, start if read_from is None else read_from, first=start == 0
    )


async def read(
    cluster: FakeCluster, *spans: Span, columns: tuple[str, ...] = tuple(ARROW_TYPES), **options: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for batch in SpanReader(endpoint(cluster), spans, columns, **options).batches():
        found += batch.to_pylist()
    return found


@pytest.fixture
async def cluster() -> Any:
    async with FakeCluster(nodes=3) as made:
        made.add_topic("t").partitions[0].log = logs.make_log()
        yield made


def damaged(cluster: FakeCluster, damage: Callable[[FakeLog], object], node: int = 2) -> None:
    partition = cluster.partition("t")
    partition.replica_logs[node] = logs.copy_log(partition.log)
    damage(partition.replica_logs[node])


async def test_every_column_of_every_batch(cluster: FakeCluster):
    rows = await read(cluster, span())
    log = cluster.partition("t").log
    assert [row["base_offset"] for row in rows] == [stored.info.base_offset for stored in log.batches]
    info, row = log.batches[3].info, rows[3]
    assert row == {
        "topic": "t",
        "partition": 0,
        "replica": LEADER,
        "base_offset": info.base_offset,
        "last_offset": info.last_offset,
        "record_count": info.count,
        "size": info.size,
        "codec": "none",
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "attributes": 0,
        "max_timestamp": info.max_timestamp,
        "crc": info.crc,
        "crc_computed": info.crc,
        "leader_epoch": 0,
        "follows": info.base_offset,
        "marker": 0,
        "note": None,
        "range_id": 0,
        "slot": 0,
    }


async def test_only_the_columns_asked_for_in_their_order(cluster: FakeCluster):
    rows = await read(cluster, span(0, 10), columns=("size", "base_offset"))
    assert [list(row) for row in rows] == [["size", "base_offset"]] * 2
    with pytest.raises(ValueError, match="no column nonsense"):
        await read(cluster, span(), columns=("nonsense",))
    assert set(PUBLIC) < set(ARROW_TYPES)


@pytest.mark.parametrize("fetch_bytes", [100, 300, 1000, 1 << 20])
async def test_spans_share_out_a_log_without_loss_or_repetition(cluster: FakeCluster, fetch_bytes: int):
    whole = [row["base_offset"] for row in await read(cluster, span())]
    cut = [
        row["base_offset"]
        for low, high in ((0, 13), (13, 50), (50, 51), (51, 99), (99, END))
        for row in await read(cluster, span(low, high, read_from=max(low - 1, 0)), fetch_bytes=fetch_bytes)
    ]
    assert cut == whole


async def test_a_named_replica_is_asked_itself(cluster: FakeCluster):
    damaged(cluster, lambda log: logs.change(log, 50, logs.flip_bit))
    mine = {row["base_offset"]: row for row in await read(cluster, span(node=2))}
    theirs = {row["base_offset"]: row for row in await read(cluster, span(node=3))}
    assert mine[50]["crc"] != mine[50]["crc_computed"]
    assert theirs[50]["crc"] == theirs[50]["crc_computed"]
    asked = {(request.node, request.entity.rack_id) for request in cluster.received("fetch")}
    assert asked == {(2, ""), (3, "")}


@pytest.mark.parametrize("fetch_bytes", [100, 250, 400, 1 << 20])
async def test_a_doubled_batch_is_seen_wherever_an_answer_ends(cluster: FakeCluster, fetch_bytes: int):
    damaged(cluster, lambda log: logs.double(log, 50))
    rows = await read(cluster, span(node=2), fetch_bytes=fetch_bytes)
    assert [row["base_offset"] for row in rows].count(50) == 2


@pytest.mark.parametrize("seam", [45, 50, 55, 60])
async def test_swapped_batches_are_seen_wherever_a_span_ends(cluster: FakeCluster, seam: int):
    damaged(cluster, lambda log: logs.swap(log, 50))
    rows = await read(cluster, span(0, seam, node=2))
    rows += await read(cluster, span(seam, END, node=2, read_from=seam - 1))
    bases = [row["base_offset"] for row in rows]
    disordered = [row["base_offset"] for row in rows if row["follows"] > row["base_offset"]]
    assert disordered == [50] or 50 not in bases


async def test_what_is_no_batch_is_a_marker_and_ends_the_span(cluster: FakeCluster):
    damaged(cluster, lambda log: logs.change(log, 50, logs.break_length))
    rows = await read(cluster, span(node=2))
    assert [row["base_offset"] for row in rows][-2:] == [45, 50]
    assert rows[-1]["marker"] == UNREADABLE
    assert "no record batch" in rows[-1]["note"]


async def test_a_broker_that_cannot_read_its_file_is_a_marker_too(cluster: FakeCluster):
    cluster.inject("fetch", error=2, times=None)
    rows = await read(cluster, span(node=2))
    assert [(row["marker"], row["base_offset"]) for row in rows] == [(UNREADABLE, 0)]
    assert "CORRUPT_MESSAGE" in rows[0]["note"]


async def test_a_log_that_does_not_go_back_so_far_is_a_marker(cluster: FakeCluster):
    cluster.partition("t").log.delete_until(30)
    rows = await read(cluster, span())
    assert [(row["marker"], row["base_offset"]) for row in rows] == [(MOVED, 0)]


async def test_the_leader_is_followed(cluster: FakeCluster):
    cluster.move_leader("t", 0, 3, publish=False)
    del cluster.partition("t").replicas[:]
    reading = asyncio.create_task(read(cluster, span()))
    await asyncio.sleep(0.3)
    cluster.partition("t").replicas.append(3)
    cluster.publish("t", 0)
    assert len(await asyncio.wait_for(reading, 30)) == logs.BATCHES


async def test_a_connection_that_dies_in_the_middle_costs_nothing(cluster: FakeCluster):
    cluster.inject("fetch", close_after=40, times=2)
    rows = await read(cluster, span(), fetch_bytes=300)
    assert [row["base_offset"] for row in rows] == list(range(0, END, logs.RECORDS))


@pytest.mark.parametrize("known", [True, False], ids=["it hangs up", "not in the metadata"])
async def test_a_broker_that_is_away_is_named_with_its_address_if_it_has_one(
    cluster: FakeCluster, known: bool
):
    address = f"127.0.0.1:{cluster.brokers[2].port}"
    if known:
        cluster.inject("fetch", node=2, close_after=0, times=None)
    else:
        await cluster.brokers[2].stop()
    with pytest.raises(SideFailed) as caught:
        await read(cluster, span(node=2), stall_seconds=0.5)
    assert caught.value.side == "target"
    assert "t-0" in caught.value.reason and "broker 2" in caught.value.reason
    assert caught.value.address == (address if known else None)


async def test_a_cluster_that_is_away_is_named_with_its_addresses():
    async with FakeCluster() as cluster:
        gone = endpoint(cluster)
    with pytest.raises(SideFailed) as caught:
        async for _ in SpanReader(gone, [span()], ("base_offset",)).batches():
            pass
    assert caught.value.address == gone.bootstrap[0]
    found = SideFailed.parse(f"org.apache.spark.SparkException: Job aborted\n{caught.value}\n\tat x")
    assert found is not None and found.sentence == caught.value.sentence
    assert SideFailed.parse("something else") is None


async def test_a_log_that_ends_too_early_does_not_hang(cluster: FakeCluster):
    with pytest.raises(SideFailed, match="nothing there"):
        await read(cluster, span(0, END + 1), stall_seconds=0.3)


async def test_many_partitions_share_requests_and_memory():
    async with FakeCluster() as cluster:
        topic = cluster.add_topic("t", 200)
        for partition in topic.partitions.values():
            partition.log = logs.make_log(2)
        spans = [span(0, 2 * logs.RECORDS, partition=index) for index in topic.partitions]
        rows = await read(cluster, *spans)
        assert len(rows) == 400
        assert cluster.counts["fetch"] < 12
        assert cluster.brokers[1].connections <= 2


async def test_passwords_show_in_no_repr():
    assert "hunter2" not in repr(ClusterEndpoint("source", "a", ("h:1",), {"sasl.jaas.config": "hunter2"}))
