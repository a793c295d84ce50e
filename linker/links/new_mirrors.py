"""NewMirrors examines topics of the source that are to be mirrored, plans their mirrors, and writes them down.

Topics come by the thousand, so they are examined some at a time: each question is one request for all of them, and the
event loop has time for others in between. Nothing is made before all were examined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controller import errors as refused
from controller.keys import check_topic_name
from controller.plan.placement import Load, ReplicaBroker, place
from controller.plan.upstream import refusal
from controller.state import UNBOUND, MirrorTopic
from fleet.link_controller import wall_clock_ms
from linker.checks import preflight
from linker.checks.message_format import formats_or_not_told
from linker.checks.replication_factor import few_replicas, target_default
from linker.checks.topic_names import collisions, is_internal
from linker.links.config_options import config_options
from linker.links.configs import ConfigsNotAllowed, TopicConfigs, topic_defaults
from linker.links.link_part import LinkContext, LinkPart
from linker.links.source_sidecars import Origin, SourceSidecars
from linker.membership import TargetCluster
from linker.membership.errors import TargetError
from linker.membership.topic_operations import NewTopic
from wire.errors import BrokerError, LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage
from wire.shown_id import listed

_AT_ONCE = 50  # topics that are examined together; each tells some forty configs
_COMMITTED, _PARTITIONS = 100, 500  # mirrors in one commit, and their partitions: a store has a bound


class Wanted(NamedTuple):
    """How the mirrors are to be made."""

    start: str = "earliest"
    replication_factor: int | None = None
    configs_from_target: tuple[str, ...] = ()


@dataclass(slots=True)
class Planned:
    """The result of an examination."""

    mirrors: list[MirrorTopic] = field(default_factory=list)
    findings: list[preflight.PreflightFinding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # topics that the source does not have
    refused: dict[str, str] = field(default_factory=dict)  # why a topic cannot be mirrored, by topic
    at_source: dict[str, int] = field(default_factory=dict)  # the source's replication factor, by topic


@dataclass(slots=True)
class _Plan:
    """An examination under way."""

    wanted: Wanted
    brokers: list[ReplicaBroker]
    defaults: dict[str, str]
    load: dict[int, Load]
    done: Planned = field(default_factory=Planned)
    factors: dict[str, int] = field(default_factory=dict)
    differences: dict[str, preflight.SourceTopic] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)


class NewMirrors(LinkPart):
    """Those of one link."""

    def __init__(
        self,
        context: LinkContext,
        unfence: Callable[[Iterable[TopicPartition]], None],
        ask: Callable[[str], None],
    ) -> None:
        """`unfence`: the router's; `ask`: has a mirror looked at (`BringUp.ask`)."""
        super().__init__(context)
        self._unfence = unfence
        self._ask = ask
        self.sidecars = SourceSidecars(self._source)

    def _excluded(self) -> tuple[str, ...]:
        link = self._controller.image.links.get(self._link)
        return () if link is None else config_options(link.options).exclude

    def name_taken(self, topic: str) -> str | None:
        """Why no mirror of this name can be made at the target; None if one can."""
        if is_internal(topic):
            return f"topic {topic} is internal to Kafka"
        try:
            check_topic_name(topic)
        except refused.InvalidName as error:
            return str(error)
        existing = self._controller.image.mirror_of_topic(topic)
        if existing is not None:
            return f"topic {topic} is a mirror of link {existing.link} already"
        if topic in self._target.image.topics_by_name:
            return (
                f"topic {topic} exists at the target and is no mirror of link {self._link}; delete it there first, with its "
                "records and what only the target has of them. A copy that another tool made (MirrorMaker 2, say) has other "
                "offsets: stop that tool before"
            )
        return None

    def collisions(self, topics: Sequence[str]) -> list[tuple[str, str]]:
        """Pairs of these topics with each other, or with what the target has, of which a cluster takes one."""
        mirrors = self._controller.image.mirrors.values()
        return collisions(topics, [*self._target.image.topics_by_name, *(one.topic for one in mirrors)])

    async def plan(self, topics: Sequence[str], wanted: Wanted, *, each: bool = False) -> Planned:
        """Examine topics and plan their mirrors. PreflightError with the first reason if one of them cannot be mirrored;
        with `each` that one is in `refused`, and the others are planned all the same."""
        brokers = real_brokers(self._target, self._link_brokers())
        ids = [broker.id for broker in brokers]
        defaults = await topic_defaults(self._target.cluster, ids, timeout=preflight.TIMEOUT)
        plan = _Plan(wanted, brokers, defaults, replica_load(self._target, self._link_brokers()))
        topics = await self._without_rings(plan, topics, each=each)
        for first in range(0, len(topics), _AT_ONCE):
            await self._examine(plan, topics[first : first + _AT_ONCE], each=each)
        done = plan.done
        done.findings += preflight.config_differences(plan.differences)
        default = await target_default(self._target.cluster, ids)
        done.findings += few_replicas(plan.factors, default, asked=wanted.replication_factor is not None)
        return done

    async def _without_rings(self, plan: _Plan, topics: Sequence[str], *, each: bool) -> Sequence[str]:
        """The topics whose records do not come from the target already, as far as it is known."""
        rings = await self._rings(plan, topics)
        if rings and not each:
            raise preflight.PreflightError(next(iter(rings.values())))
        plan.done.refused |= rings
        return [topic for topic in topics if topic not in rings]

    async def _rings(self, plan: _Plan, topics: Sequence[str]) -> dict[str, str]:
        """Why mirrors of these topics would close a ring, by topic; notes where all of them come from."""
        try:
            origins = await self.sidecars.origins(topics)
        except LinkerError as error:
            origins = dict.fromkeys(topics, error)  # said after all that may be the reason
        plan.origins |= origins
        source, target = self._source.cluster_id or "", self._target.cluster.cluster_id or ""
        return {
            topic: why
            for topic, origin in origins.items()
            if not isinstance(origin, LinkerError)
            and (why := refusal(self._source.topic_names.there(topic), origin, source, target)) is not None
        }

    async def _examine(self, plan: _Plan, topics: Sequence[str], *, each: bool) -> None:
        """Examine topics together; where one of them cannot be mirrored, ever smaller parts are examined by themselves."""
        try:
            await self._examine_together(plan, topics, each=each)
        except (preflight.PreflightError, TargetError, BrokerError, ConfigsNotAllowed) as error:
            if not each:
                raise
            if len(topics) == 1:
                plan.done.refused[topics[0]] = str(error)
                return
            half = len(topics) // 2
            await self._examine(plan, topics[:half], each=True)
            await self._examine(plan, topics[half:], each=True)

    async def _examine_together(self, plan: _Plan, topics: Sequence[str], *, each: bool) -> None:
        done = plan.done
        found, missing, findings = await preflight.read_new_topics(self._source, topics)
        preflight.refuse(findings)
        if missing:
            if not each:
                done.missing += missing
                return
            names = [self._source.topic_names.there(name) for name in missing]
            raise preflight.PreflightError(f"the source does not have {listed(names)}")
        found = {name: found[name] for name in topics}
        for why in (await self._rings(plan, [name for name in found if name not in plan.origins])).values():
            raise preflight.PreflightError(why)  # of a topic that was made a moment ago
        upstream = {name: self._upstream(plan, name) for name in found}
        effective = {name: topic.configs.effective for name, topic in found.items()}
        findings += await formats_or_not_told(self._source, effective)
        preflight.refuse(findings)
        factors = {
            name: plan.wanted.replication_factor or min(topic.replication_factor, len(plan.brokers))
            for name, topic in found.items()
        }
        from_target = dict.fromkeys(found, (*plan.wanted.configs_from_target, *self._excluded()))
        found = preflight.plan_with(plan.defaults, found, from_target)
        findings += preflight.check_configs(found, factors)
        preflight.refuse(findings)
        load = dict(plan.load)
        mirrors = [
            replace(mirror, upstream=upstream[mirror.topic])
            for mirror in self._place(found, factors, plan.brokers, load, plan.wanted)
        ]
        await self._validate(mirrors)
        plan.load = load
        plan.factors |= factors
        done.findings += findings
        done.mirrors += mirrors
        done.at_source |= {name: topic.replication_factor for name, topic in found.items()}
        # The configs of thousands of topics are not kept until the end.
        plan.differences |= {name: topic._replace(configs=_NO_CONFIGS) for name, topic in found.items()}

    def _upstream(self, plan: _Plan, topic: str) -> tuple[str, ...]:
        """The clusters that the mirror will have come through. PreflightError while nobody tells."""
        origin = plan.origins.get(topic)
        if isinstance(origin, LinkerError):
            raise preflight.PreflightError(f"it is not known where topic {topic} comes from: {origin}")
        if origin is None:
            raise preflight.PreflightError(f"topic {topic} comes and goes at the source: try again")
        return (*origin, self._source.cluster_id or "")

    async def write_down(self, mirrors: Sequence[MirrorTopic]) -> None:
        """Make the mirrors durable, and have them brought up."""
        for part in _parts(mirrors):
            for mirror in part:
                # A topic of this name may have been promoted, and deleted, in an earlier life.
                self._unfence(mirror.topic_partitions())
            await self._controller.create_mirrors(part)
            for mirror in part:
                self._ask(mirror.topic)  # at once: the next ones may not get that far

    async def _validate(self, mirrors: Sequence[MirrorTopic]) -> None:
        """Have the target's controller say whether it would create the topics."""
        own = self._target.broker_id
        topics = {
            mirror.topic: NewTopic(
                {index: [own] for index in range(mirror.partitions)}, mirror.copied_configs
            )
            for mirror in mirrors
        }
        _, errors = await self._target.operations.create_mirror_topics(topics, validate_only=True)
        for error in errors.values():
            raise error

    def _place(
        self,
        topics: Mapping[str, preflight.SourceTopic],
        factors: Mapping[str, int],
        brokers: list[ReplicaBroker],
        load: dict[int, Load],
        wanted: Wanted,
    ) -> list[MirrorTopic]:
        mirrors = []
        for name, topic in topics.items():
            there = self._source.topic_names.there(name)
            try:
                replicas = place(brokers, topic.partitions, factors[name], load)
            except refused.Refused as error:
                raise preflight.PreflightError(str(error)) from error
            for members in replicas:
                for position, broker in enumerate(members):
                    before = load.get(broker, Load())
                    load[broker] = Load(before.replicas + 1, before.leaders + (position == 0))
            mirrors.append(
                MirrorTopic(
                    link=self._link,
                    topic=name,
                    topic_id=UNBOUND,
                    source_topic_id=topic.topic_id,
                    partitions=topic.partitions,
                    start=wanted.start,
                    target_replicas=replicas,
                    copied_configs=dict(topic.plan.create),
                    restore_configs=dict(topic.plan.restore),
                    configs_from_target=tuple(sorted(wanted.configs_from_target)),
                    created_at=wall_clock_ms(),
                    source_name=None if there == name else there,
                )
            )
        return mirrors

    def place_added(self, mirror: MirrorTopic, count: int) -> tuple[tuple[int, ...], ...]:
        """The real brokers that are to hold partitions which the source has added."""
        factor = mirror.replication_factor
        if factor is None:
            return ()
        return place(
            real_brokers(self._target, self._link_brokers()),
            count,
            factor,
            replica_load(self._target, self._link_brokers()),
        )


_NO_CONFIGS = TopicConfigs({}, {})


def real_brokers(target: TargetCluster, link_brokers: Collection[int]) -> list[ReplicaBroker]:
    """The target's brokers that may hold replicas now."""
    found = [
        ReplicaBroker(broker.id, broker.rack)
        for broker in target.image.live_brokers(link_brokers)
        if not broker.in_controlled_shutdown and not _takes_no_replica(broker)
    ]
    if not found:
        raise preflight.PreflightError("no broker of the target is alive")
    return found


def replica_load(target: TargetCluster, link_brokers: Collection[int]) -> dict[int, Load]:
    """Replicas and leaders on each broker of the target; of a mirror, the leader that it has after the promote."""
    load: dict[int, Load] = {}
    for topic in target.image.topics_by_id.values():
        for partition in topic.partitions.values():
            members = [b for b in partition.replicas if b not in link_brokers]
            for broker in members:
                before = load.get(broker, Load())
                leads = broker == partition.leader or (
                    partition.leader in link_brokers and broker == members[0]
                )
                load[broker] = Load(before.replicas + 1, before.leaders + leads)
    return load


def _takes_no_replica(broker: BrokerImage) -> bool:
    """Whether all log dirs of the broker are cordoned (KIP-1066): it is being emptied, or is the link broker of another
    sidecar."""
    return bool(broker.log_dirs) and set(broker.log_dirs) <= set(broker.cordoned_log_dirs or ())


def _parts(mirrors: Iterable[MirrorTopic]) -> list[list[MirrorTopic]]:
    """Those that are written down together; a mirror is never cut."""
    parts: list[list[MirrorTopic]] = []
    partitions = 0
    for mirror in mirrors:
        partitions += mirror.partitions
        if not parts or len(parts[-1]) == _COMMITTED or partitions > _PARTITIONS:
            parts.append([])
            partitions = mirror.partitions
        parts[-1].append(mirror)
    return parts
