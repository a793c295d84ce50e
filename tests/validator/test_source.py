"""The data source, used as Spark uses it, without a JVM: options, schema, tasks, and the way through pickle."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from tests.fakes.cluster import FakeCluster
from tests.validator import logs
from validator.compare.columns import ARROW_TYPES, PUBLIC
from validator.read.endpoint import ClusterEndpoint
from validator.read.ranges import Task
from validator.read.source import FORMAT, KafkaBatches, OptionError, register, schema_of
from validator.read.spans import SOURCE, Span


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as made:
        made.add_topic("t", 3)
        for partition in made.topics["t"].partitions.values():
            partition.log = logs.make_log()
        yield made


class Registered:
    """Where `register` leaves the class; stands in for a session."""

    def __init__(self) -> None:
        self.dataSource = self
        self.kind: type[KafkaBatches] | None = None

    def register(self, kind: type[KafkaBatches]) -> None:
        self.kind = pickle.loads(cloudpickle.dumps(kind))  # as it goes to Spark's Python workers


def bound(cluster: FakeCluster, tasks: Sequence[Task] | None = None) -> type[KafkaBatches]:
    session = Registered()
    addresses = tuple(f"{host}:{port}" for host, port in cluster.bootstrap)
    target = ClusterEndpoint("target", "b", addresses, {"security.protocol": "PLAINTEXT"})
    source = ClusterEndpoint("source", "a", addresses, {"security.protocol": "PLAINTEXT"})
    register(session, {"source": source, "target": target}, tasks)  # type: ignore[arg-type]
    assert session.kind is not None
    return session.kind


async def rows(
    kind: type[KafkaBatches], options: Mapping[str, str], *columns: str
) -> tuple[list[InputPartition], list[dict[str, Any]]]:
    def read() -> tuple[list[InputPartition], list[dict[str, Any]]]:
        source = kind(CaseInsensitiveDict(options))  # type: ignore[arg-type]
        reader = pickle.loads(cloudpickle.dumps(source.reader(schema_of(*columns))))
        partitions = reader.partitions()
        return partitions, [
            row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()
        ]

    return await asyncio.to_thread(read)


async def test_a_topic_by_options(cluster: FakeCluster):
    kind = bound(cluster)
    assert kind.name() == FORMAT
    partitions, found = await rows(kind, {"cluster": "target", "topic": "t", "replica": "2"})
    assert len(found) == 3 * logs.BATCHES
    assert list(found[0]) == list(PUBLIC)
    assert {row["replica"] for row in found} == {2}
    assert {request.node for request in cluster.received("fetch")} == {2}
    assert len(partitions) == 1, "small partitions share a task"


async def test_offsets_and_partitions_are_pushed_down(cluster: FakeCluster):
    options = {
        "cluster": "target",
        "topic": "t",
        "partitions": "0,2-2",
        "startOffset": "50",
        "endOffset": "60",
        "rangeBytes": "1024",
    }
    _, found = await rows(bound(cluster), options, "base_offset", "partition")
    assert sorted((row["partition"], row["base_offset"]) for row in found) == [
        (0, 50),
        (0, 55),
        (2, 50),
        (2, 55),
    ]
    assert list(found[0]) == ["base_offset", "partition"]
    asked = {
        (partition.partition, partition.fetch_offset)
        for request in cluster.received("fetch")
        for topic in request.entity.topics
        for partition in topic.partitions
    }
    assert {index for index, _ in asked} == {0, 2}
    assert min(offset for _, offset in asked) == 49


async def test_no_crc_is_computed_unless_it_is_asked_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    from validator.compare import columns

    computed: list[object] = []
    real = columns.crc32c
    monkeypatch.setattr(columns, "crc32c", lambda data: computed.append(len(data)) or real(data))
    options = {"cluster": "target", "topic": "t"}
    await rows(bound(cluster), options, "base_offset", "crc")
    assert computed == []
    await rows(bound(cluster), options, "crc_computed")
    assert len(computed) == 3 * logs.BATCHES


async def test_given_tasks_need_no_options(cluster: FakeCluster):
    spans = [Span(5, "t", 1, SOURCE, -1, 10, 20, 9), Span(6, "t", 2, 1, 1, 30, 35, 29)]
    tasks = [Task(source=True, spans=spans[:1]), Task(source=False, spans=spans[1:])]
    partitions, found = await rows(bound(cluster, tasks), {}, "range_id", "slot", "base_offset")
    assert len(partitions) == 2
    assert [tuple(row.values()) for row in found] == [(5, 0, 10), (5, 0, 15), (6, 1, 30)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "'cluster'"),
        ({"cluster": "elsewhere", "topic": "t"}, "no cluster 'elsewhere'"),
        ({"cluster": "target"}, "'topic'"),
        ({"cluster": "target", "topic": "nothing"}, "no topic nothing"),
        ({"cluster": "target", "topic": "t", "partitions": "0-x"}, "not like 0,3,7-9"),
        ({"cluster": "target", "topic": "t", "partitions": "7"}, "t-7"),
    ],
)
async def test_options_that_make_no_sense(cluster: FakeCluster, options: dict[str, str], says: str):
    with pytest.raises(OptionError, match=says):
        await rows(bound(cluster), options)


def test_schemas():
    assert schema_of().fieldNames() == list(PUBLIC)
    assert schema_of(*ARROW_TYPES).fieldNames() == list(ARROW_TYPES)
    with pytest.raises(OptionError, match="no column 'nonsense'"):
        schema_of("nonsense")


def test_what_a_task_prints_is_no_secret():
    endpoint = ClusterEndpoint("source", "a", ("h:1",), {"sasl.jaas.config": "hunter2"})
    session = Registered()
    register(session, {"source": endpoint}, [Task(source=True)])  # type: ignore[arg-type]
    assert session.kind is not None
    reader = session.kind(CaseInsensitiveDict({})).reader(schema_of())  # type: ignore[arg-type]
    assert "hunter2" not in repr((session.kind, reader, *reader.partitions()))
    assert dict(session.kind.clusters["source"].properties) == dict(endpoint.properties)
