"""Moves the replicas of mirrors away from brokers of the target that do not return, and plans the same for an operator.

A promote needs every replica of a mirror, so one on a dead broker would hold it up for good. A broker that is down may come
back with its copies; one that is not even registered any more has none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from admin.models import LinkOptions
from controller.errors import Refused
from controller.image import ControllerImage, Stamp
from controller.plan.placement import Load
from controller.plan.reassign import MOVABLE, replace_replicas
from controller.state import MirrorTopic
from linker.links.bring_up import BringUp
from linker.links.link_part import LinkContext, LinkPart
from linker.links.new_mirrors import real_brokers, replica_load
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

OPTION = "broker_lost_after_ms"
_INTERVAL = 2.0
#: A broker that registers anew is not registered for a moment.
_UNREGISTERED_FOR = 10.0


@dataclass(slots=True)
class MovePlan:
    """Which partitions get which real brokers, and of which mirrors that cannot be."""

    moves: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    old: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class LostBrokers(LinkPart):
    """Of one link; the link controller runs it."""

    def __init__(
        self,
        context: LinkContext,
        bring_up: BringUp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(context)
        self._bring_up = bring_up
        self._clock = clock
        # Since when a broker is away, as far as this process has seen, and whether it is not even registered any more.
        self._away: dict[int, tuple[float, bool]] = {}
        self._outage_end = 0.0
        # Brokers with replicas of mirrors, and the state of which that holds.
        self._used: frozenset[int] = frozenset()
        self._used_in: tuple[ControllerImage, Stamp] | None = None
        self.task = PeriodicTask("replicas on lost brokers", self._once, _INTERVAL, failed=self._failed)

    def plan(
        self,
        mirrors: Iterable[MirrorTopic],
        leave: Collection[int],
        *,
        to: Collection[int] = (),
        fewer: bool = False,
    ) -> MovePlan:
        """Plan where the replicas on the brokers `leave` go; only to the brokers `to`, if some are given."""
        links = self._link_brokers()
        able = [broker for broker in real_brokers(self._target, links) if not to or broker.id in to]
        load = dict(replica_load(self._target, links))
        racks = {b.id: b.rack for b in self._target.image.brokers.values() if b.id not in links}
        plan = MovePlan()
        for mirror in mirrors:
            tps = [
                state.tp
                for state in self._controller.image.topic_partitions(self._link, mirror.topic)
                if state.phase in MOVABLE
                and state.session_epoch >= 0
                and set(mirror.replicas_of(state.partition)) & set(leave)
            ]
            current = [mirror.replicas_of(tp.partition) for tp in tps]
            try:
                moved = replace_replicas(
                    current, leave=leave, brokers=able, load=load, racks=racks, fewer=fewer
                )
            except Refused as error:
                plan.refused[mirror.topic] = str(error)
                continue
            for tp, old, new in zip(tps, current, moved, strict=True):
                plan.moves[tp], plan.old[tp] = new, old
                for broker in set(new) - set(old):
                    before = load.get(broker, Load())
                    load[broker] = before._replace(replicas=before.replicas + 1)
        return plan

    @property
    def patience(self) -> float | None:
        """Seconds for which a broker may be down; None: for ever."""
        link = self._controller.image.links.get(self._link)
        given = LinkOptions.model_validate({} if link is None else dict(link.options)).broker_lost_after_ms
        return None if given < 0 else given / 1000

    def lost(self) -> dict[int, str]:
        """Brokers with replicas of mirrors that are not expected back, and why."""
        image, now = self._target.image, self._clock()
        away = {
            b: b not in image.brokers
            for b in self._replicas_on()
            if b not in image.brokers or image.brokers[b].fenced
        }
        self._away = {
            b: self._away[b] if b in self._away and self._away[b][1] == gone else (now, gone)
            for b, gone in away.items()
        }
        if self._outage():
            self._outage_end = now
        patience = self.patience
        found: dict[int, str] = {}
        for broker, (since, gone) in sorted(self._away.items()):
            waited = now - max(since, self._outage_end)
            if gone and waited >= _UNREGISTERED_FOR:
                found[broker] = f"broker {broker} is not registered at the target any more"
            elif not gone and patience is not None and waited >= patience:
                found[broker] = f"broker {broker} of the target has been down for {now - since:.0f} s"
        return found

    def _replicas_on(self) -> frozenset[int]:
        """Thousands of mirrors are looked at again only where something was written since."""
        image = self._controller.image
        if self._used_in is None or self._used_in[0] is not image or self._used_in[1] != image.stamp:
            self._used = frozenset(
                broker
                for mirror in image.link_mirrors(self._link)
                for state in image.topic_partitions(self._link, mirror.topic)
                if state.phase in MOVABLE
                for broker in mirror.replicas_of(state.partition)
            )
            self._used_in = image, image.stamp
        return self._used

    def _outage(self) -> bool:
        """Whether half of the brokers or more are away. Nothing is moved then, and once the outage is over all of them
        get the full time to return."""
        links = self._link_brokers()
        real = [b for b in self._target.image.brokers.values() if b.id not in links]
        gone = sum(unregistered for _, unregistered in self._away.values())
        return 2 * (gone + sum(b.fenced for b in real)) >= gone + len(real)

    async def _once(self) -> str | None:
        lost = self.lost()
        if self._outage():
            return (
                "replicas stay where they are, since most brokers of the target are down"
                if self._away
                else None
            )
        if not lost:
            return None
        why = "; ".join(lost.values())
        plan = self.plan(self._controller.image.link_mirrors(self._link), lost)
        if plan.moves:
            log.warning("link %s: %s: %d partitions get other replicas", self._link, why, len(plan.moves))
            await self._bring_up.move(plan.moves, afresh=False)
        if plan.refused:
            topic, reason = min(plan.refused.items())
            return (
                f"{why}; {len(plan.refused)} mirrors cannot be copied elsewhere: {topic}: {reason}. Add a broker, or: "
                f"linker mirror reassign --link {self._link} {topic} --away-from {min(lost)} --fewer-replicas"
            )
        return None

    def _failed(self, error: Exception) -> None:
        log.warning("link %s: replicas are not moved from lost brokers: %s", self._link, error)
