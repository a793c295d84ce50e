"""The programs alone, on one real cluster without any link: what they do by themselves, rolling restart included.

A client that fails here fails by itself, and its join time here is what a group's opening is compared with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from linker.demo.checker import check
from tests.clients import groups, producers
from tests.clients.build import CannotBuildError
from tests.clients.catalog import GroupCase, ProducerCase
from tests.clients.judge import Window, judge_group, largest_gap
from tests.clients.logs import committed_logs
from tests.clients.program import ProgramError
from tests.clients.stage import Stage

SECONDS = 3.0


async def plain_producers(stage: Stage, cases: Sequence[ProducerCase]) -> dict[str, producers.Row]:
    """Write, one restart, write, end."""
    rows: dict[str, producers.Row] = {}
    for case in cases:
        try:
            one = await producers.program(stage, case)
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}
            continue
        topic = producers.topic(case)
        await stage.topic(topic, producers.PARTITIONS)
        try:
            await one.start(stage.bootstrap("source"), "source")
            await asyncio.sleep(SECONDS)
            restarted = time.time()
            await one.move(stage.bootstrap("source"), "source")
            ready = one.transcript.ready_at or time.time()
            await asyncio.sleep(SECONDS)
            await one.stop()
        except ProgramError as error:
            rows[case.name] = {"version": one.transcript.version, "ok": False, "broke": str(error)}
            await one.kill()
            continue
        said = one.transcript
        logs = await asyncio.to_thread(committed_logs, stage.source.bootstrap, topic, producers.PARTITIONS)
        verdict = check(said.history(), logs, drained=False)
        rows[case.name] = producers.describe(said.version, verdict, [error.error for error in said.errors])
        rows[case.name]["largest_ack_gap_ms"] = largest_gap(
            said.acks, without=[Window(restarted, ready + 1.0)]
        )
    return rows


async def plain_groups(stage: Stage, cases: Sequence[GroupCase]) -> dict[str, producers.Row]:
    """A group that reads under load; each member is restarted once; load ends; read to the end."""
    rows: dict[str, producers.Row] = {}
    for case in cases:
        try:
            group = await groups.assemble(stage, case)
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}
            continue
        try:
            await group.start()
            for member in group.members:
                await member.move(stage.bootstrap("source"), "source")
                await asyncio.sleep(SECONDS)
            await group.load.stop()
            logs = await asyncio.to_thread(
                committed_logs, stage.source.bootstrap, group.topic, groups.PARTITIONS
            )
            await group.read_to(logs)
            await group.stop()
        except ProgramError as error:
            rows[case.name] = {"ok": False, "broke": str(error)}
            await stage.forget()
            continue
        verdict = judge_group(group.reads, logs)
        rows[case.name] = groups.describe(group, verdict)
        rows[case.name] |= await groups.output_of(stage, group, logs, "source")
        rows[case.name]["ok"] = not (verdict.missed or verdict.misread)
    return rows
