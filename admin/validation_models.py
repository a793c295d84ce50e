"""Requests and answers about validation. A number that is not known is None, never 0."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from admin.base import DistinctTopicsRequest, Model

Policy = Literal["require", "warn", "skip"]
ValidationMode = Literal["batches", "records"]


class ValidationState(StrEnum):
    """State of a validation run."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self not in (ValidationState.QUEUED, ValidationState.RUNNING)


class StartValidationRequest(DistinctTopicsRequest):
    """Either topics or all: an empty list never means everything."""

    mode: ValidationMode = Field(
        default="batches",
        description="batches: bytes and checksums; records: keys, values, headers and timestamps, for logs that were "
        "cut into other batches.",
    )


class ContinuousValidationRequest(Model):
    """Begins, changes or ends the continuous validation of a link."""

    enabled: bool
    interval_ms: int | None = Field(
        default=None, ge=1000, description="Time between two runs; default: validation.interval.ms."
    )

    @model_validator(mode="after")
    def _fits(self) -> ContinuousValidationRequest:
        if self.interval_ms is not None and not self.enabled:
            raise ValueError("interval_ms needs enabled: it is the interval of a continuous validation")
        return self


class ValidationProgress(Model):
    tasks_done: int
    tasks: int
    partitions_done: int
    partitions: int
    bytes: int = Field(description="Read from both clusters.")
    batches: int


class ValidationFinding(Model):
    topic: str
    partition: int
    broker: int
    offset: int
    kind: str
    detail: str
    source: str | None = Field(default=None, description="The source's batch there; null: it has none.")
    replica: str | None = None


class ValidationRun(Model):
    """One run. Its numbers count what it has read itself, not what earlier runs had proved."""

    id: str
    link: str
    kind: Literal["once", "continuous", "promote", "evidence"]
    mode: ValidationMode
    state: ValidationState
    reason: str | None = None
    topics: list[str] = []
    started_at: datetime
    finished_at: datetime | None = None
    progress: ValidationProgress | None = None
    partitions: int = 0
    replicas: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    mismatches: int = Field(default=0, description="Replicas that differ from the source.")
    findings: list[ValidationFinding] = Field(default=[], description="The first of them.")
    left_out: list[str] = Field(default=[], description="Replicas that could not be compared, and why.")


class ValidatorStatus(Model):
    """The process that compares."""

    state: Literal["off", "starting", "ready"]
    spark: str | None = None
    master: str
    ui: str | None = None
    trouble: str | None = None
    log: str


class LinkValidation(Model):
    """The proof of a link's mirrors."""

    link: str
    continuous: bool
    interval_ms: int | None = None
    trouble: str | None = Field(default=None, description="Why the last continuous run failed.")
    replicas: int = Field(description="How many are to be proved.")
    proved: int = Field(description="Of these, those proved up to the source's end as it is known now.")
    unproved_offsets: int | None = Field(
        default=None,
        description="How far the replica is behind that is furthest behind; null: nothing is proved of one of them.",
    )
    age_ms: int | None = Field(
        default=None, description="Time since the oldest watermark that is behind was moved."
    )
    mismatches: list[str] = []
    late_starts: list[str] = Field(
        default=[],
        description="Replicas that start later than the source and the mirror, with what they lack: not equal, though what "
        "they hold may be proved. A promote refuses them unless accept_missing says otherwise.",
    )


class LinkValidationDescription(LinkValidation):
    validator: ValidatorStatus
    runs: list[ValidationRun] = Field(
        default=[], description="Runs of this link controller, the newest first."
    )


class PromoteValidation(Model):
    """The proof for a promote. `state`: null until it has promoted something; PENDING while the last run, with
    exact ends, is under way; CLOSED; INCOMPLETE with the reason."""

    policy: Policy
    state: Literal["PENDING", "CLOSED", "INCOMPLETE"] | None = None
    reason: str | None = None
    replicas: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    mismatches: int = 0
    missing_records: int = Field(
        default=0,
        description="Records that the source has before the log starts of replicas: they are not at the target.",
    )
    html: str | None = Field(default=None, description="Path of the evidence on the sidecar that wrote it.")
    json_path: str | None = None
    parquet: str | None = None
    proved_by: list[str] = Field(
        default=[], description="Of a switch: what was proved, and by what, a line each, once it is over."
    )
    progress: ValidationProgress | None = None
    waiting_for: str | None = Field(
        default=None,
        description="The wait before the first progress: a validator that starts, another run.",
    )

    @property
    def final(self) -> bool:
        return self.state in ("CLOSED", "INCOMPLETE")
