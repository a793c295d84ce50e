"""Measures for doctor how a promote would go now: who writes at the source, and how long writes would be held.

It makes the exchanges that happen behind a fence, without a fence, and changes nothing.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from admin.models import Check, CheckResult
from controller.phases import ENDED
from linker.checks.preflight import TIMEOUT
from linker.links.producer_view import direct_warnings
from linker.links.runtime import LinkRuntime
from linker.links.source_writers import AtSource
from linker.promote.driver import cut
from linker.promote.ports import PromoteSettings
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

_READINGS = 2  # of the source's ends: the baseline, and once more when all replicas are there
_LONG_MS = 1000


class Measured(NamedTuple):
    """Seconds. `ends`: one reading of the source's ends; `target`: one exchange with the target."""

    ends: float
    target: float
    batches: int  # of a promote of everything


def producer_checks(seen: AtSource) -> list[Check]:
    """One line per topic that somebody writes to directly, one per open transaction."""
    checks = [
        Check(
            name="producers",
            result=CheckResult.WARN,
            detail=line,
            remedy="restart them with the target's bootstrap.servers before the promote",
        )
        for line in direct_warnings(seen)
    ]
    checks += [
        Check(
            name="transactions",
            result=CheckResult.WARN,
            detail=f"{tp}: {seen.describe(found[0])} has one open from offset {found[0].txn_start_offset}",
            remedy="a promote waits for its end, or aborts it with --abort-open-transactions",
        )
        for tp, found in sorted(seen.open.items())
    ]
    return checks or [
        Check(
            name="producers", result=CheckResult.OK, detail="nobody writes to the source without the sidecar"
        )
    ]


def pause_check(measured: Measured) -> Check:
    """How long the writes of one batch of partitions would be held, if every replica follows closely."""
    held_ms = round((_READINGS * measured.ends + 2 * measured.target) * 1000)
    detail = (
        f"a promote would hold writes for about {held_ms} ms: {_READINGS} readings of the source's ends of "
        f"{measured.ends * 1000:.0f} ms, 2 exchanges with the target of {measured.target * 1000:.0f} ms"
        + (
            f"; {measured.batches} batches, one after the other, and producers go on in between"
            if measured.batches > 1
            else ""
        )
    )
    slow = held_ms > _LONG_MS
    return Check(
        name="pause",
        result=CheckResult.WARN if slow else CheckResult.OK,
        detail=detail,
        remedy="look for load or distance between the sidecar and the clusters" if slow else None,
    )


async def rehearse(runtime: LinkRuntime) -> list[Check]:
    """The checks of a link with mirrors; what cannot be asked is a finding, not an error."""
    tps = [
        state.tp
        for state in runtime.controller.image.link_partitions(runtime.name)
        if state.phase not in ENDED and state.session_epoch >= 0
    ]
    if not tps:
        return []
    checks: list[Check] = []
    try:
        checks += producer_checks(await runtime.ports.writers.look(tps, timeout=TIMEOUT))
    except LinkerError as error:
        checks.append(
            Check(
                name="producers",
                result=CheckResult.WARN,
                detail=f"the source's producers cannot be listed: {error}",
                remedy="grant READ on the topics to the link's principal; Kafka 2.8 or later is needed",
            )
        )
    try:
        parts = cut(tps, PromoteSettings())
        checks.append(pause_check(await _measure(runtime, max(parts, key=len), len(parts))))
    except LinkerError as error:
        checks.append(Check(name="pause", result=CheckResult.WARN, detail=f"cannot be measured: {error}"))
    return checks


async def _measure(runtime: LinkRuntime, tps: list[TopicPartition], batches: int) -> Measured:
    # Once to connect, once to measure.
    for _ in range(2):
        started = time.monotonic()
        await runtime.ports.source_ends.ends(tps, timeout=TIMEOUT)
        between = time.monotonic()
        await runtime.target.metadata.caught_up(TIMEOUT)
        ended = time.monotonic()
    return Measured(between - started, ended - between, batches)
