"""A LinkService that keeps everything in memory: what a caller of the API can observe, and no cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from admin.models import (
    AccessReport,
    AclRow,
    Action,
    ApplyAccessRequest,
    ChangeResult,
    Check,
    CheckResult,
    ControllerDescription,
    CreateLinkRequest,
    CreateMirrorsRequest,
    Direction,
    DoctorReport,
    FailoverPartition,
    FailoverPlan,
    FailoverRequest,
    FinishRequest,
    FleetMember,
    FleetStatus,
    Forwarding,
    LagReport,
    LeaseHolder,
    LinkDescription,
    LinkOptions,
    LinkStatus,
    LinkSummary,
    MirrorDescription,
    MirrorState,
    MirrorSummary,
    MovingPartition,
    OpenTransaction,
    PartitionLag,
    PartitionStatus,
    PromoteJobStatus,
    PromotePhase,
    PromotePlan,
    PromoteRequest,
    PromoteTopic,
    ReassignRequest,
    ReplicaStatus,
    RestorePartition,
    RestorePlan,
    RestoreRequest,
    RestoreState,
    SidecarDescription,
    SidecarState,
    SidecarStatus,
    Status,
    StayingPartition,
    SyncRequest,
    SyncState,
    TaskStatus,
    TopicWay,
    Topology,
    Traffic,
    Trouble,
    UpdateLinkRequest,
    UpstreamCluster,
    WaitingCommand,
    worst_state,
)
from admin.service import (
    IllegalState,
    LinkNotFound,
    MirrorNotFound,
    NameTaken,
    PromoteNotFound,
    SidecarNotFound,
    SourceTopicNotFound,
    ValidationNotFound,
)
from admin.validation_models import (
    ContinuousValidationRequest,
    LinkValidationDescription,
    PromoteValidation,
    StartValidationRequest,
    ValidationFinding,
    ValidationProgress,
    ValidationRun,
    ValidationState,
    ValidatorStatus,
)
from tests.shell.memory_groups import MemoryGroups
from tests.shell.memory_moment import NOW
from wire.client.secrets import redact_properties
from wire.errors import LinkerError

SOURCE_TOPICS = {"orders": 3, "payments": 12, "empty": 1}
ACL = AclRow(
    principal="User:app",
    host="*",
    operation="WRITE",
    permission="ALLOW",
    resource_type="TOPIC",
    pattern_type="LITERAL",
    resource_name="orders",
)
WAY = [
    PromotePhase.CATCHING_UP,
    PromotePhase.FENCED,
    PromotePhase.ALIGNED,
    PromotePhase.VALIDATED,
    PromotePhase.HANDED_OVER,
    PromotePhase.PROMOTED,
]


class MemoryService(MemoryGroups):
    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, tuple[dict[str, str], LinkOptions]] = {}
        self.mirrors: dict[tuple[str, str], MirrorState] = {}
        self.source_dead = False
        self.syncs: dict[str, SyncState] = {}  # by topic
        self.synced_as = SyncState.IN_SYNC  # what a topic is as soon as it is to be in sync
        self.starts: dict[tuple[str, str], str] = {}
        self.jobs: dict[str, PromoteJobStatus] = {}
        self.calls: list[str] = []  # every change that was carried out
        self.closed: list[str] = []  # topics that the source refuses writes to, for an abandoned promote
        self.not_ready: str | None = None
        self.restored = RestorePartition(
            topic="orders",
            partition=0,
            state=RestoreState.RESTORED,
            end=100,
            records=3,
            file="/exports/100.log",
        )
        self.abandon: str | None = None  # reason: promotes are abandoned instead of finished
        self.stuck = False  # promotes stay in their first phase
        self.raises: BaseException | None = None
        self.hang = False
        self.reason = "source broker 1 does not answer"
        self.served = 0
        self.check = CheckResult.OK
        self.draining = self.leaving = False  # sidecar 901, which leads `staying` partitions
        self.staying = 3
        self.stuck_reason: str | None = None
        self.looked = 0
        self.fleet: FleetStatus | None = None
        self.tasks: list[TaskStatus] = []
        self.runs: dict[str, ValidationRun] = {}
        self.interval: int | None = None  # of the continuous validation, ms
        self.differs: str | None = None  # a run finds this
        self.reversed: set[str] = set()  # topics that the target owns
        self.evidence: PromoteValidation | None = None  # of promotes, once they are through
        self.warnings: list[str] = []  # of promotes

    async def _enter(self) -> None:
        if self.raises is not None:
            raise self.raises
        if self.hang:
            await asyncio.sleep(3600)

    def _known(self, link: str) -> None:
        if link not in self.links:
            raise LinkNotFound(link)

    def _mirror(self, link: str, topic: str) -> MirrorState:
        self._known(link)
        if (link, topic) not in self.mirrors:
            raise MirrorNotFound(link, topic)
        return self.mirrors[link, topic]

    def _done(self, dry_run: bool, action: str, resource: str, detail: str = "") -> ChangeResult:
        if not dry_run:
            self.calls.append(f"{action} {resource}")
        return ChangeResult(
            dry_run=dry_run, actions=[Action(action=action, resource=resource, detail=detail)]
        )

    def _summary(self, link: str) -> LinkSummary:
        states = [state for (owner, _), state in self.mirrors.items() if owner == link]
        return LinkSummary(
            name=link,
            state=worst_state(states),
            source_cluster_id="source-id",
            bootstrap_servers=self.links[link][0]["bootstrap.servers"],
            mirrors=len(states),
            mirror_states={state: states.count(state) for state in set(states)},
        )

    async def create_link(self, request: CreateLinkRequest, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        if request.name in self.links:
            raise NameTaken(f"link {request.name} exists already")
        if not dry_run:
            self.links[request.name] = (dict(request.properties), request.options)
        return self._done(dry_run, "create link", request.name, "source cluster source-id")

    async def describe_access(self, link: str) -> AccessReport:
        await self._enter()
        self._known(link)
        missing = [] if f"apply access {link}" in self.calls else [ACL]
        return AccessReport(link=link, at=NOW, acl_sync="report", missing=missing, present=1)

    async def apply_access(self, link: str, request: ApplyAccessRequest, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._known(link)
        return self._done(dry_run, "apply access", link)

    async def list_links(self) -> list[LinkSummary]:
        await self._enter()
        return [self._summary(link) for link in self.links]

    async def describe_link(self, link: str) -> LinkDescription:
        await self._enter()
        self._known(link)
        properties, options = self.links[link]
        return LinkDescription(
            **self._summary(link).model_dump(),
            target_cluster_id="target-id",
            properties=redact_properties(properties),
            options=options,
            forwarding=Forwarding(enabled=False, reason="producer ids are not safe yet"),
            traffic=Traffic(),
            created_at=NOW,
        )

    async def update_link(self, link: str, request: UpdateLinkRequest, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._known(link)
        properties, options = self.links[link]
        merged = {**properties, **request.properties}
        if not dry_run:
            kept = {key: value for key, value in merged.items() if value is not None}
            self.links[link] = (kept, request.options.applied_to(options))
        return self._done(dry_run, "update link", link)

    async def delete_link(self, link: str, *, force: bool, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._known(link)
        self._refuse_closed(force)
        held = [
            topic for (owner, topic), state in self.mirrors.items() if owner == link and state != "PROMOTED"
        ]
        if held:
            raise IllegalState(f"link {link} still mirrors {', '.join(held)}")
        if not dry_run:
            del self.links[link]
        return self._done(dry_run, "delete link", link)

    async def create_mirrors(
        self, link: str, request: CreateMirrorsRequest, *, dry_run: bool
    ) -> ChangeResult:
        await self._enter()
        self._known(link)
        missing = [topic for topic in request.topics if topic not in SOURCE_TOPICS]
        if missing:
            raise SourceTopicNotFound(missing)
        actions = []
        for topic in request.topics:
            if not dry_run:
                self.mirrors[link, topic] = MirrorState.ACTIVE
                self.starts[link, topic] = request.start
            actions += self._done(
                dry_run, "create mirror", topic, f"{SOURCE_TOPICS[topic]} partitions"
            ).actions
        return ChangeResult(dry_run=dry_run, actions=actions, warnings=["segment.bytes is small"])

    async def list_mirrors(self, link: str) -> list[MirrorSummary]:
        await self._enter()
        self._known(link)
        return [self._mirror_summary(link, topic) for owner, topic in self.mirrors if owner == link]

    def _mirror_summary(self, link: str, topic: str) -> MirrorSummary:
        state = self.mirrors[link, topic]
        bad = state is MirrorState.SOURCE_UNAVAILABLE
        return MirrorSummary(
            link=link,
            topic=topic,
            state=state,
            reason=self.reason if bad else None,
            partitions=SOURCE_TOPICS[topic],
            lag=None if bad else 7,
            max_lag=None if bad else 5,
            lag_ms=None if bad else 90_000,
            direction=Direction.REVERSED if topic in self.reversed else Direction.FORWARD,
            sync=self.syncs.get(topic),
        )

    async def describe_mirror(self, link: str, topic: str) -> MirrorDescription:
        await self._enter()
        state = self._mirror(link, topic)
        return MirrorDescription(
            **self._mirror_summary(link, topic).model_dump(),
            topic_id="abc",
            start=self.starts[link, topic],
            replication_factor=3,
            created_at=NOW,
            configs={"unclean.leader.election.enable": "false"},
            partition_status=[
                PartitionStatus(
                    topic=topic,
                    partition=partition,
                    state=state,
                    leader=900,
                    leader_epoch=4,
                    session_epoch=0,
                    isr=[900],
                    source_end_offset=100,
                    target_end_offset=95,
                    lag=5,
                    replicas=[ReplicaStatus(broker=1, end_offset=95, lag=5), ReplicaStatus(broker=2)],
                )
                for partition in range(SOURCE_TOPICS[topic])
            ],
        )

    async def pause_mirror(self, link: str, topic: str, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        if self._mirror(link, topic) is MirrorState.PROMOTING:
            raise IllegalState(f"{topic} is being promoted")
        if not dry_run:
            self.mirrors[link, topic] = MirrorState.PAUSED
        return self._done(dry_run, "pause mirror", topic)

    async def resume_mirror(self, link: str, topic: str, *, restart: bool, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._mirror(link, topic)
        raise IllegalState("this service cannot resume a mirror")

    async def repair_mirror(
        self, link: str, topic: str, *, drop_target_records: bool, dry_run: bool
    ) -> ChangeResult:
        await self._enter()
        self._mirror(link, topic)
        raise IllegalState("this service cannot repair a mirror")

    async def reassign_mirrors(self, link: str, request: ReassignRequest, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._known(link)
        self.calls.append(f"reassign {request.model_dump(exclude_defaults=True)} dry_run={dry_run}")
        return self._done(dry_run, "reassign", "orders-0")

    async def sync_mirrors(self, link: str, request: SyncRequest, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._known(link)
        self.calls.append(f"sync {request.model_dump(exclude_defaults=True)} dry_run={dry_run}")
        going_on = [
            topic
            for (owner, topic), state in self.mirrors.items()
            if owner == link and state is not MirrorState.PROMOTED
        ]
        chosen = going_on if request.all else request.topics
        self.syncs |= dict.fromkeys(chosen, self.synced_as)
        return ChangeResult(
            dry_run=dry_run, actions=[Action(action="sync", resource=topic) for topic in chosen]
        )

    async def finish_mirrors(self, link: str, request: FinishRequest, *, dry_run: bool) -> ChangeResult:
        await self._enter()
        self._known(link)
        self.calls.append(f"finish {request.model_dump(exclude_defaults=True)} dry_run={dry_run}")
        return self._done(dry_run, "finish", "orders")

    async def plan_restore(self, link: str, request: RestoreRequest) -> RestorePlan:
        await self._enter()
        self._known(link)
        blockers = [] if self.source_dead or request.force else ["orders-0: the source has other records"]
        return RestorePlan(link=link, partitions=[self.restored], blockers=blockers)

    async def restore_mirrors(self, link: str, request: RestoreRequest) -> RestorePlan:
        plan = await self.plan_restore(link, request)
        self.calls.append(f"restore {request.model_dump(exclude_defaults=True)}")
        return plan

    async def plan_switch(self, link: str, request: PromoteRequest) -> PromotePlan:
        return await self.plan_promote(link, request)

    async def switch_mirrors(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        return await self.promote(link, request)

    def _refuse_closed(self, force: bool) -> None:
        if self.closed and not force:
            raise IllegalState(f"the source still refuses writes to {', '.join(self.closed)}")

    async def delete_mirror(
        self, link: str, topic: str, *, keep_data: bool, force: bool, dry_run: bool
    ) -> ChangeResult:
        await self._enter()
        self._mirror(link, topic)
        self._refuse_closed(force)
        if not dry_run:
            del self.mirrors[link, topic]
        return self._done(dry_run, "forget mirror" if keep_data else "delete mirror", topic)

    def _chosen(self, link: str, request: PromoteRequest) -> list[str]:
        self._known(link)
        topics = [topic for owner, topic in self.mirrors if owner == link] if request.all else request.topics
        for topic in topics:
            self._mirror(link, topic)
        return topics

    async def plan_promote(self, link: str, request: PromoteRequest) -> PromotePlan:
        await self._enter()
        topics = [
            PromoteTopic(topic=topic, partitions=SOURCE_TOPICS[topic], phase=PromotePhase.CATCHING_UP, lag=7)
            for topic in self._chosen(link, request)
        ]
        blockers = [self.abandon] if self.abandon else []
        return PromotePlan(link=link, topics=topics, blockers=blockers, warnings=["transactions wait"])

    async def promote(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        await self._enter()
        topics = self._chosen(link, request)
        job = PromoteJobStatus(
            id=f"p{len(self.jobs) + 1}",
            link=link,
            phase=WAY[0],
            topics=[
                PromoteTopic(topic=topic, partitions=SOURCE_TOPICS[topic], phase=WAY[0], lag=7)
                for topic in topics
            ],
            started_at=NOW,
            warnings=self.warnings,
        )
        self.jobs[job.id] = job
        self.calls.append(f"promote {' '.join(topics)} max_lag={request.options.max_lag}")
        return job

    async def plan_failover(self, link: str, request: FailoverRequest) -> FailoverPlan:
        await self._enter()
        self._known(link)
        blockers = [] if self.source_dead or request.force else ["the source still answers for orders-0"]
        return FailoverPlan(link=link, partitions=self._taken(request), blockers=blockers)

    def _taken(self, request: FailoverRequest) -> list[FailoverPartition]:
        return [
            FailoverPartition(
                topic=topic,
                partition=0,
                state=MirrorState.FAILED_OVER,
                end=100,
                source_end=90,
                acked_end=103,
                missing=3,
                aborted=[OpenTransaction(producer_id=4000, producer_epoch=2, start_offset=95)],
            )
            for topic in request.topics
        ]

    async def failover(self, link: str, request: FailoverRequest) -> PromoteJobStatus:
        await self._enter()
        self._known(link)
        if not (self.source_dead or request.force):
            raise IllegalState("the source still answers for orders-0")
        job = PromoteJobStatus(
            id=f"p{len(self.jobs) + 1}",
            link=link,
            phase=PromotePhase.FAILED_OVER,
            topics=[],
            started_at=NOW,
            failover=self._taken(request),
        )
        self.jobs[job.id] = job
        self.calls.append(f"failover {' '.join(request.topics)}")
        return job

    async def describe_promote(self, promote_id: str) -> PromoteJobStatus:
        """Each reading takes the job one phase on."""
        await self._enter()
        if promote_id not in self.jobs:
            raise PromoteNotFound(promote_id)
        job = self.jobs[promote_id]
        if job.phase.final and job.validation is not None and not job.over:
            self.jobs[promote_id] = job.model_copy(update={"validation": self.evidence})
            return self.jobs[promote_id]
        if job.phase.final or self.stuck:
            return job
        phase = WAY[WAY.index(job.phase) + 1]
        if self.abandon and phase is PromotePhase.ALIGNED:
            phase = PromotePhase.ABANDONED
        topics = [topic.model_copy(update={"phase": phase, "lag": 0}) for topic in job.topics]
        self.jobs[promote_id] = job.model_copy(
            update={
                "phase": phase,
                "topics": topics,
                "reason": self.abandon if phase is PromotePhase.ABANDONED else None,
                "phases_ms": {**job.phases_ms, job.phase: 40},
                "finished_at": NOW + timedelta(seconds=1) if phase.final else None,
                "validation": PromoteValidation(policy=self.evidence.policy, state="PENDING")
                if self.evidence is not None and phase is PromotePhase.PROMOTED
                else None,
            }
        )
        return self.jobs[promote_id]

    async def list_promotes(self, link: str) -> list[PromoteJobStatus]:
        await self._enter()
        self._known(link)
        return [job for job in reversed(self.jobs.values()) if job.link == link]

    def _validation(self, link: str) -> LinkValidationDescription:
        return LinkValidationDescription(
            link=link,
            continuous=self.interval is not None,
            interval_ms=self.interval,
            replicas=6,
            proved=5,
            unproved_offsets=12,
            age_ms=4500,
            mismatches=[f"orders-1: {self.differs}"] if self.differs else [],
            validator=ValidatorStatus(
                state="ready", spark="4.0.0", master="local[*]", log="/state/validator.log"
            ),
            runs=list(reversed(self.runs.values())),
        )

    async def validation(self, link: str) -> LinkValidationDescription:
        await self._enter()
        self._known(link)
        return self._validation(link)

    async def start_validation(self, link: str, request: StartValidationRequest) -> ValidationRun:
        await self._enter()
        self._known(link)
        for topic in request.topics:
            self._mirror(link, topic)
        run = ValidationRun(
            id=f"{link}-v1-{len(self.runs) + 1}",
            link=link,
            kind="once",
            mode=request.mode,
            state=ValidationState.QUEUED,
            topics=request.topics,
            started_at=NOW,
        )
        self.runs[run.id] = run
        self.calls.append(f"validate {' '.join(request.topics) or 'all'} {request.mode}")
        return run

    async def continue_validation(
        self, link: str, request: ContinuousValidationRequest, *, dry_run: bool
    ) -> ChangeResult:
        await self._enter()
        self._known(link)
        if not dry_run:
            self.interval = (request.interval_ms or 30_000) if request.enabled else None
        return self._done(dry_run, "continue validation" if request.enabled else "end validation", link)

    async def describe_validation(self, run: str) -> ValidationRun:
        """Each reading takes the run one step on."""
        await self._enter()
        if run not in self.runs:
            raise ValidationNotFound(run)
        one = self.runs[run]
        if one.state.final or (self.stuck and one.state is ValidationState.RUNNING):
            return one
        if one.state is ValidationState.QUEUED:
            progress = ValidationProgress(
                tasks_done=2, tasks=4, partitions_done=1, partitions=2, bytes=2048, batches=3
            )
            one = one.model_copy(update={"state": ValidationState.RUNNING, "progress": progress})
        else:
            one = one.model_copy(
                update={
                    "state": ValidationState.FAILED if self.abandon else ValidationState.DONE,
                    "reason": self.abandon,
                    "finished_at": NOW,
                    "partitions": 2,
                    "replicas": 6,
                    "batches": 40,
                    "records": 400,
                    "bytes": 4096,
                    **(
                        {
                            "mismatches": 1,
                            "findings": [
                                ValidationFinding(
                                    topic="orders",
                                    partition=1,
                                    broker=2,
                                    offset=17,
                                    kind="differing",
                                    detail=self.differs,
                                )
                            ],
                        }
                        if self.differs
                        else {}
                    ),
                }
            )
        self.runs[run] = one
        return one

    async def cancel_validation(self, run: str) -> ValidationRun:
        await self._enter()
        if run not in self.runs:
            raise ValidationNotFound(run)
        self.calls.append(f"cancel {run}")
        self.runs[run] = self.runs[run].model_copy(
            update={"state": ValidationState.CANCELLED, "reason": "it was cancelled", "finished_at": NOW}
        )
        return self.runs[run]

    async def list_sidecars(self) -> list[SidecarStatus]:
        await self._enter()
        return [self._sidecar()]

    def _sidecar(self) -> SidecarStatus:
        return SidecarStatus(
            id=900,
            state=SidecarState.RUNNING,
            version="9.9",
            advertised_listeners=["PLAINTEXT://localhost:19092"],
            controller=True,
            leading_partitions=sum(SOURCE_TOPICS[topic] for _, topic in self.mirrors),
            heartbeat_age_ms=120,
        )

    async def describe_sidecar(self, sidecar_id: int) -> SidecarDescription:
        """Each reading of one that drains or leaves takes a partition from it, but for those that are stuck."""
        await self._enter()
        self.looked += 1
        if sidecar_id == 900:
            return SidecarDescription(**self._sidecar().model_dump())
        if sidecar_id != 901 or (self.leaving and self.staying == 0):
            raise SidecarNotFound(sidecar_id)
        staying = [
            StayingPartition(topic="orders", partition=index, leads=True, reason=self.stuck_reason)
            for index in range(self.staying)
        ]
        if self.staying and self.stuck_reason is None:
            self.staying -= 1
        one = self._sidecar().model_dump() | {
            "id": 901,
            "state": SidecarState.LEAVING if self.leaving else SidecarState.DRAINING,
            "leading_partitions": len(staying),
            "draining": self.draining,
            "leaving": self.leaving,
        }
        return SidecarDescription(**one, staying=staying, staying_partitions=len(staying))

    async def drain_sidecar(self, sidecar_id: int, *, undo: bool, dry_run: bool) -> ChangeResult:
        await self._enter()
        if sidecar_id != 901:
            raise SidecarNotFound(sidecar_id)
        if not dry_run:
            self.draining = not undo
        return self._done(dry_run, "end draining" if undo else "drain", f"sidecar {sidecar_id}")

    async def leave_sidecar(self, sidecar_id: int, *, dead: bool, dry_run: bool) -> ChangeResult:
        await self._enter()
        if sidecar_id == 901:
            self.leaving = not dry_run
            done = self._done(dry_run, "forget dead" if dead else "forget", "sidecar 901")
            return done.model_copy(update={"pending": not dry_run})
        if sidecar_id != 900:
            raise SidecarNotFound(sidecar_id)
        if self._sidecar().leading_partitions:
            raise IllegalState("sidecar 900 leads 3 partitions; promote or delete their mirrors first")
        return self._done(dry_run, "unregister sidecar", "900")

    async def describe_controller(self) -> ControllerDescription:
        await self._enter()
        return ControllerDescription(
            id=900,
            controller_epoch=4,
            since=NOW,
            store="topic",
            lease_ms=10_000,
            control="10.0.0.1:9700",
            admin="10.0.0.1:8080",
            sidecars_alive=2,
            sidecars=3,
            members=[
                FleetMember(
                    id=900,
                    session="abcdef0123456789",
                    address="this sidecar",
                    version="9.9",
                    connected_ms=61_000,
                    last_heard_ms=120,
                    lease_ms=9_800,
                )
            ],
            away=[LeaseHolder(id=902, session="", lease_ms=4_200)],
            moving=[MovingPartition(topic="orders", partition=1, change="leader 900 -> 901 (draining)")],
            trouble=[Trouble(what="electing", reason="orders-1: the target's controller answered 80")],
            promotes=["old-1"],
            waiting=[WaitingCommand(command="fence", link="old", partitions=3, sidecars=[902])],
        )

    async def topology(self) -> Topology:
        await self._enter()
        link = UpstreamCluster(
            cluster_id="SOURCE-1",
            hops=1,
            link="old",
            bootstrap_servers="source-1.example.internal:9092,source-2.example.internal:9092",
            state=MirrorState.ACTIVE,
            answers=True,
            lag=7,
            topics=3,
            back=2,
        )
        away = UpstreamCluster(
            cluster_id="5L6g3nShT-eMCtK--X86sw",
            hops=1,
            link="away",
            bootstrap_servers="away-1:9092",
            state=MirrorState.SOURCE_UNAVAILABLE,
            answers=False,
            reason=self.reason,
            topics=1,
        )
        behind = UpstreamCluster(cluster_id="FIRST", hops=2, topics=1)
        ways = [
            TopicWay(
                link="old",
                clusters=clusters,
                topics=topics,
                partitions=3,
                states={MirrorState.ACTIVE: topics},
                lag=7,
            )
            for clusters, topics in ((["SOURCE-1", "T"], 2), (["FIRST", "SOURCE-1", "T"], 1))
        ]
        ways.append(
            TopicWay(
                link="away",
                clusters=["?", "5L6g3nShT-eMCtK--X86sw", "T"],
                topics=1,
                partitions=1,
                states={MirrorState.SOURCE_UNAVAILABLE: 1},
            )
        )
        return Topology(at=NOW, target_cluster_id="T", clusters=[link, away, behind], ways=ways)

    async def status(self) -> Status:
        await self._enter()
        self.served += 1
        links = [
            LinkStatus(
                **self._summary(link).model_dump(),
                mirror_list=await self.list_mirrors(link),
                partitions=3,
                lag=7,
                forwarding=Forwarding(enabled=True),
                traffic=Traffic(fetched_bytes=2048 * self.served, forwarded_produces=10 * self.served),
            )
            for link in self.links
        ]
        return Status(
            at=NOW + timedelta(seconds=self.served),
            version="9.9",
            sidecar=self._sidecar(),
            fleet=self.fleet,
            target_cluster_id="target-id",
            state=worst_state(link.state for link in links),
            links=links,
            promotes=[job for job in self.jobs.values() if not job.phase.final],
            tasks=self.tasks,
        )

    async def lag(self, link: str, topics: Sequence[str]) -> LagReport:
        await self._enter()
        self._known(link)
        for topic in topics:
            self._mirror(link, topic)
        chosen = topics or [topic for owner, topic in self.mirrors if owner == link]
        return LagReport(
            link=link,
            at=NOW,
            partitions=[
                PartitionLag(
                    topic=topic,
                    partition=partition,
                    state=self.mirrors[link, topic],
                    source_end_offset=100,
                    lag=None,
                )
                for topic in chosen
                for partition in range(SOURCE_TOPICS[topic])
            ],
        )

    async def doctor(self, link: str) -> DoctorReport:
        await self._enter()
        self._known(link)
        return DoctorReport(
            link=link,
            checks=[
                Check(name="source reachable", result=CheckResult.OK, detail="3 brokers"),
                Check(
                    name="acl", result=self.check, detail="ALTER on Cluster", remedy="kafka-acls --add ..."
                ),
            ],
        )

    def ready(self) -> str | None:
        return self.not_ready


class ClusterTrouble(LinkerError):
    """Stands for any error of a lower layer."""
