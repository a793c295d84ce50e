"""All links as a whole: status, lag, doctor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from admin.models import (
    Check,
    CheckResult,
    ClientLeft,
    Direction,
    DoctorReport,
    HeldReader,
    LagReport,
    LinkStatus,
    MirrorState,
    Status,
    worst_state,
)
from controller.phases import ENDED
from controller.state import JobStatus, MirrorTopic
from linker.access.report import access_checks
from linker.checks import preflight
from linker.checks.beginning_again import instead, why_not
from linker.checks.doctor import (
    check_clocks,
    check_followers,
    check_groups,
    check_source_rights,
    finding_check,
    validator_check,
)
from linker.checks.forked import fork_checks
from linker.checks.limits import check_limits
from linker.checks.mirror_configs import config_checks, kept_checks, reported_checks
from linker.checks.mirror_states import Stuck, mirror_checks
from linker.checks.missing_records import check_missing
from linker.checks.other_tools import other_tools_checks
from linker.checks.replication_factor import few_replicas, target_default
from linker.checks.share_groups import check_share_groups
from linker.config.cluster_addresses import OF_A_LINK, OF_THE_TARGET, check_addresses
from linker.links import forks, job_status, proved
from linker.links import status as view
from linker.links.config_options import from_target
from linker.links.group_options import group_settings
from linker.links.reads import clients_left, held_readers
from linker.links.runtime import LinkRuntime
from linker.links.topic_shape import led_by_others
from linker.links.traffic import traffic
from linker.promote import left_behind
from linker.promote.rehearsal import rehearse
from linker.service.fleet import FleetService
from linker.service.group_status import groups_status
from linker.service.source_joins import join_checks
from linker.service.tasks import task_checks, tasks_of
from linker.validation.needs import missing_parts
from wire.errors import LinkerError
from wire.together import together

_CLOCK_PATIENCE = 3.0  # the caller waits for the answer


class Overview(FleetService):
    async def status(self) -> Status:
        links = []
        for runtime in list(self._sidecar.links.values()):
            mirrors = await self._mirrors(runtime)
            reverse = self._reverse(runtime.name)
            lags = [mirror.lag for mirror in mirrors if mirror.state is not MirrorState.PROMOTED]
            times = [mirror.lag_ms for mirror in mirrors if mirror.lag_ms is not None]
            known = [lag for lag in lags if lag is not None]
            links.append(
                LinkStatus(
                    **self._summary_fields(runtime, mirrors),
                    mirror_list=mirrors,
                    partitions=sum(mirror.partitions for mirror in mirrors),
                    lag=sum(known) if len(known) == len(lags) else None,
                    lag_ms=max(times, default=None),
                    copying=view.link_progress(mirrors),
                    forwarding=view.forwarding(runtime),
                    traffic=traffic(runtime, self._sidecar.fleet.fleet_controller, reverse),
                    groups=groups_status(self._image.link_groups(runtime.name), runtime.groups.manager),
                    validation=proved.link_validation(runtime, reverse),
                    held_readers=_held(runtime, reverse),
                    clients_left=self._clients_left(runtime.name),
                )
            )
        running = {runtime.name: runtime for runtime in self._sidecar.all_links()}
        return Status(
            at=datetime.now(UTC),
            version=self._sidecar.version,
            sidecar=self._sidecar_status(),
            fleet=self._fleet_status(),
            target_cluster_id=self._sidecar.target.cluster.cluster_id or "",
            state=worst_state(link.state for link in links),
            links=links,
            promotes=[
                job_status.promote_job(running[job.link], job)
                for job in self._image.jobs.values()
                if job.status is JobStatus.RUNNING and job.link in running
            ],
            tasks=tasks_of(self._sidecar, self._sidecar.all_links()),
            window_bytes=self._sidecar.budget.used,
            window_limit_bytes=self._sidecar.budget.limit,
        )

    def _clients_left(self, link: str) -> list[ClientLeft]:
        reverse = self._reverse(link)
        if reverse is None:
            return []
        switched = [mirror.topic for mirror in self._image.link_mirrors(reverse.name)]
        return clients_left(reverse.router.hub, switched)

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

    async def _examined(self, runtime: LinkRuntime) -> list[Check]:
        """Check rights, groups and clocks. A question that fails becomes a line, not an error."""
        topics = [mirror.topic for mirror in self._image.link_mirrors(runtime.name)]
        try:
            checks = await check_source_rights(runtime.source)
        except LinkerError as error:
            checks = [Check(name="source rights", result=CheckResult.WARN, detail=f"not told: {error}")]
        if not runtime.link.prefix:  # nobody moves to its mirrors
            rules = group_settings(self._image.links[runtime.name].options).rules
            checks += await check_groups(runtime.source, topics, rules)
        target, ours = self._sidecar.target, self._sidecar.link_brokers()
        alive = [broker.id for broker in target.image.live_brokers(ours)]
        rest = await together(
            (
                check_followers(target.cluster, alive),
                check_share_groups(target.cluster, alive, self._open_topics(runtime)),
                check_limits("target", target.cluster, alive, None, None),
                check_limits(
                    "source",
                    runtime.source,
                    list(runtime.source.nodes),
                    None if (login := runtime.source.security.sasl) is None else login.username,
                    runtime.source.client_id,
                ),
                check_clocks("source", runtime.source, _CLOCK_PATIENCE),
                check_clocks("target", target.cluster, _CLOCK_PATIENCE, but=ours),
            )
        )
        return checks + [check for found in rest for check in found]

    def _ended(self, mirror: MirrorTopic) -> bool:
        """Whether a mirror has ended. The source's topic may be gone by then, or refuse writes, so the source is asked
        nothing about it."""
        states = self._image.topic_partitions(mirror.link, mirror.topic)
        return bool(states) and all(state.phase in ENDED for state in states)

    def _open_topics(self, runtime: LinkRuntime) -> frozenset[str]:
        return frozenset(one.topic for one in self._image.link_mirrors(runtime.name) if not self._ended(one))

    async def _mirrors_now(self, runtime: LinkRuntime, reverse: LinkRuntime | None) -> list[Check]:
        """Every mirror that is not ACTIVE, in either direction, and what somebody changed at the target, as is known here:
        nobody is asked."""
        mirrors = await self._mirrors(runtime)
        reversed_ = {one.topic for one in mirrors if one.direction is Direction.REVERSED}

        def stuck(topic: str) -> Stuck | None:
            if topic in reversed_:
                return None
            mirror = self._image.mirrors[runtime.name, topic]
            found = self._sidecar.target.image.topics_by_name.get(topic)
            states = self._image.topic_partitions(runtime.name, topic)
            why = why_not(mirror, states, found, self._sidecar.link_brokers())
            return None if why is None else Stuck(why, instead(mirror, found))

        troubles = {
            one.topic: why
            for one in mirrors
            for at in (runtime, reverse)
            if at is not None and at.name == one.link and (why := at.bring_up.trouble.get(one.topic))
        }
        return [
            *mirror_checks(runtime.name, mirrors, stuck, troubles),
            *config_checks(self._changed_configs(runtime.name)),
            *kept_checks(runtime.configs.put_back, runtime.configs.trouble | runtime.configs.behind),
            *reported_checks(runtime.configs.reported),
            *other_tools_checks(
                self._sidecar.target.image,
                [one for one in self._image.link_mirrors(runtime.name) if not self._ended(one)],
                {one.topic_id for one in self._image.mirrors.values()},
                self._sidecar.link_brokers(),
                self._sidecar.target.broker_id,
            ),
        ]

    async def _forked(self, runtime: LinkRuntime) -> list[Check]:
        target = self._sidecar.target
        taken = [
            state
            for mirror in self._image.link_mirrors(runtime.name)
            if not self._ended(mirror)
            and (topic := target.image.topics_by_id.get(mirror.topic_id)) is not None
            for state, _ in led_by_others(
                self._image.topic_partitions(runtime.name, mirror.topic), topic, self._sidecar.link_brokers()
            )
        ]
        return fork_checks(await forks.look(target.cluster, target.image, taken))

    async def doctor(self, link: str) -> DoctorReport:
        runtime, reverse = self._runtime(link), self._reverse(link)
        checks: list[Check] = []
        findings: list[preflight.PreflightFinding] = []
        differences: list[preflight.PreflightFinding] = []
        complete = False
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
            findings += await check_addresses("source", runtime.source, OF_A_LINK)
            findings += await check_addresses("target", self._sidecar.target.cluster, OF_THE_TARGET)
            findings += await preflight.check_target_rights(self._sidecar.target)
            mirrors = {m.topic: m for m in self._image.link_mirrors(link) if not self._ended(m)}
            if mirrors:
                findings += await preflight.check_mirror_rights(self._sidecar.target, sorted(mirrors))
                topics, missing, more = await preflight.read_source_topics(runtime.source, sorted(mirrors))
                findings += more
                findings += [
                    preflight.PreflightFinding("topics", True, f"topic {t} is gone at the source")
                    for t in missing
                ]
                factors = {
                    name: factor
                    for name in topics
                    if (factor := mirrors[name].replication_factor) is not None
                }
                if topics:
                    brokers = [broker.id for broker in self._brokers(runtime)]
                    wanted = {name: from_target(self._image, mirrors[name]) for name in topics}
                    topics = await preflight.plan_topics(self._sidecar.target, topics, brokers, wanted)
                    findings += preflight.check_configs(topics, factors)
                    differences = preflight.config_differences(topics)
                    default = await target_default(self._sidecar.target.cluster, brokers)
                    findings += few_replicas(factors, default, asked=False, begun=True)
            complete = True
        except LinkerError as error:
            checks.append(Check(name="reachable", result=CheckResult.FAIL, detail=str(error)))
        checks.append(validator_check(missing_parts(), self._sidecar.config.validation.policy))
        if complete:
            open_topics = [m.topic for m in self._image.link_mirrors(link) if not self._ended(m)]
            checks += await check_missing(runtime, open_topics)
            checks += await rehearse(runtime)
            if not runtime.link.prefix:  # else its source goes on by itself
                checks += await left_behind.look(runtime)
            checks += await self._examined(runtime)
            checks += await access_checks(runtime, open_topics)
            checks += await join_checks(self._sidecar, self._image.links[link], runtime.source, open_topics)
        guard = runtime.producer_ids
        if guard.allowed:
            result = CheckResult.WARN if guard.low or guard.trouble else CheckResult.OK
            detail = guard.trouble or f"{guard.distance} ids apart"
        else:
            result, detail = CheckResult.FAIL, str(guard.reason)
        checks.append(Check(name="producer ids", result=result, detail=detail))
        checks += [finding_check(finding) for finding in findings]
        checks += [
            Check(name=difference.name, result=CheckResult.OK, detail=difference.detail)
            for difference in differences
        ]
        both = [runtime] if reverse is None else [runtime, reverse]
        checks += task_checks(tasks_of(self._sidecar, both))
        checks += await self._mirrors_now(runtime, reverse)
        checks += await self._forked(runtime)
        if complete and not findings:
            checks.append(
                Check(name="versions, rights, configs", result=CheckResult.OK, detail="nothing to object to")
            )
        return DoctorReport(link=link, checks=checks)


def _held(runtime: LinkRuntime, reverse: LinkRuntime | None) -> list[HeldReader]:
    """Readers of the target's mirrors, and of those at a joined source."""
    both = [runtime] if reverse is None else [runtime, reverse]
    return [reader for one in both for reader in held_readers(one.router.hub, one.name)]
