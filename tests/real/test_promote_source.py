"""Promotes with somebody else at the source: producers that were not moved, and transactions that stay open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import KafkaException, Producer

from admin.models import Check, CheckResult, DoctorReport, PromoteJobStatus, PromotePhase, PromoteRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.live_producers import LibrdkafkaProducer
from tests.fakes.batches import build_batch
from tests.real.harness_promote import LINK, MakeScene, Scene, scenes
from tests.real.harness_stalls import brokers_back, stopped
from tests.real.harness_trouble import delete_topic
from tests.real.test_failover import committed
from wire.client.connection import Connection
from wire.client.security import ClientSecurity

pytestmark = pytest.mark.timeout(300)


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    async with scenes(source_cluster, target_cluster, start_sidecar, unique_topic) as make:
        yield make


async def after_promotes(scene: Scene) -> Check:
    report: DoctorReport = await scene.ask(lambda client: client.doctor(LINK))
    [found] = [check for check in report.checks if check.name == "after promotes"]
    return found


async def abandoned_at_the_fence(scene: Scene) -> PromoteJobStatus:
    """A replica that is not there yet keeps the fence up: whatever the machine does, the stray writes behind it.

    Its broker is taken for dead after some seconds. On a machine that is slow enough for the promote to see that before its
    fence stands, it is tried again. (Proofs would wait for that replica for as long, so there are none.)
    """
    options: dict[str, Any] = {
        "transaction_timeout_ms": 1000,
        "abort_open_transactions": True,
        "max_lag": 10**9,
        "validation": "skip",
        "catch_up_timeout_ms": 4500,
    }
    for _ in range(5):
        with stopped(scene.target.nodes[3]):
            ended = await scene.settled(await scene.start_promote(**options))
        assert ended.phase is PromotePhase.ABANDONED
        if "past the fence" in (ended.reason or ""):
            break
        await brokers_back(scene.target)
        await scene.wait_active()
    return ended


async def test_who_is_still_at_the_source(make_scene: MakeScene) -> None:
    """Listed before the promote, named by the promote that they keep from happening, aborted on request; readers of
    committed records get the same on both sides."""
    scene = await make_scene()
    tp = scene.tps[0]
    stray = LibrdkafkaProducer("stray", tp.topic, 1, 2000, scene.history)
    scene.producers.append(stray)
    await stray.start(scene.source.bootstrap)
    writer = Producer(
        {
            "bootstrap.servers": scene.source.bootstrap,
            "transactional.id": f"billing-{tp.topic}",
            "transaction.timeout.ms": 600_000,
        }
    )
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(tp.topic, b"inside a transaction", partition=1)
    assert writer.flush(30) == 0
    await scene.acked_more(50)

    plan = await scene.ask(lambda client: client.plan_promote(LINK, PromoteRequest(topics=scene.names)))
    assert not plan.blockers, plan
    direct = [one for one in plan.producers if one.direct]
    assert {one.partition for one in direct} >= {0, 1}, plan.producers
    [open_one] = [one for one in plan.producers if one.open_since_offset is not None]
    assert (open_one.partition, open_one.transactional_id) == (1, f"billing-{tp.topic}")
    assert any("to the source itself" in line for line in plan.warnings), plan.warnings
    shown = await scene.sidecar.linker("mirror", "promote", tp.topic, "--link", LINK, "--dry-run")
    assert f"billing-{tp.topic}" in shown.output

    report = await scene.ask(lambda client: client.doctor(LINK))
    found = {check.name: check for check in report.checks}
    assert "to the source itself" in found["producers"].detail
    assert f"billing-{tp.topic}" in found["transactions"].detail
    assert "a promote would hold writes for about" in found["pause"].detail

    ended = await scene.settled(await scene.start_promote(transaction_timeout_ms=1500))
    assert ended.phase is PromotePhase.ABANDONED
    assert f'transactional.id "billing-{tp.topic}"' in (ended.reason or ""), ended
    await scene.acked_more(20)

    ended = await abandoned_at_the_fence(scene)
    assert "past the fence" in (ended.reason or ""), ended
    newest = min((one for one in direct if one.partition == 0), key=lambda one: one.last_write_ms or 0)
    assert f"producer {newest.producer_id} (epoch 0" in (ended.reason or ""), ended
    with pytest.raises(KafkaException):
        await asyncio.to_thread(writer.commit_transaction, 30)
    await brokers_back(scene.target)
    await stray.move(scene.target.bootstrap)
    await scene.acked_more()
    assert (await scene.promoted()).warnings == []
    await scene.acked_more()
    assert (await after_promotes(scene)).result is CheckResult.OK
    for producer in scene.producers:
        await producer.stop()
    at_source = await asyncio.to_thread(committed, scene.source, scene.tps[1])
    assert await asyncio.to_thread(committed, scene.target, scene.tps[1]) >= at_source
    await scene.judge()

    late = Producer({"bootstrap.servers": scene.source.bootstrap})
    late.produce(tp.topic, b"nobody told me", partition=0)
    assert await asyncio.to_thread(late.flush, 30) == 0
    found = await after_promotes(scene)
    assert found.result is CheckResult.WARN
    assert (
        f"topic {tp.topic}: 1 offsets were written to the source after the hand-over; {tp}: " in found.detail
    )

    await asyncio.to_thread(delete_topic, scene.source.bootstrap, tp.topic)
    report = await scene.ask(lambda client: client.doctor(LINK))
    assert not [check for check in report.checks if check.result is CheckResult.FAIL], report


async def test_a_transaction_at_the_target_waits_for_its_promote(make_scene: MakeScene) -> None:
    """Each try of a library that counts them lasts; the one that is under way is answered when the promote is through."""
    scene = await make_scene()
    host, _, port = scene.sidecar.address().rpartition(":")
    client = await Connection.open(host, int(port), ClientSecurity.plaintext(), client_id="tx", timeout=30)
    batch = build_batch(1, producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
    data = [
        {"name": scene.tps[0].topic, "partition_data": [{"index": scene.tps[0].partition, "records": batch}]}
    ]
    asked = {"transactional_id": "tx", "acks": -1, "timeout_ms": 30_000, "topic_data": data}
    took: list[float] = []

    async def tries() -> int:
        while True:
            began = time.monotonic()
            answer = await client.call("produce", asked, timeout=60, version=9)
            code = int(answer.responses[0].partition_responses[0].error_code)
            if code != 19:  # NOT_ENOUGH_REPLICAS
                return code
            took.append(time.monotonic() - began)

    try:
        trying = asyncio.create_task(tries())
        await asyncio.sleep(1)
        assert not (trying.done() or took)
        await scene.promoted()
        ended = time.monotonic()
        assert await asyncio.wait_for(trying, 30) == 6  # NOT_LEADER_OR_FOLLOWER
        assert time.monotonic() - ended < 4, "at once, not at the end of its time"
        assert all(one > 4.9 for one in took), took
    finally:
        client.channel.close()
    await scene.acked_more()
    await scene.judge()
