"""The admin API's service: requests become checks, decisions of the link controller, and work for the link runtimes.

Reading is in links/status.py, checks are in preflight.py; here is the order of things, and that a refused request has
changed nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from controller import errors as refused
from controller.image import ControllerImage
from controller.manager import wall_clock_ms
from controller.phases import ENDED, PROMOTING, Phase
from controller.placement import Broker, Load, place
from controller.ports import PromoteSettings
from controller.state import UNBOUND, JobStatus, MirrorTopic
from linker import preflight
from linker.admin.models import (
    Action,
    ChangeResult,
    Check,
    CheckResult,
    CreateLinkRequest,
    CreateMirrorsRequest,
    DoctorReport,
    LagReport,
    LinkDescription,
    LinkOptions,
    LinkStatus,
    LinkSummary,
    MirrorDescription,
    MirrorState,
    MirrorSummary,
    PromoteJob,
    PromotePhase,
    PromotePlan,
    PromoteRequest,
    PromoteTopic,
    SidecarStatus,
    Status,
    UpdateLinkRequest,
    worst_state,
)
from linker.admin.service import (
    AlreadyExists,
    IllegalState,
    InvalidRequest,
    LinkNotFound,
    MirrorNotFound,
    NotReady,
    PreflightFailed,
    PromoteNotFound,
    SidecarNotFound,
    SourceTopicNotFound,
)
from linker.links import status as view
from linker.links.runtime import LinkRuntime, source_cluster
from linker.properties import PropertyError, check_client_properties
from linker.secrets import SecretError, redact_properties, refuse_literal_secrets, resolve_properties
from linker.target import StillHosting
from wire.errors import LinkerError
from wire.types import format_address, topic_id_str

if TYPE_CHECKING:
    from linker.sidecar import Sidecar

_DELETE_TIMEOUT = 15.0
_FENCE_DRAIN_TIMEOUT = 5.0
_LEAVE_TIMEOUT = 30.0


class SidecarService:
    """linker.admin.service.LinkService over one sidecar."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._changing = asyncio.Lock()

    @property
    def _image(self) -> ControllerImage:
        return self._sidecar.controller.image

    def ready(self) -> str | None:
        return self._sidecar.not_ready()

    def _runtime(self, link: str) -> LinkRuntime:
        runtime = self._sidecar.links.get(link)
        if runtime is None:
            raise LinkNotFound(link)
        return runtime

    def _require_ready(self) -> None:
        reason = self._sidecar.not_ready()
        if reason is not None:
            raise NotReady(reason)

    def _mirror(self, link: str, topic: str) -> tuple[LinkRuntime, MirrorTopic]:
        runtime = self._runtime(link)
        mirror = self._image.mirrors.get((link, topic))
        if mirror is None:
            raise MirrorNotFound(link, topic)
        return runtime, mirror

    # --- links ---------------------------------------------------------------------------------------------------

    async def create_link(self, request: CreateLinkRequest, *, dry_run: bool) -> ChangeResult:
        self._require_ready()
        async with self._changing:
            try:
                check_client_properties(resolve_properties(request.properties))
                refuse_literal_secrets(request.properties)
            except (PropertyError, SecretError) as error:
                raise InvalidRequest(str(error)) from error
            if request.name in self._image.links:
                raise AlreadyExists(f"link {request.name} exists already")
            source = source_cluster(request.name, dict(request.properties), None)
            try:
                await source.connect(timeout=preflight.TIMEOUT)
                wanted = request.source_cluster_id
                if wanted is not None and wanted != source.cluster_id:
                    raise PreflightFailed(f"the source has cluster id {source.cluster_id}, not {wanted}")
                findings = await preflight.check_source(source, self._sidecar.target)
                findings += await preflight.check_target_rights(self._sidecar.target)
                preflight.refuse(findings)
                cluster_id = source.cluster_id or ""
            except preflight.PreflightError as error:
                raise PreflightFailed(str(error)) from error
            finally:
                await source.close()
            link = await self._sidecar.controller.create_link(
                request.name, cluster_id, request.properties, request.options.model_dump(), dry_run=dry_run
            )
            if not dry_run:
                self._sidecar.start_link(link)
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(action="create link", resource=request.name, detail=f"source cluster {cluster_id}"),
                Action(
                    action="move producer ids",
                    resource="target cluster",
                    detail="past everything the source hands out, before the first forwarded write",
                ),
            ],
            warnings=[finding.detail for finding in findings if not finding.fatal],
        )

    async def list_links(self) -> list[LinkSummary]:
        return [self._summary(runtime) for runtime in self._sidecar.links.values()]

    def _mirrors(self, runtime: LinkRuntime) -> list[MirrorSummary]:
        return [view.mirror_summary(runtime, mirror) for mirror in self._image.link_mirrors(runtime.name)]

    def _summary_fields(self, runtime: LinkRuntime, mirrors: list[MirrorSummary]) -> dict[str, Any]:
        states: dict[MirrorState, int] = {}
        for mirror in mirrors:
            states[mirror.state] = states.get(mirror.state, 0) + 1
        return {
            "name": runtime.name,
            "state": view.link_state(runtime, mirrors),
            "reason": runtime.trouble,
            "source_cluster_id": runtime.link.source_cluster_id,
            "bootstrap_servers": runtime.link.properties.get("bootstrap.servers", ""),
            "mirrors": len(mirrors),
            "mirror_states": states,
        }

    def _summary(self, runtime: LinkRuntime) -> LinkSummary:
        return LinkSummary(**self._summary_fields(runtime, self._mirrors(runtime)))

    async def describe_link(self, link: str) -> LinkDescription:
        runtime = self._runtime(link)
        since = runtime.unavailable_since
        return LinkDescription(
            **self._summary_fields(runtime, self._mirrors(runtime)),
            target_cluster_id=self._sidecar.target.cluster.cluster_id or "",
            properties=redact_properties(dict(runtime.link.properties)),
            options=LinkOptions.model_validate(dict(runtime.link.options)),
            forwarding=view.forwarding(runtime),
            traffic=view.traffic(runtime),
            created_at=view.moment(runtime.link.created_at),
            source_unavailable_since=None
            if since is None
            else view.moment(wall_clock_ms() - int((time.monotonic() - since) * 1000)),
        )

    async def update_link(self, link: str, request: UpdateLinkRequest, *, dry_run: bool) -> ChangeResult:
        runtime = self._runtime(link)
        self._require_ready()
        async with self._changing:
            if self._image.running_jobs(link):
                raise IllegalState(f"link {link} has a promote running: change it afterwards")
            properties = {**runtime.link.properties, **request.properties}
            kept = {name: value for name, value in properties.items() if value is not None}
            try:
                check_client_properties(resolve_properties(kept))
                refuse_literal_secrets(kept)
            except (PropertyError, SecretError) as error:
                raise InvalidRequest(str(error)) from error
            source = source_cluster(link, kept, None)
            try:
                await source.connect(timeout=preflight.TIMEOUT)
                if source.cluster_id != runtime.link.source_cluster_id:
                    raise PreflightFailed(
                        f"these properties lead to cluster {source.cluster_id}, link {link} was made for "
                        f"{runtime.link.source_cluster_id}"
                    )
            finally:
                await source.close()
            options = runtime.link.options if request.options is None else request.options.model_dump()
            await self._sidecar.controller.update_link(link, kept, options, dry_run=dry_run)
            if not dry_run:
                await self._sidecar.restart_link(link)
        return ChangeResult(dry_run=dry_run, actions=[Action(action="update link", resource=link)])

    async def delete_link(self, link: str, *, dry_run: bool) -> ChangeResult:
        self._runtime(link)
        async with self._changing:
            try:
                await self._sidecar.controller.delete_link(link, dry_run=dry_run)
            except refused.Refused as error:
                raise IllegalState(str(error)) from error
            if not dry_run:
                await self._sidecar.stop_link(link)
        return ChangeResult(dry_run=dry_run, actions=[Action(action="delete link", resource=link)])

    # --- mirrors -------------------------------------------------------------------------------------------------

    async def create_mirrors(
        self, link: str, request: CreateMirrorsRequest, *, dry_run: bool
    ) -> ChangeResult:
        runtime = self._runtime(link)
        self._require_ready()
        if not runtime.source_available:
            raise NotReady(f"the source of link {link} cannot be reached: {runtime.trouble}")
        async with self._changing:
            for topic in request.topics:
                self._refuse_existing(link, topic)
            topics, missing, findings = await preflight.read_source_topics(runtime.source, request.topics)
            if missing:
                raise SourceTopicNotFound(missing)
            factors: dict[str, int] = {}
            try:
                preflight.refuse(findings)
                brokers = self._brokers()
                for name, found in topics.items():
                    factors[name] = request.replication_factor or min(found.replication_factor, len(brokers))
                findings += await preflight.check_configs(
                    self._sidecar.target, topics, factors, [broker.id for broker in brokers]
                )
                preflight.refuse(findings)
                mirrors = self._plan_mirrors(link, request, topics, factors, brokers)
                for mirror in mirrors:
                    await self._sidecar.target.operations.create_mirror_topic(
                        mirror.topic, self._assignments(mirror), mirror.copied_configs, validate_only=True
                    )
            except (preflight.PreflightError, refused.Refused) as error:
                raise PreflightFailed(str(error)) from error
            actions = [
                Action(
                    action="create mirror",
                    resource=mirror.topic,
                    detail=f"{mirror.partitions} partitions, replicas on {sorted({b for r in mirror.target_replicas for b in r})}",
                )
                for mirror in mirrors
            ]
            if not dry_run:
                for mirror in mirrors:
                    await self._sidecar.controller.create_mirror(mirror)
                for mirror in mirrors:
                    runtime.bring_up.ask(mirror.topic)
        return ChangeResult(
            dry_run=dry_run,
            actions=actions,
            warnings=[finding.detail for finding in findings if not finding.fatal],
        )

    def _refuse_existing(self, link: str, topic: str) -> None:
        if topic.startswith("__"):
            raise InvalidRequest(f"topic {topic} is internal to Kafka and is not mirrored")
        existing = self._image.mirror_of_topic(topic)
        if existing is not None:
            raise AlreadyExists(f"topic {topic} is a mirror of link {existing.link} already")
        if topic in self._sidecar.target.image.topics_by_name:
            raise AlreadyExists(
                f"topic {topic} exists at the target and is no mirror of link {link}; delete it there first"
            )

    def _brokers(self) -> list[Broker]:
        links = self._sidecar.link_brokers()
        found = [
            Broker(broker.id, broker.rack)
            for broker in self._sidecar.target.image.brokers.values()
            if broker.id not in links and not broker.fenced and not broker.in_controlled_shutdown
        ]
        if not found:
            raise preflight.PreflightError("no broker of the target is alive")
        return found

    def _plan_mirrors(
        self,
        link: str,
        request: CreateMirrorsRequest,
        topics: dict[str, preflight.SourceTopic],
        factors: dict[str, int],
        brokers: list[Broker],
    ) -> list[MirrorTopic]:
        load = self._load()
        mirrors = []
        for name in request.topics:
            topic = topics[name]
            replicas = place(brokers, topic.partitions, factors[name], load)
            for members in replicas:
                for position, broker in enumerate(members):
                    before = load.get(broker, Load())
                    load[broker] = Load(before.replicas + 1, before.leaders + (position == 0))
            mirrors.append(
                MirrorTopic(
                    link=link,
                    topic=name,
                    topic_id=UNBOUND,
                    source_topic_id=topic.topic_id,
                    partitions=topic.partitions,
                    start=request.start,
                    target_replicas=replicas,
                    copied_configs=dict(topic.plan.create),
                    restore_configs=dict(topic.plan.restore),
                    created_at=wall_clock_ms(),
                )
            )
        return mirrors

    def _load(self) -> dict[int, Load]:
        links = self._sidecar.link_brokers()
        load: dict[int, Load] = {}
        for topic in self._sidecar.target.image.topics_by_id.values():
            for partition in topic.partitions.values():
                members = [b for b in partition.replicas if b not in links]
                for broker in members:
                    before = load.get(broker, Load())
                    leads = broker == partition.leader or (partition.leader in links and broker == members[0])
                    load[broker] = Load(before.replicas + 1, before.leaders + leads)
        return load

    def _assignments(self, mirror: MirrorTopic) -> dict[int, list[int]]:
        return {index: [self._sidecar.target.broker_id] for index in range(mirror.partitions)}

    async def list_mirrors(self, link: str) -> list[MirrorSummary]:
        return self._mirrors(self._runtime(link))

    async def describe_mirror(self, link: str, topic: str) -> MirrorDescription:
        runtime, mirror = self._mirror(link, topic)
        summary = view.mirror_summary(runtime, mirror)
        states = self._image.topic_partitions(link, topic)
        return MirrorDescription(
            **summary.model_dump(),
            topic_id=topic_id_str(mirror.topic_id),
            source_topic_id=None if mirror.source_topic_id is None else topic_id_str(mirror.source_topic_id),
            start=mirror.start,
            replication_factor=len(mirror.target_replicas[0]) if mirror.target_replicas else 0,
            created_at=view.moment(mirror.created_at),
            configs=dict(mirror.copied_configs),
            partition_status=[view.partition_status(runtime, state) for state in states],
        )

    async def pause_mirror(self, link: str, topic: str, *, dry_run: bool) -> ChangeResult:
        return await self._set_paused(link, topic, True, dry_run)

    async def resume_mirror(self, link: str, topic: str, *, dry_run: bool) -> ChangeResult:
        return await self._set_paused(link, topic, False, dry_run)

    async def _set_paused(self, link: str, topic: str, paused: bool, dry_run: bool) -> ChangeResult:
        runtime, mirror = self._mirror(link, topic)
        tps = mirror.topic_partitions()
        busy = [s.tp for s in self._image.topic_partitions(link, topic) if s.phase in PROMOTING | ENDED]
        if busy:
            raise IllegalState(f"topic {topic} is being promoted or was promoted already")
        if not dry_run:
            if paused:
                await self._sidecar.controller.pause(link, topic)
                runtime.fetcher.pause(tps)
            else:
                await self._sidecar.controller.resume(link, topic)
                runtime.fetcher.resume(tps)
                runtime.bring_up.ask(topic)
        return ChangeResult(
            dry_run=dry_run,
            actions=[Action(action="pause mirror" if paused else "resume mirror", resource=topic)],
        )

    async def delete_mirror(self, link: str, topic: str, *, keep_data: bool, dry_run: bool) -> ChangeResult:
        runtime, mirror = self._mirror(link, topic)
        states = self._image.topic_partitions(link, topic)
        ended = all(state.phase in ENDED for state in states)
        if any(state.phase in PROMOTING for state in states):
            raise IllegalState(f"topic {topic} is being promoted")
        if not ended and any(state.phase in ENDED for state in states):
            raise IllegalState(f"topic {topic} is promoted in part: promote the rest first")
        if keep_data and not ended:
            raise InvalidRequest(
                f"topic {topic} is not promoted, so nobody but the link broker leads it: promote it to keep its data"
            )
        actions = [Action(action="delete mirror", resource=topic)]
        exists = topic in self._sidecar.target.image.topics_by_name
        if not ended and exists and mirror.topic_id != UNBOUND:
            actions.append(Action(action="delete topic", resource=topic, detail="at the target"))
        if not dry_run:
            async with self._changing:
                runtime.fetcher.remove(mirror.topic_partitions())
                if len(actions) > 1:
                    await self._sidecar.target.operations.delete_topic(topic, timeout=_DELETE_TIMEOUT)
                await self._sidecar.controller.delete_mirror(link, topic)
        return ChangeResult(dry_run=dry_run, actions=actions)

    # --- promote -------------------------------------------------------------------------------------------------

    async def plan_promote(self, link: str, request: PromoteRequest) -> PromotePlan:
        runtime = self._runtime(link)
        topics = self._promote_topics(link, request)
        blockers: list[str] = []
        try:
            await self._sidecar.controller.begin_promote(link, topics, dry_run=True)
        except refused.ControllerError as error:
            blockers.append(str(error))
        shown = []
        for topic in topics:
            mirror = self._image.mirrors[link, topic]
            summary = view.mirror_summary(runtime, mirror)
            shown.append(
                PromoteTopic(
                    topic=topic,
                    partitions=mirror.partitions,
                    phase=PromotePhase.PROMOTED
                    if summary.state is MirrorState.PROMOTED
                    else PromotePhase.CATCHING_UP,
                    lag=summary.lag,
                    reason=summary.reason,
                )
            )
        warnings = await self._open_transactions(runtime, topics)
        return PromotePlan(link=link, topics=shown, blockers=blockers, warnings=warnings)

    async def _open_transactions(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[str]:
        tps = [
            s.tp
            for topic in topics
            for s in self._image.topic_partitions(runtime.name, topic)
            if s.phase not in ENDED
        ]
        if not tps:
            return []
        try:
            ends = await runtime.ports.source_ends.ends(tps, timeout=preflight.TIMEOUT)
        except LinkerError as error:
            return [f"the source's ends cannot be read: {error}"]
        return [
            f"{tp}: a transaction is open at the source; the promote waits for its end"
            for tp, end in ends.items()
            if end.in_transaction
        ]

    def _promote_topics(self, link: str, request: PromoteRequest) -> list[str]:
        if not request.all:
            for topic in request.topics:
                self._mirror(link, topic)
            return list(request.topics)
        return [
            mirror.topic
            for mirror in self._image.link_mirrors(link)
            if any(
                state.phase is not Phase.PROMOTED
                for state in self._image.topic_partitions(link, mirror.topic)
            )
        ]

    async def promote(self, link: str, request: PromoteRequest) -> PromoteJob:
        runtime = self._runtime(link)
        self._require_ready()
        if not runtime.source_available:
            raise NotReady(f"the source of link {link} cannot be reached: {runtime.trouble}")
        topics = self._promote_topics(link, request)
        if not topics:
            raise IllegalState(f"link {link} has nothing to promote")
        try:
            job = await self._sidecar.controller.begin_promote(link, topics)
        except refused.Refused as error:
            raise IllegalState(str(error)) from error
        options = request.options
        runtime.start_promote(
            job,
            PromoteSettings(
                max_lag=options.max_lag,
                catch_up_timeout=options.catch_up_timeout_ms / 1000,
                fence_deadline=options.fence_timeout_ms / 1000,
                fence_drain_timeout=min(_FENCE_DRAIN_TIMEOUT, options.fence_timeout_ms / 1000),
            ),
        )
        return view.promote_job(runtime, job)

    async def describe_promote(self, promote_id: str) -> PromoteJob:
        job = view.find_job(self._image, promote_id)
        if job is None:
            raise PromoteNotFound(promote_id)
        return view.promote_job(self._runtime(job.link), job)

    # --- the rest --------------------------------------------------------------------------------------------------

    def _sidecar_status(self) -> SidecarStatus:
        target = self._sidecar.target
        age = time.monotonic() - target.registration.last_heartbeat
        leading = sum(
            partition.leader == target.broker_id
            for topic in target.image.topics_by_id.values()
            for partition in topic.partitions.values()
        )
        return SidecarStatus(
            id=target.broker_id,
            state="STARTING"
            if self._sidecar.not_ready()
            else "FENCED"
            if target.registration.fenced
            else "RUNNING",
            version=self._sidecar.version,
            advertised_listeners=[
                f"{listener.name}://{format_address(listener.host, listener.port)}"
                for listener in self._sidecar.advertised
            ],
            rack=target.registration.rack,
            controller=True,
            leading_partitions=leading,
            heartbeat_age_ms=int(age * 1000) if age != float("inf") else None,
        )

    async def list_sidecars(self) -> list[SidecarStatus]:
        return [self._sidecar_status()]

    async def leave_sidecar(self, sidecar_id: int, *, dry_run: bool) -> ChangeResult:
        if sidecar_id != self._sidecar.target.broker_id:
            raise SidecarNotFound(sidecar_id)
        actions = [
            Action(action="unregister broker", resource=str(sidecar_id), detail="from the target cluster"),
            Action(action="stop", resource=f"sidecar {sidecar_id}"),
        ]
        try:
            if dry_run:
                self._sidecar.check_may_leave()
            else:
                await self._sidecar.leave(_LEAVE_TIMEOUT)
        except StillHosting as error:
            raise IllegalState(str(error)) from error
        return ChangeResult(dry_run=dry_run, actions=actions)

    async def status(self) -> Status:
        links = []
        for runtime in self._sidecar.links.values():
            mirrors = self._mirrors(runtime)
            lags = [mirror.lag for mirror in mirrors]
            times = [mirror.lag_ms for mirror in mirrors if mirror.lag_ms is not None]
            known = [lag for lag in lags if lag is not None]
            links.append(
                LinkStatus(
                    **self._summary_fields(runtime, mirrors),
                    mirror_list=mirrors,
                    partitions=sum(mirror.partitions for mirror in mirrors),
                    lag=sum(known) if len(known) == len(lags) else None,
                    lag_ms=max(times, default=None),
                    forwarding=view.forwarding(runtime),
                    traffic=view.traffic(runtime),
                )
            )
        return Status(
            at=datetime.now(UTC),
            version=self._sidecar.version,
            sidecar=self._sidecar_status(),
            target_cluster_id=self._sidecar.target.cluster.cluster_id or "",
            state=worst_state(link.state for link in links),
            links=links,
            promotes=[
                view.promote_job(self._sidecar.links[job.link], job)
                for job in self._image.jobs.values()
                if job.status is JobStatus.RUNNING and job.link in self._sidecar.links
            ],
            window_bytes=self._sidecar.budget.used,
            window_limit_bytes=self._sidecar.budget.limit,
        )

    async def lag(self, link: str, topics: Sequence[str]) -> LagReport:
        runtime = self._runtime(link)
        for topic in topics:
            self._mirror(link, topic)
        states = [state for state in self._image.link_partitions(link) if not topics or state.topic in topics]
        return LagReport(
            link=link,
            at=datetime.now(UTC),
            partitions=[view.partition_lag(runtime, state) for state in states],
        )

    async def doctor(self, link: str) -> DoctorReport:
        runtime = self._runtime(link)
        checks: list[Check] = []
        findings: list[preflight.Finding] = []
        try:
            await runtime.source.connect(timeout=preflight.TIMEOUT)
            checks.append(
                Check(
                    name="source",
                    result=CheckResult.OK,
                    detail=f"cluster {runtime.source.cluster_id} answers",
                )
            )
            findings += await preflight.check_source(runtime.source, self._sidecar.target)
            findings += await preflight.check_target_rights(self._sidecar.target)
            mirrors = {m.topic: m for m in self._image.link_mirrors(link)}
            if mirrors:
                topics, missing, more = await preflight.read_source_topics(runtime.source, sorted(mirrors))
                findings += more
                findings += [
                    preflight.Finding("topics", True, f"topic {t} is gone at the source") for t in missing
                ]
                factors = {name: len(mirrors[name].target_replicas[0]) for name in topics}
                if topics:
                    brokers = [broker.id for broker in self._brokers()]
                    findings += await preflight.check_configs(self._sidecar.target, topics, factors, brokers)
        except LinkerError as error:
            checks.append(Check(name="reachable", result=CheckResult.FAIL, detail=str(error)))
        guard = runtime.producer_ids
        checks.append(
            Check(
                name="producer ids",
                result=CheckResult.OK if guard.allowed else CheckResult.FAIL,
                detail=f"{guard.distance} ids apart" if guard.allowed else str(guard.reason),
            )
        )
        checks += [
            Check(
                name=finding.name,
                result=CheckResult.FAIL if finding.fatal else CheckResult.WARN,
                detail=finding.detail,
                remedy=finding.remedy,
            )
            for finding in findings
        ]
        checks += [
            Check(name=f"mirror {topic}", result=CheckResult.FAIL, detail=trouble)
            for topic, trouble in runtime.bring_up.trouble.items()
        ]
        if not findings:
            checks.append(
                Check(name="versions, rights, configs", result=CheckResult.OK, detail="nothing to object to")
            )
        return DoctorReport(link=link, checks=checks)
