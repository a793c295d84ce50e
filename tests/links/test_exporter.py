"""The exporter against brokers with logs of their own: where the logs part, the rest that only one has, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.state import Exported
from fetcher.followed import SourceLeader
from linker.switch.exporter import Exporter, ToExport
from linker.switch.log_tail import LogTails
from tests.fakes.batches import build_batch
from wire.errors import LinkerError
from wire.frames.error_codes import OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH
from wire.frames.fetch import FetchedPartition, FetchRequest, FetchResponse
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import Node, TopicPartition

TP = TopicPartition("t", 0)
ID = b"\x09" * 16
#: Copied up to 6; the source had written from 4 on under epoch 3.
HISTORY = LeaderEpochs.of(2**31 - 1, 6, ((2, 0), (3, 4)))


class Logs:
    """A cluster whose brokers each have a log: the epoch of each of its records. It answers as Kafka's own do."""

    def __init__(self, **logs: list[int]) -> None:
        self.logs = {int(name[1:]): epochs for name, epochs in logs.items()}
        self.knows = 7  # the leader epoch that all of them have heard of
        self.asked: list[int] = []
        self.on_fetch: Callable[[int], None] = lambda _replica: None

    async def fetch(
        self, broker: int, request: FetchRequest, *, timeout: float, purpose: str
    ) -> tuple[memoryview, FetchResponse]:
        await asyncio.sleep(0)
        self.on_fetch(request.replica_id)
        [(key, [part])] = request.topics
        log, offset, error = self.logs[broker], part.fetch_offset, 0
        diverging, frame = None, b""
        if request.replica_id >= 0:
            self.asked.append(offset)
        if part.current_leader_epoch > self.knows:
            error = UNKNOWN_LEADER_EPOCH
        elif part.last_fetched_epoch >= 0:
            higher = [at for at, epoch in enumerate(log) if epoch > part.last_fetched_epoch]
            end = higher[0] if higher else len(log)
            epoch = max((one for one in log if one <= part.last_fetched_epoch), default=-1)
            if not log:
                error = OFFSET_OUT_OF_RANGE
            elif epoch < part.last_fetched_epoch or end < offset:
                diverging = epoch if epoch >= 0 else part.last_fetched_epoch, end
        if not error and diverging is None:
            if offset > len(log):
                error = OFFSET_OUT_OF_RANGE
            frame = b"".join(
                build_batch([(None, f"{at}@{log[at]}".encode())], base_offset=at, leader_epoch=log[at])
                for at in range(offset, min(offset + 2, len(log)))
            )
        found = FetchedPartition(key, part.index, error, 0, 0, 0, diverging, None, -1, None, 0, len(frame))
        return memoryview(frame), FetchResponse(0, 0, 0, [found])

    async def call(self, _api: str, fields: Any, *, node_id: int, timeout: float, purpose: str) -> Any:
        [topic] = fields["topics"]
        [asked] = topic["partitions"]
        offset = 0 if asked["timestamp"] == -2 else len(self.logs[node_id])
        item = SimpleNamespace(offset=offset, timestamp=-1, error_code=0, partition_index=0)
        return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[item])])


class Member:
    """The sidecar in a source of brokers 1 and 2; 800 is its own."""

    def __init__(self, leader: int = 800) -> None:
        self.partition = SimpleNamespace(leader=leader, leader_epoch=7, replicas=(800, 1, 2), isr=(800, 1, 2))
        brokers = {broker: SimpleNamespace(fenced=False) for broker in (1, 2, 800)}
        self.membership: Any = SimpleNamespace(
            image=SimpleNamespace(partition=lambda *at: {(ID, 0): self.partition}.get(at), brokers=brokers)
        )

    def link_brokers(self) -> frozenset[int]:
        return frozenset({800})

    def leader_of(self, _tp: TopicPartition) -> SourceLeader | None:
        leader = self.partition.leader
        return None if leader == 800 else SourceLeader(Node(leader, "localhost", 1), 7, True)

    def identity(self) -> tuple[int, int]:
        return 800, 51


def exporter_of(logs: Logs, member: Member, directory: Path) -> Exporter:
    exporter = Exporter(logs, member, member, directory)  # type: ignore[arg-type]
    exporter.follow({TP: ToExport(ID, HISTORY, None)})
    return exporter


def lines(directory: Path) -> list[str]:
    found = sorted(directory.rglob("*.jsonl"))
    return [json.loads(line)["value"] for path in found for line in path.read_text().splitlines()]


async def follow(exporter: Exporter, until: Callable[[], bool]) -> None:
    task = asyncio.create_task(exporter.run())
    async with asyncio.timeout(30):
        while not until():
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize(
    ("log", "agreed"),
    [
        ([2, 2, 2, 2, 3, 3, 5, 5], 6),  # it went on under another leader
        ([2, 2, 2, 2, 3], 5),  # it has lost the last record
        ([2, 2, 2, 2, 3, 5, 5, 5], 5),  # ... and has others instead
        ([2, 2, 5, 5, 5, 5, 5, 5], 2),
        ([5, 5, 5], 0),
        ([], 0),
    ],
)
async def test_where_the_logs_part(log: list[int], agreed: int) -> None:
    assert await LogTails(Logs(b1=log), "test").agreed(1, TP, ID, HISTORY, timeout=1) == agreed  # type: ignore[arg-type]


async def test_all_from_there_on_is_exported_and_told_only_then(tmp_path: Path) -> None:
    logs, member = Logs(b1=[2, 2, 2, 2, 3, 3, 5, 5, 5], b2=[2, 2, 2, 2, 3, 3, 5, 5, 5]), Member(leader=1)
    exporter = exporter_of(logs, member, tmp_path)

    def on_fetch(replica: int) -> None:
        assert replica < 0 or len(lines(tmp_path)) == max([6, *logs.asked]) - 6

    await follow(exporter, lambda: 9 in logs.asked)
    assert logs.asked[0] == 6
    member.partition.leader = 800
    logs.logs[1].append(6)  # for acks=1, before it heard of the election
    assert await exporter.stop([TP], timeout=5) == {TP: 6}
    assert lines(tmp_path) == ["6@5", "7@5", "8@5", "9@6"]
    assert exporter.exported(TP) == Exported(6, 10, 4, str(tmp_path / "t-0" / f"{6:020d}.log"))


async def test_a_process_that_begins_while_it_leads_reads_all_of_it(tmp_path: Path) -> None:
    exporter = exporter_of(Logs(b1=[2, 2, 2, 2, 3, 3, 5], b2=[2, 2, 2, 2, 3, 3, 5, 5]), Member(), tmp_path)
    await exporter.stop([TP], timeout=5)
    assert lines(tmp_path) == ["6@5", "7@5"]


async def test_nothing_beyond_makes_no_file(tmp_path: Path) -> None:
    exporter = exporter_of(Logs(b1=[2, 2, 2], b2=[2, 2, 2]), Member(), tmp_path)
    await exporter.stop([TP], timeout=5)
    assert exporter.exported(TP) == Exported(3, 3, 0, "")
    assert not list(tmp_path.iterdir())


async def _another_log(logs: Logs, _: Member, __: Exporter) -> None:
    logs.logs[2] = [2, 2, 2, 2, 3, 3, 4, 4]


async def _down(_: Logs, member: Member, __: Exporter) -> None:
    member.membership.image.brokers[2].fenced = True


async def _not_the_leader(_: Logs, member: Member, __: Exporter) -> None:
    member.partition.leader = 2


async def _given_back(_: Logs, __: Member, exporter: Exporter) -> None:
    exporter.given_back = ["t"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_another_log, "records of its own, from offset 6 up to 8"),
        (_down, "broker 2 is down"),
        (_not_the_leader, "its own broker 2 leads"),
        (_given_back, "is given back"),
    ],
)
async def test_nothing_may_be_truncated_while(
    spoil: Callable[[Logs, Member, Exporter], Awaitable[None]], why: str, tmp_path: Path
) -> None:
    logs, member = Logs(b1=[2, 2, 2, 2, 3, 3, 5], b2=[2, 2, 2, 2, 3, 3, 5]), Member()
    exporter = exporter_of(logs, member, tmp_path)
    await spoil(logs, member, exporter)
    with pytest.raises(LinkerError, match=why):
        await exporter.stop([TP], timeout=5)
    assert exporter.exported(TP) is None


async def test_a_broker_that_has_not_heard_of_the_election_is_waited_for(tmp_path: Path) -> None:
    logs = Logs(b1=[2, 2, 2, 2, 3, 3, 5], b2=[2, 2, 2, 2, 3, 3, 5])
    logs.knows = 6
    exporter = exporter_of(logs, Member(), tmp_path)
    with pytest.raises(TimeoutError):
        await exporter.stop([TP], timeout=0.2)
    logs.knows = 7
    await exporter.stop([TP], timeout=5)
    assert lines(tmp_path) == ["6@5"]
