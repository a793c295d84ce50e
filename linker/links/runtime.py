"""LinkRuntime runs the tasks of one link, from the first connection to the source to the last promote.

It decides the order in which the parts start, and which of them start again after the source was away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from admin.models import LinkOptions
from controller.group_phases import HELD_GROUPS, UNDER_WAY
from controller.state import Link, MirrorPartition, MirrorTopic, PromoteJob, Record, RemoveMirror
from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.partition_copy import PartitionCopy
from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from fleet.progress import copy_lag
from fleet.shared_controller import NotTheController
from linker.access.keeper import AclKeeper
from linker.access.options import ACL_OPTIONS
from linker.config.link_secrets import LinkSecrets
from linker.links.bring_up import BringUp
from linker.links.came_since import CameSince
from linker.links.config_keeper import ConfigKeeper
from linker.links.config_options import CONFIG_OPTIONS
from linker.links.controller_tasks import ControllerTasks
from linker.links.copies import Copies
from linker.links.copy_rates import CopyRates
from linker.links.group_options import GROUP_OPTIONS
from linker.links.heartbeats import HEARTBEAT_OPTIONS, Heartbeats
from linker.links.kafka_version import kafka_version
from linker.links.link_groups import LinkGroups
from linker.links.lost_brokers import OPTION as LOST_OPTION
from linker.links.lost_brokers import LostBrokers
from linker.links.mirrors import read_only_by
from linker.links.new_mirrors import NewMirrors
from linker.links.producer_ids import ProducerIdGuard
from linker.links.reads import ReadPolicy
from linker.links.replica_starts import ReplicaStarts
from linker.links.source import nowhere, source_cluster, source_fetcher, source_side
from linker.links.source_events import SourceEvents
from linker.links.source_reach import SourceReach
from linker.links.source_watch import SourceWatch
from linker.links.throttle import BESIDE_WRITES, LinkThrottle
from linker.links.throttle import OPTION as RATE_OPTION
from linker.links.topic_follower import TopicFollower
from linker.links.topic_options import TOPIC_OPTIONS
from linker.membership import TargetCluster
from linker.promote.jobs import LinkPromotes
from linker.promote.link_ports import LinkPorts
from linker.promote.ports import PromoteSettings
from linker.promote.replica_as_source import ReplicaAsSource
from linker.promote.source_fence_debts import SourceFenceDebts
from linker.validation.evidence import close_evidence
from linker.validation.runner import INTERVAL_OPTION, LinkValidator
from linker.validation.validator import Validator
from router.dispatch import Router
from wire.errors import LinkerError
from wire.frames.buffers import FramePool
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage
from wire.periodic_task import PeriodicTask
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

#: Options that a link at work follows as soon as they are written; for any other it has to begin anew.
LIVE_OPTIONS = (
    frozenset({RATE_OPTION, BESIDE_WRITES, INTERVAL_OPTION})
    | GROUP_OPTIONS
    | ACL_OPTIONS
    | CONFIG_OPTIONS
    | TOPIC_OPTIONS
    | HEARTBEAT_OPTIONS
    | {"forwarding", LOST_OPTION}
)


class LinkRuntime:
    """Everything that runs for one link."""

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
        internal_topics: Collection[str] = (),
    ) -> None:
        self.name = link.name
        self.link = link
        self.controller = controller
        self.target = target
        self.router = router
        #: Why the source cannot even be asked (a secret that is not there, say); `source` leads nowhere then.
        self.unusable: LinkerError | None = None
        try:
            self.source = source_cluster(link.name, dict(link.properties), secrets, rack, prefix=link.prefix)
        except LinkerError as error:
            self.unusable = error
            self.source = nowhere(link.name, link.prefix)
        self.source.expect(link.source_cluster_id)
        options = LinkOptions.model_validate(dict(link.options))
        self.reads = ReadPolicy(options)
        self.events = SourceEvents(link.name, controller, lambda tp: self.fetcher.partitions.get(tp))
        self.throttle = LinkThrottle(link.name, controller, router.stats.forwarded_produces)
        self.fetcher = source_fetcher(
            link.name, self.source, options, budget, copies, self.events, frames, self.throttle.rate
        )
        self._fleet_controller = fleet_controller
        self._link_brokers = link_brokers
        self.producer_ids = ProducerIdGuard(
            link.name,
            self.source,
            target,
            controller,
            link_brokers,
            margin=options.producer_id_margin,
            most_blocks=options.producer_id_blocks,
            is_controller=lambda: fleet_controller() is not None,
            on_allowed=lambda: router.forwarding_changed(),
        )
        self.bring_up = BringUp(
            link.name,
            self.source,
            target,
            controller,
            self.fetcher,
            link_brokers,
            fleet_controller=fleet_controller,
            link_replicas=link_replicas,
        )
        self.stand_in = ReplicaAsSource(
            link.name,
            controller,
            target,
            self.fetcher,
            budget,
            copies,
            self.bring_up.specs.of,
            self.bring_up.ask,
        )
        self.new_mirrors = NewMirrors(
            link.name,
            self.source,
            target,
            controller,
            link_brokers,
            lambda tps: router.unfence(tps),
            self.bring_up.ask,
        )
        self.topics = TopicFollower(
            link.name,
            self.source,
            controller,
            self.new_mirrors,
            self.bring_up,
            target,
            link_brokers,
            self.fetcher.fail_deleted_after,
            internal_topics,
        )
        self.lost_brokers = LostBrokers(link.name, controller, target, link_brokers, self.bring_up)
        self.heartbeats = Heartbeats(
            link.name, self.source, controller, self.new_mirrors, lambda: target.cluster.cluster_id
        )
        self.came = CameSince(link.name, controller, self.topics)
        self.watch = SourceWatch(
            link.name,
            self.source,
            controller,
            self.new_mirrors.place_added,
            self.bring_up.ask,
            lambda: fleet_controller() is not None,
            lambda: self.topics.settings.interval,
        )
        self.configs = ConfigKeeper(link.name, self.source, target, controller, link_brokers)
        self.acls = AclKeeper(link.name, self.source, target, controller, link_brokers)
        self._copied = ChainMap(self.fetcher.partitions, self.stand_in.partitions)
        self.copies = Copies(link.name, self._copied, target, fleet_controller)
        self.rates = CopyRates(link.name, controller, self.served, self.targets, self.lag, fleet_controller)
        self.validation = LinkValidator(
            link.name,
            controller,
            target,
            validator,
            lambda: source_side(self.link, secrets),
            self.copies.get,
            link_brokers,
            close_evidence,
        )
        self.starts = ReplicaStarts(link.name, self.source, target.cluster, controller, self.targets)
        self.validation.log_starts = self.starts.log_starts
        self.validation.versions = self._versions
        self.ports = LinkPorts(
            link.name,
            controller,
            self.source,
            target,
            fleet_controller,
            link_brokers,
            validation=self.validation,
            copy=self.copies.get,
            targets=self.targets,
            starts=self.starts,
            grow=self.watch.look,
        )
        #: The option because of which its mirrors take no writes before their promote. Kept here: it is asked for every
        #: produce.
        self.read_only = read_only_by(link.options)
        self.reach = SourceReach(link, self.source, self.unusable, secrets)
        self._verified = self.reach.verified
        self.groups = LinkGroups(
            link.name,
            controller,
            self.source,
            target,
            self.copies,
            router,
            source_known=self._verified,
            source_trouble=self.reach.why_unknown,
        )
        self.promotes = LinkPromotes(
            link.name,
            controller,
            self.ports.promote,
            self.ports.take_over,
            self.fetcher,
            self.bring_up,
            self.validation,
            before_promote,
            source_known=self._verified,
            source_hopeless=self.unusable is not None,
        )
        self.fence_debts = SourceFenceDebts(
            link.name, controller, self.ports.source_fence, self._verified.is_set
        )
        self._duties = ControllerTasks(link.name)
        self._running = False

    @property
    def trouble(self) -> str | None:
        """Why the link as a whole does not work; None when it does."""
        return self.reach.trouble

    @property
    def forwards(self) -> bool:
        return self._verified.is_set() and self.producer_ids.allowed and self.read_only is None

    def _follow_options(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        link = self.controller.image.links.get(self.name)
        if link is not None and (not records or link in records):
            self.read_only = read_only_by(link.options)
            self.watch.task.wake()

    @property
    def refuses(self) -> str | None:
        """Why no produce goes to the source until a person does something, in words for a producer."""
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
        """All that it may run; those of the link controller are idle elsewhere."""
        return [
            self.watch.task,
            self.producer_ids.task,
            self.configs.task,
            self.acls.task,
            self.topics.task,
            self.heartbeats.task,
            self.lost_brokers.task,
            self.starts.task,
            self.fence_debts.task,
            self.rates.task,
            self.validation.continuous,
            *self.groups.periodic_tasks,
        ]

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Errors of the source are waited out; only bugs end it, and properties that lead nowhere."""
        try:
            async with TaskGroup() as group:
                self._running = True
                self.begin_duties()
                self.controller.listeners.add(self.stand_in.on_records)
                self.controller.listeners.add(self.throttle.on_records)
                self.controller.listeners.add(self.promotes.on_records)
                self.controller.listeners.add(self.topics.on_records)
                self.controller.listeners.add(self.heartbeats.on_records)
                self.controller.listeners.add(self._follow_options)
                self._follow_options(())
                self.throttle.on_records(())
                self.topics.on_records(())
                self.heartbeats.on_records(())
                group.create_task(self.stand_in.run(), name=f"{self.name}: failover")
                group.create_task(self.events.run(), name=f"{self.name}: events")
                await self._reach_source()
                group.create_task(self.fetcher.run(), name=f"{self.name}: fetchers")
                group.create_task(self.bring_up.run(), name=f"{self.name}: mirrors")
                group.create_task(self.producer_ids.run(), name=f"{self.name}: producer ids")
                group.create_task(self.watch.task.run(), name=f"{self.name}: source watch")
        finally:
            self._running = False
            self.controller.listeners.discard(self.stand_in.on_records)
            self.controller.listeners.discard(self.throttle.on_records)
            self.controller.listeners.discard(self.promotes.on_records)
            self.controller.listeners.discard(self.topics.on_records)
            self.controller.listeners.discard(self.heartbeats.on_records)
            self.controller.listeners.discard(self._follow_options)
            self.stand_in.close()
            await self.end_duties()
            self.reach.lost()
            await self.source.close()

    # --- the link controller's part ----------------------------------------------------------------------------------

    def begin_duties(self) -> None:
        """This sidecar is the link controller now, or the link begins to run while it is."""
        if self._running and self._fleet_controller() is not None and not self._duties.on_duty:
            self._duties.begin()
            self.promotes.begin()
            self._duties.rule(self.promotes.settle(), "settling promotes")
            self._duties.rule(self.promotes.watch(), "promotes that nobody runs")
            # Not after the source: gates that stand open by themselves if nobody takes them over in time.
            self._duties.rule(self.groups.run(), "groups")
            self._duties.rule(self.validation.run(), "validation")
            self._duties.rule(self.configs.run(), "configs")
            self._duties.rule(self._follow_acls(), "ACLs")
            self._duties.rule(self._look_at_starts(), "where replicas start")
            self._duties.rule(self._follow_topics(), "topics of the source")
            self._duties.rule(self._beat(), self.heartbeats.task.name)
            self._duties.rule(self.fence_debts.task.run(), self.fence_debts.task.name)
            self._duties.rule(self.rates.task.run(), self.rates.task.name)
            self._duties.rule(self.lost_brokers.task.run(), self.lost_brokers.task.name)
            for mirror in self.controller.image.link_mirrors(self.name):
                self.bring_up.ask(mirror.topic)

    async def end_duties(self) -> None:
        """It is not any more: what only the link controller may do ends here, wherever it stands."""
        await self._duties.end()
        self.promotes.progress.clear()

    async def _versions(self) -> tuple[str | None, str | None]:
        return await kafka_version(self.source), await kafka_version(self.target.cluster)

    async def _follow_acls(self) -> None:
        await self._verified.wait()
        await self.acls.run()

    async def _look_at_starts(self) -> None:
        await self._verified.wait()
        await self.starts.task.run()

    async def _beat(self) -> None:
        await self._verified.wait()
        await self.heartbeats.task.run()

    async def _follow_topics(self) -> None:
        await self._verified.wait()
        await self.topics.run()

    async def _reach_source(self) -> None:
        if self.unusable is not None:
            await self._without_source()
            raise self.unusable  # RunningLinks makes a new runtime, with what can be read then
        await self.reach.connect()

    async def _without_source(self) -> None:
        """The work that needs no source, which may be gone for good with all that led to it: hand-overs under way
        are finished, a failover may be asked for, and comes to its end, and groups are held."""
        while self.promotes.settling and self._duties.tasks:
            await asyncio.wait(self._duties.tasks, return_when=asyncio.FIRST_COMPLETED)
        await self.reach.until_usable(self._holds_groups)
        while self.promotes.running and self._duties.tasks:
            await asyncio.wait(self._duties.tasks, return_when=asyncio.FIRST_COMPLETED)

    def _holds_groups(self) -> bool:
        return self._duties.on_duty and any(
            group.phase in HELD_GROUPS | UNDER_WAY for group in self.controller.image.link_groups(self.name)
        )

    # --- promote -----------------------------------------------------------------------------------------------------

    @property
    def settling(self) -> bool:
        """Whether promotes of the last run, or that nobody runs, are still being settled; no other may begin before that."""
        return self.promotes.settling or self.promotes.unsure

    async def begin_promote(
        self, begin: Callable[[], Awaitable[PromoteJob]], settings: PromoteSettings
    ) -> PromoteJob:
        """Have a job written down (`begin`) and run it. Of a link that does not run nothing is written down."""
        self._require_running()
        async with self.promotes.beginning():
            job = await begin()
            self.start_promote(job, settings)
        return job

    def start_promote(self, job: PromoteJob, settings: PromoteSettings) -> None:
        """Run a job of the controller in the background; it is durable already. NotTheController if this sidecar has
        ceased to be it meanwhile."""
        self._require_running()
        if not self._duties.on_duty:
            raise NotTheController(None)  # while the job was written down; the next one settles it
        if self.promotes.runs(job.id):
            raise LinkerError(f"promote {job.id} of link {self.name} runs already")
        task = self._duties.rule(self.promotes.run(job, settings), f"promote {job.id}")
        self.promotes.started(job.id, task)

    def _require_running(self) -> None:
        if not self._running:
            raise LinkerError(f"link {self.name} is not running; try again in a few seconds")

    # --- the target changed --------------------------------------------------------------------------------------------

    def on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        """From the metadata log's subscription; takes note and returns."""
        self.bring_up.on_target_change(image, topics)
        if self._duties.on_duty:
            self.configs.on_target_change(image, topics)
        if topics:
            self.validation.on_target_change()
        self.stand_in.on_target_change(image)

    def follow(self, records: Sequence[Record]) -> None:
        """Another sidecar decides: serve as what it has committed says; everything, if nobody says what that is."""
        topics = _named(records, self.name)
        if not records:
            topics = {mirror.topic for mirror in self.controller.image.link_mirrors(self.name)}
        for topic in topics:
            self.bring_up.ask(topic)

    def served(self) -> Mapping[TopicPartition, PartitionCopy]:
        """The copies that this sidecar holds."""
        # A chain is slow to go through, and this is asked for again and again.
        return self._copied if self.stand_in.partitions else self.fetcher.partitions

    def targets(self, tp: TopicPartition) -> tuple[int, ...]:
        """The real brokers that are to hold a partition."""
        mirror = self.controller.image.mirrors.get((self.name, tp.topic))
        return () if mirror is None else mirror.replicas_of(tp.partition)

    def lag(self, tp: TopicPartition) -> int | None:
        return copy_lag(self.copies.get(tp), self.targets(tp))


def _named(records: Sequence[Record], link: str) -> set[str]:
    """The topics of a link that records are about."""
    kinds = MirrorTopic | MirrorPartition | RemoveMirror
    return {one.topic for one in records if isinstance(one, kinds) and one.link == link}
