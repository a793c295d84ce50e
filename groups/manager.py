"""All groups of one link on the link controller: the beats of discovery and of gate renewal.

Discovery, renewal and the sync of offsets (`offset_sync`) run apart, so that a slow source does not let a gate expire.
The order of steps of one group is in `group_steps`. When the manager ends, every gate stays closed: the next link
controller takes them over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from controller.decide import groups as group_decisions
from controller.group_phases import UNDER_WAY, GroupPhase
from controller.groups import GateStage
from controller.judge.group_gates import CONSUMER_GROUPS, cannot_be_held
from controller.mirror_group import MirrorGroup
from controller.state import Record
from groups import unheld_offsets
from groups.discovery import Look, discover, known, look
from groups.excluded import Excluded, ExcludedGroups
from groups.gate_keeper import GateKeeper
from groups.gates.base import GateLost
from groups.group_steps import GroupSteps
from groups.offset_sync import OffsetSync, SyncStats
from groups.settings import DISCOVERY_INTERVAL, GroupSettings
from groups.target_checks import READ_TIMEOUT, TargetChecks
from groups.tools import Tools
from groups.unheld_steps import UnheldSteps
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask
from wire.shown_id import shown_id
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

_RENEW_BEAT = 0.25
_RELEASE_TIMEOUT = 15.0
_SOURCE_PATIENCE = 20.0


class GroupManager:
    """Runs while this sidecar is the link controller and the link runs."""

    def __init__(
        self,
        tools: Tools,
        settings: GroupSettings,
        *,
        consumer_protocol: Callable[[], bool],
        source_known: asyncio.Event | None = None,
    ) -> None:
        self._tools = tools
        self.settings = settings
        self._consumer_protocol = consumer_protocol
        self._source_known = source_known
        self.runs: dict[str, GateKeeper] = {}
        #: Why the source's groups are not known, or not all of them; None if they are.
        self.trouble: str | None = None
        #: Groups of the source whose ids cannot be kept, and why not.
        self.left_out: dict[str, str] = {}
        #: Groups of the source that the patterns leave out, as far as they were looked at.
        self.excluded = ExcludedGroups()
        self.stats = SyncStats()
        self.offsets = OffsetSync(tools, settings.sync_interval, self.runs, self.stats, self._lost)
        self._target_checks = TargetChecks(tools, self.runs)
        self._tasks: set[asyncio.Task[None]] = set()
        self.discovery = PeriodicTask(
            "group discovery", self._discover, DISCOVERY_INTERVAL, failed=self._not_read
        )
        self.renewal = PeriodicTask("group gates", self._renew_due, _RENEW_BEAT)
        self._running = False

    @property
    def link(self) -> str:
        return self._tools.book.link

    @property
    def mirrored(self) -> frozenset[str]:
        """Topics of the link whose log is on the target or on its way there."""
        return group_decisions.live_topics(self._tools.book.image, self.link)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        book = self._tools.book
        book.controller.listeners.add(self._on_records)
        self._running = True
        try:
            self._follow(book.all())
            async with TaskGroup() as group:
                group.create_task(self.renewal.run(), name=f"{book.link}: group gates")
                group.create_task(self._discovering(), name=f"{book.link}: group discovery")
                group.create_task(self.offsets.task.run(), name=f"{book.link}: group offsets")
        finally:
            self._running = False
            book.controller.listeners.discard(self._on_records)
            tasks = set(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await book.close()

    def follow(self, settings: GroupSettings) -> None:
        """The link's options have changed. Gates stay closed, and the knowledge of the groups is kept."""
        self.settings = settings
        self.offsets.set_interval(settings.sync_interval)
        self.look_now()

    async def release_all(self) -> None:
        """Before the link is deleted: release every gate, until `hold_again`. A gate that does not answer in time
        opens by itself."""
        self._running = False  # or the next look would hold them again
        tending = [run.task for run in self.runs.values() if run.task is not None]
        for task in tending:
            task.cancel()
        await asyncio.gather(*tending, return_exceptions=True)
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                released = await asyncio.gather(
                    *(self._release(run) for run in self.runs.values()), return_exceptions=True
                )
        except TimeoutError:
            log.warning("link %s: some gates were not released in time and open by themselves", self.link)
            return
        for error in released:
            if isinstance(error, BaseException):
                log.warning("link %s: a gate was not released and opens by itself: %s", self.link, error)

    async def _release(self, run: GateKeeper) -> None:
        async def nothing() -> None:
            """The link goes, and its groups with it."""

        await run.release(nothing, still=lambda _: True)

    def hold_again(self) -> None:
        """The link was not deleted after all."""
        self._running = True
        self._follow(self._tools.book.all())
        self.look_now()

    def excluded_readers(self, topics: Iterable[str] | None = None) -> list[Excluded]:
        """Groups that the patterns leave out and that read one of the topics, or a mirrored one. Groups that are still
        being let go are not included."""
        wanted = self.mirrored if topics is None else set(topics)
        return [one for one in self.excluded.reading(wanted) if self._tools.book.get(one.group) is None]

    def look_now(self) -> None:
        """Look at once: something has changed that decides which groups there are."""
        self.discovery.wake()

    def _on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller: follow committed changes, whichever caller made them."""
        book = self._tools.book
        mine = (
            book.all()
            if not records
            else [one for one in records if isinstance(one, MirrorGroup) and one.link == book.link]
        )
        self._follow(mine)

    def _follow(self, groups: Iterable[MirrorGroup]) -> None:
        for group in groups:
            run = self._run_of(group.group)
            if group.phase in (GroupPhase.DISCOVERED, GroupPhase.DEMOTED, *UNDER_WAY) or (
                group.phase is GroupPhase.GATED and run.gate is None
            ):
                self._tend(run)

    def _run_of(self, name: str) -> GateKeeper:
        """The one object of a group; made when it is first heard of."""
        run = self.runs.get(name)
        if run is None:
            run = self.runs[name] = GateKeeper(self._tools, name)
        return run

    def _tend(self, run: GateKeeper) -> None:
        if not self._running or (run.task is not None and not run.task.done()):
            return
        group = self._tools.book.get(run.name)
        unheld = group is not None and (
            cannot_be_held(group.protocol) is not None or (group.move is not None and group.move.unheld)
        )
        steps = (UnheldSteps if unheld else GroupSteps)(self._tools, run)
        run.task = self._spawn(steps.tend(), f"group {shown_id(run.name)}")

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=f"{self.link}: {what}")
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                # The next look takes the group up again.
                log.error("link %s: %s ended by a bug", self.link, what, exc_info=error)

        task.add_done_callback(done)
        return task

    # --- which groups there are --------------------------------------------------------------------------------------

    async def _wait_for_source(self) -> None:
        """Wait a while for the source; without it the options and mirrors still tell which groups to let go."""
        if self._source_known is None:
            return
        try:
            async with asyncio.timeout(_SOURCE_PATIENCE):
                await self._source_known.wait()
        except TimeoutError:
            log.warning("link %s: the source is away; its groups are held all the same", self.link)

    async def _discovering(self) -> None:
        await self._wait_for_source()
        await self.discovery.run()

    async def _discover(self) -> None:
        if self.settings.any or self._tools.book.all():
            await self.look()
        else:
            self.excluded = ExcludedGroups()

    def _not_read(self, error: Exception) -> None:
        if self.trouble != str(error):
            log.warning("link %s: the source's groups cannot be read: %s", self.link, error)
        self.trouble = str(error)

    async def look(self) -> None:
        """Once: find, forget, gate otherwise, promote by policy. Raises LinkerError."""
        tools = self._tools
        try:
            seen = await look(tools.source, tools.book, self.settings, self.runs)
        except LinkerError:
            await self._act_on(known(tools.book))
            raise
        trouble = {**seen.trouble, **self.excluded.trouble}
        self.trouble = "; ".join(f"{what}: {why}" for what, why in list(trouble.items())[:3]) or None
        self.left_out = seen.left_out
        await self._act_on(seen)
        self._note(seen)
        self._follow(tools.book.all())
        await unheld_offsets.follow(tools, self.runs, seen.offsets)
        await self._target_checks.retry()
        await self._target_checks.promote_by_policy()
        if seen.listing is not None:
            await self.excluded.look(tools.source, seen.listing, self.settings.rules, timeout=READ_TIMEOUT)

    async def _act_on(self, seen: Look) -> None:
        """Make the result of a look durable, release groups that are not to be held, and replace gates of the wrong
        kind."""
        found = await discover(
            self._tools.book, seen, self.settings, consumer_protocol=self._consumer_protocol()
        )
        for name in found.forget:
            self._spawn(self._forget(name), f"forgetting group {shown_id(name)}")
        for name in self.runs.keys() - found.hold_otherwise.keys():
            self.runs[name].gate_trouble = None
        for name, kind in found.hold_otherwise.items():
            if (run := self.runs.get(name)) is not None:
                self._spawn(
                    self._target_checks.hold_otherwise(run, kind), f"another gate of group {shown_id(name)}"
                )

    def _note(self, seen: Look) -> None:
        for name, run in self.runs.items():
            view = seen.views.get(name)
            run.gone = name in seen.gone
            if name in seen.offsets and (
                run.source is None or (view is not None and view.protocol not in CONSUMER_GROUPS)
            ):
                run.source = seen.offsets[name]
                if run.gate is not None:
                    self.offsets.task.wake()  # taken over without offsets: it may read more partitions than the state names
            if view is None:
                continue
            run.source_view = view
            run.empty_looks = run.empty_looks + 1 if view.empty else 0

    async def _forget(self, name: str) -> None:
        """Release a group that is no longer to be mirrored, then remove it from the state."""
        book = self._tools.book
        run = self._run_of(name)
        if run.leaving:
            return

        async def forgotten() -> None:
            await book.commit(lambda image: group_decisions.forget(image, book.link, name))

        run.leaving = True
        try:
            await run.release(
                forgotten, still=lambda _: bool(group_decisions.forget(book.image, book.link, name))
            )
        except LinkerError as error:
            log.warning("link %s: group %s is not let go yet: %s", self.link, shown_id(name), error)
            return
        finally:
            run.leaving = False
        if book.get(name) is None:
            self.runs.pop(name, None)
            log.info("link %s: group %s is no longer mirrored", self.link, shown_id(name))

    # --- gates -------------------------------------------------------------------------------------------------------

    async def _renew_due(self) -> None:
        now = time.monotonic()
        for run in tuple(self.runs.values()):
            gate = run.gate
            # A gate that is being opened is not renewed any more.
            due = gate is not None and gate.record.stage is GateStage.HELD and gate.due() <= now
            if due and (run.renewing is None or run.renewing.done()):
                run.renewing = self._spawn(self._renew(run), f"renewal of group {shown_id(run.name)}")

    async def _renew(self, run: GateKeeper) -> None:
        try:
            await run.renew()
            run.renewal_trouble = None
        except GateLost as error:
            await self._lost(run, error)
        except (LinkerError, TimeoutError) as error:
            run.renewal_trouble = f"its gate could not be renewed: {error}"

    async def _lost(self, run: GateKeeper, error: GateLost) -> None:
        self.stats.gates_lost += 1
        try:
            await GroupSteps(self._tools, run).lost(error)
        except LinkerError as second:
            log.warning("link %s: group %s: %s", self.link, shown_id(run.name), second)
        group = self._tools.book.get(run.name)
        if group is not None:
            self._follow([group])
