"""The state's JSON: there and back, byte for byte as an older version wrote it, and refused when damaged."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import codec
from controller.access.acls import Resource
from controller.errors import CorruptState
from controller.group_phases import GroupPhase
from controller.groups import (
    ClassicMember,
    ConsumerMember,
    GateKind,
    GateRecord,
    GateStage,
    PendingTransaction,
)
from controller.mirror_group import GroupMove, GroupOffset, GroupPolicy, GroupProtocol, MirrorGroup
from controller.phases import Phase
from controller.proof import (
    EvidenceStatus,
    PartitionValidation,
    PromoteEvidence,
    ReplicaValidation,
    ValidationMismatch,
    ValidationPolicy,
)
from controller.state import (
    Attempt,
    CarriedAcls,
    Grant,
    JobStatus,
    Link,
    MirrorPartition,
    MirrorTopic,
    ProducerIdFloor,
    PromoteJob,
    SidecarIdentity,
)
from wire.frames.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
IDENTITY = SidecarIdentity(
    broker_id=900, incarnation_id=b"\x05" * 16, log_dir_id=b"\x06" * 16, broker_epoch=12
)
ENTITIES = [
    CarriedAcls(
        link="l",
        resource=Resource("TRANSACTIONAL_ID", "PREFIXED", "a/b *"),
        grants=(Grant("User:a", "*", "WRITE", "ALLOW"), Grant("User:b", "10.0.0.1", "ALL", "DENY")),
    ),
    Link(name="l", source_cluster_id="c", properties={"a": "b"}, options={"x": [1, None]}, created_at=4),
    MirrorTopic(
        link="l",
        topic="t",
        topic_id=b"\xff" * 16,
        source_topic_id=b"\x01" * 16,
        partitions=2,
        paused=True,
        start="latest",
        target_replicas=((1, 2), (2, 1)),
        copied_configs={"retention.ms": "5"},
        restore_configs={"unclean.leader.election.enable": None},
        created_at=9,
        source_name="orders",
    ),
    MirrorTopic(link="l", topic="t", topic_id=bytes(range(16)), source_topic_id=None, partitions=2),
    MirrorPartition(link="l", topic="t", partition=0),
    MirrorPartition(
        link="l",
        topic="t",
        partition=1,
        phase=Phase.VALIDATED,
        leader=900,
        leader_epoch=4,
        isr=(900,),
        controller_epoch=2,
        session_epoch=3,
        start_offset=0,
        source_epochs=((0, 0), (4, 17)),
        reason="r",
        failure="f",
        aligned_end=2**40,
        attempt=Attempt(leader_epoch=4, partition_epoch=11),
        since=8,
    ),
    PartitionValidation(link="l", topic="t", partition=0),
    PartitionValidation(
        link="l",
        topic="t",
        partition=1,
        replicas=(
            ReplicaValidation(
                broker_id=2,
                start=5,
                through=2**40,
                batches=3,
                records=7,
                bytes=900,
                digest="0f" * 16,
                source_digest="f0" * 16,
                lawful={"compacted": 4},
                at=8,
            ),
        ),
        mismatch=ValidationMismatch(
            broker_id=3, offset=9, kind="missing", detail="d", source="batch 9..11", replica=None, at=10
        ),
    ),
    ProducerIdFloor(link="l", floor=1, source_seen=2, sampled_at=3),
    PromoteJob(
        id=3, link="l", partitions=(T0, T1), status=JobStatus.DONE, ended_at=1, phases_ms={"align": 1.5}
    ),
    PromoteJob(
        id=4,
        link="l",
        partitions=(T0,),
        validation=ValidationPolicy.WARN,
        warnings=("t-0: slow",),
        evidence=PromoteEvidence(
            status=EvidenceStatus.CLOSED,
            replicas=3,
            batches=4,
            records=5,
            bytes=6,
            html="/x.html",
            ended_at=7,
        ),
    ),
    IDENTITY,
    MirrorGroup(
        link="l", group="g", protocol=GroupProtocol.CLASSIC, gate=GateKind.CLASSIC_AND_TRANSACTION, since=3
    ),
    MirrorGroup(
        link="l",
        group="a group/of any text",
        protocol=GroupProtocol.CONSUMER,
        gate=GateKind.CONSUMER_AND_TRANSACTION,
        phase=GroupPhase.OPENING,
        policy=GroupPolicy.AUTO,
        topics=("t", "u"),
        unmirrored=("v",),
        reason="r",
        gate_state=GateRecord(
            group="a group/of any text",
            kind=GateKind.CONSUMER_AND_TRANSACTION,
            stage=GateStage.LEAVING,
            consumer=ConsumerMember(member_id="m", member_epoch=4, topics=("t",)),
            classic=ClassicMember(member_id="c", generation=2, protocols=("range",), protocol="range"),
            transaction=PendingTransaction(
                transactional_ids=("x", "y"), current=1, producer_id=5, producer_epoch=6
            ),
        ),
        move=GroupMove(asked_at=1, until=2, force=True, automatic=True),
        offsets=(GroupOffset("t", 0, 2**40, "meta"), GroupOffset("t", 1, 0), GroupOffset("u", 0, 7)),
        since=8,
    ),
]

# One entity a line, [path, value], written by the codec that was spelt out field by field.
LINES = Path(__file__).with_name("encodings.jsonl").read_text().splitlines()
FREE = {"options"}  # any JSON is right here


def test_old_bytes_come_back() -> None:
    for line in LINES:
        path, value = json.loads(line)
        entity = codec.decode(path, value)
        assert entity is not None
        assert codec.path_of(entity) == path
        assert json.dumps([path, codec.encode(entity)], sort_keys=True, separators=(",", ":")) == line


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [
        way for key, one in inside if key not in FREE for way in [(*above, key), *places(one, (*above, key))]
    ]


@given(line=st.sampled_from(LINES), data=st.data())
def test_a_value_of_another_type_is_refused_anywhere(line: str, data: st.DataObject) -> None:
    path, value = json.loads(line)
    *above, last = data.draw(st.sampled_from(places(value)))
    damaged = copy.deepcopy(value)
    around = damaged
    for key in above:
        around = around[key]
    around[last] = data.draw(
        st.sampled_from(({"x": [None]}, [{"x": None}], "no such thing", 2.5, True)).filter(
            lambda one: type(one) is not type(around[last]) and around[last] is not None
        )
    )
    if last in ("lease", *value.get("phases_ms", {})) or "phases_ms" in above:
        around[last] = "no number"
    with pytest.raises(CorruptState, match=path.replace(".", r"\.")):
        codec.decode(path, damaged)


def test_a_field_that_older_versions_lack_has_its_default() -> None:
    for path, value in map(json.loads, LINES):
        for field in ("configs_from_target", "closed_for_good", "accept_missing", "requested_by"):
            value.pop(field, None)
        for inner in (value.get("evidence"), *value.get("replicas", ())):
            for field in ("missing_records", "missing"):
                (inner or {}).pop(field, None)
        match codec.decode(path, value):
            case MirrorTopic() as mirror:
                assert mirror.configs_from_target == ()
            case PromoteJob() as job:
                assert (job.closed_for_good, job.accept_missing, job.requested_by) == ((), 0, None)
                assert (job.evidence or PromoteEvidence()).missing_records == 0
            case PartitionValidation() as validation:
                assert all(replica.missing is None for replica in validation.replicas)


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda e: type(e).__name__)
def test_json_there_and_back(entity: object) -> None:
    assert codec.decode(codec.path_of(entity), codec.encode(entity)) == entity  # type: ignore[arg-type]


@pytest.mark.parametrize("entity", ENTITIES, ids=lambda e: type(e).__name__)
def test_damaged_json_names_the_path(entity: object) -> None:
    path = codec.path_of(entity)  # type: ignore[arg-type]
    whole = codec.encode(entity)  # type: ignore[arg-type]
    for field in whole:
        if field not in ("configs_from_target", "source_name"):  # ADDED_LATER
            with pytest.raises(CorruptState, match=path):
                codec.decode(path, {k: v for k, v in whole.items() if k != field})
        for damaged in ({**whole, field: object()},):
            with pytest.raises(CorruptState, match=path):
                codec.decode(path, damaged)  # type: ignore[arg-type]
    for value in (None, [], "x", 5):
        with pytest.raises(CorruptState, match=path):
            codec.decode(path, value)
