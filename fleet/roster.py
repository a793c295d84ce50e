"""Sidecars of the fleet: connected, gone, and those whose lease may still hold.

A fence waits for every sidecar whose lease is not certainly over; only the lease table tells that, not the
connections. A sidecar is alive (leads partitions, may be elected) if it was heard of lately. The two are apart on
purpose: the first may never be wrong, the second only has to be quick.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet import messages as m
from fleet.channel import ChannelClosed, MemberChannel
from fleet.lease import Holder, LeaseTable
from fleet.settings import FleetSettings
from fleet.stored_controller import StoredController

log = logging.getLogger(__name__)

_MOST_ASKED = 10_000


@dataclass(slots=True)
class MemberInfo:
    """A connected sidecar, as status and elections see it."""

    hello: m.Hello
    channel: MemberChannel
    connected_at: float
    last_heard: float
    seq: int = 0
    local: bool = False
    said: m.SidecarReport | None = None  # of itself, with its last report
    asked: asyncio.Queue[m.Ask] = field(default_factory=lambda: asyncio.Queue(_MOST_ASKED))

    @property
    def holder(self) -> Holder:
        return Holder(self.hello.broker_id, self.hello.session)


class Roster:
    """Kept by the link controller (`fleet_controller`), for as long as it is one."""

    def __init__(
        self,
        controller: StoredController,
        settings: FleetSettings,
        clock: Callable[[], float],
        *,
        endless_leases: bool,
        claimed_at: float | None = None,
    ) -> None:
        self.controller = controller
        self._settings = settings
        self._clock = clock
        self._endless = endless_leases
        self.started_at = clock() if claimed_at is None else claimed_at
        # A sidecar whose own lease does not end is never forgotten, however long it goes without a renewal.
        self.leases = LeaseTable(math.inf if endless_leases else settings.lease)
        self.members: dict[int, MemberInfo] = {}
        #: When a sidecar's connection ended, by broker id; of those that are not connected.
        self.lost: dict[int, float] = {}
        #: Sidecars that said good-bye and did not come back.
        self.left: set[int] = set()
        self._dead: frozenset[int] = frozenset()
        self._seen: tuple[object, ...] = ()
        #: Called when a sidecar came, went or drains.
        self.on_membership: set[Callable[[], None]] = set()
        if not endless_leases:
            self.leases.inherit(
                ((Holder(i.broker_id, i.session), i.lease) for i in controller.image.identities.values()),
                self.started_at,
            )

    def alive(self) -> frozenset[int]:
        """Broker ids of the sidecars that were heard of lately. Right after the start every sidecar is given time."""
        known = set(self.controller.image.identities) | set(self.members)
        return frozenset(known - self._dead - self.left)

    def is_dead(self, broker_id: int, now: float) -> bool:
        """Whether it has been silent for so long that others lead its partitions."""
        member = self.members.get(broker_id)
        if member is not None:
            # Our own sidecar lives as long as we do, however late its messages are read.
            return not member.local and now - member.last_heard > self._settings.failure_timeout
        since = self.lost.get(broker_id)
        if since is not None:
            return now - since > self._settings.reset_grace
        return now - self.started_at > self._settings.failure_timeout + self._settings.retry_max

    def look(self, now: float) -> None:
        """Mark silent sidecars dead, and report changes."""
        known = set(self.controller.image.identities) | set(self.members)
        dead = frozenset(broker for broker in known if self.is_dead(broker, now))
        for broker in sorted(dead - self._dead):
            log.warning("sidecar %d has not reported in time: it counts as dead", broker)
        for broker in sorted(self._dead - dead):
            if broker in known:
                log.info("sidecar %d reports again", broker)
        self._dead = dead
        seen = (self.alive(), frozenset(self.members), self.draining())
        if seen != self._seen:
            self._seen = seen
            self.tell_membership()

    def forgive(self, stall: float) -> None:
        """This process was not running itself: the others' messages of that time are still to be read."""
        for member in self.members.values():
            member.last_heard += stall
        for broker_id in self.lost:
            self.lost[broker_id] += stall

    def absent(self) -> str | None:
        """linker.promote.ports.Fencer.absent"""
        now = self._clock()
        texts = []
        for holder in self.leases.may_hold(now):
            member = self.members.get(holder.broker_id)
            if member is not None and member.holder == holder and not self.is_dead(holder.broker_id, now):
                continue
            texts.append(f"sidecar {holder.broker_id} is away, and {self.lease_end(holder, now)}")
        return "; ".join(texts) or None

    def lease_end(self, holder: Holder, now: float) -> str:
        """For people."""
        left = self.leases.until(holder) - now
        return "its lease does not end" if left == math.inf else f"its lease ends in {left:.1f} s"

    def draining(self) -> frozenset[int]:
        """Sidecars that get nothing to lead."""
        identities = self.controller.image.identities.values()
        return frozenset(i.broker_id for i in identities if i.draining or i.leaving)

    def heard_ago(self, broker_id: int) -> float | None:
        """Seconds since the sidecar said something; None if it never did to this controller."""
        member = self.members.get(broker_id)
        since = self.lost.get(broker_id) if member is None else member.last_heard
        return None if since is None else max(0.0, self._clock() - since)

    def lease_left(self, broker_id: int) -> float | None:
        """Seconds for which a process of the sidecar may still acknowledge writes, 0 if none may; None: for ever."""
        if self._endless:
            return None
        now = self._clock()
        mine = [self.leases.until(h) - now for h in self.leases.may_hold(now) if h.broker_id == broker_id]
        return max(mine, default=0.0)

    @property
    def controller_for(self) -> float:
        """Seconds since the claim."""
        return max(0.0, self._clock() - self.started_at)

    def tell_membership(self) -> None:
        for listener in tuple(self.on_membership):
            listener()

    def send(self, member: MemberInfo, message: m.FromController) -> None:
        """A channel that cannot be sent to is closed; its reader notices."""
        try:
            member.channel.send(m.encode(message))
        except ChannelClosed as error:
            log.info("sidecar %d: %s", member.hello.broker_id, error)
            member.channel.close("cannot be sent to")
