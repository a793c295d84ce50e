"""What a validator process is told on stdin and what it answers on stdout: one JSON object per line.

The sidecar starts the process with `python -m validator`, sends Configure, waits for Ready and then sends Run after Run.
Secrets (`Side.properties`) travel in these lines only, never in argv or an environment; `SecretProperties` keeps them
out of a model's repr. Offsets are absolute; an `end` or a `through` is exclusive: everything below it is meant.

Lives here: the messages, their JSON and the limits of a line. No PySpark is imported: the sidecar imports this module.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from wire.errors import LinkerError

MAX_LINE = 64 << 20
"""Bytes of one message, its line end included. A run over 1,000 partitions of 5 replicas takes about 1 MB."""
MAX_FINDINGS = 20
"""Findings of one replica that are told, the first by offset; `findings_count` counts them all."""
EMPTY_DIGEST = "0" * 32

SecretProperties = Annotated[dict[str, str], Field(repr=False)]
Offset = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""Of a set of batches, in hex: the sum modulo 2^128 of a hash of each (validator/digest.py); sums of ranges add up."""


class MessageError(LinkerError):
    """A line that is no message of this protocol."""


class Mode(StrEnum):
    """What is compared."""

    BATCHES = "batches"
    RECORDS = "records"


class FindingKind(StrEnum):
    """What is wrong with a replica. The `record_*` kinds are found in mode `records` only."""

    MISSING = "missing"  # a batch of the source is not on the replica
    EXTRA = "extra"  # a batch of the replica is not at the source
    DIFFERING = "differing"  # the same offsets, other bytes
    OVERLAPPING = "overlapping"  # a batch shares offsets with another one of the replica; a doubled one does
    CORRUPT = "corrupt"  # the bytes do not match the CRC they carry
    GAP = "gap"  # offsets that the source has are on no batch of the replica, which goes on behind them
    SHORT = "short"  # the replica ended before the end it had to have
    LATE_START = "late_start"  # the replica starts later than retention explains
    REORDERED = "reordered"  # batches lie in another order than their offsets
    RECREATED = "recreated"  # the topic is not the one that the mirror was started from
    PARTITION_COUNT = "partition_count"  # source or target has another number of partitions
    RECORD_MISSING = "record_missing"
    RECORD_EXTRA = "record_extra"
    RECORD_DIFFERING = "record_differing"


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# --- parts --------------------------------------------------------------------------------------------------


class Side(_Message):
    """One cluster and how to reach it."""

    name: str
    bootstrap: tuple[str, ...] = Field(min_length=1)  # host:port
    properties: SecretProperties = {}  # Kafka client property names, file contents and passwords resolved


class ReplicaPlan(_Message):
    """A replica to check, and what earlier runs have checked of it (all of it is None or 0 for a first run)."""

    broker_id: int
    through: Offset | None = None  # the watermark: validated below it
    start: Offset | None = None  # where the validated range begins
    digest: Digest | None = None  # of the replica's batches in [start, through)
    source_digest: Digest | None = None  # of the source's batches in the same range
    batches: Count = 0
    records: Count = 0
    bytes: Count = 0


class PartitionPlan(_Message):
    """A partition, the range every replica of it has to hold, and its replicas."""

    topic: str
    partition: Annotated[int, Field(ge=0)]
    source_topic_id: str | None = None  # hex; None: not checked
    target_topic_id: str | None = None
    source_partitions: Count | None = None  # the count that both sides must have; None: not checked
    start: Offset = 0  # the mirror's start: nothing earlier is expected on the target
    end: Offset | None = None  # every replica must have it; None: the source's high watermark as sampled now
    compacted: bool = False
    retention_ms: int | None = None  # of the target's topic; None: unlimited
    retention_bytes: int | None = None
    replicas: tuple[ReplicaPlan, ...]


class BatchFacts(_Message):
    """One batch as a log holds it, as far as a comparison needs it."""

    base_offset: int
    last_offset: int
    records: int
    size: int  # bytes, the 12 of base offset and length included
    crc: int  # as stored
    crc_computed: int  # from the bytes
    attributes: int
    codec: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int  # ms since 1970


class Finding(_Message):
    """Something wrong, at an offset. `source` and `replica`: the batches there, None where a side has none."""

    kind: FindingKind
    offset: int
    detail: str
    source: BatchFacts | None = None
    replica: BatchFacts | None = None


class ReplicaResult(_Message):
    """A replica after a run. Range, counts and digests add up over all runs, those in the plan included: they
    replace what is known of the replica. With findings `through` stops at the first of them."""

    topic: str
    partition: int
    broker_id: int
    start: Offset
    through: Offset
    source_end: Offset  # what had to be there
    replica_end: Offset  # the replica's high watermark when it was read
    batches: Count
    records: Count
    bytes: Count
    digest: Digest
    source_digest: Digest
    seconds: float  # of reading and comparing in this run
    findings: tuple[Finding, ...] = Field(default=(), max_length=MAX_FINDINGS)
    findings_count: Count = 0
    lawful: dict[str, int] = {}  # what differs and may, by kind: batches or records


# --- evidence -----------------------------------------------------------------------------------------------


class ReplicaEvidence(_Message):
    """What was proved of one replica."""

    broker_id: int
    start: Offset
    through: Offset
    batches: Count
    records: Count
    bytes: Count
    digest: Digest
    source_digest: Digest
    findings: tuple[Finding, ...] = ()
    findings_count: Count = 0
    lawful: dict[str, int] = {}


class PartitionEvidence(_Message):
    """What was proved of one partition; `source_end` is the exact end after a hand-over."""

    topic: str
    partition: int
    source_topic_id: str | None = None
    target_topic_id: str | None = None
    source_end: Offset
    handed_over_ms: int | None = None
    replicas: tuple[ReplicaEvidence, ...]


class Sample(_Message):
    """One point of the page's charts: a replica's watermark at a time, how far behind the source's end it was, and
    how fast it was validated since the point before."""

    at_ms: int
    topic: str
    partition: int
    broker_id: int
    through: Offset
    lag: Count  # offsets
    bytes_per_second: float


class Evidence(_Message):
    """Everything a page of evidence shows."""

    link: str
    source: str  # the clusters' names
    target: str
    promote: str | None = None  # its id; None: not written for a promote
    mode: Mode
    policy: str  # require | warn | skip
    started_ms: int
    finished_ms: int
    spark: str | None = None  # its version
    linker: str | None = None
    partitions: tuple[PartitionEvidence, ...]
    samples: tuple[Sample, ...] = ()


# --- commands -----------------------------------------------------------------------------------------------


class Configure(_Message):
    """The first command: which Spark to run in."""

    type: Literal["configure"] = "configure"
    master: str = "local[*]"
    conf: SecretProperties = {}  # Spark properties; they may carry secrets of the cluster manager
    python: str | None = None  # the executors' interpreter; None: this one's path
    work_dir: str


class Run(_Message):
    """Check these partitions. `wait_s`: how long replicas may take to reach the end they must have."""

    type: Literal["run"] = "run"
    id: str
    mode: Mode = Mode.BATCHES
    source: Side
    target: Side
    partitions: tuple[PartitionPlan, ...]
    wait_s: Annotated[float, Field(ge=0)] = 30.0


class Cancel(_Message):
    """End a run; it answers with Failed, and what was Checked before stays true."""

    type: Literal["cancel"] = "cancel"
    id: str


class WriteEvidence(_Message):
    """Write the page, the JSON and the Parquet files into a directory."""

    type: Literal["write_evidence"] = "write_evidence"
    id: str
    directory: str
    evidence: Evidence


class Stop(_Message):
    """End the process; the end of stdin says the same."""

    type: Literal["stop"] = "stop"


Command = Configure | Run | Cancel | WriteEvidence | Stop


# --- events -------------------------------------------------------------------------------------------------


class Ready(_Message):
    """Spark runs."""

    type: Literal["ready"] = "ready"
    spark: str  # its version
    master: str
    ui: str | None = None  # where its UI listens; None: it is off


class Progress(_Message):
    """How far a run is; sent now and then, the numbers only grow."""

    type: Literal["progress"] = "progress"
    id: str
    tasks_done: Count
    tasks: Count
    bytes: Count  # read, of both sides
    batches: Count
    partitions_done: Count
    partitions: Count


class Checked(_Message):
    """Replicas that are through; sent while others are still being read."""

    type: Literal["checked"] = "checked"
    id: str
    results: tuple[ReplicaResult, ...]


class Finished(_Message):
    """A run's end. The numbers are of this run alone."""

    type: Literal["finished"] = "finished"
    id: str
    partitions: Count
    replicas: Count
    batches: Count  # compared, counted once per replica
    records: Count
    bytes: Count
    mismatches: Count  # replicas with findings
    seconds: float


class Failed(_Message):
    """A command that could not be carried out. `id` None: the process cannot work at all (Configure)."""

    type: Literal["failed"] = "failed"
    id: str | None
    reason: str
    side: Literal["source", "target", "spark"] | None = None
    address: str | None = None
    cancelled: bool = False


class EvidenceWritten(_Message):
    """Paths of what was written."""

    type: Literal["evidence_written"] = "evidence_written"
    id: str
    html: str
    json_path: str
    parquet: str


Event = Ready | Progress | Checked | Finished | Failed | EvidenceWritten

_COMMANDS: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="type")])
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


def encode(message: Command | Event) -> bytes:
    """One line, its end included."""
    return message.model_dump_json().encode() + b"\n"


def decode_command(line: bytes) -> Command:
    """Raises MessageError, which never quotes the line: it may carry secrets."""
    command: Command = _decode(_COMMANDS, line)
    return command


def decode_event(line: bytes) -> Event:
    """Raises MessageError."""
    event: Event = _decode(_EVENTS, line)
    return event


def _decode(adapter: TypeAdapter[Any], line: bytes) -> Any:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise MessageError(
            f"a line of {len(line)} bytes is no message of the validator: {place or 'all of it'}: {first['msg']}"
        ) from None
