"""The programs alone, on one real cluster without any link: what they do by themselves, rolling restart included.

A client that fails here fails by itself, and its join time here is what a group's opening is compared with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from linker.demo.checker import check
from tests.clients import groups, producers
from tests.clients.build import CannotBuildError
from tests.clients.catalog import GroupCase, ProducerCase
from tests.clients.judge import Window, judge_group, largest_gap
from tests.clients.logs import committed_logs
from tests.clients.program import ProgramError
from tests.clients.stage import Stage

SECONDS = 3.0

Rows = dict[str, producers.Row]
Show = Callable[[str, producers.Row], None]


async def plain_producers(stage: Stage, cases: Sequence[ProducerCase], rows: Rows, show: Show) -> None:
    """Write, one restart, write, end."""
    for case in cases:
        rows[case.name] = await _producer(stage, case)
        show(case.name, rows[case.name])
        await stage.forget()


async def plain_groups(stage: Stage, cases: Sequence[GroupCase], rows: Rows, show: Show) -> None:
    """A group that reads under load; each member is restarted once; load ends; read to the end."""
    for case in cases:
        rows[case.name] = await _group(stage, case)
        show(case.name, rows[case.name])
        await stage.forget()


async def _producer(stage: Stage, case: ProducerCase) -> producers.Row:
    topic = producers.topic(case)
    try:
        one = await producers.program(stage, case)
        await stage.topic(topic, producers.PARTITIONS)
        await one.start(stage.bootstrap("source"), "source")
        await asyncio.sleep(SECONDS)
        restarted = time.time()
        await one.move(stage.bootstrap("source"), "source")
        ready = one.transcript.ready_at or time.time()
        await asyncio.sleep(SECONDS)
        await one.stop()
    except CannotBuildError as error:
        return {"skipped": str(error)}
    except ProgramError as error:
        return {"ok": False, "broke": str(error)}
    said = one.transcript
    logs = await asyncio.to_thread(committed_logs, stage.source.bootstrap, topic, producers.PARTITIONS)
    verdict = check(said.history(), logs, drained=False)
    row = producers.describe(said.version, verdict, [error.error for error in said.errors])
    row["largest_ack_gap_ms"] = largest_gap(said.acks, without=[Window(restarted, ready + 1.0)])
    return row


async def _group(stage: Stage, case: GroupCase) -> producers.Row:
    try:
        group = await groups.assemble(stage, case)
        await group.start()
        for member in group.members:
            await member.move(stage.bootstrap("source"), "source")
            await asyncio.sleep(SECONDS)
        await group.load.stop()
        logs = await asyncio.to_thread(committed_logs, stage.source.bootstrap, group.topic, groups.PARTITIONS)
        await group.read_to(logs)
        await group.stop()
    except CannotBuildError as error:
        return {"skipped": str(error)}
    except ProgramError as error:
        return {"ok": False, "broke": str(error)}
    verdict = judge_group(group.reads, logs)
    row = groups.describe(group, verdict)
    row |= await groups.output_of(stage, group, logs, "source")
    row["ok"] = not (verdict.missed or verdict.misread)
    return row
