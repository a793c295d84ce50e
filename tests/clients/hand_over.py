"""Groups of every library from the source to the target: rolling restart, promote of the group, promote of the topic.

Where asked for, the gate stays closed for minutes first, and the promote of the group is taken back and made again.
Half of the runs lose the sidecar, by SIGKILL, when two of three members have moved; it is started again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from lab.workload.checker import check
from tests.clients import groups
from tests.clients.build import CannotBuildError
from tests.clients.catalog import GroupCase
from tests.clients.groups import Group
from tests.clients.judge import SOURCE, TARGET, Window, by_event, judge_group
from tests.clients.logs import committed_logs
from tests.clients.program import ProgramError
from tests.clients.stage import LINK, Stage
from wire.errors import LinkerError

AT_ONCE = 3
LONG_GATE_RATE = 24  # records per second: minutes of them are read behind the gate
LOOK_AT_GATE_SECONDS = 15.0
DEMOTE_TIMEOUT = 120
GATED_TIMEOUT = 60.0
SETTLE_SECONDS = 2.0
BETWEEN_MEMBERS_SECONDS = 1.0
SYNC_INTERVAL_MS = 1000.0  # the link's default
OPENING_GOAL_MS = 1000.0  # beyond the library's own time to join
LOOK_SECONDS = 0.05
NOT_OPEN = frozenset({"DISCOVERED", "GATED", "DRAINING", "FINAL_SYNC"})

Row = dict[str, Any]


@dataclass
class Move:
    """One group on its way."""

    group: Group
    row: Row = field(default_factory=dict)
    asked: float = 0.0  # when the promote of the group was asked for
    opened: float = 0.0  # when it was last seen held
    back: Window | None = None  # at the source again, from the demote to the opening after it
    begins: dict[str, float] = field(default_factory=dict)  # when what was done to it began


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Beyond move and promote."""

    at_once: int = AT_ONCE
    gate_minutes: float = 0.0  # that the gate stays closed after all members have come
    demote: bool = False


async def hand_overs(
    stage: Stage,
    cases: Sequence[tuple[GroupCase, bool]],
    rows: dict[str, Row],
    show: Callable[[str, Row], None],
    plan: Plan,
) -> None:
    """Fill in a row of the report for every case and whether the sidecar is killed in it."""
    for crash in (False, True):
        some = [case for case, with_crash in cases if with_crash is crash]
        for first in range(0, len(some), plan.at_once):
            made = await _wave(stage, some[first : first + plan.at_once], plan, crash=crash)
            for name, row in made.items():
                name_of_run = f"{name} with a crash" if crash else name
                rows[name_of_run] = row
                show(name_of_run, row)
            await stage.forget()


async def _wave(stage: Stage, cases: Sequence[GroupCase], plan: Plan, *, crash: bool) -> dict[str, Row]:
    """Groups in step with each other, so that one death of the sidecar finds all of them at the same point."""
    rows: dict[str, Row] = {}
    moves: dict[str, Move] = {}
    for case in cases:
        try:
            rate = LONG_GATE_RATE if plan.gate_minutes else groups.RATE
            moves[case.name] = Move(await groups.assemble(stage, case, "-crash" if crash else "", rate=rate))
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}

    async def step(take: Callable[[Move], Awaitable[None]]) -> None:
        ended = await asyncio.gather(*(take(move) for move in moves.values()), return_exceptions=True)
        for name, result in zip(list(moves), ended, strict=True):
            if isinstance(result, LinkerError):
                version = moves.pop(name).group.version
                rows[name] = {"version": version, "ok": False, "broke": str(result)}
            elif isinstance(result, BaseException):
                raise result

    def move_member(number: int) -> Callable[[Move], Awaitable[None]]:
        async def take(move: Move) -> None:
            await move.group.members[number].move(stage.bootstrap(TARGET), TARGET)

        return take

    starting = asyncio.Semaphore(AT_ONCE)  # more JVMs at once take longer to start than they are given

    async def start(move: Move) -> None:
        async with starting:
            await move.group.start()
            move.begins["move"] = time.time()

    await step(start)
    await step(lambda move: stage.mirror(*move.group.topics))
    await step(lambda move: _gated(stage, move))
    for number in range(groups.MEMBERS):
        await step(move_member(number))
        await asyncio.sleep(BETWEEN_MEMBERS_SECONDS)
        if crash and number == 1 and stage.sidecar is not None:
            await stage.sidecar.kill()
            await stage.sidecar.start()
    if plan.gate_minutes:
        await step(lambda move: _hold(stage, move, plan.gate_minutes * 60))
    await step(lambda move: _promote_both(stage, move, demote=plan.demote))
    await asyncio.sleep(SETTLE_SECONDS)
    await step(lambda move: _finish(stage, move, crash=crash))
    return rows | {name: move.row for name, move in moves.items()}


async def _gated(stage: Stage, move: Move) -> None:
    """Wait until the group is held on the target."""
    name = move.group.name
    deadline = time.monotonic() + GATED_TIMEOUT
    while True:
        listed = await stage.linker("group", "list", "--link", LINK)
        found = next((one for one in listed if one["group"] == name), None)
        if found is not None and found["state"] == "GATED":
            move.row["gate"] = found["gate"]
            return
        if time.monotonic() > deadline:
            raise ProgramError(f"group {name} is not held after {GATED_TIMEOUT:.0f} s: {found}")
        await asyncio.sleep(0.3)


async def _hold(stage: Stage, move: Move, seconds: float) -> None:
    """Leave the gate closed; it has to be closed whenever it is looked at."""
    until = time.monotonic() + seconds
    async with _watch(stage, move.group.name, LOOK_AT_GATE_SECONDS) as states:
        while time.monotonic() < until:
            if others := {state for _, state in states} - {"GATED"}:
                raise ProgramError(f"{move.group.name} was to be held, and is {sorted(others)}")
            await asyncio.sleep(1.0)
    move.row["held_ms"] = round(seconds * 1000)
    move.row["looks_at_gate"] = len(states)


async def _demote_group(stage: Stage, move: Move) -> None:
    """Take the promote back, as an operator would: ask, end the members, start them at the source; then all of it again."""
    group = move.group
    asked = move.begins["demote"] = time.time()
    await asyncio.gather(
        stage.linker("group", "demote", group.name, "--link", LINK, "--timeout", str(DEMOTE_TIMEOUT)),
        *(member.stop() for member in group.members),
    )
    returned = time.time()
    await asyncio.gather(*(member.start(stage.bootstrap(SOURCE), SOURCE) for member in group.members))
    await group.until_read_everywhere(returned)
    read = time.time()
    await asyncio.sleep(SETTLE_SECONDS)
    move.begins["move again"] = time.time()
    for member in group.members:
        # One after the other, as before: a cooperative member of Java's cannot commit what it has read while the group
        # rebalances (docs/benchmarks/clients.md), and if all leave at once, nobody at the source is left to read it again.
        await member.move(stage.bootstrap(TARGET), TARGET)
        await asyncio.sleep(BETWEEN_MEMBERS_SECONDS)
    first, opened, row = move.row, move.opened, {}
    move.row, again = row, time.time()
    await _promote_group(stage, move, "promote again")
    move.row, move.opened, move.back = first, opened, Window(returned, move.opened)
    move.row |= {
        "demote_ms": round((returned - asked) * 1000),
        "read_at_source_again_ms": round((read - returned) * 1000),
        "promote_again_ms": round((time.time() - again) * 1000),
    }


async def _promote_group(stage: Stage, move: Move, name: str = "promote") -> None:
    group = move.group
    left = max(read.time for read in group.reads if read.cluster == SOURCE)
    move.asked = move.begins[name] = time.time()
    async with _watch(stage, group.name) as states:
        await stage.linker("group", "promote", group.name, "--link", LINK)
    move.opened = max((at for at, state in states if state in NOT_OPEN), default=move.asked)
    spent = time_in(states, move.asked)
    promoted = min((at for at, state in states if state == "PROMOTED"), default=time.time())
    move.row |= {
        "waited_for_promote_ms": round((move.asked - left) * 1000),
        # The start of the command, and its request: seconds on a machine that has more to do than it can.
        "command_ms": spent.get("GATED", 0),
        "drain_ms": spent.get("DRAINING", 0),
        "final_sync_ms": spent.get("FINAL_SYNC", 0),
        # Of the opening, the part that is the gate's: from the last look at which it held to the first at which it was gone.
        "gate_opening_ms": round((promoted - move.opened) * 1000),
        "promote_ms": round((time.time() - move.asked) * 1000),
    }
    await group.until_read_everywhere(move.opened)


async def _promote_both(stage: Stage, move: Move, *, demote: bool) -> None:
    """The group before its topics; one that writes in transactions after them, it could commit nothing before."""
    if not move.group.exactly_once:
        await _promote_group(stage, move)
        if demote:
            await asyncio.sleep(SETTLE_SECONDS)
            await _demote_group(stage, move)
    await move.group.load.move(stage.bootstrap(TARGET), TARGET)
    await asyncio.sleep(SETTLE_SECONDS)
    move.begins["topics"] = time.time()
    await stage.promote(*move.group.topics)
    if move.group.exactly_once:
        await _promote_group(stage, move)


async def _finish(stage: Stage, move: Move, *, crash: bool) -> None:
    """End load and members, and judge."""
    group = move.group
    await group.load.stop()
    logs = await asyncio.to_thread(committed_logs, stage.bootstrap(TARGET), group.topic, groups.PARTITIONS)
    await group.read_to(logs)
    await group.stop()
    verdict = judge_group(group.reads, logs, opened=move.opened, returned=move.back)
    written = check(group.load.transcript.history(), logs, drained=False)
    move.row |= groups.describe(group, verdict)
    move.row |= await groups.output_of(stage, group, logs, TARGET)
    held = [read.time for read in group.reads if read.cluster == TARGET]
    row = move.row
    errors = [one for member in group.members for one in member.transcript.errors]
    row |= {
        "errors_at": by_event([one.time for one in errors], move.begins),
        "reopening_ms": verdict.reopening_ms,
        "opening_ms": verdict.opening_ms,
        "first_read_after_opening_ms": round((min(held) - move.opened) * 1000) if held else None,
        "opening_goal_met": (verdict.opening_ms or 0.0) <= (group.join_ms or 0.0) + OPENING_GOAL_MS,
    }
    row["ok"] = written.ok and acceptable(
        row, crash=crash, exactly_once=group.exactly_once, rereads=group.case.library.rereads
    )


def acceptable(row: Row, *, crash: bool, exactly_once: bool, rereads: bool = False) -> bool:
    """Nothing missed or too early; nothing repeated, after a crash at most what one sync interval holds.

    A library that rereads by itself when leaders move does so on the target, after its group was promoted.

    An application that promises exactly once may read a record again whose transaction was aborted: its output counts.
    """
    if row["missed"] or row["misread"] or row["too_early"] or row.get("output_missed"):
        return False
    if exactly_once:
        return not row["output_repeated"]
    repeated = row["repeated"] - (row["repeated_at_target"] if rereads else 0)
    return not repeated or (crash and row["repeated_back_ms"] <= SYNC_INTERVAL_MS)


def time_in(states: Sequence[tuple[float, str]], since: float) -> dict[str, int]:
    """Milliseconds in each state but the last one, by looks at it after that moment."""
    spent: dict[str, int] = {}
    for (_, state), (at, following) in itertools.pairwise(states):
        if following != state:
            spent[state] = round((at - since) * 1000)
            since = at
    return spent


@contextlib.asynccontextmanager
async def _watch(
    stage: Stage, group: str, every: float = LOOK_SECONDS
) -> AsyncIterator[list[tuple[float, str]]]:
    """The states that the group is seen in meanwhile, each with when it was asked for."""
    if stage.sidecar is None:
        raise ProgramError("this stage has no sidecar")
    sidecar = stage.sidecar
    seen: list[tuple[float, str]] = []

    async def look() -> None:
        async with httpx.AsyncClient(base_url=sidecar.admin_url, timeout=5.0, trust_env=False) as http:
            while True:
                asked = time.time()
                with contextlib.suppress(httpx.HTTPError):  # the next look will tell
                    answer = await http.get(f"/v1/links/{LINK}/groups/{group}", auth=sidecar.authorize)
                    if answer.status_code == 200:
                        seen.append((asked, answer.json()["state"]))
                await asyncio.sleep(every)

    task = asyncio.create_task(look(), name=f"looking at {group}")
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])
