"""Promoting and failing over as an operator would: until it is done, whatever happens meanwhile; and watching how far it is.

A promote that is abandoned is a lawful answer to a fault. Its phases last milliseconds where nothing is in the way, so
they are asked for all the time while one is under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.chaos.failed_over import FailedOver, read_failed_over
from tests.chaos.fleet import ApiRefused, Fleet
from tests.chaos.plan import PHASES
from wire.frames.types import TopicPartition

LOOK = 0.008
LOOK_TIMEOUT = 0.5
AGAIN = 0.3
CATCH_UP_TIMEOUT_MS = 20_000
TAKE_OVER_TIMEOUT_MS = 20_000
LONG = 600.0  # for calls whose caller has a deadline
DONE = "PROMOTED"
FAILED_OVER = "FAILED_OVER"
ORDER = {
    phase: index for index, phase in enumerate(["SYNCING", *PHASES, DONE])
}  # a switch begins with the first


class NotPromoted(Exception):
    """It cannot be any more; says what was seen last."""


@dataclass(slots=True)
class PromoteLog:
    """What became of one planned promote or failover."""

    topics: Sequence[str]
    failover: bool = False
    last: str = "not begun"  # what was seen last
    tries: int = 0
    abandoned: list[str] = field(default_factory=list)  # reasons
    refused: list[str] = field(default_factory=list)
    phases_ms: dict[str, int] = field(default_factory=dict)  # of the last try
    seconds: float | None = None
    #: Of a failover, as its own report says it.
    taken: dict[TopicPartition, FailedOver] = field(default_factory=dict)


class PhaseBoard:
    """How far each planned promote has got. Whoever waits for a phase is woken when it is seen, or one past it."""

    def __init__(self, promotes: int) -> None:
        self._seen: list[str | None] = [None] * promotes
        self._changed = asyncio.Event()

    def now(self) -> str | None:
        """The phase of the promote that is under way."""
        under_way = [phase for phase in self._seen if phase is not None and phase != DONE]
        return under_way[-1] if under_way else None

    def show(self, promote: int, phase: str | None) -> None:
        if self._seen[promote] != phase:
            self._seen[promote] = phase
            event, self._changed = self._changed, asyncio.Event()
            event.set()

    async def reached(self, promote: int, phase: str) -> str | None:
        """Wait for the phase or a later one; which one it is."""
        while True:
            seen, changed = self._seen[promote], self._changed
            if seen is not None and ORDER.get(seen, -1) >= ORDER[phase]:
                return seen
            await changed.wait()


class Promoter:
    """Runs planned promotes against a fleet."""

    def __init__(self, fleet: Fleet, link: str, board: PhaseBoard, promoted: Callable[[str], None]) -> None:
        self._fleet = fleet
        self._link = link
        self._board = board
        self._promoted = promoted

    async def run(
        self, index: int, note: PromoteLog, options: Mapping[str, int], hopeless: int | None
    ) -> None:
        """Until every topic of the note is promoted: has no deadline of its own. `hopeless` is the fence timeout of a
        first try. NotPromoted if a mirror failed."""
        started = time.monotonic()
        limits = {"catch_up_timeout_ms": CATCH_UP_TIMEOUT_MS, **options}
        while True:
            states = await self._states(note.topics)
            note.last = f"{states}"
            done = FAILED_OVER if note.failover else DONE
            if all(state == done for state in states.values()):
                break
            if "FAILED" in states.values() and not note.failover:
                raise NotPromoted(f"mirrors failed: {states}")
            first = note.tries == 0 and hopeless is not None
            request: dict[str, Any] = {"topics": [topic for topic, state in states.items() if state != done]}
            if note.failover:
                request["timeout_ms"] = TAKE_OVER_TIMEOUT_MS
            else:
                request["options"] = {**limits, **({"fence_timeout_ms": hopeless} if first else {})}
            what = "failover" if note.failover else "promote"
            try:
                job = await self._call("POST", f"/v1/links/{self._link}/mirrors:{what}", request)
            except ApiRefused as refused:
                # Of another promote that goes on by itself, or of a mirror that is not ready yet.
                note.last = str(refused)
                note.refused.append(note.last)
                await asyncio.sleep(AGAIN)
                continue
            note.tries += 1
            job = await follow_job(self._fleet, self._board, index, note, job, self._promoted)
            note.phases_ms = dict(job.get("phases_ms", {}))
            if job["phase"] != done:
                note.last = str(job.get("reason"))
                note.abandoned.append(note.last)
                self._board.show(index, None)
                await asyncio.sleep(AGAIN)
        self._board.show(index, DONE)
        for topic in note.topics:
            self._promoted(topic)
        if note.failover:
            # Jobs that went on by themselves have reports too; the newest one of a partition is the one that was done.
            jobs = await self._call("GET", f"/v1/links/{self._link}/promotes")
            for job in sorted(jobs, key=lambda one: one["started_at"]):
                note.taken |= read_failed_over(job.get("failover") or [])
        note.seconds = round(time.monotonic() - started, 2)

    async def _states(self, topics: Sequence[str]) -> dict[str, str]:
        mirrors = await self._call("GET", f"/v1/links/{self._link}/mirrors")
        states = {one["topic"]: one["state"] for one in mirrors}
        return {topic: states[topic] for topic in topics}

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        return await self._fleet.call(method, path, body, timeout=LONG)


class _Followed(Protocol):
    last: str


async def follow_job(
    fleet: Fleet,
    board: PhaseBoard,
    index: int,
    note: _Followed,
    job: dict[str, Any],
    promoted: Callable[[str], None] = lambda _topic: None,
) -> dict[str, Any]:
    """Until it is over; its phases are shown on the board."""
    path = f"/v1/promotes/{job['id']}"
    turn = 0
    while job["phase"] not in (DONE, FAILED_OVER, "ABANDONED"):
        board.show(index, furthest(job))
        note.last = f"{job['phase']}: {job.get('reason')}"
        await asyncio.sleep(LOOK)
        member = fleet.members[turn % len(fleet.members)]
        seen = await fleet.once(member, path, LOOK_TIMEOUT)
        if seen is None:
            turn += 1  # asleep, away, or not one that knows: the next one
            continue
        job = seen
        for topic in job["topics"]:
            if topic["phase"] in (DONE, FAILED_OVER):
                promoted(topic["topic"])
    return job


def furthest(job: Mapping[str, Any]) -> str | None:
    """Of the job and its topics: a phase lasts so short that the furthest seen is nearest to what is going on."""
    phases = [job["phase"], *(topic["phase"] for topic in job["topics"])]
    under_way = [phase for phase in phases if phase in PHASES]
    return max(under_way, key=lambda phase: ORDER[phase], default=None)
