"""The programs alone, on one real cluster without any link: what they do by themselves, at the same events.

A client that fails here fails by itself. How long members that wait in a group without partitions need to take over from
those who leave is what a group's opening is compared with: it is the same to them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from lab.workload.checker import check
from tests.clients import groups, producers
from tests.clients.build import CannotBuildError
from tests.clients.catalog import GroupCase, ProducerCase
from tests.clients.events import kill, roll
from tests.clients.judge import GroupRead, Window, by_event, judge_group, largest_gap
from tests.clients.logs import committed_logs
from tests.clients.program import ProgramError
from tests.clients.stage import Stage
from wire.task_group import TaskGroup

SECONDS = 3.0
STANDBYS = groups.MEMBERS  # that wait for the one who has the only partition, as they wait for a gate
SETTLE_SECONDS = 8.0  # until all have joined, whoever reads then
#: Members that joined together beat together, every 3 s: who has the partition leaves at different times between beats.
LATER_SECONDS = (0.0, 1.0, 2.0)
LOOK_BACK_SECONDS = 1.0

Rows = dict[str, producers.Row]
Show = Callable[[str, producers.Row], None]


async def plain_producers(stage: Stage, cases: Sequence[ProducerCase], rows: Rows, show: Show) -> None:
    """Write, one restart, write, a roll of the brokers, the death of the one that leads all, write, end; some at once."""
    for first in range(0, len(cases), producers.AT_ONCE):
        some = cases[first : first + producers.AT_ONCE]
        windows: dict[str, Window] = {}
        around = asyncio.Barrier(len(some) + 1)
        async with TaskGroup() as tasks:  # one that breaks off ends the wait for it, too
            made = [tasks.create_task(_producer(stage, case, windows, around)) for case in some]
            await around.wait()
            await asyncio.sleep(SECONDS)
            windows["roll"] = await roll(stage)
            await asyncio.sleep(SECONDS)
            known = [producers.topic(case) for case in some]
            windows["kill"] = await kill(stage, known, producers.PARTITIONS)
            await around.wait()
        for case, one in zip(some, made, strict=True):
            rows[case.name] = row = one.result()
            show(case.name, row)
        await stage.forget()


async def plain_groups(stage: Stage, cases: Sequence[GroupCase], rows: Rows, show: Show) -> None:
    """A group that reads under load; each member is restarted once; load ends; read to the end."""
    for case in cases:
        rows[case.name] = await _group(stage, case)
        show(case.name, rows[case.name])
        await stage.forget()


async def standbys(stage: Stage, cases: Sequence[GroupCase], rows: Rows, show: Show) -> None:
    """Three members wait without a partition while a fourth has the only one; it leaves; again and again."""
    for case in cases:
        try:
            rows[case.name] = await _standby(stage, case)
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}
        except ProgramError as error:
            rows[case.name] = {"ok": False, "broke": str(error)}
        show(case.name, rows[case.name])
        await stage.forget()


async def _standby(stage: Stage, case: GroupCase) -> producers.Row:
    group = await groups.assemble(stage, case, "-standby", partitions=1, members=1 + STANDBYS)
    bootstrap = stage.bootstrap("source")
    await group.load.start(bootstrap, "source")
    await asyncio.gather(*(member.start(bootstrap, "source") for member in group.members))
    await group.until_read_everywhere(0.0)
    took: list[float] = []
    for later in LATER_SECONDS:
        await asyncio.sleep(SETTLE_SECONDS + later)
        now = time.time()
        reading = {read.member for read in group.reads if read.time > now - LOOK_BACK_SECONDS}
        leaving = [member for member in group.members if member.name in reading]
        if len(leaving) != 1:
            raise ProgramError(f"{group.name}: {sorted(reading)} read the only partition at the same time")
        await leaving[0].stop()
        await group.until_read_everywhere(max(r.time for r in group.reads if r.member in reading) + 0.001)
        took.append(round(taken_over_after(group.reads, reading), 1))
        await leaving[0].start(bootstrap, "source")
    await group.load.stop()
    await group.stop()
    return {"version": group.version, "ok": True, "takeover_ms": max(took), "takeovers_ms": took}


def taken_over_after(reads: Sequence[GroupRead], left: Collection[str]) -> float:
    """Milliseconds from the last read of those who left until each partition was read by somebody else afterwards."""
    gone = max(read.time for read in reads if read.member in left)
    firsts: dict[int, float] = {}
    for read in reads:
        if read.time > gone and read.member not in left:
            index = read.partition.partition
            firsts[index] = min(read.time, firsts.get(index, read.time))
    return (max(firsts.values()) - gone) * 1000


async def _producer(
    stage: Stage, case: ProducerCase, windows: dict[str, Window], around: asyncio.Barrier
) -> producers.Row:
    topic = producers.topic(case)
    await stage.topic(topic, producers.PARTITIONS)
    try:
        one = await producers.program(stage, case)
        await one.start(stage.bootstrap("source"), "source")
        await asyncio.sleep(SECONDS)
        restarted = time.time()
        await one.move(stage.bootstrap("source"), "source")
        ready = one.transcript.ready_at or time.time()
        await around.wait()  # before the events
        await around.wait()  # after them
        await asyncio.sleep(SECONDS)
        await one.stop()
    except (CannotBuildError, ProgramError) as error:
        if not windows:
            await around.wait()
        if "kill" not in windows:
            await around.wait()
        return (
            {"skipped": str(error)}
            if isinstance(error, CannotBuildError)
            else {"ok": False, "broke": str(error)}
        )
    said = one.transcript
    logs = await asyncio.to_thread(committed_logs, stage.source.bootstrap, topic, producers.PARTITIONS)
    verdict = check(said.history(), logs, drained=False)
    row = producers.describe(said.version, verdict, [error.error for error in said.errors])
    row["largest_ack_gap_ms"] = largest_gap(
        said.acks, without=[Window(restarted, ready + 1.0), windows["kill"]]
    )
    row["errors_at"] = by_event(
        [one.time for one in (*said.errors, *said.unacked)],
        {"move": restarted, **{name: window.begin for name, window in windows.items()}},
    )
    for name, window in windows.items():
        row[f"{name}_gap_ms"] = largest_gap(said.acks, within=window)
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
