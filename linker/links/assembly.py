"""The parts of one link: LinkAssembly makes them, joins them to each other, and tells how the link is. It runs nothing.

Each part is made with those that it asks; a part that comes later, or the link that runs the other way, is passed as a
function.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from admin.models import LinkOptions
from controller.decide.reverse import at_source
from controller.state import Link, PromoteJob, Record
from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.partition_copy import PartitionCopy
from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from fleet.progress import copy_lag
from linker.access.keeper import AclKeeper
from linker.config.link_secrets import LinkSecrets
from linker.links.bring_up import BringUp
from linker.links.came_since import CameSince
from linker.links.config_keeper import ConfigKeeper
from linker.links.controller_tasks import ControllerTasks
from linker.links.copies import Copies
from linker.links.copy_rates import CopyRates
from linker.links.heartbeats import Heartbeats
from linker.links.kafka_version import kafka_version
from linker.links.link_groups import LinkGroups
from linker.links.link_part import LinkContext
from linker.links.lost_brokers import LostBrokers
from linker.links.mirrors import read_only_by
from linker.links.new_mirrors import NewMirrors
from linker.links.producer_ids import ProducerIdGuard
from linker.links.reads import ReadPolicy
from linker.links.replica_starts import ReplicaStarts
from linker.links.reverse import Reversed
from linker.links.source import fetch_limits, nowhere, source_cluster, source_fetcher, source_side
from linker.links.source_events import SourceEvents
from linker.links.source_reach import SourceReach
from linker.links.source_sync import SourceSync
from linker.links.source_watch import SourceWatch
from linker.links.switching import LinkSwitch
from linker.links.throttle import LinkThrottle
from linker.links.topic_follower import TopicFollower
from linker.links.topic_shape import kept_for_its_own, of_its_own
from linker.membership import TargetCluster
from linker.promote.jobs import LinkPromotes
from linker.promote.link_ports import LinkPorts
from linker.promote.replica_as_source import ReplicaAsSource
from linker.promote.source_fence_debts import SourceFenceDebts
from linker.switch.sync_replicas import OwnerMember
from linker.validation.evidence import close_evidence
from linker.validation.runner import LinkValidator
from linker.validation.switched import close_switch_evidence
from linker.validation.validator import Validator
from router.dispatch import Router
from wire.errors import LinkerError
from wire.frames.buffers import FramePool
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask


class LinkAssembly:
    """Everything that one link consists of."""

    def __init__(
        self,
        link: Link,
        controller: LinkController,
        target: TargetCluster,
        router: Router,
        copies: MirrorDirectory,
        budget: MemoryBudget,
        *,
        frames: FramePool,
        secrets: LinkSecrets,
        rack: str | None,
        link_brokers: Callable[[], frozenset[int]],
        fleet_controller: Callable[[], FleetController | None],
        link_replicas: int,
        before_promote: Callable[[], Awaitable[None]],
        validator: Validator,
        exports: Path,
        internal_topics: Collection[str] = (),
        reverses: Reversed | None = None,
        joined: Callable[[], OwnerMember | None] = lambda: None,
        against: Callable[[], LinkAssembly | None] = lambda: None,
    ) -> None:
        """`reverses`: of a link that runs the other way. Its source is then the target of the link that it reverses, and
        that link follows what changes around the topics. `joined`: this sidecar as a broker of the source; None while it is
        not registered there. `against`: the link that runs the other way."""
        self.name = link.name
        self.against = against
        self._reverses = reverses
        self.link = link
        self.controller = controller
        self.target = target
        self.router = router
        #: Why the source cannot even be asked (a secret that is not there, say); `source` leads nowhere then.
        self.unusable: LinkerError | None = None
        try:
            self.source = (
                source_cluster(link.name, dict(link.properties), secrets, rack, prefix=link.prefix)
                if reverses is None
                else reverses.connect(link.name)
            )
        except LinkerError as error:
            self.unusable = error
            self.source = nowhere(link.name, link.prefix)
        self.source.expect(link.source_cluster_id)
        self.source.not_asked = self._ours_at_source
        options = LinkOptions.model_validate(dict(link.options))
        self.reads = ReadPolicy(options)
        self.events = SourceEvents(link.name, controller, lambda tp: self.fetcher.partitions.get(tp))
        self.throttle = LinkThrottle(link.name, controller, router.stats.forwarded_produces)
        self.fetcher = source_fetcher(
            link.name, self.source, options, budget, copies, self.events, frames, self.throttle.rate
        )
        self.sync = SourceSync(
            link.name,
            self.source,
            target,
            self.fetcher,
            frames,
            lambda: None if (member := joined()) is None else member.membership,
            fetch_limits(options),
            lambda: controller.image,
        )
        self.switch = LinkSwitch(
            link.name,
            controller,
            self.sync,
            joined,
            lambda topic: self.bring_up.ask(topic),
            lambda: None if (other := against()) is None else other.ports.progress(),
            self.fetcher.partitions,
            fleet_controller,
            link_replicas,
            self.source,
            exports,
            lambda topic: _drop(against(), topic),
            router.forwarding_changed,
        )
        self._fleet_controller = fleet_controller
        self.link_brokers = link_brokers
        context = LinkContext(
            link.name,
            self.source,
            target,
            controller,
            link_brokers,
            fleet_controller,
            self.switch.without_owner,
        )
        self.producer_ids = ProducerIdGuard(
            context,
            options.producer_id_margin,
            options.producer_id_blocks,
            on_allowed=lambda: router.forwarding_changed(),
        )
        self.bring_up = BringUp(context, self.fetcher, link_replicas)
        self.replica_as_source = ReplicaAsSource(
            context, self.fetcher, budget, copies, self.bring_up.specs.of, self.bring_up.ask
        )
        self.new_mirrors = NewMirrors(context, lambda tps: router.unfence(tps), self.bring_up.ask)
        self.topics = TopicFollower(
            context, self.new_mirrors, self.bring_up, self.fetcher.fail_deleted_after, internal_topics
        )
        self.lost_brokers = LostBrokers(context, self.bring_up)
        self.heartbeats = Heartbeats(context, self.new_mirrors)
        self.came = CameSince(context, self.topics)
        self.watch = SourceWatch(
            context, self.new_mirrors.place_added, self.bring_up.ask, lambda: self.topics.settings.interval
        )
        self.configs = ConfigKeeper(context)
        self.acls = AclKeeper(context)
        self._copied = ChainMap(self.fetcher.partitions, self.replica_as_source.partitions)
        self.copies = Copies(context, self._copied, self._sidecar_of)
        self.rates = CopyRates(context, self.served, self.targets, self.lag)
        self.validation = LinkValidator(
            context,
            validator,
            (lambda: source_side(self.link, secrets)) if reverses is None else reverses.source_side,
            self.copies.get,
            self._write_evidence,
        )
        self.starts = ReplicaStarts(context, self.targets)
        self.validation.log_starts = self.starts.log_starts
        self.validation.versions = self._versions
        self.ports = LinkPorts(
            context,
            validation=self.validation,
            targets=self.targets,
            starts=self.starts,
            grow=self.watch.look,
            switch=lambda: self.switch.fence(self._not_forwarded),
            sidecar_of=self._sidecar_of,
        )
        #: The option because of which its mirrors take no writes before their promote. Kept here: it is asked for every
        #: produce.
        self.read_only = read_only_by(link.options)
        self.reach = SourceReach(link, self.source, self.unusable, secrets)
        self._verified = self.reach.verified
        self.groups = LinkGroups(
            context,
            self.copies,
            router,
            source_known=self._verified,
            source_trouble=self.reach.why_unknown,
        )
        self.promotes = LinkPromotes(
            link.name,
            controller,
            self.ports.promote,
            self.ports.failover,
            self.fetcher,
            self.bring_up,
            self.validation,
            before_promote,
            source_known=self._verified,
            source_hopeless=self.unusable is not None,
        )
        self.fence_debts = SourceFenceDebts(
            link.name, controller, self.ports.source_fence, self._verified.is_set, self.switch.fence
        )
        #: Begun and ended by LinkRuntime, as the listeners are.
        self._duties = ControllerTasks(link.name)
        self._listeners = (
            self.replica_as_source.on_records,
            self.throttle.on_records,
            self.promotes.on_records,
            self.topics.on_records,
            self.bring_up.on_records,
            self.heartbeats.on_records,
            self._follow_options,
            self.switch.on_records,
        )
        #: The listeners that look at the whole state when they begin.
        self._begun_by_state = (
            self.switch.on_records,
            self._follow_options,
            self.throttle.on_records,
            self.topics.on_records,
            self.heartbeats.on_records,
        )

    def _ours_at_source(self) -> list[int]:
        image = self.controller.image
        at = at_source(image, self.name)
        return [one for sidecar in image.identities if (one := image.broker_at(at, sidecar)) is not None]

    # --- how it is ---------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """Why the link as a whole does not work; None when it does."""
        return self.reach.trouble

    @property
    def forwards(self) -> bool:
        # Producer ids of the two clusters are kept apart by the link that is reversed.
        allowed = self.producer_ids.allowed if self._reverses is None else self._reverses.producer_ids_apart()
        return self._verified.is_set() and allowed and self.read_only is None

    def _write_evidence(self, validation: LinkValidator, job: PromoteJob) -> Coroutine[Any, Any, None]:
        """Mirrors that were switched are proved by those that run the other way."""
        if job.switch:
            return close_switch_evidence(validation, job, self._validated_against)
        return close_evidence(validation, job)

    def _validated_against(self) -> LinkValidator | None:
        there = self.against()
        return None if there is None else there.validation

    def _not_forwarded(self) -> str | None:
        """Why clients that a switch leaves behind would wait on after it. Those of a switch back wait already."""
        if self._reverses is not None or self.producer_ids.allowed:
            return None
        return f"writes are not forwarded yet: {self.producer_ids.reason}"

    @property
    def refuses(self) -> str | None:
        """Why no write goes to the source before an operator acts, in words for a producer."""
        why = self.producer_ids.ended if self.unusable is None else str(self.unusable)
        return None if why is None else f"link {self.name} does not forward writes: {why}"

    @property
    def source_available(self) -> bool:
        return self._verified.is_set() and not (
            self.events.unavailable and len(self.events.unavailable) >= len(self.fetcher.partitions)
        )

    @property
    def unavailable_since(self) -> float | None:
        """Monotonic time; None while the source can be read."""
        if not self._verified.is_set():
            return self.reach.away_since
        return None if self.source_available else min(self.events.unavailable.values())

    @property
    def periodic_tasks(self) -> list[PeriodicTask]:
        """All periodic tasks of the link; those of the link controller are idle on other sidecars."""
        return [
            self.watch.task,
            self.producer_ids.task,
            self.configs.task,
            self.acls.task,
            self.topics.task,
            self.heartbeats.task,
            self.lost_brokers.task,
            self.starts.task,
            *self.duty_tasks(),
            self.validation.continuous,
            *self.groups.periodic_tasks,
        ]

    def duty_tasks(self) -> tuple[PeriodicTask, ...]:
        """Those of the link controller that run in either direction."""
        return (
            self.fence_debts.task,
            self.rates.task,
            self.switch.task,
            self.switch.finish_task,
            self.switch.replicas.task,
            self.switch.rescues.task,
            self.switch.restores.task,
        )

    def served(self) -> Mapping[TopicPartition, PartitionCopy]:
        """The copies that this sidecar holds."""
        # A chain is slow to go through, and this is asked for again and again.
        return self._copied if self.replica_as_source.partitions else self.fetcher.partitions

    def targets(self, tp: TopicPartition) -> tuple[int, ...]:
        """The real brokers that are to hold a partition."""
        mirror = self.controller.image.mirrors.get((self.name, tp.topic))
        return () if mirror is None else mirror.replicas_of(tp.partition)

    def lag(self, tp: TopicPartition) -> int | None:
        return copy_lag(self.copies.get(tp), self.targets(tp))

    # --- answers for the parts ---------------------------------------------------------------------------------------

    def _sidecar_of(self, broker: int) -> int:
        """The id of the sidecar that is this broker of the cluster that the mirrors lie in."""
        image = self.controller.image
        return image.sidecar_at(image.at(self.name), broker)

    async def _versions(self) -> tuple[str | None, str | None]:
        return await kafka_version(self.source), await kafka_version(self.target.cluster)

    def _follow_options(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        link = self.controller.image.links.get(self.name)
        if link is not None and (not records or link in records):
            self.read_only = read_only_by(link.options)
            self.watch.task.wake()


async def _drop(other: LinkAssembly | None, topic: str) -> None:
    if other is None:
        raise LinkerError(f"the link that has the mirror of {topic} does not run yet")
    mirror = other.controller.image.mirrors.get((other.name, topic))
    found = other.target.image.topics_by_name.get(topic)
    # Somebody may have deleted it, and made another one of its name.
    ours = mirror is not None and found is not None and found.id == mirror.topic_id
    own = of_its_own(mirror, found, other.link_brokers()) if mirror and found and ours else None
    if own is not None:
        raise LinkerError(kept_for_its_own(*own))
    await other.bring_up.delete(topic, topic_too=ours, force=True)
