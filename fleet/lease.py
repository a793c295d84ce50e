"""Leases: which sidecars may acknowledge a write that the source has taken. Pure: every time is passed in.

The rule (no fork): a partition is handed over only after every sidecar that could acknowledge a write for it has
acknowledged the fence, or certainly cannot acknowledge anything any more. All times are of a monotonic clock and
none is ever compared with another machine's; only durations travel.

- The member's lease runs from the moment it *sent* a renewal; the link controller counts the same duration (and a
  little more, for clocks that run apart) from a moment after it has *received* it. So the member's ends first.
- The link controller answers a renewal only after the store has proven, later than the renewal's arrival, that nobody has
  claimed a higher controller epoch. So every lease in force began before any later claim, and the next
  link controller knows: one duration after my claim, none of an older link controller's is left (`LeaseTable.inherit`).
- A healed lapse still counts. The link controller may have taken the member as harmless meanwhile and aligned
  a partition without it. A write counts as covered only if one unbroken lease (`term`) spans from before it was
  sent until after the source's answer was here. Everything else needs a new proof: a renewal sent after the
  answer's arrival, answered while the partition is not fenced (`Lease.proven_since`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

#: How much longer than the member the link controller takes a lease for valid: two clocks may run apart by that much.
DRIFT = 1.03


class Lease:
    """The member's side."""

    __slots__ = ("_over", "_proven", "_until", "term")

    def __init__(self) -> None:
        self._until = -math.inf
        self._proven = -math.inf
        self._over = False
        #: Grows by one whenever the lease is held again after a lapse. Valid in the same term = never lapsed.
        self.term = 0

    @property
    def until(self) -> float:
        """When it ends unless it is renewed; -inf if there never was one."""
        return self._until

    def valid(self, now: float) -> bool:
        return now < self._until

    def lapses(self, now: float) -> int:
        """How often it ended unrenewed."""
        return max(0, self.term - (1 if now < self._until or self._over else 0))

    def covers(self, term: int, now: float) -> bool:
        """Whether it has been held without a gap since `term` was read, while it was valid."""
        return term == self.term and now < self._until

    def proven_since(self, moment: float) -> bool:
        """Whether a renewal that was sent after `moment` has been answered."""
        return self._proven > moment

    def renewed(self, sent_at: float, now: float, duration: float) -> None:
        """The link controller has answered a renewal. `duration` in seconds; inf: the store has one user, for ever."""
        if self._over:
            return  # it was on its way when the lease was given up
        if now >= self._until:
            self.term += 1
        self._until = max(self._until, sent_at + duration)
        self._proven = max(self._proven, sent_at)

    def given_up(self) -> None:
        """The sidecar stops: nothing is acknowledged from here on, even if an answer is still on its way."""
        self._over = True
        self._until = -math.inf


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that may hold a lease."""

    broker_id: int
    session: str  # "" if the store did not tell: an inherited one


class LeaseTable:
    """The link controller's side: which processes may acknowledge writes, and until when at the latest. `duration` in
    seconds, or inf."""

    def __init__(self, duration: float) -> None:
        self.duration = duration
        self._until: dict[Holder, float] = {}

    def inherit(self, holders: Iterable[tuple[Holder, float]], claimed_at: float) -> None:
        """Right after the claim: every process in the store may hold a lease of an older link controller, perhaps of
        another duration."""
        for holder, duration in holders:
            self._until.setdefault(holder, claimed_at + max(duration, self.duration) * DRIFT)

    def renewed(self, holder: Holder, now: float) -> None:
        """Before the answer is sent, `now` being later than the proof."""
        self._until[holder] = max(self._until.get(holder, -math.inf), now + self.duration * DRIFT)

    def gone(self, broker_id: int, sessions: Iterable[str]) -> None:
        """These processes are certainly over, or gave their leases back."""
        for session in sessions:
            self._until.pop(Holder(broker_id, session), None)

    def may_hold(self, now: float) -> list[Holder]:
        """Every process whose lease is not certainly over; forgets the others."""
        for holder in [h for h, until in self._until.items() if until <= now]:
            del self._until[holder]
        return sorted(self._until, key=lambda h: (h.broker_id, h.session))

    def until(self, holder: Holder) -> float:
        """-inf if it holds none."""
        return self._until.get(holder, -math.inf)

    def others_of(self, broker_id: int, session: str, now: float) -> list[Holder]:
        """Other processes with this broker id that may still hold a lease."""
        return [h for h in self.may_hold(now) if h.broker_id == broker_id and h.session != session]
