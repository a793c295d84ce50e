"""A change of leaders on stock brokers, under a producer or a group of each library: a promote as clients see it.

One broker leads all partitions, as a sidecar does; from one moment to the next others lead them, and that one is no
replica any more, which it would have to be to serve readers. All brokers stay up.
A client that reports an error here reports its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kafka.admin import KafkaAdminClient

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.workload.checker import check
from tests.clients import groups, producers
from tests.clients.build import Builder, CannotBuildError
from tests.clients.catalog import GroupCase, ProducerCase
from tests.clients.events import reassign, until_held_by
from tests.clients.judge import Window, judge_group, largest_gap
from tests.clients.logs import committed_logs
from tests.clients.program import ProgramError
from tests.clients.stage import Stage

SECONDS = 3.0
AFTER_SECONDS = 10.0  # longer than any of them needs to come back
RATE = 1000  # so that one request has records of each partition, as the first one after a promote's hold has

Rows = dict[str, producers.Row]
Show = Callable[[str, producers.Row], None]


async def leader_changes(
    directory: Path,
    builder: Builder,
    logs: Path,
    cases: Sequence[ProducerCase | GroupCase],
    rows: Rows,
    show: Show,
) -> None:
    """Fill in a row for every case."""
    logs.mkdir(parents=True, exist_ok=True)
    async with KafkaCluster(KafkaClusterSpec(name="plain", brokers=3, controllers=1), directory) as cluster:
        stage = Stage(cluster, cluster, None, builder, logs)
        for case in cases:
            try:
                row = await (
                    _producer(stage, case) if isinstance(case, ProducerCase) else _group(stage, case)
                )
            except CannotBuildError as error:
                row = {"skipped": str(error)}
            except ProgramError as error:
                row = {"ok": False, "broke": str(error)}
            rows[case.name] = row
            show(case.name, row)
            await stage.forget()


async def _producer(stage: Stage, case: ProducerCase) -> producers.Row:
    topic = producers.topic(case)
    one = await producers.program(stage, replace(case, arguments={**case.arguments, "rate": str(RATE)}))
    brokers = await _topic(stage, topic, producers.PARTITIONS)
    await one.start(stage.source.bootstrap, "source")
    await one.until(
        lambda: bool(one.transcript.acks), producers.FIRST_ACK_TIMEOUT, "get a write acknowledged"
    )
    await asyncio.sleep(SECONDS)
    begin = time.time()
    await asyncio.to_thread(_move_leaders, stage.source.bootstrap, topic, producers.PARTITIONS, brokers)
    change = Window(begin, time.time())
    await asyncio.sleep(AFTER_SECONDS)
    await one.stop()
    said = one.transcript
    logs = await asyncio.to_thread(committed_logs, stage.source.bootstrap, topic, producers.PARTITIONS)
    verdict = check(said.history(), logs, drained=False)
    row = producers.describe(said.version, verdict, [error.error for error in said.errors])
    return row | {"leader_change_gap_ms": largest_gap(said.acks, within=change)}


async def _group(stage: Stage, case: GroupCase) -> producers.Row:
    """Nobody of the group leaves until everything was read: what is repeated is so because of the change of leaders."""
    topics: dict[str, list[int]] = {}

    async def lead_by_one(topic: str, partitions: int) -> None:
        topics[topic] = await _topic(stage, topic, partitions)

    group = await groups.assemble(stage, case, "-leaders", make_topic=lead_by_one)
    await group.start()
    await asyncio.sleep(SECONDS)
    for topic, brokers in topics.items():
        await asyncio.to_thread(_move_leaders, stage.source.bootstrap, topic, groups.PARTITIONS, brokers)
    await asyncio.sleep(AFTER_SECONDS)
    await group.load.stop()
    logs = await asyncio.to_thread(committed_logs, stage.source.bootstrap, group.topic, groups.PARTITIONS)
    await group.read_to(logs)
    await group.stop()
    verdict = judge_group(group.reads, logs)
    row = groups.describe(group, verdict)
    row["ok"] = not (verdict.missed or verdict.misread)
    return row


async def _topic(stage: Stage, topic: str, partitions: int) -> list[int]:
    """Made, with one leader for all of its partitions: the first of the brokers returned."""
    brokers = sorted(node.node_id for node in stage.source.brokers)
    await asyncio.to_thread(_create, stage.source.bootstrap, topic, partitions, brokers)
    return brokers


def _create(bootstrap: str, topic: str, partitions: int, brokers: Sequence[int]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.create_topics({topic: {"assignments": dict.fromkeys(range(partitions), brokers)}})
        until_held_by(admin, topic, dict.fromkeys(range(partitions), brokers))
    finally:
        admin.close()


def _move_leaders(bootstrap: str, topic: str, partitions: int, brokers: Sequence[int]) -> None:
    """From the first broker to the others, all at once; the first one has them no more."""
    _, *others = brokers
    leaders = {partition: others[partition % len(others)] for partition in range(partitions)}
    reassign(
        bootstrap,
        topic,
        {partition: [leader, *(b for b in others if b != leader)] for partition, leader in leaders.items()},
    )
