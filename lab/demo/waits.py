"""Waits between the steps of the demonstration; each has a deadline and says then how far it came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any

from admin.client import AdminError
from admin.models import GroupState, MirrorState, MirrorSummary
from lab.clusters.sidecar_process import SidecarProcess
from lab.demo.progress import Phase
from lab.workload.live_consumers import LiveConsumer
from wire.errors import LinkerError

CATCH_UP_TIMEOUT = 120.0
CAUGHT_UP_LAG = 500  # records over all partitions; the producers never stop
REBALANCE_TIMEOUT = 20.0  # members notice with their next heartbeat, of which there is one in 3 s


class DemoError(LinkerError):
    """The demonstration could not be carried out."""


async def caught_up(sidecar: SidecarProcess, link: str, topics: int, now: Phase) -> None:
    """Until so many mirrors of the link are active and hardly behind; `now` says meanwhile how far they are."""
    deadline = time.monotonic() + CATCH_UP_TIMEOUT
    with sidecar.client() as client:
        while True:
            try:
                mirrors = await asyncio.to_thread(client.list_mirrors, link)
            except AdminError as error:
                raise DemoError(f"the sidecar does not answer: {error}") from error
            if failed := [one for one in mirrors if one.state is MirrorState.FAILED]:
                raise DemoError(f"mirror {failed[0].topic} failed: {failed[0].reason}")
            ready = [one for one in mirrors if one.state is MirrorState.ACTIVE and one.lag is not None]
            lag = sum(one.lag or 0 for one in ready)
            now.detail = f"{len(ready)} of {topics} topics active, lag {lag}"
            if len(ready) == topics and lag <= CAUGHT_UP_LAG:
                return
            if time.monotonic() > deadline:
                raise DemoError(f"not caught up after {CATCH_UP_TIMEOUT:.0f} s: {_summary(mirrors)}")
            await asyncio.sleep(0.1)


async def held(sidecar: SidecarProcess, link: str, groups: Collection[str]) -> str:
    """Until clients that join one of these groups on the target would wait there, at offsets as new as the source's; who
    holds which group."""
    deadline = time.monotonic() + CATCH_UP_TIMEOUT
    with sidecar.client() as client:
        while True:
            try:
                found = await asyncio.to_thread(client.list_groups, link)
            except AdminError as error:
                raise DemoError(f"the sidecar does not answer: {error}") from error
            gates = {
                one.group: one.gate
                for one in found
                if one.state is GroupState.GATED and one.sync_age_ms is not None
            }
            if gates.keys() >= set(groups):
                return ", ".join(f"{group} by {gates[group]}" for group in sorted(groups))
            if time.monotonic() > deadline:
                raise DemoError(f"groups are not held after {CATCH_UP_TIMEOUT:.0f} s: {found}")
            await asyncio.sleep(0.1)


async def ended(task: asyncio.Task[Any]) -> None:
    """Give up what still starts."""
    task.cancel()
    await asyncio.wait({task})


async def rebalanced(members: Sequence[LiveConsumer], before: Sequence[int]) -> None:
    """Until each has partitions anew: one that is stopped in a rebalance may leave without its last commit. `before`: how
    often each had got some."""
    deadline = time.monotonic() + REBALANCE_TIMEOUT
    while late := [one.name for one, count in zip(members, before, strict=True) if one.assignments == count]:
        if time.monotonic() > deadline:
            raise DemoError(
                f"{', '.join(late)} got no new assignment within {REBALANCE_TIMEOUT:.0f} s of the others' leaving"
            )
        await asyncio.sleep(0.1)


def _summary(mirrors: Sequence[MirrorSummary]) -> str:
    return ", ".join(f"{one.topic} {one.state} lag {one.lag}" for one in mirrors)
