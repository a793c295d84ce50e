"""Producers of every library through link, move, a roll of the target, the sidecar's death and promote; one topic each.

A transactional producer moves after the roll and the death: its transaction waits for the promote, for a minute at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.workload.checker import Finding, Verdict, check
from lab.workload.history import Ack, PartitionLog, Unacked
from tests.clients.build import CannotBuildError
from tests.clients.catalog import Library, ProducerCase
from tests.clients.events import kill, roll
from tests.clients.judge import Window, by_event, largest_gap
from tests.clients.logs import committed_logs
from tests.clients.program import Program, ProgramError
from tests.clients.stage import Stage
from wire.frames.types import TopicPartition

PARTITIONS = 6
RATE = 100  # records per second and producer
AT_ONCE = 6
SETTLE_SECONDS = 3.0
HELD_SECONDS = 3.0
FIRST_ACK_TIMEOUT = 30.0
GAP_GOAL_MS = 1000.0
MAX_TEXTS = 5
ANSWERED_SECONDS = 5.0  # after the leader is back, for writes that were under way when it died

#: By `make clients PLAIN=1`: the events at which these clients have errors from stock brokers. sarama tries three times.
GIVES_UP = {"kafka-go": frozenset({"kill"}), "sarama": frozenset({"kill"})}

NOT_YET = Window(0.0, 0.0)

Row = dict[str, Any]


async def producers(
    stage: Stage,
    cases: Sequence[ProducerCase],
    rows: dict[str, Row],
    show: Callable[[str, Row], None],
    hold: float = HELD_SECONDS,
    events: str = "every",
) -> None:
    """Fill in a row of the report for every case.

    `hold`: seconds that transactions at the target wait for the promote. `events`: in which waves the target is rolled and
    the sidecar killed, every, first or none.
    """
    cases = sorted(cases, key=lambda case: case.transactional)
    for first in range(0, len(cases), AT_ONCE):
        disturbed = events == "every" or (events == "first" and first == 0)
        made = await _wave(stage, cases[first : first + AT_ONCE], hold, disturbed=disturbed)
        for name, row in made.items():
            rows[name] = row
            show(name, row)
        await stage.forget()


@dataclass
class Move:
    """One producer on its way; times are seconds since the epoch."""

    case: ProducerCase
    one: Program
    restarted: float = 0.0
    at_source: int = 0  # acknowledgements there
    forwarded: int = 0  # acknowledgements at the target before the promote
    roll: Window = NOT_YET
    kill: Window = NOT_YET
    promote: Window = NOT_YET
    phases_ms: dict[str, int] = field(default_factory=dict)


async def _wave(
    stage: Stage, cases: Sequence[ProducerCase], hold: float, *, disturbed: bool
) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    moves: dict[str, Move] = {}
    for case in cases:
        try:
            moves[case.name] = Move(case, await program(stage, case))
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}

    async def step(take: Callable[[Move], Awaitable[None]], *, only: bool | None = None) -> None:
        """One after the other, as a person would; who breaks is out. `only`: the transactional ones, or the others."""
        for name, move in list(moves.items()):
            if only is not None and move.case.transactional is not only:
                continue
            try:
                await take(move)
            except ProgramError as error:
                said = moves.pop(name).one.transcript
                texts = sorted({one.error for one in [*said.errors, *said.unacked]})[:MAX_TEXTS]
                rows[name] = {"version": said.version, "ok": False, "broke": str(error), "error_texts": texts}
                await move.one.kill()

    async def start(move: Move) -> None:
        await stage.topic(topic(move.case), PARTITIONS)
        await move.one.start(stage.bootstrap("source"), "source")

    async def finish(move: Move) -> None:
        await move.one.stop()
        rows[move.case.name] = await _judge(stage, move)

    await step(start)
    await step(lambda move: _acked(move.one))
    if moves:
        await stage.mirror(*(topic(move.case) for move in moves.values()))
    await step(lambda move: _restart(stage, move), only=False)
    writing = [move for move in moves.values() if not move.case.transactional]
    if disturbed and writing:
        await asyncio.sleep(SETTLE_SECONDS)
        rolled = await roll(stage)
        for move in writing:
            move.roll = rolled
        await asyncio.sleep(1.0)
        killed = await kill(stage, [topic(move.case) for move in writing], PARTITIONS)
        for move in writing:
            move.kill = killed
        await step(_acked_again, only=False)
    # A transaction that is begun at the target waits for its promote, for a minute at most: not for those of others too.
    await step(lambda move: _restart(stage, move), only=True)
    await asyncio.sleep(
        max(SETTLE_SECONDS, hold if any(move.case.transactional for move in moves.values()) else 0)
    )
    await step(lambda move: _promote(stage, move), only=True)
    await step(lambda move: _promote(stage, move), only=False)
    await asyncio.sleep(SETTLE_SECONDS)
    await step(finish)
    return rows


async def program(stage: Stage, case: ProducerCase) -> Program:
    """The application of a case, not started."""
    arguments = {"role": "producer", "topic": topic(case), "rate": str(RATE), **case.arguments}
    if case.transactional:
        arguments |= {"role": "transactions", "transactional_id": case.name}
    return await stage.program(case.library, case.name, arguments, partitions=PARTITIONS)


def topic(case: ProducerCase) -> str:
    return f"by-{case.name}"


async def _acked(one: Program, beyond: int = 0) -> None:
    await one.until(lambda: len(one.transcript.acks) > beyond, FIRST_ACK_TIMEOUT, "get a write acknowledged")


async def _acked_again(move: Move) -> None:
    await _acked(move.one, len(move.one.transcript.acks))


async def _restart(stage: Stage, move: Move) -> None:
    move.restarted = time.time()
    await move.one.stop()
    move.at_source = len(move.one.transcript.acks)
    await move.one.start(stage.bootstrap("target"), "target")
    if not move.case.transactional:
        await _acked(move.one, move.at_source)


async def _promote(stage: Stage, move: Move) -> None:
    move.forwarded = len(move.one.transcript.acks) - move.at_source
    begin = time.time()
    job = await stage.promote(topic(move.case))
    move.promote = Window(begin, time.time())
    move.phases_ms = job.get("phases_ms", {})
    await _acked(move.one, move.at_source + move.forwarded)


async def _judge(stage: Stage, move: Move) -> Row:
    said, case = move.one.transcript, move.case
    logs = await asyncio.to_thread(committed_logs, stage.target.bootstrap, topic(case), PARTITIONS)
    verdict = check(said.history(), logs, promote=move.promote, drained=False)
    moved = [ack.time for ack in said.acks[move.at_source :]]
    row = describe(said.version, verdict, [error.error for error in said.errors])
    row["largest_ack_gap_ms"] = largest_gap(said.acks, without=[Window(move.restarted, moved[0]), move.kill])
    begins = {
        "move": move.restarted,
        "roll": move.roll.begin,
        "kill": move.kill.begin,
        "promote": move.promote.begin,
    }
    ours = [one.time for one in (*said.errors, *said.unacked) if not case.library.owns(one.error)]
    row["errors_at"] = by_event(ours, begins)
    for name, window in (("roll", move.roll), ("kill", move.kill)):
        if window is not NOT_YET:
            row[f"{name}_gap_ms"] = largest_gap(said.acks, within=window)
    again = (*verdict.duplicated, *verdict.reordered)
    row["doubled_elsewhere"] = elsewhere(again, logs, (*said.acks, *said.unacked), move.kill)
    own = sum(case.library.owns(one.error) for one in said.unacked)
    judged = row | {"unknown": row["unknown"] - own, "errors": len(ours)}
    row["ok"] = clean(case.library, verdict, said.unacked) or sound(
        judged, excused(case), again=not idempotent(case)
    )
    if case.transactional:
        # what was written before the promote waits for it: that is the hold, and no gap
        row |= {
            "acked_before_promote": move.forwarded,
            "held_ms": round((move.promote.begin - move.restarted) * 1000),
            "resumed_ms": round((moved[0] - move.promote.begin) * 1000),
        }
        row["ok"] = row["ok"] and move.forwarded == 0
    else:
        row["promote_gap_ms"] = largest_gap(said.acks, within=move.promote)
    row["promote_phases_ms"] = move.phases_ms
    row["gap_goal_met"] = (row["largest_ack_gap_ms"] or 0) <= GAP_GOAL_MS
    return row


def clean(library: Library, verdict: Verdict, unacked: Iterable[Unacked]) -> bool:
    """Nothing lost or doubled, and no error and no unknown outcome but those that the library gets from any brokers."""
    own = sum(library.owns(one.error) for one in unacked)
    own_only = verdict.unknown == own and all(library.owns(text) for text in verdict.client_errors)
    return own_only and verdict.violations.keys() <= {"client_errors"}


def idempotent(case: ProducerCase) -> bool:
    """Whether a write that is tried again is written once."""
    return case.library.name != "kafka-go" and case.label not in ("sync", "plain")


def excused(case: ProducerCase) -> frozenset[str]:
    """The events at which the client has errors from stock brokers, too."""
    return next((events for name, events in GIVES_UP.items() if case.name.startswith(name)), frozenset())


def elsewhere(
    again: Iterable[Finding],
    logs: Mapping[TopicPartition, PartitionLog],
    outcomes: Iterable[Ack | Unacked],
    kill: Window,
) -> int:
    """How many of these records had their outcome at another time than around the kill, or none."""
    numbers = {(tp, record.offset): record.sequence for tp, log in logs.items() for record in log.records}
    around = Window(kill.begin, kill.end + ANSWERED_SECONDS)
    explained = {one.sequence for one in outcomes if around.overlaps(one.time, one.time)}
    return sum(numbers[one.partition, one.offset or 0] not in explained for one in again)


def sound(row: Row, excused: frozenset[str], *, again: bool = False) -> bool:
    """Nothing lost; errors only where stock brokers give them; doubled only by a client that tries a write `again` as new.

    Such a client writes twice whenever an answer does not arrive: around the death of a leader, at any Kafka.
    """
    if row["lost"] or row["otherwise_wrong"] or not excused.issuperset(row["errors_at"]):
        return False
    if (row["unknown"] and not row["errors_at"]) or (row["errors"] and not row["errors_at"]):
        return False
    killed = again and "kill_gap_ms" in row and not row["doubled_elsewhere"]
    return killed or not (row["duplicated"] or row["reordered"])


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
