"""Planning and starting failovers: for a source that is dead. They run in the link's runtime, as promotes do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from admin.models import FailoverPartition, FailoverPlan, FailoverRequest, PromoteJobStatus
from admin.service import IllegalState, NotReady, PreflightFailed
from controller import errors as refused
from controller.decide import failovers as decide
from controller.decide.failovers import Chosen, KnownEnds
from controller.phases import ENDED
from controller.state import Failover
from linker.checks import preflight
from linker.links import job_status
from linker.links import status as view
from linker.links.runtime import LinkRuntime
from linker.links.source_alive import answers
from linker.promote.ports import PromoteSettings, Tps
from linker.service.base import ServiceBase
from wire.frames.types import TopicPartition
from wire.shown_id import listed

_ASK_REPLICAS = 5.0


class Failovers(ServiceBase):
    def _failover_topics(self, link: str, request: FailoverRequest) -> list[str]:
        if not request.all:
            for topic in request.topics:
                self._mirror_here(link, topic)
            return list(request.topics)
        return [mirror.topic for mirror in self._image.open_mirrors(link)]

    async def plan_failover(self, link: str, request: FailoverRequest) -> FailoverPlan:
        """The offsets of each partition that would be taken over, and those that would not, as the replicas stand now."""
        runtime = self._runtime(link)
        self._require_ready()
        topics = self._failover_topics(link, request)
        blockers: list[str] = []
        if (own := self._own_topics(runtime, request.as_own_topic)) is not None:
            blockers.append(own)
        try:
            await self._sidecar.controller.begin_failover(link, topics, dry_run=True)
        except refused.ControllerError as error:
            blockers.append(str(error))
        tps = [
            state.tp
            for topic in topics
            for state in self._image.topic_partitions(link, topic)
            if state.phase not in ENDED
        ]
        rights, alive = await asyncio.gather(
            preflight.check_mirror_rights(self._sidecar.target, topics), answers(runtime.source, tps)
        )
        blockers += [finding.detail for finding in rights if finding.fatal]
        warnings = [finding.detail for finding in rights if not finding.fatal]
        if alive:
            told = f"the source still answers for {listed(map(str, alive), 3)}: a promote loses nothing"
            if request.force:
                warnings.append(told)
            else:
                blockers.append(f"{told}; --force fails over all the same")
        partitions = await self._planned(runtime, tps)
        return FailoverPlan(link=link, partitions=partitions, blockers=blockers, warnings=warnings)

    async def _planned(self, runtime: LinkRuntime, tps: Tps) -> list[FailoverPartition]:
        ports = runtime.ports.failover()
        targets = {tp: runtime.targets(tp) for tp in tps}
        known = await ports.source.known_ends(tps, timeout=_ASK_REPLICAS)
        ends = await ports.replicas.log_ends(targets, timeout=_ASK_REPLICAS)
        states = self._image.partitions
        untruncated = {tp: {r for r, _ in states[runtime.name, tp].untruncated} for tp in tps}
        verdict = decide.choose_ends(targets, ends, untruncated)
        return [
            _planned(runtime, tp, verdict.chosen.get(tp), known.get(tp, KnownEnds()), ends.get(tp, {}))
            if tp not in verdict.waiting
            else _waiting(runtime, tp, verdict.waiting[tp])
            for tp in tps
        ]

    async def failover(self, link: str, request: FailoverRequest) -> PromoteJobStatus:
        # Checked and started under one lock, as a promote is.
        async with self._changing:
            runtime = self._runtime(link)
            self._require_ready()
            if runtime.settling:
                raise NotReady(f"link {link} still settles a promote that nobody runs; try again in a moment")
            topics = self._failover_topics(link, request)
            if not topics:
                raise IllegalState(f"link {link} has nothing to fail over")
            if (own := self._own_topics(runtime, request.as_own_topic)) is not None:
                raise IllegalState(own)
            try:
                controller = self._sidecar.controller
                job = await controller.begin_failover(link, topics, dry_run=True)
                preflight.refuse(await preflight.check_mirror_rights(self._sidecar.target, topics))
                if not request.force and (alive := await answers(runtime.source, job.partitions)):
                    raise IllegalState(
                        f"the source still answers for {listed(map(str, alive), 3)}: mirror promote loses nothing; "
                        "--force fails over all the same, and leaves behind what is not copied"
                    )
                job = await self._write_down(
                    runtime,
                    lambda: controller.begin_failover(link, topics),
                    PromoteSettings(failover_deadline=request.timeout_ms / 1000),
                    "failover",
                )
            except refused.Refused as error:
                raise IllegalState(str(error)) from error
            except preflight.PreflightError as error:
                raise PreflightFailed(str(error)) from error
            return job_status.promote_job(runtime, job)


def _planned(
    runtime: LinkRuntime,
    tp: TopicPartition,
    chosen: Chosen | None,
    known: KnownEnds,
    ends: Mapping[int, int],
) -> FailoverPartition:
    state = runtime.controller.image.partitions[runtime.name, tp]
    would = Failover(
        before=state.phase,
        source_end=known.source_end,
        acked_end=known.acked_end,
        end=None if chosen is None else chosen.end,
        unasked=known.unasked,
    )
    shown = job_status.failover_partition(runtime, state, would)
    return shown.model_copy(
        update={
            "shortest_replica_end": min(ends.values(), default=None),
            "reason": decide.describe_loss(would),
        }
    )


def _waiting(runtime: LinkRuntime, tp: TopicPartition, reason: str) -> FailoverPartition:
    state = runtime.controller.image.partitions[runtime.name, tp]
    return FailoverPartition(
        topic=tp.topic, partition=tp.partition, state=view.partition_state(runtime, state), reason=reason
    )
