"""A source that is run by ZooKeeper is joined as any other: the sidecar is one of its brokers, and keeps nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.source_data import SourceTopic
from tests.real.harness_tools import kafka_tool
from tests.real.harness_zookeeper import ZooKeeperKafka
from tests.real.test_join_source import StartCluster, StartSidecar, brokers, doctor, joined, until
from tests.real.test_switch import LINK, Scene

pytestmark = pytest.mark.timeout(420)

US = 800


def versions(first: str, slow: str) -> pytest.MarkDecorator:
    """Both ways of changing an ISR, AlterPartition and AlterIsr; the second version is one of the slow tests."""
    return pytest.mark.parametrize("old", [first, pytest.param(slow, marks=pytest.mark.slow)], indirect=True)


@pytest_asyncio.fixture(loop_scope="session")
async def old(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ZooKeeperKafka]:
    async with ZooKeeperKafka(2, tmp_path / "old", version=request.param) as source:
        yield source


@versions("2.8.2", "3.9.1")
async def test_it_joins_gives_back_what_is_placed_on_it_and_leaves(
    old: ZooKeeperKafka, target_cluster: KafkaCluster, start_sidecar: StartSidecar
) -> None:
    section = {"broker.id": US, "zookeeper.connect": old.zookeeper}
    sidecar = await start_sidecar(target_cluster.bootstrap, sources={"east": section})
    await sidecar.linker("link", "create", "east", "-b", old.bootstrap)
    before = await brokers(old)
    assert US not in before
    assert await doctor(sidecar) == [("OK", "not joined; it could be: linker link update east --join-source")]

    await sidecar.linker("link", "update", "east", "--join-source")
    await joined(sidecar, old)
    result = await kafka_tool(
        old.bootstrap,
        *("kafka-topics", "--create", "--topic", "placed", "--partitions", "12", "--replication-factor", "2"),
    )
    assert result.exit_code == 0, result.text

    async def ours() -> list[str]:
        told = await kafka_tool(old.bootstrap, "kafka-topics", "--describe", "--topic", "placed")
        return [line for line in told.text.splitlines() if "Leader:" in line]

    async def evicted() -> bool:
        lines = await ours()
        return len(lines) == 12 and not any(str(US) in line for line in lines)

    await until(evicted)

    await sidecar.kill()
    await sidecar.start()
    await joined(sidecar, old)
    await sidecar.linker("link", "update", "east", "--no-join-source")

    async def left() -> bool:
        return await brokers(old) == before

    await until(left)


@versions("3.9.1", "2.8.2")
async def test_switched_there_and_back_under_clients_of_both(
    old: ZooKeeperKafka, start_cluster: StartCluster, start_sidecar: StartSidecar
) -> None:
    """Twice each way. Nobody is restarted, and sees no error; afterwards both clusters have the same bytes."""
    target = await start_cluster(name="target", brokers=2)
    section = {"broker.id": US, "zookeeper.connect": old.zookeeper}
    sidecar = await start_sidecar(target.bootstrap, sources={LINK: section}, validation={"policy": "skip"})
    scene = Scene(old, target, sidecar, SourceTopic("orders", 4, lambda _filler, _topic: None))
    await scene.begin()
    await scene.until(state="ACTIVE")
    await scene.acked_more(50)
    configs = await scene.configs(old)
    for _ in range(2):
        await sidecar.linker("mirror", "switch", "orders", "--link", LINK)
        await scene.owner_leads(target)
        await scene.until(direction="REVERSED", state="ACTIVE")
        await scene.acked_more(150)
        await sidecar.linker("mirror", "switch", "orders", "--link", LINK)
        await scene.owner_leads(old)
        await scene.until(direction="FORWARD", state="ACTIVE")
        await scene.acked_more(150)
    assert await scene.configs(old) == configs
    await sidecar.linker("mirror", "sync", "orders", "--link", LINK, "--off")
    verdict = await scene.finish(old, target)
    assert verdict.ok, verdict.violations
    print(f"{verdict.acked} acked, pauses in ms: {verdict.pauses_ms}")
