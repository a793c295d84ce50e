"""The messages between the sidecar and a validator process."""

import pytest

from validator.messages import (
    BatchFacts,
    Checked,
    Configure,
    Failed,
    Finding,
    FindingKind,
    MessageError,
    PartitionPlan,
    ReplicaPlan,
    ReplicaResult,
    Run,
    Side,
    decode_command,
    decode_event,
    encode,
)

FACTS = BatchFacts(
    base_offset=7,
    last_offset=9,
    records=3,
    size=120,
    crc=1,
    crc_computed=2,
    attributes=0,
    codec="none",
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    max_timestamp=5,
)


def run() -> Run:
    side = Side(name="a", bootstrap=("h:1",), properties={"sasl.jaas.config": "hunter2"})
    plan = PartitionPlan(topic="t", partition=0, replicas=(ReplicaPlan(broker_id=1, through=5),))
    return Run(id="r", source=side, target=side, partitions=(plan,))


def test_a_message_is_one_line_and_comes_back_equal():
    result = ReplicaResult(
        topic="t",
        partition=0,
        broker_id=1,
        start=0,
        through=7,
        source_end=9,
        replica_end=9,
        batches=2,
        records=7,
        bytes=300,
        digest="0" * 32,
        source_digest="0" * 32,
        seconds=0.1,
        findings=(Finding(kind=FindingKind.CORRUPT, offset=7, detail="a\nb", replica=FACTS),),
        findings_count=1,
    )
    for event in (Checked(id="r", results=(result,)), Failed(id=None, reason="x", side="spark")):
        line = encode(event)
        assert line.count(b"\n") == 1
        assert decode_event(line) == event
    for command in (Configure(work_dir="/w"), run()):
        assert decode_command(encode(command)) == command


def test_secrets_are_neither_in_a_repr_nor_in_an_error():
    assert "hunter2" not in repr(run())
    broken = encode(run()).replace(b'"wait_s":30.0', b'"wait_s":-1')
    with pytest.raises(MessageError) as caught:
        decode_command(broken)
    assert "wait_s" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[1]", b'{"type":"ready"}', b'{"type":"stop","x":1}', b"\xff", b'{"type":"cancel"']
)
def test_what_is_no_command_is_refused(line: bytes):
    with pytest.raises(MessageError):
        decode_command(line)
