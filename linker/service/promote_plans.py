"""The plan of a promote, which shows what would happen, and the checks that the start of a promote has in common with it."""

from __future__ import annotations

from collections.abc import Sequence

from admin.models import (
    MirrorState,
    PromotePhase,
    PromotePlan,
    PromoteRequest,
    PromoteTopic,
    SourceProducer,
)
from controller import errors as refused
from controller.decide import groups as group_decisions
from controller.decide.source_fence import debts
from controller.decide.unheld_groups import unheld_readers
from controller.judge import late_starts
from controller.phases import ENDED, LED_ELSEWHERE, Phase
from controller.plan.taken_configs import configs_at_promote
from controller.proof import ValidationPolicy
from controller.state import MirrorPartition
from fleet.link_controller import wall_clock_ms
from groups.excluded import in_one_line
from linker.access.report import who_may_not
from linker.checks import missing_records, preflight
from linker.checks.final_configs import refused_configs
from linker.checks.replication_factor import few_replicas, target_default
from linker.links import status as view
from linker.links.config_options import from_target
from linker.links.producer_view import direct_warnings, source_producers
from linker.links.runtime import LinkRuntime
from linker.links.times import moment
from linker.links.topic_shape import grown_apart
from linker.promote.ports import PromoteSettings
from linker.promote.source_fence import check_source_fence
from linker.service.validations import Validations
from linker.validation.needs import missing_parts
from wire.errors import LinkerError
from wire.shown_id import listed, shown_id

_STARTS_TIMEOUT = 5.0
_MOST_LATE = 5


class PromotePlans(Validations):
    async def plan_promote(self, link: str, request: PromoteRequest) -> PromotePlan:
        runtime = self._runtime(link)
        topics = self._promote_topics(link, request)
        blockers: list[str] = []
        if (why := heartbeats_stay(runtime, topics)) is not None:
            blockers.append(why)
        if (own := self._own_topics(runtime, request.options.as_own_topic)) is not None:
            blockers.append(own)
        try:
            await self._sidecar.controller.begin_promote(link, topics, dry_run=True)
        except refused.ControllerError as error:
            blockers.append(str(error))
        blockers += await self._grown(runtime, topics)
        blockers += await self._late_replicas(runtime, topics, request.options.accept_missing)
        blockers += [finding.detail for finding in self._still_closed(runtime, topics)]
        rights = await preflight.check_mirror_rights(runtime.target, topics)
        lacking = [finding.detail for finding in rights if finding.fatal]
        blockers += lacking or [finding.detail for finding in await self._refused_configs(runtime, topics)]
        shown = []
        by_pattern = runtime.came.by_pattern(topics)
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
                    by_pattern_since=moment(by_pattern[topic]) if topic in by_pattern else None,
                )
            )
        if request.options.fence_source:
            blockers += [finding.detail for finding in await self._source_fence(runtime, topics)]
        warnings = [finding.detail for finding in rights if not finding.fatal]
        if request.all and (link, runtime.heartbeats.topic) in self._image.mirrors:
            warnings.append(
                f"topic {runtime.heartbeats.topic} has the heartbeats of link {link} and stays a mirror: delete it "
                "before the link"
            )
        if request.all:
            now = wall_clock_ms()
            warnings += await runtime.came.lines(topics, now)
            runtime.came.looked(now)
        warnings += self._yet_to_copy(link, topics)
        configs = await self._configs(runtime, topics)
        warnings += await self._as_doctor_says(runtime, topics)
        warnings += await self._open_transactions(runtime, topics)
        warnings += await who_may_not(runtime, topics)
        warnings += [
            f"group {shown_id(group)} is on its way back to the source: its demote is given up when one of its topics is "
            "promoted"
            for group in group_decisions.returning(self._image, link, topics)
        ]
        warnings += unheld_readers(self._image, link, topics)
        groups = runtime.groups.manager
        if groups is not None and (excluded := groups.excluded_readers(topics)):
            warnings.append(in_one_line(excluded))
        producers, more = await self._producers(runtime, topics)
        warnings += more
        policy = self._policy(request)
        unproved: list[str] = []
        if policy is not ValidationPolicy.SKIP:
            unproved = self._unproved(runtime, topics)
            missing = missing_parts()
            if missing is not None:
                (blockers if policy is ValidationPolicy.REQUIRE else warnings).append(missing)
        return PromotePlan(
            link=link,
            topics=shown,
            blockers=blockers,
            warnings=warnings,
            producers=producers,
            validation=policy.value,
            unproved=unproved,
            configs=configs,
        )

    async def _configs(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[str]:
        """The configs by which source and target would act differently, and what a promote does about them."""
        try:
            found, _, _ = await preflight.read_source_topics(runtime.source, topics)
            brokers = [broker.id for broker in self._brokers(runtime)]
            wanted = {
                topic: from_target(self._image, self._image.mirrors[runtime.name, topic]) for topic in found
            }
            planned = await preflight.plan_topics(runtime.target, found, brokers, wanted)
        except LinkerError as error:
            return [f"the configs of source and target cannot be compared: {error}"]
        return [difference.detail for difference in preflight.config_differences(planned)]

    async def _as_doctor_says(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[str]:
        """The records that a promote would lose, or make the target's for good, although it could start."""
        lines = [
            f"topic {topic} at the target is not as it was made: {change}"
            for topic, found in self._changed_configs(runtime.name, topics)
            for change in found
        ]
        factors = {
            t: factor
            for t in topics
            if (factor := self._image.mirrors[runtime.name, t].replication_factor) is not None
        }
        try:
            brokers = [broker.id for broker in self._brokers(runtime)]
            default = await target_default(runtime.target.cluster, brokers)
            lines += [finding.detail for finding in few_replicas(factors, default, asked=False, begun=True)]
            # Replicas that begin later are blockers, asked for by `_late_replicas`.
            return [*lines, *await missing_records.not_mirrored(runtime, topics)]
        except LinkerError as error:
            return [*lines, f"where the logs begin is not told: {error}"]

    def _policy(self, request: PromoteRequest) -> ValidationPolicy:
        return ValidationPolicy(request.options.validation or self._sidecar.config.validation.policy)

    async def _open_transactions(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[str]:
        tps = [state.tp for state in self._open(runtime.name, topics)]
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

    async def _producers(
        self, runtime: LinkRuntime, topics: Sequence[str]
    ) -> tuple[list[SourceProducer], list[str]]:
        """The producers that are still at the source, and the consequences for the promote."""
        tps = [state.tp for state in self._open(runtime.name, topics)]
        if not tps:
            return [], []
        try:
            seen = await runtime.ports.writers.look(tps, timeout=preflight.TIMEOUT)
        except LinkerError as error:
            return [], [f"the source's producers cannot be listed: {error}"]
        return source_producers(seen), direct_warnings(seen)

    async def _refused_configs(
        self, runtime: LinkRuntime, topics: Sequence[str]
    ) -> list[preflight.PreflightFinding]:
        image = self._image
        return await refused_configs(
            runtime.target.operations,
            {topic: configs_at_promote(image, image.mirrors[runtime.name, topic]) for topic in topics},
        )

    def _still_closed(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[preflight.PreflightFinding]:
        """Topics that an abandoned promote could not open at the source yet. While a job has them, nobody opens them
        (linker.promote.source_fence_debts), and writes to them would be refused for as long as the job catches up."""
        owed = {
            topic: job_id for job_id, found in debts(self._image, runtime.name).items() for topic in found
        }
        return [
            preflight.PreflightFinding(
                "fence source",
                True,
                f"topic {topic}: the source may still refuse writes because promote {owed[topic]} was abandoned while it "
                "could not be reached or had not answered, or was cut off by a restart; that is undone first",
                "try again in two minutes; the sidecar's log says why if it goes on",
            )
            for topic in topics
            if topic in owed
        ]

    async def _source_fence(
        self, runtime: LinkRuntime, topics: Sequence[str]
    ) -> list[preflight.PreflightFinding]:
        """The reasons why the source cannot refuse writes to these topics."""
        mirrors = {topic: self._image.mirrors[runtime.name, topic].partitions for topic in topics}
        if prefix := self._image.links[runtime.name].prefix:
            why = f"link {runtime.name} has prefix={prefix}: the source's producers stay there, and it goes on taking writes"
            return [preflight.PreflightFinding("fence source", True, why)]
        try:
            return await check_source_fence(runtime.source, mirrors, PromoteSettings().whole_partitions)
        except LinkerError as error:
            return [preflight.PreflightFinding("fence source", True, str(error))]

    async def _grown(self, runtime: LinkRuntime, topics: Sequence[str]) -> list[str]:
        """Topics that got partitions at the source (they would be left behind) or at the target (two logs already)."""
        await runtime.watch.look()
        grown = {
            topic: runtime.watch.grown[topic]
            for topic in topics
            if topic in runtime.watch.grown and not self._begun(runtime.name, topic)
        }
        for topic in topics:
            mirror = self._image.mirrors.get((runtime.name, topic))
            found = runtime.target.image.topics_by_name.get(topic)
            reason = None if mirror is None or found is None else grown_apart(mirror, found)
            if reason is not None:
                grown[topic] = reason
        return [f"topic {topic}: {reason}" for topic, reason in grown.items()]

    def _yet_to_copy(self, link: str, topics: Sequence[str]) -> list[str]:
        """Partitions that the source has just added: a promote waits for them."""
        waiting = [
            str(state.tp)
            for topic in topics
            for state in self._image.topic_partitions(link, topic)
            if state.phase is Phase.LINKING and self._image.mirrors[link, topic].added(state.partition)
        ]
        said = f"added at the source and yet to be copied, which a promote waits for: {listed(waiting)}"
        return [said] if waiting else []

    async def _late_replicas(self, runtime: LinkRuntime, topics: Sequence[str], accepted: int) -> list[str]:
        """Replicas that start later than the source: earlier records would be at the source only. If the brokers do not
        answer now, they are asked again before writes are held."""
        tps = [state.tp for state in self._open(runtime.name, topics) if state.session_epoch >= 0]
        try:
            late = await runtime.starts.late(tps, timeout=_STARTS_TIMEOUT, every=False)
        except LinkerError:
            return []
        refused = late_starts.refusal(late, accepted)
        if not refused:
            return []
        shown = [f"{tp}: {reason}" for tp, reason in list(refused.items())[:_MOST_LATE]]
        more = [f"and {len(refused) - _MOST_LATE} more partitions"] if len(refused) > _MOST_LATE else []
        return [late_starts.refusal_text(late, accepted), *shown, *more]

    def _open(self, link: str, topics: Sequence[str]) -> list[MirrorPartition]:
        """Their partitions that are not over."""
        states = (state for topic in topics for state in self._image.topic_partitions(link, topic))
        return [state for state in states if state.phase not in ENDED]

    def _begun(self, link: str, topic: str) -> bool:
        """Whether a part of the topic was handed over already: the rest has to follow, whatever was added at the source."""
        return any(state.phase in LED_ELSEWHERE for state in self._image.topic_partitions(link, topic))

    def _promote_topics(self, link: str, request: PromoteRequest) -> list[str]:
        if not request.all:
            for topic in request.topics:
                self._mirror(link, topic)
            return list(request.topics)
        own = self._runtime(link).heartbeats.topic
        return [mirror.topic for mirror in self._image.open_mirrors(link) if mirror.topic != own]


def heartbeats_stay(runtime: LinkRuntime, topics: Sequence[str]) -> str | None:
    """The refusal, if the topic of the link's own heartbeats is among them: the link writes it at the source."""
    topic = runtime.heartbeats.topic
    if topic is None or topic not in topics:
        return None
    return (
        f"topic {topic} has the heartbeats of link {runtime.name}, which writes them at the source: delete it before the "
        f"link, or end them first (linker link update {runtime.name} --option heartbeat_topic=)"
    )
