"""A producer and a group of every library at the source, never restarted, while their topics are switched and switched back.

All of them at once. They start before the link knows of their topics; then it joins its source, mirrors the topics, brings
them in sync, hands them to the target, and back. Groups stay at their coordinators.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lab.workload.checker import Finding, check
from lab.workload.history import Ack, PartitionLog, Unacked
from tests.clients import groups, producers
from tests.clients.build import CannotBuildError
from tests.clients.catalog import SwitchCase
from tests.clients.groups import Group
from tests.clients.judge import SOURCE, TARGET, Window, by_event, differences, judge_group, longest_waits
from tests.clients.logs import committed_logs
from tests.clients.program import ProgramError
from tests.clients.stage import LINK, Stage
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

PARTITIONS = 6
RATE = 60  # records per second and producer
COPIES = 2  # of a topic at the source, of as many brokers
STARTED_AT_ONCE = 3  # more JVMs at once take longer to start than they are given
QUICK_SECONDS, SECONDS = 4.0, 20.0  # of traffic before the link does anything, and after each switch
JOINED_TIMEOUT = 60.0
EQUAL_TIMEOUT = 30.0
LOOK_SECONDS = 0.3
MAX_TEXTS = 5
WAYS = ("there", "back")

Row = dict[str, Any]


@dataclass
class Ride:
    """One library's clients on the way of all; times are seconds since the epoch."""

    case: SwitchCase
    group: Group
    ended: float = 0.0  # when the writer was told to end


@dataclass
class Timeline:
    """When each phase began, and how long the sidecar spent in each phase of a switch."""

    begins: dict[str, float] = field(default_factory=dict)
    phases_ms: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        self.begins[phase] = time.time()

    def windows(self, end: float) -> dict[str, Window]:
        """Each phase until the next one begins."""
        begun = [*self.begins.items(), ("", end)]
        return {name: Window(begin, until) for (name, begin), (_, until) in pairwise(begun)}


async def switches(
    stage: Stage,
    cases: Sequence[SwitchCase],
    rows: dict[str, Row],
    show: Callable[[str, Row], None],
    seconds: float = SECONDS,
) -> None:
    """Fill in a row of the report for every case."""
    rides: dict[str, Ride] = {}
    for case in cases:
        try:
            rides[case.name] = Ride(case, await _assembled(stage, case))
        except CannotBuildError as error:
            rows[case.name] = {"skipped": str(error)}
            show(case.name, rows[case.name])
    several = asyncio.Semaphore(STARTED_AT_ONCE)

    async def step(take: Callable[[Ride], Awaitable[None]]) -> None:
        """A few at a time; a library that breaks is out, and has its row."""

        async def one(ride: Ride) -> None:
            async with several:
                await take(ride)

        ended = await asyncio.gather(*map(one, rides.values()), return_exceptions=True)
        for name, result in zip(list(rides), ended, strict=True):
            if isinstance(result, LinkerError):
                ride = rides.pop(name)
                rows[name] = {
                    "version": ride.group.version,
                    "ok": False,
                    "broke": str(result),
                    "error_texts": _texts(one.error for one in _faults(ride)),
                }
                show(name, rows[name])
            elif isinstance(result, BaseException):
                raise result

    async def finish(ride: Ride) -> None:
        rows[ride.case.name] = row = await _judge(stage, ride, timeline)
        show(ride.case.name, row)

    timeline = Timeline()
    await step(lambda ride: ride.group.start())
    topics = [topic for ride in rides.values() for topic in ride.group.topics]
    if topics:
        await _there_and_back(stage, topics, timeline, seconds)
    await step(_end_writer)
    await step(finish)
    await stage.forget()


async def _assembled(stage: Stage, case: SwitchCase) -> Group:
    async def make_topic(name: str, partitions: int) -> None:
        await stage.topic(name, partitions, SOURCE, min(COPIES, len(stage.source.brokers)))

    return await groups.assemble(
        stage,
        case.group,
        "-switched",
        partitions=PARTITIONS,
        members=1,
        rate=RATE,
        make_topic=make_topic,
        writer=case.writer,
    )


async def _there_and_back(stage: Stage, topics: Sequence[str], timeline: Timeline, seconds: float) -> None:
    timeline.begin("before")
    await asyncio.sleep(seconds)
    timeline.begin("join")
    await stage.linker("link", "update", LINK, "--join-source")
    await _joined(stage)
    timeline.begin("mirror")
    await stage.mirror(*topics)
    timeline.begin("sync")
    await stage.linker("mirror", "sync", *topics, "--link", LINK)
    await stage.mirrors_are(topics, lambda one: one["sync"] == "IN_SYNC", "in sync")
    for way, direction in zip(WAYS, ("REVERSED", "FORWARD"), strict=True):
        timeline.begin(way)
        # Without Spark: what clients see is looked at here, and the logs by the judges.
        job = await stage.linker("mirror", "switch", *topics, "--link", LINK, "--validation", "skip")
        if job["phase"] != "PROMOTED":
            raise ProgramError(f"the switch {way} was abandoned: {job['reason']}")
        timeline.phases_ms[way] = job["phases_ms"]
        await stage.mirrors_are(
            topics,
            lambda one, wanted=direction: one["direction"] == wanted and one["state"] == "ACTIVE",  # type: ignore[misc]
            f"{direction} and ACTIVE",
        )
        await asyncio.sleep(seconds)


async def _joined(stage: Stage) -> None:
    """Until the sidecar is a broker of the source, and the link forwards writes, which a switch would wait for."""
    deadline = time.monotonic() + JOINED_TIMEOUT
    while True:
        link = await stage.linker("link", "describe", LINK)
        states = [one["state"] for one in link["source_membership"]]
        if states == ["JOINED"] and link["forwarding"]["enabled"]:
            return
        if time.monotonic() > deadline:
            raise ProgramError(
                f"the source is not joined after {JOINED_TIMEOUT:.0f} s: {link['source_membership']}"
            )
        await asyncio.sleep(LOOK_SECONDS)


async def _end_writer(ride: Ride) -> None:
    ride.ended = time.time()
    await ride.group.load.stop()


async def _judge(stage: Stage, ride: Ride, timeline: Timeline) -> Row:
    group, end = ride.group, ride.ended
    logs = await asyncio.to_thread(committed_logs, stage.bootstrap(SOURCE), group.topic, PARTITIONS)
    await group.read_to(logs)
    await group.stop()
    said = group.load.transcript
    verdict = check(said.history(), logs, drained=False)
    read = judge_group(group.reads, logs)
    windows = timeline.windows(end)
    row = producers.describe(group.version, verdict, [error.error for error in said.errors])
    if ride.case.writer.library != ride.case.group.library:
        row["writer"] = f"{ride.case.writer.name} {said.version}"
    faults = _faults(ride)
    own = own_faults(ride)
    held = [one for member in group.members for one in member.transcript.memberships]
    row |= {
        "errors": len(faults),
        "own_errors": len(own),
        "own_unknown": sum(ride.case.writer.library.owns(one.error) for one in said.unacked),
        "errors_at": by_event([one.time for one in faults], timeline.begins),
        "records": read.records,
        "missed": len(read.missed),
        "misread": len(read.misread),
        "repeated": len(read.repeated_at_source),
        # Its member is alone in its group: a group that it left, or was put out of, and joined again.
        "rejoins": sum(one.event == "assigned" and one.time > timeline.begins["before"] for one in held),
        "doubled_at": by_event(
            _times_of(verdict.duplicated, logs, [*said.acks, *said.unacked]), timeline.begins
        ),
    }
    if faults:
        row["error_texts"] = _texts(one.error for one in faults)
    waits = {
        "gap": longest_waits([[ack.time for ack in said.acks]], windows, end),
        "partition_gap": longest_waits(_by_partition(said.acks), windows, end),
        "read_pause": longest_waits(_by_partition(group.reads), windows, end),
    }
    row |= {f"{phase}_{kind}_ms": ms for kind, by_phase in waits.items() for phase, ms in by_phase.items()}
    row |= await groups.output_of(stage, group, logs, SOURCE)
    unequal = await _unequal(stage, group, logs)
    row["unequal_at_target"] = len(unequal)
    evidence = [*row.get("evidence", []), *map(str, (*read.missed, *read.misread, *read.repeated_at_source))]
    if found := [*evidence, *map(str, unequal)]:
        row["evidence"] = found[:MAX_TEXTS]
    row["switch_phases_ms"] = dict(timeline.phases_ms)
    row["ok"] = undisturbed(
        row, rereads=ride.case.group.library.rereads, again=not producers.idempotent(ride.case.writer)
    )
    return row


async def _unequal(stage: Stage, group: Group, logs: Mapping[TopicPartition, PartitionLog]) -> list[Any]:
    """What the target's log has otherwise, once it has had the time to follow to the end."""
    deadline = time.monotonic() + EQUAL_TIMEOUT
    while True:
        there = await asyncio.to_thread(committed_logs, stage.bootstrap(TARGET), group.topic, PARTITIONS)
        found = differences(logs, there)
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(LOOK_SECONDS)


def undisturbed(row: Mapping[str, Any], *, rereads: bool = False, again: bool = False) -> bool:
    """No error but those that the library gets from stock brokers, nothing lost, doubled, out of order, missed or repeated.

    A library that begins anew when leaders move reads again what it had not committed. One that does not number its writes
    tries a write `again` as new when its leader changes before all replicas have it, and the log has it twice.
    """
    nothing = ("lost", "reordered", "otherwise_wrong", "missed", "misread", "unequal_at_target")
    if any(row[what] for what in nothing) or row.get("output_missed") or row.get("output_repeated"):
        return False
    at_switches = sum(row["doubled_at"].get(way, 0) for way in WAYS)
    if row["duplicated"] and not (
        again and at_switches == sum(row["doubled_at"].values()) >= row["duplicated"]
    ):
        return False
    earlier = row["errors_at"].get("before", 0)  # when the link had done nothing yet
    if row["errors"] > row["own_errors"] + earlier or row["unknown"] > row["own_unknown"]:
        return False
    return bool(row["acked"]) and (rereads or not row["repeated"])


def own_faults(ride: Ride) -> list[Any]:
    """Those that the library gets from stock brokers whose leaders change, too."""
    writer, reader = ride.case.libraries
    load = ride.group.load.transcript
    own = [one for one in (*load.errors, *load.unacked) if writer.owns(one.error)]
    return own + [
        one for member in ride.group.members for one in member.transcript.errors if reader.owns(one.error)
    ]


def _faults(ride: Ride) -> list[Any]:
    """Every error that reached one of the applications."""
    load = ride.group.load.transcript
    readers = [one for member in ride.group.members for one in member.transcript.errors]
    return [*load.errors, *load.unacked, *readers]


def _texts(errors: Iterable[str]) -> list[str]:
    return sorted(set(errors))[:MAX_TEXTS]


def _times_of(
    found: Iterable[Finding], logs: Mapping[TopicPartition, PartitionLog], outcomes: Iterable[Ack | Unacked]
) -> list[float]:
    """When the records at these offsets had their outcomes."""
    numbers = {(tp, record.offset): record.sequence for tp, log in logs.items() for record in log.records}
    wanted = {numbers[one.partition, one.offset or 0] for one in found}
    return [one.time for one in outcomes if one.sequence in wanted]


def _by_partition(some: Iterable[Any]) -> Iterable[list[float]]:
    """When each partition had something."""
    times: dict[TopicPartition, list[float]] = {}
    for one in some:
        times.setdefault(one.partition, []).append(one.time)
    return times.values()
