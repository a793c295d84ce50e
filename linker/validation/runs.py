"""One run: its progress, and its results written into the link state as they come."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from admin.validation_models import ValidationState
from controller.decide.validations import Advance
from controller.proof import MissingRecords, ReplicaValidation, ValidationMismatch
from fleet.link_controller import LinkController, wall_clock_ms
from linker.validation.errors import ValidatorError
from linker.validation.planner import ValidationPlan
from validator import messages as m
from validator.compare.facts import BatchFacts, Finding, FindingKind, Missing
from validator.mode import Mode
from wire.frames.types import TopicPartition

MAX_SHOWN = 20
#: Findings that stop no mirror: a replica that has not come so far (its broker is slow or was down; asked again, it may
#: have), partitions that somebody added, a replica that starts later than the source (what it holds is right, and there
#: may be nothing better to be had). A promote is refused while they last, and a run that finds them is not a good one.
UNPROVED = frozenset({FindingKind.SHORT, FindingKind.PARTITION_COUNT, FindingKind.LATE_START})
_COMMIT_PARTITIONS = 100  # of one commit to the state store


@dataclass(frozen=True, slots=True)
class Found:
    """A finding with the replica it is of."""

    tp: TopicPartition
    broker_id: int
    finding: Finding


@dataclass(slots=True)
class RunStatus:
    """A run as people are shown it. Numbers are of this run alone."""

    id: str
    kind: str  # once | continuous | promote | evidence
    mode: Mode
    topics: tuple[str, ...]
    started_at: int = field(default_factory=wall_clock_ms)
    ended_at: int | None = None
    state: ValidationState = ValidationState.QUEUED
    reason: str | None = None
    progress: m.Progress | None = None
    partitions: int = 0
    replicas: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    differing: dict[tuple[TopicPartition, int], tuple[Finding, ...]] = field(default_factory=dict)
    left_out: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def mismatches(self) -> int:
        """Replicas with findings, each counted once however often it was told of."""
        return len(self.differing)

    @property
    def findings(self) -> list[Found]:
        """The first MAX_SHOWN."""
        every = (
            Found(tp, broker_id, finding)
            for (tp, broker_id), findings in self.differing.items()
            for finding in findings
        )
        return list(itertools.islice(every, MAX_SHOWN))

    def end(self, state: ValidationState, reason: str | None = None) -> None:
        self.state, self.reason, self.ended_at = state, reason, wall_clock_ms()


@dataclass(slots=True)
class Totals:
    """Of a link, since this sidecar decides."""

    runs: int = 0
    failed_runs: int = 0
    batches: int = 0
    bytes: int = 0
    mismatches: int = 0


class Recorder:
    """Takes the results of one run. `told` is called after each group of them."""

    def __init__(
        self,
        controller: LinkController,
        link: str,
        plan: ValidationPlan,
        status: RunStatus,
        totals: Totals,
        told: Callable[[Sequence[m.ReplicaResult]], None],
        source_end: Callable[[TopicPartition], int | None],
        lost: Callable[[TopicPartition, int, int, int], bool],
    ) -> None:
        """`source_end`: where the source ends now, as far as that is known. `lost`: whether a broker has lost something
        below an offset since a time; what is read afterwards is not of the copy that its watermark is of."""
        self._controller = controller
        self._link = link
        self._plan = plan
        self._status = status
        self._totals = totals
        self._told = told
        self._source_end = source_end
        self._lost = lost
        self._bases = dict(plan.bases)
        #: Since when what is known of a replica must not have been lost.
        self._since = {key: plan.at for key, base in plan.bases.items() if base is not None}
        self._counts = {
            (TopicPartition(p.topic, p.partition), r.broker_id): (r.batches, r.records, r.bytes)
            for p in plan.partitions
            for r in p.replicas
        }
        #: Lawful differences as told last: the validator tells sums of the run, group after group.
        self._lawful: dict[tuple[TopicPartition, int], Mapping[str, int]] = {}
        status.partitions = len(plan.partitions)
        status.left_out = dict(plan.left_out)
        self._replicas: set[tuple[TopicPartition, int]] = set()

    async def seen(self, event: m.Progress | m.Checked) -> None:
        if isinstance(event, m.Progress):
            self._status.progress = event
            return
        for begin in range(0, len(event.results), _COMMIT_PARTITIONS):
            await self._take(event.results[begin : begin + _COMMIT_PARTITIONS])
        self._told(event.results)

    async def _take(self, results: Sequence[m.ReplicaResult]) -> None:
        advances: list[Advance] = []
        noted: list[m.ReplicaResult] = []
        for result in results:
            tp = TopicPartition(result.topic, result.partition)
            key = (tp, result.broker_id)
            if key not in self._bases:
                raise ValidatorError(f"the validator reports on broker {result.broker_id} for {tp}, unasked")
            base, since = self._bases[key], self._since.get(key)
            if base is not None and since is not None and self._lost(tp, result.broker_id, base, since):
                # Its watermark keeps its age, so the next look for lost copies forgets it.
                self._status.left_out[tp] = f"broker {result.broker_id} has lost its replica meanwhile"
                continue
            noted.append(result)
            advances.append(self._advance(tp, result))
        await self._controller.advance_validation(self._link, advances)
        for result in noted:
            self._count(TopicPartition(result.topic, result.partition), result)

    def _advance(self, tp: TopicPartition, result: m.ReplicaResult) -> Advance:
        mismatch = mismatch_of(result)
        if self._status.mode is Mode.RECORDS:
            return Advance(tp=tp, session_epoch=self._plan.epochs[tp], mismatch=mismatch)
        known = self._controller.image.validations.get((self._link, tp))
        before = None if known is None else known.of(result.broker_id)
        lawful = dict(before.lawful) if before is not None else {}
        told = self._lawful.get((tp, result.broker_id), {})
        for kind, count in result.lawful.items():
            lawful[kind] = lawful.get(kind, 0) + max(0, count - told.get(kind, 0))
        return Advance(
            tp=tp,
            session_epoch=self._plan.epochs[tp],
            base=self._bases[tp, result.broker_id],
            replica=ReplicaValidation(
                broker_id=result.broker_id,
                start=result.start,
                through=result.through,
                batches=result.batches,
                records=result.records,
                bytes=result.bytes,
                digest=result.digest,
                source_digest=result.source_digest,
                lawful=lawful,
                missing=missing_of(result.missing),
                at=0,
            ),
            mismatch=mismatch,
        )

    def _count(self, tp: TopicPartition, result: m.ReplicaResult) -> None:
        key, status, totals = (tp, result.broker_id), self._status, self._totals
        self._bases[key] = result.through
        self._since.setdefault(key, wall_clock_ms())
        self._lawful[key] = result.lawful
        batches, records, size = self._counts[key]
        self._counts[key] = (result.batches, result.records, result.bytes)
        status.batches += max(0, result.batches - batches)
        status.records += max(0, result.records - records)
        status.bytes += max(0, result.bytes - size)
        totals.batches += max(0, result.batches - batches)
        totals.bytes += max(0, result.bytes - size)
        self._replicas.add(key)
        status.replicas = len(self._replicas)
        wrong = []
        for finding in result.findings:
            if self._may_pass(tp, result, finding):
                status.left_out[tp] = f"broker {result.broker_id}'s replica: {finding.kind}, {finding.detail}"
            else:
                wrong.append(finding)
        if wrong:
            totals.mismatches += key not in status.differing
            status.differing[key] = tuple(wrong)

    def _may_pass(self, tp: TopicPartition, result: m.ReplicaResult, finding: Finding) -> bool:
        """Whether a replica is merely behind. Not if the source has been idle since its end was sampled: the replica has
        had its time, and nothing more is on its way."""
        return finding.kind is FindingKind.SHORT and self._source_end(tp) != result.source_end


def missing_of(found: Missing | None) -> MissingRecords | None:
    return None if found is None else MissingRecords(**found.model_dump())


def differences(result: m.ReplicaResult) -> tuple[Finding, ...]:
    """Faults of a replica, without ranges that are only not proved."""
    return tuple(finding for finding in result.findings if finding.kind not in UNPROVED)


def mismatch_of(result: m.ReplicaResult) -> ValidationMismatch | None:
    """The first difference of a replica, by offset."""
    differing = differences(result)
    if not differing:
        return None
    first = min(differing, key=lambda finding: finding.offset)
    return ValidationMismatch(
        broker_id=result.broker_id,
        offset=first.offset,
        kind=first.kind.value,
        detail=first.detail,
        source=batch_text(first.source),
        replica=batch_text(first.replica),
        at=0,
    )


def batch_text(batch: BatchFacts | None) -> str | None:
    """A batch's facts in one line."""
    if batch is None:
        return None
    crc = f"CRC {batch.crc:08x}"
    if batch.crc_computed != batch.crc:
        crc += f" (of the bytes: {batch.crc_computed:08x})"
    producer = f", producer {batch.producer_id}/{batch.producer_epoch}" if batch.producer_id >= 0 else ""
    return (
        f"batch {batch.base_offset}..{batch.last_offset}, {batch.records} records, {batch.size} bytes, "
        f"{crc}{producer}"
    )
