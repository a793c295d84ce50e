"""Balancer: carries out the plans for the link brokers of every mirror partition and for their leader.

It decides nothing itself: `elections` chooses leaders and hosts, `replicas` the next step. Steps run in small batches,
each judged on the effect of the one before (as the metadata log shows it). A dead sidecar's broker is fenced at once.
Around a planned change of leader the producers on the old one are held and drained, so that they see a pause and keep
their order. All of that is safe at any time before a hand-over. A partition that a promote owns is not touched
(`Mirrored.movable`, checked again right before each step). A promote waits with `settled` for a step that is under way.

It keeps no state: after a crash the next balancer goes on from the target as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from controller.cluster_view import PartitionView
from controller.judge.hand_over import find
from controller.plan.elections import Elections, Led, SidecarBroker, plan_elections
from controller.plan.replicas import (
    AlterIsr,
    ElectPreferred,
    LiveBrokers,
    Reassign,
    Step,
    copies_asked_for,
    leader_step,
    led_by_link,
    members_step,
)
from fleet.balancer_ports import BalancerPorts, BalancerSettings, Mirrored, Tps
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_MOVE_STEPS = 4  # a change of leader takes two


class Balancer:
    """Run by the link controller; one per fleet."""

    def __init__(self, ports: BalancerPorts, settings: BalancerSettings | None = None) -> None:
        self._ports = ports
        self._settings = settings or BalancerSettings()
        #: Moves under way, and the reason.
        self.moving: dict[TopicPartition, str] = {}
        #: Errors of the last round, by step.
        self.trouble: dict[str, str] = {}
        #: Changes of leader that were made, and brokers of dead sidecars that were fenced, since it began.
        self.moves_done = 0
        self.fenced_dead = 0
        self._told: dict[str, str] = {}
        self._held: dict[int, set[TopicPartition]] = {}  # by the sidecar that was asked to hold them
        self._turn = asyncio.Lock()
        self._stepped = False
        self.task = PeriodicTask(
            "balancer", self._once, self._settings.look_again, pause=self._pause, wait=self._wait
        )
        self._leaders: dict[TopicPartition, tuple[int, int]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        await self.task.run()

    async def _once(self) -> str | None:
        self._stepped = await self.round()
        return "; ".join(f"{what}: {why}" for what, why in list(self.trouble.items())[:3]) or None

    def _pause(self, task: PeriodicTask) -> float:
        if task.failures:
            return task.backoff(self._settings.retry_first, self._settings.retry_max)
        return 0.0 if self._stepped else self._settings.look_again

    async def _wait(self, pause: float | None) -> None:
        if not pause:
            return
        if not self.trouble:
            # A busy target changes many times a second, and a round looks at every partition.
            await asyncio.sleep(self._settings.rest)
        await self._ports.wait_changed(timeout=pause)

    async def settled(self) -> None:
        """Return when no step that was begun before is under way."""
        async with self._turn:
            return

    # --- for the status -----------------------------------------------------------------------------------

    def why_led(self, broker_id: int) -> dict[TopicPartition, str | None]:
        """Partitions that a sidecar leads, each with the reason while it drains; None: it moves in one of the next
        rounds."""
        able = {s.id for s in self._sidecars() if s.alive and not s.draining and not s.leaving}
        reasons: dict[TopicPartition, str | None] = {}
        for tp, (view, mirrored) in self._views().items():
            if view.leader != broker_id:
                continue
            others = sorted(set(view.isr) - {broker_id})
            if not mirrored.movable:
                reasons[tp] = "a promote, or its bring-up, owns it"
            elif not copies_asked_for(view, mirrored.targets):
                reasons[tp] = "its copies at the target have not been asked for yet"
            elif not able.intersection(view.isr):
                reasons[tp] = (
                    "no other sidecar is in its ISR"
                    if not others
                    else f"of its ISR, {', '.join(map(str, others))} cannot lead now (away, fenced or draining)"
                )
            else:
                reasons[tp] = None
        return reasons

    # --- one round ------------------------------------------------------------------------------------------

    async def round(self) -> bool:
        """Fence, adopt, plan, step. Returns whether a step was taken; failures are in `trouble`."""
        async with self._turn:
            self._told, self.trouble = self.trouble, {}
            await self._release()
            fenced = await self._fence_the_dead()
            await self._adopt_changes()
            plan = self._plan()
            stepped = await self._step_members(plan)
            moved = await self._move_leaders(plan)
            self.moving = {}
        return fenced or stepped or moved

    def _views(self) -> dict[TopicPartition, tuple[PartitionView, Mirrored]]:
        """Partitions that are led by link brokers alone; others belong to the bring-up or a promote."""
        image, link = self._ports.image(), self._ports.link_brokers()
        found = {}
        for tp, mirrored in self._ports.partitions().items():
            view = find(image, tp)
            if view is not None and (led_by_link(view, link) or view.leader < 0):
                found[tp] = (view, mirrored)
        return found

    def _sidecars(self) -> list[SidecarBroker]:
        brokers = self._ports.image().brokers
        return [
            replace(
                sidecar,
                alive=sidecar.alive
                and sidecar.id in brokers
                and not brokers[sidecar.id].fenced
                and not brokers[sidecar.id].in_controlled_shutdown,
            )
            for sidecar in self._ports.sidecars()
        ]

    def _brokers(self) -> LiveBrokers:
        return LiveBrokers(
            link=self._ports.link_brokers(),
            alive={sidecar.id for sidecar in self._sidecars() if sidecar.alive},
            registered=self._ports.image().brokers.keys(),
        )

    def _plan(self) -> Elections:
        partitions = {
            tp: Led(
                leader=view.leader,
                isr=view.isr,
                replicas=view.replicas,
                rack=mirrored.rack,
                # The first copies are asked for by the bring-up, once it may.
                movable=mirrored.movable and copies_asked_for(view, mirrored.targets),
            )
            for tp, (view, mirrored) in self._views().items()
        }
        return plan_elections(
            partitions,
            self._sidecars(),
            link_brokers=self._settings.link_brokers,
            most_moves=self._settings.most_moves,
        )

    async def _fence_the_dead(self) -> bool:
        """Fence the broker of a sidecar that has gone silent but still counts as alive in KRaft."""
        brokers = self._ports.image().brokers
        dead = [s.id for s in self._ports.sidecars() if not s.alive and s.id in brokers]
        # To no purpose where nobody else could lead: it may be silent to us only, and serve its clients.
        able = {sidecar.id for sidecar in self._sidecars() if sidecar.alive}
        views = [view for view, _ in self._views().values()]
        dead = [b for b in dead if any(view.leader == b and able.intersection(view.isr) for view in views)]
        fenced = False
        for broker_id in self._unfenced(dead):
            log.warning(
                "sidecar %d has not reported in time: fencing its broker, so that others lead its partitions",
                broker_id,
            )
            try:
                await self._ports.fence_broker(
                    broker_id, brokers[broker_id].epoch, timeout=self._settings.call_timeout
                )
                fenced = True
                self.fenced_dead += 1
            except (LinkerError, TimeoutError) as error:
                self._note(f"fencing broker {broker_id}", error)
        if fenced:
            await self._until(lambda: not self._unfenced(dead))
        return fenced

    def _unfenced(self, broker_ids: Sequence[int]) -> list[int]:
        brokers = self._ports.image().brokers
        return [b for b in sorted(broker_ids) if b in brokers and not brokers[b].fenced]

    async def _adopt_changes(self) -> None:
        """Record leaders that the KRaft controller elected by itself too."""
        now = {tp: (view.leader, view.leader_epoch) for tp, (view, _) in self._views().items()}
        changed = [tp for tp, leader in now.items() if self._leaders.get(tp) != leader]
        if not changed:
            return
        try:
            await self._ports.adopt(sorted(changed))
        except (LinkerError, TimeoutError) as error:
            self._note("adopting leaders", error)
            return
        self._leaders = now

    async def _step_members(self, plan: Elections) -> bool:
        brokers = self._brokers()
        steps: dict[TopicPartition, Step] = {}
        for tp, (view, mirrored) in sorted(self._views().items()):
            if len(steps) >= self._settings.most_steps:
                break
            if not mirrored.movable or not copies_asked_for(view, mirrored.targets) or tp not in plan.wanted:
                continue
            step = members_step(view, plan.wanted[tp], mirrored.targets, brokers)
            if step is not None:
                steps[tp] = step
                self.moving[tp] = f"link brokers {describe(view, plan.wanted[tp])}"
        return await self._carry_out(steps)

    async def _move_leaders(self, plan: Elections) -> bool:
        moved = False
        draining = {sidecar.id for sidecar in self._sidecars() if sidecar.draining or sidecar.leaving}
        for origin in sorted({move.origin for move in plan.moves}):
            moves = [move for move in plan.moves if move.origin == origin]
            why = "draining" if origin in draining else "balance"
            self.moving |= {move.tp: f"leader {origin} -> {move.to} ({why})" for move in moves}
            moved |= await self._move(origin, {move.tp: plan.wanted[move.tp] for move in moves})
        return moved

    async def _move(self, origin: int, wanted: Mapping[TopicPartition, Sequence[int]]) -> bool:
        """Reorder, hold, elect, adopt, release. Producers are held only for a change of leader. They are released
        whatever happens, also after a cancel."""
        tps = sorted(wanted)
        moved = False
        for _ in range(_MOVE_STEPS):
            steps = self._leader_steps(origin, wanted)
            if not await self._carry_out(
                {tp: step for tp, step in steps.items() if not isinstance(step, ElectPreferred)}
            ):
                break
            moved = True
        self._held.setdefault(origin, set()).update(tps)
        clock = asyncio.get_running_loop().time
        begin = clock()
        try:
            try:
                await self._ports.move_fence(tps, origin, timeout=self._settings.hold_timeout)
            except (LinkerError, TimeoutError) as error:
                # Safe without: all forward to one log. Producers with requests in flight may see a retry.
                log.warning("moving leadership from %d undrained: %s", origin, error)
            drained = clock()
            for _ in range(_MOVE_STEPS):
                if not await self._carry_out(self._leader_steps(origin, wanted)):
                    break
                moved = True
            elected = clock()
            views = self._views()
            self.moves_done += sum(tp in views and views[tp][0].leader not in (origin, -1) for tp in tps)
            await self._adopt_changes()
            adopted = clock()
        finally:
            await self._release()
        ms = [
            1000 * (after - before) for before, after in pairwise((begin, drained, elected, adopted, clock()))
        ]
        log.info(
            "%d partitions led by %d moved; producers held %.0f ms (drained %.0f, elected %.0f, adopted %.0f, told %.0f)",
            len(tps),
            origin,
            sum(ms),
            *ms,
        )
        return moved

    async def _release(self) -> None:
        """Release all held producers; a release that failed is repeated in the next round."""
        for origin, tps in sorted(self._held.items()):
            try:
                await self._ports.move_done(sorted(tps), origin, timeout=self._settings.call_timeout)
            except (LinkerError, TimeoutError) as error:
                self._note(f"releasing producers at {origin}", error)
            else:
                del self._held[origin]

    def _leader_steps(
        self, origin: int, wanted: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, Step]:
        brokers, steps = self._brokers(), {}
        views = self._views()
        for tp, order in wanted.items():
            if tp not in views or not views[tp][1].movable or views[tp][0].leader != origin:
                continue
            step = leader_step(views[tp][0], order, views[tp][1].targets, brokers)
            if step is not None:
                steps[tp] = step
        return steps

    # --- carrying out ---------------------------------------------------------------------------------------

    async def _carry_out(self, steps: Mapping[TopicPartition, Step]) -> bool:
        """Send a batch, each kind in one request; wait until the log shows it. True if anything was sent."""
        mirrored = self._ports.partitions()
        mine = {tp: step for tp, step in steps.items() if tp in mirrored and mirrored[tp].movable}
        if not mine:
            return False
        before = self._partition_epochs(mine)
        timeout = self._settings.call_timeout
        sent: set[TopicPartition] = set()
        lists = {tp: step for tp, step in mine.items() if not isinstance(step, AlterIsr | ElectPreferred)}
        try:
            if lists:
                await self._ports.reassign(
                    {tp: s.replicas if isinstance(s, Reassign) else None for tp, s in lists.items()},
                    timeout=timeout,
                )
                sent |= lists.keys()
            isrs = {tp: step.new_isr for tp, step in mine.items() if isinstance(step, AlterIsr)}
            if isrs:
                codes = await self._ports.alter_isr(isrs, timeout=timeout)
                sent |= self._accepted("changing the ISR", codes)
            elections = [tp for tp, step in mine.items() if isinstance(step, ElectPreferred)]
            if elections:
                codes = await self._ports.elect_preferred(elections, timeout=timeout)
                sent |= self._accepted("electing", codes)
        except (LinkerError, TimeoutError) as error:
            self._note("changing link brokers", error)
        if sent:
            await self._until(
                lambda: all(epoch != before[tp] for tp, epoch in self._partition_epochs(sent).items())
            )
        return bool(sent)

    def _accepted(self, what: str, codes: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        refused = {tp: code for tp, code in codes.items() if code}
        if refused:
            tp, code = min(refused.items())
            self._note(what, f"{tp}: the target's controller answered {code} ({len(refused)} partitions)")
        return {tp for tp, code in codes.items() if not code}

    def _partition_epochs(self, tps: Tps) -> dict[TopicPartition, int | None]:
        image = self._ports.image()
        found = {tp: find(image, tp) for tp in tps}
        return {tp: None if view is None else view.partition_epoch for tp, view in found.items()}

    async def _until(self, predicate: Callable[[], bool]) -> None:
        """Wait until the log shows the step. If it does not in time, the next round starts from the actual state."""
        if not await self._ports.wait_until(lambda _: predicate(), timeout=self._settings.call_timeout):
            self._note("waiting for the target's metadata", "a step is not seen in the metadata log")

    def _note(self, what: str, error: object) -> None:
        """Keep the error for the status; log it when it is new."""
        text = str(error) or repr(error)
        if self._told.get(what) != text:
            log.warning("%s: %s", what, text)
        self.trouble[what] = text


def describe(view: PartitionView, wanted: Sequence[int]) -> str:
    """`[900, 901] -> [900, 901, 902]`: the ISR now and the link brokers wanted."""
    return f"{sorted(view.isr)} -> {sorted(wanted)}"
