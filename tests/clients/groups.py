"""A group of three applications of one library over twelve partitions, and a producer that keeps them busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.workload.history import PartitionLog
from tests.clients.catalog import LIBRDKAFKA, GroupCase, ProducerCase
from tests.clients.judge import GroupRead, GroupVerdict, judge_output
from tests.clients.logs import committed_logs
from tests.clients.program import Program, ProgramError
from tests.clients.stage import Stage
from wire.frames.types import TopicPartition

MEMBERS = 3
PARTITIONS = 12
RATE = 240  # records per second over all partitions
JOIN_TIMEOUT = 90.0
READ_TIMEOUT = 60.0
POLL = 0.05
MAX_TEXTS = 5

Row = dict[str, Any]


@dataclass
class Group:
    """The applications of one case."""

    case: GroupCase
    suffix: str  # tells runs of one case apart
    load: Program
    partitions: int = PARTITIONS
    members: list[Program] = field(default_factory=list)
    bootstrap: str = ""
    join_ms: float | None = None  # of the slowest member at the source, from its client to its first record

    @property
    def name(self) -> str:
        return f"group-{self.case.name}{self.suffix}"

    @property
    def topic(self) -> str:
        return f"read-{self.case.name}{self.suffix}"

    @property
    def output(self) -> str | None:
        """Where a Streams application writes to."""
        return f"out-{self.case.name}{self.suffix}" if self.case.streams else None

    @property
    def exactly_once(self) -> bool:
        return self.case.arguments.get("guarantee") == "exactly_once_v2"

    @property
    def topics(self) -> list[str]:
        return [self.topic, *([self.output] if self.output else [])]

    @property
    def reads(self) -> list[GroupRead]:
        return [read for member in self.members for read in member.transcript.reads]

    @property
    def version(self) -> str:
        return self.members[0].transcript.version

    async def start(self) -> None:
        """The load first, then all members at once; wait until each member reads and every partition is read."""
        await self.load.start(self.bootstrap, "source")
        began = time.time()
        # no TaskGroup: an error is to be one error, and whoever assembled the group ends the others
        await asyncio.gather(*(member.start(self.bootstrap, "source") for member in self.members))
        for member in self.members:
            await member.until(
                lambda said=member.transcript: bool(said.reads), JOIN_TIMEOUT, "read something"
            )  # type: ignore[misc]
        await self.until_read_everywhere(began)
        joined = [m.transcript.reads[0].time - (m.transcript.ready_at or 0.0) for m in self.members]
        self.join_ms = round(max(joined) * 1000)

    async def until_read_everywhere(self, since: float) -> None:
        """Wait until every partition had a read after that moment.

        Raises:
            ProgramError: It took too long; says which ones had none.
        """
        deadline = time.monotonic() + JOIN_TIMEOUT
        while True:
            missing = set(range(self.partitions)) - {
                r.partition.partition for r in self.reads if r.time >= since
            }
            if not missing:
                return
            if time.monotonic() > deadline:
                raise ProgramError(
                    f"{self.name}: partitions {sorted(missing)} not read in {JOIN_TIMEOUT:.0f} s"
                )
            await asyncio.sleep(POLL)

    async def read_to(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """Give the members the time to read the logs to their ends; what is missing then, the judge names."""
        wanted = {(tp, record.offset) for tp, log in logs.items() for record in log.records}
        deadline = time.monotonic() + READ_TIMEOUT
        while wanted - {(read.partition, read.offset) for read in self.reads} and time.monotonic() < deadline:
            await asyncio.sleep(0.5)

    async def stop(self) -> None:
        for member in self.members:
            await member.stop()


async def assemble(
    stage: Stage,
    case: GroupCase,
    suffix: str = "",
    *,
    partitions: int = PARTITIONS,
    members: int = MEMBERS,
    rate: int = RATE,
    make_topic: Callable[[str, int], Awaitable[None]] | None = None,
    writer: ProducerCase | None = None,
) -> Group:
    """Topics and applications of a case; nothing runs yet. make_topic: in place of the stage's; writer: of librdkafka's.

    Raises:
        CannotBuildError: This machine lacks what the library needs.
    """
    name = f"{case.name}{suffix}"
    load_arguments = {"role": "producer", "topic": f"read-{name}", "rate": str(rate)}
    library = LIBRDKAFKA
    if writer is not None:
        library = writer.library
        load_arguments |= writer.arguments
    load = await stage.program(library, f"load-{name}", load_arguments, partitions=partitions)
    group = Group(case, suffix, load, partitions, bootstrap=stage.bootstrap("source"))
    for number in range(1, members + 1):
        member = f"{name}-m{number}"
        arguments = {"role": "consumer", "topic": group.topic, "group": group.name, **case.arguments}
        if case.static:
            arguments["instance"] = member
        if group.output:
            arguments |= {
                "role": "streams",
                "output": group.output,
                "state": str(stage.logs / f"{member}.state"),
            }
        group.members.append(await stage.program(case.library, member, arguments, partitions=partitions))
    for topic in group.topics:
        await (make_topic or stage.topic)(topic, partitions)
    return group


def describe(group: Group, verdict: GroupVerdict) -> Row:
    """What the judge found, as it stands in the report."""
    errors = [error for member in group.members for error in member.transcript.errors]
    findings = [
        *verdict.missed,
        *verdict.misread,
        *verdict.early,
        *verdict.repeated_across,
        *verdict.repeated_at_target,
    ]
    texts = sorted({error.error for error in errors})
    return {
        "version": group.version,
        "records": verdict.records,
        "missed": len(verdict.missed),
        "misread": len(verdict.misread),
        "too_early": len(verdict.early),
        "repeated": len(verdict.repeated_across) + len(verdict.repeated_at_target),
        "repeated_at_target": len(verdict.repeated_at_target),
        "repeated_back_ms": verdict.repeated_back_ms,
        "repeated_at_source": len(verdict.repeated_at_source),
        "longest_pause_ms": verdict.longest_pause_ms,
        "join_ms": group.join_ms,
        "errors": len(errors),
        **({"error_texts": texts[:MAX_TEXTS]} if texts else {}),
        **({"evidence": [str(one) for one in findings[:MAX_TEXTS]]} if findings else {}),
    }


async def output_of(
    stage: Stage, group: Group, logs: Mapping[TopicPartition, PartitionLog], cluster: str
) -> Row:
    """What a Streams application's output holds of its input; nothing for other applications."""
    if group.output is None:
        return {}
    outputs = await asyncio.to_thread(
        committed_logs, stage.bootstrap(cluster), group.output, group.partitions
    )
    missed, repeated = judge_output(logs, outputs)
    return {"output_missed": len(missed), "output_repeated": len(repeated)}
