"""Producers of every library through link, move and promote; one topic each, a few at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from linker.demo.checker import Verdict, check
from tests.clients.build import CannotBuildError
from tests.clients.catalog import ProducerCase
from tests.clients.judge import Window, largest_gap
from tests.clients.logs import committed_logs
from tests.clients.program import Program, ProgramError
from tests.clients.stage import LINK, Stage

PARTITIONS = 6
RATE = 100  # records per second and producer
AT_ONCE = 4
SETTLE_SECONDS = 3.0
HELD_SECONDS = 3.0
FIRST_ACK_TIMEOUT = 30.0
GAP_GOAL_MS = 1000.0
MAX_TEXTS = 5

Row = dict[str, Any]


async def producers(stage: Stage, cases: Sequence[ProducerCase]) -> dict[str, Row]:
    """A row of the report for every case."""
    rows: dict[str, Row] = {}
    for first in range(0, len(cases), AT_ONCE):
        wave = cases[first : first + AT_ONCE]
        rows |= await _wave(stage, wave)
        await stage.forget()
    return rows


async def _wave(stage: Stage, cases: Sequence[ProducerCase]) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    running: dict[ProducerCase, Program] = {}
    for case in cases:
        try:
            running[case] = await program(stage, case)
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}
    for case, one in running.items():
        await stage.topic(topic(case), PARTITIONS)
        await one.start(stage.bootstrap("source"), "source")
    await asyncio.gather(*(_acked(one) for one in running.values()))
    if running:
        await stage.mirror(*map(topic, running))
    for case, one in running.items():
        try:
            rows[case.name] = await _through(stage, case, one)
        except ProgramError as error:
            rows[case.name] = {"version": one.transcript.version, "ok": False, "broke": str(error)}
            await one.kill()
    return rows


async def program(stage: Stage, case: ProducerCase) -> Program:
    """The application of a case, not started."""
    arguments = {"role": "producer", "topic": topic(case), "rate": str(RATE)}
    if case.transactional:
        arguments |= {"role": "transactions", "transactional_id": case.name}
    return await stage.program(case.library, case.name, arguments, partitions=PARTITIONS)


def topic(case: ProducerCase) -> str:
    return f"by-{case.name}"


async def _acked(one: Program, beyond: int = 0) -> None:
    await one.until(lambda: len(one.transcript.acks) > beyond, FIRST_ACK_TIMEOUT, "get a write acknowledged")


async def _through(stage: Stage, case: ProducerCase, one: Program) -> Row:
    """Move, wait, promote, wait, end, judge."""
    restarted = time.time()
    await one.stop()
    at_source = len(one.transcript.acks)
    await one.start(stage.bootstrap("target"), "target")
    if case.transactional:
        await asyncio.sleep(HELD_SECONDS)
    else:
        await _acked(one, at_source)
        await asyncio.sleep(SETTLE_SECONDS)
    forwarded = len(one.transcript.acks) - at_source
    begin = time.time()
    await stage.linker("mirror", "promote", topic(case), "--link", LINK)
    end = time.time()
    await _acked(one, at_source + forwarded)
    await asyncio.sleep(SETTLE_SECONDS)
    await one.stop()
    said = one.transcript
    logs = await asyncio.to_thread(committed_logs, stage.target.bootstrap, topic(case), PARTITIONS)
    verdict = check(said.history(), logs, promote=(begin, end), drained=False)
    moved = [ack.time for ack in said.acks[at_source:]]
    row = describe(said.version, verdict, [error.error for error in said.errors])
    row["largest_ack_gap_ms"] = largest_gap(said.acks, without=[Window(restarted, moved[0])])
    if case.transactional:
        # what was written before the promote waits for it: that is the hold, and no gap
        row |= {
            "acked_before_promote": forwarded,
            "held_ms": round((begin - restarted) * 1000),
            "after_promote_ms": round((moved[0] - end) * 1000),
        }
        row["ok"] = row["ok"] and forwarded == 0
    else:
        row["promote_gap_ms"] = largest_gap(said.acks, within=Window(begin, end))
    row["gap_goal_met"] = (row["largest_ack_gap_ms"] or 0) <= GAP_GOAL_MS
    return row


def describe(version: str, verdict: Verdict, errors: Sequence[str]) -> Row:
    """What the checker found, as it stands in the report."""
    texts = [*errors, *(text for text in verdict.client_errors if not any(one in text for one in errors))]
    return {
        "version": version,
        "ok": verdict.ok and verdict.unknown == 0,
        "acked": verdict.acked,
        "errors": len(verdict.client_errors),
        "unknown": verdict.unknown,
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "reordered": len(verdict.reordered),
        "otherwise_wrong": len(verdict.misplaced) + len(verdict.phantom),
        **({"error_texts": sorted(set(texts))[:MAX_TEXTS]} if texts else {}),
        **(
            {"evidence": [str(one) for some in verdict.violations.values() for one in some][:MAX_TEXTS]}
            if verdict.violations
            else {}
        ),
    }
