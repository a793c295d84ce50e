"""Record mode on real brokers: planted faults are found, what is lawful is not, and a named replica is what is read.

"Source" and "target" are two clusters with topics of the same names. Most faults are planted by writing other records to the
target, whose leader is then the replica that is compared. One Spark session for all.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from crc32c import crc32c

from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, Scene
from tests.real.harness_stalls import brokers_back
from tests.real.kafka_admin import kafka_admin
from validator.messages import Configure, PartitionPlan, ReplicaPlan, ReplicaResult
from validator.read.endpoint import ClusterEndpoint
from validator.read.session import Session
from validator.records.records import RecordsChecked, check_records
from wire.frames.batch import iter_batch_headers
from wire.frames.types import TopicPartition as WirePartition

# PySpark leaves the sockets of its gateway to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

SECRET = "hunter2-and-more"
T0 = int(time.time()) * 1000
HOLE = object()
Written = tuple[Any, Any, list[tuple[str, bytes | None]], int] | object


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    made = Session(
        Configure(
            master="local[2]",
            conf={
                "spark.sql.shuffle.partitions": "2",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": str(tmp_path_factory.mktemp("events")),
                # Small data: compiling would cost more than it saves.
                "spark.sql.codegen.wholeStage": "false",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
            work_dir=str(tmp_path_factory.mktemp("spark")),
        )
    )
    made.start()
    yield made
    made.stop()
    gc.collect()


def endpoint(cluster: KafkaCluster, side: Any, **properties: str) -> ClusterEndpoint:
    # No broker asks for it; the connector is given it all the same.
    properties = {"security.protocol": "PLAINTEXT", "ssl.key.password": SECRET} | properties
    return ClusterEndpoint(side, side, tuple(cluster.bootstrap.split(",")), properties)


def record(number: int, **changes: Any) -> tuple[Any, Any, list[tuple[str, bytes | None]], int]:
    whole = {"key": b"k%d" % number, "value": b"v%d" % number, "headers": [("h", b"1")], "time": T0 + number}
    whole |= changes
    return whole["key"], whole["value"], whole["headers"], whole["time"]


def write(bootstrap: str, topic: str, partition: int, records: list[Written]) -> None:
    """The records from offset 0 on; a HOLE is the marker of a transaction that begins with the record before it."""
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    index = 0
    while index < len(records):
        marked = index + 1 < len(records) and records[index + 1] is HOLE
        one = records[index]
        assert isinstance(one, tuple)
        key, value, headers, at = one
        if not marked:
            plain.produce(topic, value, key, partition, timestamp=at, headers=headers)
            index += 1
            continue
        plain.flush(30)
        writer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{partition}-{index}"}
        )
        writer.init_transactions(30)
        writer.begin_transaction()
        writer.produce(topic, value, key, partition, timestamp=at, headers=headers)
        writer.commit_transaction(30)
        index += 2
        wait_for_end(bootstrap, topic, partition, index)  # markers are written a little later
    plain.flush(30)


def wait_for_end(bootstrap: str, topic: str, partition: int, end: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks-only"})
    try:
        deadline = time.monotonic() + 20
        while consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)[1] < end:
            assert time.monotonic() < deadline, f"{topic}-{partition} does not reach {end}"
            time.sleep(0.02)
    finally:
        consumer.close()


def create(cluster: KafkaCluster, topic: str, partitions: int, **configs: str) -> None:
    admin = kafka_admin(cluster.bootstrap)
    made = admin.create_topics([NewTopic(topic, partitions, replication_factor=1, config=configs)])
    made[topic].result(30)


def leaders(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    admin = kafka_admin(cluster.bootstrap)
    deadline = time.monotonic() + 10
    while True:
        parts = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if parts and all(part.leader >= 0 for part in parts.values()):
            return {index: part.leader for index, part in parts.items()}
        assert time.monotonic() < deadline
        time.sleep(0.1)


def plan(topic: str, partition: int, broker: int, **changes: Any) -> PartitionPlan:
    return PartitionPlan(
        topic=topic, partition=partition, replicas=(ReplicaPlan(broker_id=broker),), **changes
    )


def by_partition(checked: RecordsChecked) -> dict[int, ReplicaResult]:
    assert checked.failures == []
    return {result.partition: result for result in checked.results}


def kinds(result: ReplicaResult) -> list[tuple[str, int]]:
    return [(finding.kind.value, finding.offset) for finding in result.findings]


SAME = [record(number) for number in range(20)]


def changed(at: int, **changes: Any) -> list[Written]:
    return [record(n, **(changes if n == at else {})) for n in range(20)]


HOLED: list[Written] = [*SAME[:7], HOLE, *SAME[8:]]
NULLS: list[Written] = [
    record(n, key=None if n % 2 else b"", value=None if n % 3 else b"") for n in range(20)
]
NO_HEADERS: list[Written] = [record(n, headers=[]) for n in range(20)]

# partition -> (at the source, at the target, findings)
PLANTED: dict[int, tuple[list[Written], list[Written], list[tuple[str, int]]]] = {
    0: (list(SAME), list(SAME), []),
    1: (list(SAME), changed(5, value=b"v6"), [("record_differing", 5)]),
    2: (list(SAME), changed(6, key=b"K"), [("record_differing", 6)]),
    3: (list(SAME), changed(7, headers=[("h", b"2")]), [("record_differing", 7)]),
    4: (list(SAME), changed(8, time=T0), [("record_differing", 8)]),
    5: (list(SAME), HOLED, [("record_missing", 7)]),
    6: (HOLED, list(SAME), [("record_extra", 7)]),
    7: (list(SAME), list(SAME[:19]), [("short", 19)]),
    8: (HOLED, HOLED, []),
    9: (NULLS, NULLS, []),
    10: (NULLS, [record(n, key=b"", value=None if n % 3 else b"") for n in range(20)], []),
    11: (changed(3, headers=[("a", None), ("b", b"")]), changed(3, headers=[("a", b""), ("b", None)]), []),
    12: ([], [], []),
    13: (changed(3, key=b"ab", value=b"c"), changed(3, key=b"a", value=b"bc"), [("record_differing", 3)]),
    14: (NO_HEADERS, NO_HEADERS, []),
    15: (list(SAME), list(SAME), [("late_start", 0)]),
    16: (list(SAME), list(SAME), [("late_start", 0)]),
    17: (list(SAME), list(SAME), []),
}
DELETED_BEFORE = {("target", 15): 5, ("target", 16): 5, ("source", 17): 5}
PLANTED[10] = (*PLANTED[10][:2], [("record_differing", n) for n in range(1, 20, 2)])
PLANTED[11] = (*PLANTED[11][:2], [("record_differing", 3)])


@pytest.mark.timeout(600)
async def test_planted_differences_are_found_and_nothing_else(
    session: Session,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
) -> None:
    topic = unique_topic("planted")

    def prepare() -> None:
        for cluster, side in ((source_cluster, 0), (target_cluster, 1)):
            create(cluster, topic, len(PLANTED))
            for partition, sides in PLANTED.items():
                write(cluster.bootstrap, topic, partition, sides[side])
            admin = kafka_admin(cluster.bootstrap)
            name = ("source", "target")[side]
            gone = [
                TopicPartition(topic, index, to) for (of, index), to in DELETED_BEFORE.items() if of == name
            ]
            for done in admin.delete_records(gone).values():
                done.result(30)

    await asyncio.to_thread(prepare)
    led = await asyncio.to_thread(leaders, target_cluster, topic)
    plans = [plan(topic, index, led[index]) for index in PLANTED]
    plans[16] = plan(topic, 16, led[16], retention_ms=60_000)
    source, target = endpoint(source_cluster, "source"), endpoint(target_cluster, "target")

    def check(plans: list[PartitionPlan]) -> RecordsChecked:
        return check_records(session.spark, source, target, plans, wait_s=1.0, now_ms=T0 + 3_600_000)

    checked = by_partition(await asyncio.to_thread(check, plans))
    assert {index: kinds(result) for index, result in checked.items()} == {
        index: expected for index, (_, _, expected) in PLANTED.items()
    }
    for index, result in checked.items():
        ends = [offset for kind, offset in PLANTED[index][2] if kind != "late_start"]
        first = ends[0] if ends else 0 if index == 12 else 20
        assert result.through == first, index
        assert result.digest == result.source_digest, index
        assert result.findings_count == len(PLANTED[index][2])
        gone = 5 if index in (15, 16, 17) else 0
        assert result.records == first - gone - (first > 7 and HOLE in PLANTED[index][0]), index
        assert result.start == gone, index
    for index, why in ((15, "does not explain it"), (16, "retention.ms=60000")):
        missing = checked[index].missing
        assert missing is not None and missing.records == 5
        assert why in missing.why
    assert checked[17].lawful == {"expired_at_source_offsets": 5}
    assert len({result.digest for index, result in checked.items() if index in (0, 8, 9, 14)}) == 4
    assert "value: 2 bytes on both sides" in checked[1].findings[0].detail
    assert f"timestamp: {T0 + 8} at the source, {T0} on the replica" in checked[4].findings[0].detail
    assert "key: null at the source, 0 bytes on the replica" in checked[10].findings[0].detail

    # An incremental run goes on where the first ended, and adds up to the same.
    half = plans[0].model_copy(update={"end": 9})
    [first_half] = (await asyncio.to_thread(check, [half])).results
    assert (first_half.through, first_half.records) == (9, 9)
    known = ReplicaPlan(
        broker_id=led[0],
        through=9,
        start=0,
        digest=first_half.digest,
        source_digest=first_half.source_digest,
        records=first_half.records,
        bytes=first_half.bytes,
    )
    [whole] = (await asyncio.to_thread(check, [plans[0].model_copy(update={"replicas": (known,)})])).results
    assert (whole.through, whole.records) == (20, 20)
    assert (whole.bytes, whole.digest) == (checked[0].bytes, checked[0].digest)

    # What Spark writes down of its jobs knows the topics, and no secret.
    files = Path(session.properties()["spark.eventLog.dir"]).rglob("*")
    events = b"".join(path.read_bytes() for path in files if path.is_file())
    assert topic.encode() in events
    assert SECRET.encode() not in events


# --- compacted logs ---------------------------------------------------------------------------------------------

FAST = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
NEVER = {"cleanup.policy": "compact", "segment.ms": "1000", "min.compaction.lag.ms": "86400000"}
ROUNDS: list[Written] = [record(n, key=b"k%d" % (n % 4)) for n in range(20)]
TOMBS: list[Written] = [record(n, key=b"k%d" % (n % 4), value=None if n > 15 else b"v") for n in range(20)]


def offsets(bootstrap: str, topic: str, partition: int) -> list[int]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "looks-only",
            "isolation.level": "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[int] = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found.append(message.offset())
        return found
    finally:
        consumer.close()


def abort(bootstrap: str, topic: str, partition: int) -> None:
    """A record that is its key's only one, and that nobody committed."""
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-aborted"})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"never", b"only-here", partition, timestamp=T0)
    writer.flush(30)
    writer.abort_transaction(30)
    wait_for_end(bootstrap, topic, partition, 22)


@pytest.mark.timeout(600)
async def test_what_a_cleaner_took_is_lawful_and_what_it_cannot_have_taken_is_wrong(
    session: Session,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Callable[[str], str],
) -> None:
    """The replica is on the cluster whose cleaner is quick; the other one never cleans."""
    whole, cleaned = target_cluster, source_cluster
    topic = unique_topic("compacted")
    wrong_last: list[Written] = [*ROUNDS[:18], record(18, key=b"k2", value=b"wrong"), ROUNDS[19]]
    lost: list[Written] = [*ROUNDS[:4], record(4, key=b"lonely"), record(5, key=b"alone"), *ROUNDS[6:]]
    holed: list[Written] = [*lost[:5], HOLE, *lost[6:]]
    # partition -> what the one that never cleans and the one that does were given
    given = {
        0: (ROUNDS, ROUNDS),
        1: (ROUNDS, wrong_last),
        2: (TOMBS, TOMBS),
        3: (ROUNDS, ROUNDS),
        4: (lost, holed),
    }

    def prepare() -> None:
        create(whole, topic, len(given), **NEVER)
        create(cleaned, topic, len(given), **FAST)
        for side, cluster in enumerate((whole, cleaned)):
            for partition, sides in given.items():
                write(cluster.bootstrap, topic, partition, sides[side])
            abort(cluster.bootstrap, topic, 3)
        deadline = time.monotonic() + 60
        for turn in range(100):
            time.sleep(1.1)
            now = int(time.time() * 1000)
            # A segment is rolled, and so cleaned, when something comes after it.
            for cluster in (whole, cleaned):
                for partition in given:
                    plain = Producer({"bootstrap.servers": cluster.bootstrap})
                    plain.produce(topic, b"%d" % turn, b"roll", partition, timestamp=now)
                    plain.flush(10)
            left = {partition: offsets(cleaned.bootstrap, topic, partition) for partition in given}
            if all(0 not in left[partition] for partition in given) and 20 not in left[3]:
                return
            assert time.monotonic() < deadline, left

    await asyncio.to_thread(prepare)
    ends = {index: offsets(whole.bootstrap, topic, index)[-1] + 1 for index in given}
    led = await asyncio.to_thread(leaders, cleaned, topic)

    def check(plans: list[PartitionPlan], *, swapped: bool = False) -> dict[int, ReplicaResult]:
        sides = endpoint(whole, "source"), endpoint(cleaned, "target")
        if swapped:
            sides = endpoint(cleaned, "source"), endpoint(whole, "target")
        return by_partition(check_records(session.spark, *sides, plans, wait_s=1.0, now_ms=T0))

    plans = [plan(topic, index, led[index], compacted=True) for index in given]
    found = await asyncio.to_thread(check, plans)
    assert {index: kinds(result) for index, result in found.items()} == {
        0: [],
        1: [("record_differing", 18)],
        2: [],
        3: [],
        4: [("record_missing", 5)],
    }
    assert found[0].through == ends[0]
    assert found[0].lawful.keys() == {"compacted_on_replica"}
    assert found[0].lawful["compacted_on_replica"] >= 16
    assert found[3].lawful["aborted_removed_on_replica"] == 1
    assert (found[1].through, found[4].through) == (18, 5)

    # The range ends before the records for which its own were cleaned: they are looked for in the whole log.
    [part] = (await asyncio.to_thread(check, [plans[0].model_copy(update={"end": 10})])).values()
    assert (kinds(part), part.through, part.records) == ([], 10, 0)
    assert part.lawful == {"compacted_on_replica": 10}

    # The other way round: the source was cleaned, the replica was not.
    there = await asyncio.to_thread(leaders, whole, topic)
    swapped = [plan(topic, index, there[index], compacted=True) for index in (0, 4)]
    found = await asyncio.to_thread(lambda: check(swapped, swapped=True))
    assert kinds(found[0]) == []
    assert found[0].lawful.keys() == {"compacted_at_source"}
    assert kinds(found[4]) == [("record_extra", 5)]


# --- a named replica ------------------------------------------------------------------------------------------------


def change_record(log: Path, offset: int) -> None:
    """Another value for the record at `offset`, alone in its batch, with the batch's CRC made right again."""
    data = bytearray(log.read_bytes())
    [header] = [one for one in iter_batch_headers(data, 0, len(data)) if one.base_offset == offset]
    at = data.index(b"v%d" % offset, header.position)
    assert at < header.end
    data[at] = ord("w")
    struct.pack_into(">I", data, header.position + 17, crc32c(bytes(data[header.position + 21 : header.end])))
    log.write_bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_replica_that_is_named_is_the_one_that_spark_reads(
    session: Session,
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> None:
    """A record is changed in one replica's file: seen there through the link broker, and nowhere else."""
    topic = SourceTopic(unique_topic("named"), 1, SourceFiller.history)

    def prepare() -> None:
        create(source_cluster, topic.name, 1)
        for number in range(12):
            alone = Producer({"bootstrap.servers": source_cluster.bootstrap})
            alone.produce(topic.name, b"v%d" % number, b"k", 0)
            alone.flush(30)

    await asyncio.to_thread(prepare)
    sidecar = await start_sidecar(target_cluster.bootstrap)
    scene = Scene(source_cluster, target_cluster, sidecar, [topic])
    await sidecar.linker("link", "create", LINK, "--bootstrap-servers", source_cluster.bootstrap)
    await sidecar.linker("mirror", "create", topic.name, "--link", LINK, "--replication-factor", "3")
    await scene.wait_active()
    await scene.hush()
    [broker] = [node for node in target_cluster.brokers if node.node_id == 2]
    await broker.stop()
    log = target_cluster.partition_dir(2, WirePartition(topic.name, 0)) / f"{0:020}.log"
    await asyncio.to_thread(change_record, log, 4)
    await broker.start()
    await brokers_back(target_cluster)

    replicas = tuple(ReplicaPlan(broker_id=one) for one in (1, 2, 3))
    plans = [PartitionPlan(topic=topic.name, partition=0, replicas=replicas)]

    def check() -> RecordsChecked:
        sides = endpoint(source_cluster, "source"), endpoint(target_cluster, "target")
        return check_records(session.spark, *sides, plans, wait_s=20.0, now_ms=T0)

    checked = await asyncio.to_thread(check)
    assert checked.failures == []
    found = {result.broker_id: result for result in checked.results}
    assert {one: kinds(result) for one, result in found.items()} == {
        1: [],
        2: [("record_differing", 4)],
        3: [],
    }
    assert {one: result.through for one, result in found.items()} == {1: 12, 2: 4, 3: 12}
    assert "value: 2 bytes on both sides" in found[2].findings[0].detail

    # A stock leader knows no such rack: it alone is read, and the others are not said to be equal.
    await sidecar.linker("mirror", "promote", topic.name, "--link", LINK, "--validation", "skip")
    led = (await asyncio.to_thread(leaders, target_cluster, topic.name))[0]
    checked = await asyncio.to_thread(check)
    assert [result.broker_id for result in checked.results] == [led]
    assert len(checked.failures) == 2
    assert all(f"broker {led} leads it" in one.sentence for one in checked.failures)
