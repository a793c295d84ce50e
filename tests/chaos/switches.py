"""Switching as an operator would: in sync first, again and again until the other cluster owns the topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.chaos.fleet import ApiRefused, Fleet
from tests.chaos.promotes import AGAIN, CATCH_UP_TIMEOUT_MS, DONE, LONG, PhaseBoard, follow_job

SYNCING = "SYNCING"
IN_SYNC = "IN_SYNC"


class Owner(StrEnum):
    """The cluster that owns a topic, by the direction of its mirror."""

    SOURCE = "FORWARD"
    TARGET = "REVERSED"

    @property
    def other(self) -> Owner:
        return Owner.TARGET if self is Owner.SOURCE else Owner.SOURCE


@dataclass(slots=True)
class SwitchLog:
    """What became of one planned switch."""

    topics: Sequence[str]
    to: Owner
    batch_partitions: int | None = None  # of each wave, as it was asked for
    last: str = "not begun"  # what was seen last
    tries: int = 0
    abandoned: list[str] = field(default_factory=list)  # reasons
    refused: list[str] = field(default_factory=list)
    phases_ms: dict[str, int] = field(default_factory=dict)  # of the last try
    seconds: float | None = None
    longest_gap_ms: float | None = None  # between two acknowledgements of one producer, while it lasted


class Switcher:
    """Runs planned switches against a fleet."""

    def __init__(self, fleet: Fleet, link: str, board: PhaseBoard) -> None:
        self._fleet = fleet
        self._link = link
        self._board = board

    async def run(self, index: int, note: SwitchLog, fence_timeout: float) -> None:
        """Until all topics of the note are owned by that cluster: has no deadline of its own."""
        started = time.monotonic()
        options = {
            "catch_up_timeout_ms": CATCH_UP_TIMEOUT_MS,
            "fence_timeout_ms": round(fence_timeout * 1000),
            "batch_partitions": note.batch_partitions,
        }
        while True:
            mirrors = await self._mirrors(note)
            if set(mirrors) < set(note.topics):  # a sidecar that has just started
                await asyncio.sleep(AGAIN)
                continue
            if all(one["direction"] == note.to and one["state"] == "ACTIVE" for one in mirrors.values()):
                break
            left = [topic for topic, one in mirrors.items() if one["direction"] != note.to]
            try:
                if not left or not await self._in_sync(index, note, left):
                    await asyncio.sleep(AGAIN)
                    continue
                request = {"topics": left, "options": options}
                job = await self._call("POST", f"/v1/links/{self._link}/mirrors:switch", request)
            except ApiRefused as refused:
                # Of another switch that goes on by itself, or of a sidecar that has not joined yet.
                note.last = str(refused)
                note.refused.append(note.last)
                await asyncio.sleep(AGAIN)
                continue
            note.tries += 1
            job = await follow_job(self._fleet, self._board, index, note, job)
            note.phases_ms = dict(job.get("phases_ms", {}))
            if job["phase"] != DONE:
                note.last = str(job.get("reason"))
                note.abandoned.append(note.last)
                self._board.show(index, SYNCING)
                await asyncio.sleep(AGAIN)
        self._board.show(index, DONE)
        note.seconds = round(time.monotonic() - started, 2)

    async def _in_sync(self, index: int, note: SwitchLog, topics: Sequence[str]) -> bool:
        await self._call("POST", f"/v1/links/{self._link}/mirrors:sync", {"topics": list(topics)})
        self._board.show(index, SYNCING)
        mirrors = await self._mirrors(note)
        return all(mirrors[topic]["sync"] == IN_SYNC for topic in topics if topic in mirrors)

    async def _mirrors(self, note: SwitchLog) -> dict[str, Any]:
        found = await self._call("GET", f"/v1/links/{self._link}/mirrors")
        mirrors = {one["topic"]: one for one in found if one["topic"] in note.topics}
        keys = ("direction", "state", "sync", "reason")
        note.last = str({topic: [one.get(key) for key in keys] for topic, one in mirrors.items()})
        return mirrors

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        return await self._fleet.call(method, path, body, timeout=LONG)
