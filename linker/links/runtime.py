"""LinkRuntime runs the tasks of one link, from the first connection to the source to the last promote.

It decides the order in which the parts start, and which of them start again after the source was away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from controller.group_phases import HELD_GROUPS, UNDER_WAY
from controller.state import MirrorPartition, MirrorTopic, PromoteJob, Record, RemoveMirror
from fleet.shared_controller import NotTheController
from linker.access.options import ACL_OPTIONS
from linker.links.assembly import LinkAssembly
from linker.links.config_options import CONFIG_OPTIONS
from linker.links.group_options import GROUP_OPTIONS
from linker.links.heartbeats import HEARTBEAT_OPTIONS
from linker.links.lost_brokers import OPTION as LOST_OPTION
from linker.links.throttle import BESIDE_WRITES
from linker.links.throttle import OPTION as RATE_OPTION
from linker.links.topic_options import TOPIC_OPTIONS
from linker.promote.ports import PromoteSettings
from linker.validation.runner import INTERVAL_OPTION
from wire.errors import LinkerError
from wire.metadata.image import ClusterImage
from wire.task_group import TaskGroup

#: Options that a link at work follows as soon as they are written; for any other it has to begin anew.
LIVE_OPTIONS = (
    frozenset({RATE_OPTION, BESIDE_WRITES, INTERVAL_OPTION})
    | GROUP_OPTIONS
    | ACL_OPTIONS
    | CONFIG_OPTIONS
    | TOPIC_OPTIONS
    | HEARTBEAT_OPTIONS
    | {"forwarding", "join_source", LOST_OPTION}
)


class LinkRuntime(LinkAssembly):
    """Everything that runs for one link."""

    _running = False

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled. Errors of the source are waited out; only bugs end it, and properties that lead nowhere."""
        try:
            async with TaskGroup() as group:
                self._running = True
                self.begin_duties()
                self.controller.listeners.update(self._listeners)
                for begin in self._begun_by_state:
                    begin(())
                group.create_task(self.replica_as_source.run(), name=f"{self.name}: failover")
                group.create_task(self.events.run(), name=f"{self.name}: events")
                await self._reach_source()
                group.create_task(self.fetcher.run(), name=f"{self.name}: fetchers")
                group.create_task(self.sync.run(), name=f"{self.name}: in-sync follower")
                group.create_task(self.bring_up.run(), name=f"{self.name}: mirrors")
                if self._reverses is None:
                    group.create_task(self.producer_ids.run(), name=f"{self.name}: producer ids")
                self.router.forwarding_changed()
                group.create_task(self.watch.task.run(), name=f"{self.name}: source watch")
        finally:
            self._running = False
            self.controller.listeners.difference_update(self._listeners)
            self.replica_as_source.close()
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
            self._duties.rule(self.validation.run(), "validation")
            for task in self.duty_tasks():
                self._duties.rule(task.run(), task.name)
            for mirror in self.controller.image.link_mirrors(self.name):
                self.bring_up.ask(mirror.topic)
            if self._reverses is not None:
                return
            # Not after the source: gates that stand open by themselves if nobody takes them over in time.
            self._duties.rule(self.groups.run(), "groups")
            self._duties.rule(self.configs.run(), "configs")
            self._duties.rule(self._once_reached(self.acls.run), "ACLs")
            self._duties.rule(self._once_reached(self.starts.task.run), "where replicas start")
            self._duties.rule(self._once_reached(self.topics.run), "topics of the source")
            self._duties.rule(self._once_reached(self.heartbeats.task.run), self.heartbeats.task.name)
            self._duties.rule(self.lost_brokers.task.run(), self.lost_brokers.task.name)

    async def end_duties(self) -> None:
        """This sidecar is not the link controller any more: work that only the link controller may do ends here,
        wherever it stands."""
        await self._duties.end()
        self.promotes.progress.clear()

    async def _once_reached(self, run: Callable[[], Awaitable[None]]) -> None:
        await self._verified.wait()
        await run()

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
        """Persist the job (`begin`) and run it. Refused if the link does not run here."""
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
        if self._duties.on_duty and self._reverses is None:
            self.configs.on_target_change(image, topics)
        if topics:
            self.validation.on_target_change()
        self.replica_as_source.on_target_change(image)

    def follow(self, records: Sequence[Record]) -> None:
        """Another sidecar is the link controller: serve what it has committed. Without records, look at the whole
        state."""
        topics = _named(records, self.name)
        if not records:
            topics = {mirror.topic for mirror in self.controller.image.link_mirrors(self.name)}
        for topic in topics:
            self.bring_up.ask(topic)


def _named(records: Sequence[Record], link: str) -> set[str]:
    """The topics of a link that records are about."""
    kinds = MirrorTopic | MirrorPartition | RemoveMirror
    return {one.topic for one in records if isinstance(one, kinds) and one.link == link}
