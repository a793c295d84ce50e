"""The messages to a validator process (stdin) and from it (stdout): one JSON object per line.

The sidecar starts the process with `python -m validator`, sends Configure, waits for Ready and then sends Run after Run.
Secrets (`Side.properties`) travel in these lines only, never in argv or an environment; `SecretProperties` keeps them
out of a model's repr. Offsets are absolute; an `end` or a `through` is exclusive: everything below it is meant.

No PySpark is imported: the sidecar imports this module.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from validator.compare.facts import MAX_FINDINGS, Count, Digest, Facts, Finding, Missing, Offset
from validator.compare.facts import BatchFacts as BatchFacts
from validator.compare.facts import FindingKind as FindingKind
from validator.evidence.model import Evidence
from validator.mode import Mode
from wire.errors import LinkerError

MAX_LINE = 64 << 20
"""Bytes of one message, its line end included. A run over 1,000 partitions of 5 replicas takes about 1 MB."""

SecretProperties = Annotated[dict[str, str], Field(repr=False)]


class MessageError(LinkerError):
    """A line that is no message of this protocol."""


# --- parts --------------------------------------------------------------------------------------------------


class Side(Facts):
    """One cluster and how to reach it."""

    name: str
    bootstrap: tuple[str, ...] = Field(min_length=1)  # host:port
    properties: SecretProperties = Field(
        default={}
    )  # Kafka client property names, file contents and passwords resolved
    cluster_id: str | None = None  # that every address has to answer for; None: the first one's
    topic_prefix: str = ""  # of our names for its topics


class ReplicaPlan(Facts):
    """A replica to check, and what earlier runs have checked of it (all of it is None or 0 for a first run)."""

    broker_id: int
    through: Offset | None = None  # the watermark: validated below it
    start: Offset | None = None  # where the validated range begins
    digest: Digest | None = None  # of the replica's batches in [start, through)
    source_digest: Digest | None = None  # of the source's batches in the same range
    batches: Count = 0
    records: Count = 0
    bytes: Count = 0
    missing: Missing | None = None  # as counted last: it is not read again while it is the same


class PartitionPlan(Facts):
    """A partition, the range every replica of it has to hold, and its replicas."""

    topic: str
    partition: Annotated[int, Field(ge=0)]
    source_topic_id: str | None = None  # hex; None: not checked
    target_topic_id: str | None = None
    source_partitions: Count | None = None  # the count that both sides must have; None: not checked
    start: Offset = 0  # the mirror's start: nothing earlier is expected on the target
    end: Offset | None = None  # every replica must have it; None: the source's high watermark as sampled now
    compacted: bool = False
    min_compaction_lag_ms: int = 0  # of the target's topic, as the next three
    delete_retention_ms: int | None = None  # None: not known
    segment_bytes: int | None = None
    segment_ms: int | None = None
    retention_ms: int | None = None  # of the target's topic, to name a reason; None: unlimited
    retention_bytes: int | None = None
    replicas: tuple[ReplicaPlan, ...]


class ReplicaResult(Facts):
    """A replica after a run. Range, counts and digests add up over all runs, those in the plan included: they
    replace what is known of the replica. With findings `through` stops at the first of them."""

    topic: str
    partition: int
    broker_id: int
    start: Offset
    through: Offset
    source_end: Offset  # what had to be there
    source_start: Offset = 0  # the source's log start when it was asked
    replica_start: Offset | None = None  # the replica's; None: it was not asked
    replica_end: Offset | None  # the replica's high watermark when it was read; None: it was not
    batches: Count
    records: Count
    bytes: Count
    digest: Digest
    source_digest: Digest
    seconds: float  # of reading and comparing in this run
    findings: tuple[Finding, ...] = Field(default=(), max_length=MAX_FINDINGS)
    findings_count: Count = 0
    lawful: dict[str, int] = Field(default={})  # what this run found that differs and may, by kind
    missing: Missing | None = None  # what the source has before the replica's log start, as it is now


# --- commands -----------------------------------------------------------------------------------------------


class Configure(Facts):
    """The first command: which Spark to run in."""

    type: Literal["configure"] = "configure"
    master: str = "local[*]"
    conf: SecretProperties = Field(
        default={}
    )  # Spark properties; they may carry secrets of the cluster manager
    python: str | None = None  # the executors' interpreter; None: this one's path
    work_dir: str


class Run(Facts):
    """Check these partitions. `wait_s`: how long replicas may take to reach the end they must have."""

    type: Literal["run"] = "run"
    id: str
    mode: Mode = Mode.BATCHES
    source: Side
    target: Side
    partitions: tuple[PartitionPlan, ...]
    wait_s: Annotated[float, Field(ge=0)] = 30.0


class Cancel(Facts):
    """End a run; it answers with Failed, and what was Checked before stays true."""

    type: Literal["cancel"] = "cancel"
    id: str


class WriteEvidence(Facts):
    """Write the page, the JSON and the Parquet files into a directory."""

    type: Literal["write_evidence"] = "write_evidence"
    id: str
    directory: str
    evidence: Evidence


class Stop(Facts):
    """End the process; the end of stdin says the same."""

    type: Literal["stop"] = "stop"


Command = Configure | Run | Cancel | WriteEvidence | Stop


# --- events -------------------------------------------------------------------------------------------------


class Ready(Facts):
    """Spark runs."""

    type: Literal["ready"] = "ready"
    spark: str  # its version
    master: str
    ui: str | None = None  # where its UI listens; None: it is off


class Progress(Facts):
    """How far a run is; sent now and then, the numbers only grow."""

    type: Literal["progress"] = "progress"
    id: str
    tasks_done: Count
    tasks: Count
    bytes: Count  # read, of both sides
    batches: Count
    partitions_done: Count
    partitions: Count


class Checked(Facts):
    """Replicas that are through; sent while others are still being read."""

    type: Literal["checked"] = "checked"
    id: str
    results: tuple[ReplicaResult, ...]


class Finished(Facts):
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


class Failed(Facts):
    """A command that could not be carried out. `id` None: the process cannot work at all (Configure)."""

    type: Literal["failed"] = "failed"
    id: str | None
    reason: str
    side: Literal["source", "target", "spark"] | None = None
    address: str | None = None
    cancelled: bool = False


class EvidenceWritten(Facts):
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
