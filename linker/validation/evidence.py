"""After a promote: the last run, with the exact ends, and what is left of it all as a page, JSON and Parquet.

Owed durably by the promote's job, so a restart or the next link controller goes on with it. Rendering is the validator
process's work; what the evidence says is put together here, from the link state.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from admin.validation_models import ValidationState
from controller.decide import validations
from controller.errors import ControllerError
from controller.phases import Phase
from controller.plan.taken_configs import configs_at_promote
from controller.proof import EvidenceStatus, PromoteEvidence
from controller.state import PromoteJob
from fleet.link_controller import wall_clock_ms
from linker import __version__
from linker.validation.errors import ValidatorError
from linker.validation.promoted import PromotedPartitions
from linker.validation.runner import LinkValidator
from linker.validation.runs import RunStatus
from linker.validation.turns import Urgency
from validator import messages as m
from validator.compare.facts import Missing
from validator.evidence import model
from validator.mode import Mode
from wire.backoff import Backoff
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

log = logging.getLogger(__name__)

GIVE_UP = 1800.0  # seconds of trouble; the promote itself is over, so there is time
_RETRY_FIRST, _RETRY_MAX = 1.0, 30.0
_STORE_PAUSE = 2.0
_STEPS = ("catch_up", "fence", "align", "validate", "hand_over", "finish")


async def close_evidence(validation: LinkValidator, job: PromoteJob) -> None:
    """Returns when the job says how it ended. Cancelled, it is begun again by whoever decides next."""
    await EvidenceWriter(validation, job).close()


class EvidenceWriter:
    """Of one promote."""

    def __init__(
        self,
        validation: LinkValidator,
        job: PromoteJob,
        *,
        promoted: PromotedPartitions | None = None,
        before: Sequence[str] = (),
        runs: Sequence[RunStatus] = (),
    ) -> None:
        """Of a switch: `promoted`, with the validator of the mirrors that run back; `before`, a line for each proof
        from before the hand-over; `runs`, those that brought it."""
        self._validation = validation
        self._controller = validation.controller
        self._job = job
        self._promoted = promoted or PromotedPartitions(validation, job)
        self._before = before
        self._runs = runs
        self._kafka: tuple[str | None, str | None] = (None, None)  # of source and target

    async def close(self) -> None:
        """Returns when the job says how it ended. Cancelled, it is begun again by whoever decides next."""
        job, link = self._job, self._job.link
        tps = self._promoted.owed()
        trouble = await self._prove(tps)
        self._kafka = await self._validation.versions()
        written: m.EvidenceWritten | None = None
        try:
            written = await self._write(tps, trouble)
        except (LinkerError, OSError) as error:
            log.warning("link %s: the evidence of promote %d is not written: %s", link, job.id, error)
            trouble = trouble or f"the evidence could not be written: {error}"
        trouble = self._promoted.gone(tps) or trouble
        evidence = self._result(tps, trouble, written)
        await self._note(evidence)
        if evidence.mismatches:
            log.error(
                "link %s: promote %d: %d replicas DIFFER from what the source held at the hand-over: %s",
                link,
                job.id,
                evidence.mismatches,
                self._promoted.first_mismatch(tps),
            )
        log.info(
            "link %s: evidence of promote %d: %s, %d replicas, %d batches%s",
            link,
            job.id,
            evidence.status,
            evidence.replicas,
            evidence.batches,
            f" ({trouble})" if trouble else f", {evidence.html}",
        )

    # --- proving -------------------------------------------------------------------------------------------------

    async def _prove(self, tps: Sequence[TopicPartition]) -> str | None:
        """Have every replica compared up to the end that it must have. Returns why that was not possible. Mirrors that
        are gone cannot be compared; the others are proved all the same."""
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + GIVE_UP, Backoff(_RETRY_FIRST, _RETRY_MAX)
        topics = list(dict.fromkeys(tp.topic for tp in tps))
        while True:
            if not self._promoted.there(tps):
                return None
            status = self._validation.begin(Urgency.EVIDENCE, topics)
            trouble: str | None = None
            try:
                await self._forget_former(tps)
                await self._validation.after_hand_over(status, self._promoted.there(tps))
            except ValidatorError as error:
                trouble = str(error)
                if error.hopeless:
                    return trouble
            except LinkerError as error:
                trouble = str(error)
            trouble = trouble or self._unproved(tps, status)
            if trouble is None or self._promoted.mismatches(tps):
                return None
            if backoff.over(loop.time(), deadline):
                return trouble
            log.warning(
                "link %s: the last validation of promote %d is not complete: %s; tried again",
                self._job.link,
                self._job.id,
                trouble,
            )
            await asyncio.sleep(backoff.next())

    async def _forget_former(self, tps: Sequence[TopicPartition]) -> None:
        """Findings about brokers that hold a partition no more say nothing of its replicas."""
        link, image = self._validation.link, self._controller.image
        for tp in self._promoted.there(tps):
            known = image.validations.get((link, tp))
            named = {one.broker_id for one in known.replicas} if known is not None else set()
            if known is not None and known.mismatch is not None:
                named.add(known.mismatch.broker_id)
            former = named.difference(self._promoted.replicas(tp))
            if former:
                await self._controller.forget_validation(link, [tp], former)

    def _unproved(self, tps: Sequence[TopicPartition], status: RunStatus) -> str | None:
        for tp in self._promoted.there(tps):
            if tp in status.left_out:
                return f"{tp} {status.left_out[tp]}"
            state = self._promoted.state(tp)
            reason = validations.unproved(
                self._controller.image,
                self._validation.link,
                tp,
                self._promoted.replicas(tp),
                state.start_offset or 0,
                self._promoted.end(tp) or 0,
                0,
            )
            if reason is not None:
                return f"{tp}: {reason}"
        return None

    # --- what is left --------------------------------------------------------------------------------------------

    async def _write(self, tps: Sequence[TopicPartition], trouble: str | None) -> m.EvidenceWritten:
        validator = self._validation.validator
        began = datetime.fromtimestamp(self._job.started_at / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        directory = validator.evidence_dir / f"{self._job.link}-{self._job.id}-{began}"
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        async with validator.turns.turn(Urgency.EVIDENCE):
            return await validator.process.write_evidence(
                f"evidence-{self._job.link}-{self._job.id}", directory, self.document(tps, trouble)
            )

    def _result(
        self, tps: Sequence[TopicPartition], trouble: str | None, written: m.EvidenceWritten | None
    ) -> PromoteEvidence:
        tps = self._promoted.there(tps)
        proved = [
            one
            for tp in tps
            if (known := self._controller.image.validations.get((self._validation.link, tp))) is not None
            for one in known.replicas
            if one.broker_id in self._promoted.replicas(tp) and one.through >= (self._promoted.end(tp) or 0)
        ]
        return PromoteEvidence(
            status=EvidenceStatus.CLOSED if trouble is None else EvidenceStatus.INCOMPLETE,
            replicas=len(proved),
            batches=sum(one.batches for one in proved),
            records=sum(one.records for one in proved),
            bytes=sum(one.bytes for one in proved),
            mismatches=self._promoted.mismatches(tps),
            missing_records=self._promoted.missing(tps),
            trouble=trouble,
            html=None if written is None else written.html,
            json=None if written is None else written.json_path,
            parquet=None if written is None else written.parquet,
            proved_by=(*self._before, _proved_after(len(proved))) if self._before else (),
        )

    async def _note(self, evidence: PromoteEvidence) -> None:
        while True:
            try:
                await self._controller.close_evidence(self._job.link, self._job.id, evidence)
                return
            except ControllerError:
                # The link was deleted meanwhile, or an earlier commit, whose answer was lost, has closed the evidence.
                log.debug("promote %d: its evidence is not asked for any more", self._job.id, exc_info=True)
                return
            except LinkerError as error:
                log.warning("promote %d: its evidence cannot be noted: %s; tried again", self._job.id, error)
                await asyncio.sleep(_STORE_PAUSE)

    def document(self, tps: Sequence[TopicPartition], trouble: str | None) -> model.Evidence:
        """All that is known of the promote. A partition whose mirror is gone is in it without replicas: it is not proved."""
        job, validation = self._job, self._validation
        image = self._controller.image
        there = set(self._promoted.there(tps))
        trouble = self._promoted.gone(tps) or trouble
        process = validation.validator.process
        source, target = validation.source_side(), validation.validator.target()
        link = image.links.get(validation.link)
        topics = dict.fromkeys(tp.topic for tp in tps)
        left = dict.fromkeys(tp.topic for tp in tps if tp in there)
        mirrors = [image.mirrors[validation.link, topic] for topic in left]
        versions = {"linker": __version__, "python": platform.python_version()}
        if process.ready is not None:
            versions["spark"] = process.ready.spark
        return model.Evidence(
            link=job.link,
            promote=f"{job.link}-{job.id}",
            mode=Mode.BATCHES,
            policy=job.validation.value,
            outcome=Phase.PROMOTED.value if job.reason is None else job.status.value,
            reason=job.reason,
            source=model.ClusterFacts(
                name=source.name,
                bootstrap=source.bootstrap,
                cluster_id=None if link is None else link.source_cluster_id or None,
                version=self._kafka[0],
            ),
            target=model.ClusterFacts(
                name=target.name,
                bootstrap=target.bootstrap,
                cluster_id=self._validation.target.cluster.cluster_id,
                version=self._kafka[1],
            ),
            accepted_missing=job.accept_missing,
            requested_by=job.requested_by,
            sidecar=str(self._validation.target.broker_id),
            started_ms=job.started_at,
            finished_ms=wall_clock_ms(),
            phases=_phases(job),
            versions=versions,
            spark_master=None if process.ready is None else process.ready.master,
            topics=tuple(
                model.TopicEvidence(
                    topic=mirror.topic,
                    source_topic=mirror.source_name,
                    source_topic_id=None if mirror.source_topic_id is None else mirror.source_topic_id.hex(),
                    target_topic_id=mirror.topic_id.hex(),
                    source_partitions=mirror.partitions,
                    compacted="compact" in mirror.copied_configs.get("cleanup.policy", ""),
                    configs={
                        **mirror.copied_configs,
                        **configs_at_promote(image, mirror),
                    },
                )
                for mirror in mirrors
            ),
            partitions=tuple(
                self._partition(tp, len(tps))
                if tp in there
                else model.PartitionEvidence(topic=tp.topic, partition=tp.partition, start=0)
                for tp in tps
            ),
            runs=tuple(
                _run(one)
                for one in (*self._runs, *validation.runs)
                if one.state.final and _concerns(one, topics)
            ),
            notes=(*job.warnings, *self._before, *(() if trouble is None else (trouble,))),
        )

    def _partition(self, tp: TopicPartition, partitions: int) -> model.PartitionEvidence:
        state, validation = self._promoted.state(tp), self._validation
        known = self._controller.image.validations.get((validation.link, tp))
        replicas = []
        for broker_id in self._promoted.replicas(tp):
            one, key = None if known is None else known.of(broker_id), (tp, broker_id)
            findings, count = validation.book.findings.get(key, ((), 0))
            replicas.append(
                model.ReplicaEvidence(
                    broker_id=broker_id,
                    start=state.start_offset or 0 if one is None else one.start,
                    through=None if one is None else one.through,
                    end=validation.book.replica_ends.get(key),
                    batches=0 if one is None else one.batches,
                    records=0 if one is None else one.records,
                    bytes=0 if one is None else one.bytes,
                    source_digest=None if one is None else one.source_digest,
                    digest=None if one is None else one.digest,
                    validated_ms=None if one is None else one.at,
                    tail_equal=None if (tail := validation.book.tails.get(key)) is None else tail.equal,
                    findings=findings,
                    findings_count=count,
                    lawful={} if one is None else dict(one.lawful),
                    log_start=validation.book.replica_starts.get(key),
                    missing=None if one is None or one.missing is None else Missing(**asdict(one.missing)),
                )
            )
        return model.PartitionEvidence(
            topic=tp.topic,
            partition=tp.partition,
            start=state.start_offset or 0,
            source_start=validation.book.source_starts.get(tp),
            end=self._promoted.end(tp),
            handed_over_ms=state.since or None,
            replicas=tuple(replicas),
            samples=validation.book.samples.of(tp, partitions),
        )


def _proved_after(replicas: int) -> str:
    return (
        f"after the hand-over, by Spark: {replicas} replicas in the cluster that was left, each read itself and compared "
        "with the leader in the other one, to the end of the hand-over or beyond"
    )


def _phases(job: PromoteJob) -> tuple[model.PhaseTime, ...]:
    """One after the other from the beginning; the batches of a large promote are added up."""
    at, found = float(job.started_at), []
    for name in _STEPS:
        if name in job.phases_ms:
            found.append(model.PhaseTime(name=name, at_ms=round(at), ms=round(job.phases_ms[name])))
            at += job.phases_ms[name]
    return tuple(found)


def _concerns(status: RunStatus, topics: dict[str, None]) -> bool:
    return not status.topics or any(topic in topics for topic in status.topics)


def _run(status: RunStatus) -> model.RunFacts:
    ended = status.started_at if status.ended_at is None else status.ended_at
    return model.RunFacts(
        id=status.id,
        mode=status.mode,
        at_ms=status.started_at,
        seconds=max(0, ended - status.started_at) / 1000,
        partitions=status.partitions,
        replicas=status.replicas,
        batches=status.batches,
        records=status.records,
        bytes=status.bytes,
        mismatches=status.mismatches,
        failed=status.reason if status.state in (ValidationState.FAILED, ValidationState.CANCELLED) else None,
    )
