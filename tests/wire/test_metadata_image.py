"""The cluster image: Kafka's replay rules one by one; random logs by every prefix, split, as snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.metadata_records import encode_batch, encode_record, leader_change, snapshot_bytes
from wire.errors import MalformedFrame, UnsupportedApi
from wire.frames.batch import iter_batch_headers
from wire.metadata.decode import MetadataRecord, decode_metadata_value
from wire.metadata.image import ClusterImage, Endpoint, PartitionImage
from wire.metadata.replay import load_snapshot, replay_batches

T1, T2 = b"1" * 16, b"2" * 16
A, B = b"a" * 16, b"b" * 16


def record(name: str, /, **fields: Any) -> MetadataRecord:
    return decode_metadata_value(encode_record(name, fields))


def replayed(*records: MetadataRecord) -> ClusterImage:
    image = ClusterImage()
    for item in records:
        image.replay(item)
    return image


def state(image: ClusterImage) -> dict[str, Any]:
    """Everything observable except the stamp."""
    return {
        "topics": image.topics_by_id,
        "names": {name: topic.id for name, topic in image.topics_by_name.items()},
        "brokers": image.brokers,
        "features": image.features,
        "configs": image.configs,
        "next_producer_id": image.next_producer_id,
    }


TOPIC = record("TopicRecord", name="t", topic_id=T1)
PARTITION = record(
    "PartitionRecord",
    partition_id=0,
    topic_id=T1,
    replicas=[1, 2],
    isr=[1],
    adding_replicas=[2],
    removing_replicas=[3],
    leader=1,
    leader_epoch=5,
    partition_epoch=9,
    directories=[A, B],
    eligible_leader_replicas=[2],
    last_known_elr=[3],
)
BROKER = record(
    "RegisterBrokerRecord",
    broker_id=1,
    incarnation_id=A,
    broker_epoch=100,
    end_points=[{"name": "PLAINTEXT", "host": "h", "port": 9092, "security_protocol": 0}],
    rack="r",
    fenced=True,
    log_dirs=[A],
)


def change(**fields: Any) -> MetadataRecord:
    return record("PartitionChangeRecord", partition_id=0, topic_id=T1, **fields)


def test_a_partition_record_says_everything() -> None:
    image = ClusterImage()
    assert image.replay(TOPIC) == {T1}
    assert image.replay(PARTITION) == {T1}
    assert image.partition(T1, 0) == PartitionImage(
        0, (1, 2), (1,), (2,), (3,), 1, 5, 9, elr=(2,), last_known_elr=(3,), directories=(A, B)
    )
    assert image.topics_by_name["t"] is image.topics_by_id[T1]
    assert image.partition(T1, 1) is None
    assert image.partition(T2, 0) is None


def test_every_change_counts_the_partition_epoch_and_only_a_given_leader_the_leader_epoch() -> None:
    image = replayed(TOPIC, PARTITION)
    assert image.replay(change(isr=[1, 2])) == {T1}
    partition = image.partition(T1, 0)
    assert partition is not None
    assert (partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch) == (
        (1, 2),
        1,
        5,
        10,
    )
    image.replay(change(leader=1))  # the same leader again still bumps
    image.replay(change(leader=-1))
    partition = image.partition(T1, 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (-1, 7, 12)
    image.replay(change(leader=2, isr=[2], adding_replicas=[], removing_replicas=[], replicas=[2, 1]))
    assert image.partition(T1, 0) == PartitionImage(
        0, (2, 1), (2,), (), (), 2, 8, 13, elr=(2,), last_known_elr=(3,), directories=(A, B)
    )


def test_null_keeps_and_empty_clears() -> None:
    image = replayed(TOPIC, PARTITION, change())
    partition = image.partition(T1, 0)
    assert partition is not None
    assert (partition.isr, partition.elr, partition.partition_epoch) == ((1,), (2,), 10)
    image.replay(change(isr=[], eligible_leader_replicas=[], last_known_elr=[], leader_recovery_state=1))
    partition = image.partition(T1, 0)
    assert partition is not None
    assert (partition.isr, partition.elr, partition.last_known_elr, partition.leader_recovery_state) == (
        (),
        (),
        (),
        1,
    )


def test_clearing_the_elr_is_a_change_of_the_partitions_that_have_one() -> None:
    other = record("PartitionRecord", partition_id=1, topic_id=T1, replicas=[1], isr=[1], partition_epoch=3)
    image = replayed(TOPIC, PARTITION, other)
    assert image.replay(record("ClearElrRecord", topic_name="t")) == {T1}
    first, second = image.partition(T1, 0), image.partition(T1, 1)
    assert first is not None
    assert second is not None
    assert (first.elr, first.last_known_elr, first.partition_epoch, first.leader_epoch) == ((), (), 10, 5)
    assert second.partition_epoch == 3
    assert image.replay(record("ClearElrRecord", topic_name="")) == frozenset()
    with pytest.raises(MalformedFrame, match="unknown topic 'x'"):
        image.replay(record("ClearElrRecord", topic_name="x"))


def test_a_removed_topic_takes_its_configs_along_and_may_return_under_a_new_id() -> None:
    config = record("ConfigRecord", resource_type=2, resource_name="t", name="k", value="v")
    image = replayed(TOPIC, PARTITION, config)
    assert image.replay(record("RemoveTopicRecord", topic_id=T1)) == {T1}
    assert state(image) == state(ClusterImage())
    image = replayed(TOPIC, record("TopicRecord", name="t", topic_id=T2), config)
    image.replay(record("RemoveTopicRecord", topic_id=T1))
    assert image.topics_by_name["t"].id == T2
    assert image.configs == {(2, "t"): {"k": "v"}}


@pytest.mark.parametrize(
    "bad",
    [
        change(isr=[1]),
        PARTITION,
        record("RemoveTopicRecord", topic_id=T1),
        record("FenceBrokerRecord", id=1, epoch=100),
        record("UnfenceBrokerRecord", id=1, epoch=100),
        record("BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=100),
        record("EndTransactionRecord"),
        record("AbortTransactionRecord"),
    ],
    ids=lambda bad: bad.type,
)
def test_a_record_about_nothing_known_is_refused_and_changes_nothing(bad: MetadataRecord) -> None:
    image = ClusterImage()
    with pytest.raises(MalformedFrame):
        image.replay(bad)
    assert state(image) == state(ClusterImage())


def test_a_change_of_a_partition_the_topic_lacks_is_refused() -> None:
    image = replayed(TOPIC)
    with pytest.raises(MalformedFrame, match="t-0"):
        image.replay(change(isr=[1]))
    assert image.topics_by_id[T1].partitions == {}


def test_brokers_come_change_and_go() -> None:
    image = replayed(BROKER)
    broker = image.brokers[1]
    assert broker.endpoints == {"PLAINTEXT": Endpoint("h", 9092, 0)}
    assert (broker.epoch, broker.incarnation_id, broker.rack, broker.fenced) == (100, A, "r", True)
    assert (broker.log_dirs, broker.cordoned_log_dirs, broker.in_controlled_shutdown) == ((A,), None, False)

    def changed(**fields: Any) -> Any:
        image.replay(record("BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=100, **fields))
        return image.brokers[1]

    assert changed(fenced=-1).fenced is False
    assert changed(fenced=0).fenced is False
    assert changed(fenced=1).fenced is True
    assert changed(in_controlled_shutdown=1).in_controlled_shutdown is True
    assert changed(in_controlled_shutdown=0).in_controlled_shutdown is True  # only a new registration ends it
    assert changed(log_dirs=[]).log_dirs == (A,)  # an empty list is "no change"
    assert changed(log_dirs=[B, A]).log_dirs == (B, A)
    assert changed(cordoned_log_dirs=[B]).cordoned_log_dirs == (B,)
    assert changed(cordoned_log_dirs=None).cordoned_log_dirs == (B,)
    assert changed(cordoned_log_dirs=[]).cordoned_log_dirs == ()
    image.replay(record("UnfenceBrokerRecord", id=1, epoch=100))
    assert image.brokers[1].fenced is False
    image.replay(record("FenceBrokerRecord", id=1, epoch=100))
    assert image.brokers[1].fenced is True
    before = image.brokers[1]
    for bad in (
        record("BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=100, fenced=2),
        record("BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=100, in_controlled_shutdown=-1),
        record("BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=99),
        record("FenceBrokerRecord", id=1, epoch=99),
    ):
        with pytest.raises(MalformedFrame):
            image.replay(bad)
    assert image.brokers[1] is before
    image.replay(BROKER)
    assert image.brokers[1].in_controlled_shutdown is False
    image.replay(record("UnregisterBrokerRecord", broker_id=1, broker_epoch=100))
    image.replay(record("UnregisterBrokerRecord", broker_id=7, broker_epoch=1))
    assert image.brokers == {}


def test_features_configs_and_producer_ids() -> None:
    image = ClusterImage()
    assert image.next_producer_id == -1
    for name, level in (("metadata.version", 30), ("kraft.version", 1), ("x", 2), ("x", 0)):
        image.replay(record("FeatureLevelRecord", name=name, feature_level=level))
    assert image.features == {"metadata.version": 30}
    image.replay(record("ProducerIdsRecord", broker_id=1, broker_epoch=2, next_producer_id=5000))
    assert image.next_producer_id == 5000
    image.replay(TOPIC)
    touched = image.replay(record("ConfigRecord", resource_type=2, resource_name="t", name="a", value="1"))
    assert touched == {T1}
    assert (
        image.replay(record("ConfigRecord", resource_type=4, resource_name="1", name="b", value="2"))
        == frozenset()
    )
    assert image.configs == {(2, "t"): {"a": "1"}, (4, "1"): {"b": "2"}}
    image.replay(record("ConfigRecord", resource_type=2, resource_name="t", name="a", value=None))
    image.replay(record("ConfigRecord", resource_type=2, resource_name="t", name="never", value=None))
    image.replay(record("ConfigRecord", resource_type=4, resource_name="1", name="b", value=""))
    assert image.configs == {(4, "1"): {"b": ""}}


def test_records_that_do_not_concern_a_link_broker_change_nothing() -> None:
    image = ClusterImage()
    for name in ("NoOpRecord", "AccessControlEntryRecord", "ClientQuotaRecord", "UserScramCredentialRecord"):
        assert image.replay(record(name)) == frozenset()
    assert state(image) == state(ClusterImage())
    assert image.changes == 0


def test_whoever_looks_at_the_changes_sees_each_record_and_each_snapshot() -> None:
    image, fresh = ClusterImage(), ClusterImage()
    seen = {image.changes}
    for one in (TOPIC, PARTITION):
        image.replay(one)
        seen.add(image.changes)
    image.adopt(fresh)
    seen.add(image.changes)
    assert len(seen) == 4


def test_a_transaction_shows_at_its_end_or_not_at_all() -> None:
    begin, end, abort = (record(f"{word}TransactionRecord") for word in ("Begin", "End", "Abort"))
    image = replayed(begin)
    assert image.replay(TOPIC) == frozenset()
    assert image.replay(PARTITION) == frozenset()
    assert image.in_transaction
    assert state(image) == state(ClusterImage())
    with pytest.raises(MalformedFrame, match="inside another"):
        image.replay(begin)
    assert image.replay(end) == {T1}
    assert not image.in_transaction
    assert state(image) == state(replayed(TOPIC, PARTITION))
    for item in (begin, change(isr=[7]), abort):
        assert image.replay(item) == frozenset()
    assert state(image) == state(replayed(TOPIC, PARTITION))
    image.replay(begin)
    image.adopt(ClusterImage())
    assert not image.in_transaction
    assert (image.offset, image.epoch) == (-1, -1)


# -- batches: random logs


ids = st.sampled_from([T1, T2])
replicas = st.lists(st.integers(1, 4), max_size=3)


@st.composite
def logs(draw: st.DrawFn, steps: int = 25) -> list[bytes]:
    """A log that a controller could have written: values of records, in order, as a list of batches."""
    names: dict[bytes, str] = {}
    partitions: set[tuple[bytes, int]] = set()
    in_transaction = False
    values: list[bytes] = []

    def emit(name: str, /, **fields: Any) -> None:
        values.append(encode_record(name, fields))

    for broker in (1, 2):
        emit("RegisterBrokerRecord", broker_id=broker, broker_epoch=broker, incarnation_id=A)
    for _ in range(draw(st.integers(0, steps))):
        kind = draw(st.integers(0, 9))
        if kind == 0:
            topic = draw(ids)
            if topic not in names:
                names[topic] = draw(st.sampled_from("xyz"))
                if list(names.values()).count(names[topic]) > 1:
                    del names[topic]
                    continue
                emit("TopicRecord", name=names[topic], topic_id=topic)
        elif kind == 1 and names:
            topic, index = draw(st.sampled_from(sorted(names))), draw(st.integers(0, 2))
            partitions.add((topic, index))
            emit(
                "PartitionRecord",
                topic_id=topic,
                partition_id=index,
                replicas=draw(replicas),
                isr=draw(replicas),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                eligible_leader_replicas=draw(replicas),
            )
        elif kind in (2, 3, 4) and partitions:
            topic, index = draw(st.sampled_from(sorted(partitions)))
            fields: dict[str, Any] = draw(
                st.fixed_dictionaries(
                    {}, optional={"isr": replicas, "leader": st.integers(-1, 3), "replicas": replicas}
                )
            )
            emit("PartitionChangeRecord", topic_id=topic, partition_id=index, **fields)
        elif kind == 5 and names:
            topic = draw(st.sampled_from(sorted(names)))
            del names[topic]
            partitions = {p for p in partitions if p[0] != topic}
            emit("RemoveTopicRecord", topic_id=topic)
        elif kind == 6:
            value = draw(st.none() | st.sampled_from(["1", "2"]))
            emit(
                "ConfigRecord",
                resource_type=2,
                resource_name=draw(st.sampled_from("xyz")),
                name="k",
                value=value,
            )
        elif kind == 7:
            emit(
                "BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=1, fenced=draw(st.integers(-1, 1))
            )
        elif kind == 8:
            emit(
                "ProducerIdsRecord", broker_id=1, broker_epoch=1, next_producer_id=draw(st.integers(0, 10**6))
            )
        elif not in_transaction:
            emit("BeginTransactionRecord")
            in_transaction = True
        else:
            emit("EndTransactionRecord")
            in_transaction = False
    if in_transaction:
        emit("EndTransactionRecord")
    batches = []
    offset = 0
    epoch = 1
    while values:
        if draw(st.integers(0, 5)) == 0:
            epoch += 1
            batches.append(leader_change(offset, epoch))
            offset += 1
        size = draw(st.integers(1, 4))
        batches.append(encode_batch(offset, epoch, values[:size]))
        offset += len(values[:size])
        values = values[size:]
    return batches


def whole(batches: list[bytes], size: int) -> list[bytes]:
    kept = []
    for batch in batches:
        size -= len(batch)
        if size < 0:
            break
        kept.append(batch)
    return kept


def one_by_one(batches: list[bytes]) -> tuple[ClusterImage, frozenset[bytes]]:
    image = ClusterImage()
    touched: frozenset[bytes] = frozenset()
    for batch in batches:
        touched |= replay_batches(image, batch)
    return image, touched


@settings(max_examples=25)
@given(logs(steps=15))
def test_every_prefix_of_a_log_is_its_whole_batches(batches: list[bytes]) -> None:
    data = b"".join(batches)
    expected, touched = ClusterImage(), frozenset[bytes]()
    done = 0
    for size in range(len(data) + 1):
        kept = whole(batches, size)
        for batch in kept[done:]:
            touched |= replay_batches(expected, batch)
        done = len(kept)
        image = ClusterImage()
        assert replay_batches(image, memoryview(data)[:size]) == touched
        assert state(image) == state(expected)
        assert (image.offset, image.epoch, image.in_transaction) == (
            expected.offset,
            expected.epoch,
            expected.in_transaction,
        )


@settings(max_examples=15)
@given(logs(steps=10))
def test_every_split_of_a_log_gives_the_same_image(batches: list[bytes]) -> None:
    """The second answer begins, as a broker's does, with the batch that holds the offset asked for."""
    data = b"".join(batches)
    expected, touched = one_by_one(batches)
    for split in range(len(data) + 1):
        image = ClusterImage()
        first = replay_batches(image, data[:split])
        rest = sum(map(len, whole(batches, split)))
        if split % 3 == 0:  # an answer may even repeat what is known
            rest = 0
        assert first | replay_batches(image, data[rest:]) == touched
        assert state(image) == state(expected)
        assert (image.offset, image.epoch) == (expected.offset, expected.epoch)


@settings(max_examples=60)
@given(logs(), st.data())
def test_nothing_at_or_above_the_high_watermark_is_replayed(
    batches: list[bytes], data: st.DataObject
) -> None:
    joined = b"".join(batches)
    headers = list(iter_batch_headers(joined, 0, len(joined)))
    committed = data.draw(st.integers(0, len(batches)))
    high_watermark = headers[committed].base_offset if committed < len(headers) else headers[-1].next_offset
    image = ClusterImage()
    replay_batches(image, joined, high_watermark=high_watermark)
    assert image.offset == high_watermark - 1
    assert state(image) == state(one_by_one(batches[:committed])[0])
    replay_batches(image, joined, high_watermark=headers[-1].next_offset)
    assert state(image) == state(one_by_one(batches)[0])


def snapshot_values(image: ClusterImage) -> list[bytes]:
    """What a controller would write as a snapshot of this image."""
    values = [
        encode_record("FeatureLevelRecord", {"name": n, "feature_level": v})
        for n, v in image.features.items()
    ]
    for broker in image.brokers.values():
        fields = {
            "broker_id": broker.id,
            "broker_epoch": broker.epoch,
            "incarnation_id": broker.incarnation_id,
            "rack": broker.rack,
            "fenced": broker.fenced,
        }
        values.append(encode_record("RegisterBrokerRecord", fields))
    for topic in image.topics_by_id.values():
        values.append(encode_record("TopicRecord", {"name": topic.name, "topic_id": topic.id}))
        for p in topic.partitions.values():
            fields = {
                "partition_id": p.index,
                "topic_id": topic.id,
                "replicas": p.replicas,
                "isr": p.isr,
                "leader": p.leader,
                "leader_epoch": p.leader_epoch,
                "partition_epoch": p.partition_epoch,
                "eligible_leader_replicas": p.elr,
            }
            values.append(encode_record("PartitionRecord", fields))
    for (kind, name), config in image.configs.items():
        for key, value in config.items():
            fields = {"resource_type": kind, "resource_name": name, "name": key, "value": value}
            values.append(encode_record("ConfigRecord", fields))
    if image.next_producer_id >= 0:
        values.append(encode_record("ProducerIdsRecord", {"next_producer_id": image.next_producer_id}))
    return values


@settings(max_examples=60)
@given(logs(), logs())
def test_an_image_from_a_snapshot_is_the_image_from_the_log(old: list[bytes], batches: list[bytes]) -> None:
    expected, _ = one_by_one(batches)
    image, _ = one_by_one(old)
    before = set(image.topics_by_id)
    touched = load_snapshot(
        image, snapshot_bytes(3, snapshot_values(expected)), expected.offset + 1, expected.epoch
    )
    assert state(image) == state(expected)
    assert (image.offset, image.epoch) == (expected.offset, expected.epoch)
    assert touched == before | set(expected.topics_by_id)
    # and the log goes on from there
    more = encode_batch(
        image.offset + 1, image.epoch, [encode_record("TopicRecord", {"name": "n", "topic_id": B})]
    )
    assert replay_batches(image, more) == {B}


@settings(max_examples=20)
@given(logs())
def test_a_snapshot_cut_or_damaged_anywhere_leaves_the_image_alone(batches: list[bytes]) -> None:
    source, _ = one_by_one(batches)
    data = snapshot_bytes(3, snapshot_values(source))
    image = replayed(TOPIC)
    image.advance(7, 1)
    for end in range(0, len(data), 3):
        with pytest.raises(MalformedFrame):
            load_snapshot(image, data[:end], 100, 3)
    for position in range(16, len(data), 5):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        try:
            load_snapshot(ClusterImage(), damaged, 100, 3)
        except (MalformedFrame, UnsupportedApi):
            pass
    assert state(image) == state(replayed(TOPIC))
    assert (image.offset, image.epoch) == (7, 1)


def test_a_snapshot_needs_header_first_and_footer_last() -> None:
    topic = encode_record("TopicRecord", {"name": "n", "topic_id": T1})
    data = snapshot_bytes(1, [topic])
    sizes = [header.size for header in iter_batch_headers(data, 0, len(data))]
    header, body, footer = data[: sizes[0]], data[sizes[0] : -sizes[2]], data[-sizes[2] :]
    for wrong in (body + footer, header + body, header + footer + body, header + header + footer, b""):
        with pytest.raises(MalformedFrame):
            load_snapshot(ClusterImage(), wrong, 10, 1)
    begun = snapshot_bytes(1, [encode_record("BeginTransactionRecord", {}), topic])
    with pytest.raises(MalformedFrame, match="inside a transaction"):
        load_snapshot(ClusterImage(), begun, 10, 1)


def test_a_gap_in_the_log_is_refused() -> None:
    image = ClusterImage()
    replay_batches(image, encode_batch(0, 1, [encode_record("NoOpRecord", {})]))
    with pytest.raises(MalformedFrame, match="jumps from offset 0"):
        replay_batches(image, encode_batch(2, 1, [encode_record("NoOpRecord", {})]))


def test_a_refused_record_does_not_count_its_neighbours_twice() -> None:
    good, bad = encode_record("NoOpRecord", {}), encode_record("RemoveTopicRecord", {"topic_id": T2})
    shrink = encode_record("PartitionChangeRecord", {"partition_id": 0, "topic_id": T1, "isr": [1]})
    image = replayed(TOPIC, PARTITION)
    batch = encode_batch(0, 1, [good, shrink, bad])
    for _ in range(3):
        with pytest.raises(MalformedFrame, match="unknown topic id") as caught:
            replay_batches(image, batch)
        assert caught.value.offset == 2
    partition = image.partition(T1, 0)
    assert partition is not None
    assert partition.partition_epoch == 10
    assert image.offset == 1


def test_a_damaged_batch_is_refused_as_a_whole() -> None:
    batch = bytearray(encode_batch(0, 1, [encode_record("TopicRecord", {"name": "n", "topic_id": T1})] * 2))
    for position in [*range(8, 12), *range(16, len(batch))]:
        damaged = bytearray(batch)
        damaged[position] ^= 0x20
        image = ClusterImage()
        try:
            replay_batches(image, damaged)
        except MalformedFrame:
            pass
        assert state(image) == state(ClusterImage())
