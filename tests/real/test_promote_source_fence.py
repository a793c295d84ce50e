"""`--fence-source`: the source refuses writes while a topic is promoted, by an ACL; and accepts them again where the promote
is abandoned, by this life of the sidecar or by the next one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from admin.models import PromoteOptions, PromotePhase, PromoteRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.live_producers import CLIENT_LOG, LibrdkafkaProducer, LiveClientError
from tests.real.harness_promote import LINK, MakeScene, Scene, scenes
from tests.real.harness_stalls import stopped

pytestmark = pytest.mark.timeout(240)
#: Everybody may do everything with what has no ACL: only topics get some, for the one principal that there is.
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    target_cluster: KafkaCluster,
    start_sidecar: Callable[..., Awaitable[SidecarProcess]],
    unique_topic: Callable[[str], str],
) -> AsyncIterator[MakeScene]:
    source = await start_cluster(name="guarded", brokers=2, properties=GUARDED)
    async with scenes(source, target_cluster, start_sidecar, unique_topic) as make:
        yield make


def admin(scene: Scene) -> AdminClient:
    return AdminClient({"bootstrap.servers": scene.source.bootstrap}, logger=CLIENT_LOG)


def allow_all(scene: Scene) -> None:
    _create(scene, "User:ANONYMOUS", AclOperation.ALL, AclPermissionType.ALLOW)


def close_late(scene: Scene) -> None:
    """What a broker does that could not hand the request on for a while."""
    _create(scene, "User:*", AclOperation.WRITE, AclPermissionType.DENY)


def _create(scene: Scene, principal: str, operation: AclOperation, permission: AclPermissionType) -> None:
    kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
    binding = AclBinding(kind, scene.names[0], pattern, principal, "*", operation, permission)
    client = admin(scene)  # its futures end with it
    client.create_acls([binding])[binding].result(30)


def denials(scene: Scene) -> list[AclBinding]:
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        scene.names[0],
        ResourcePatternType.LITERAL,
        "User:*",
        "*",
        AclOperation.ANY,
        AclPermissionType.DENY,
    )
    client = admin(scene)
    found: list[AclBinding] = client.describe_acls(wanted).result(30)
    return found


def refused_at_the_source(scene: Scene) -> bool:
    """One write of somebody who was not moved."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": scene.source.bootstrap}, logger=CLIENT_LOG)
    producer.produce(
        scene.names[0], b"stray", partition=0, on_delivery=lambda error, _message: errors.append(error)
    )
    assert producer.flush(30) == 0
    [error] = errors
    assert error is None or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return error is not None


async def test_a_producer_that_was_not_moved_is_refused(make_scene: MakeScene) -> None:
    """Without it that producer keeps the promote from happening; with it, what it was acknowledged is at the target, and the
    rest it was told."""
    scene = await make_scene()
    request = PromoteRequest(topics=scene.names, options=PromoteOptions(fence_source=True))
    plan = await scene.ask(lambda client: client.plan_promote(LINK, request))
    assert any("has no ACL at the source" in line for line in plan.blockers), plan
    await asyncio.to_thread(allow_all, scene)
    deadline = asyncio.get_running_loop().time() + 10
    while (
        plan.blockers and asyncio.get_running_loop().time() < deadline
    ):  # until its brokers know of the ACLs
        plan = await scene.ask(lambda client: client.plan_promote(LINK, request))
    assert not plan.blockers, plan
    stray = LibrdkafkaProducer("stray", scene.names[0], 3, 500, scene.history)
    await stray.start(scene.source.bootstrap)
    scene.producers.append(stray)
    await scene.acked_more(50)
    scene.producers.remove(stray)

    ended = await scene.disturbed(scene.tps[0])
    assert ended.phase is PromotePhase.ABANDONED
    assert "past the fence" in (ended.reason or ""), ended
    job = await scene.promoted(fence_source=True)
    assert job.source_fenced == scene.names
    assert [one.operation for one in await asyncio.to_thread(denials, scene)] == [AclOperation.WRITE]
    shown = await scene.sidecar.linker("mirror", "promote", "--attach", job.id)
    assert "kafka-acls.sh --remove --deny-principal 'User:*' --operation Write" in shown.output
    await scene.acked_more(50)
    with contextlib.suppress(LiveClientError, SystemError):
        await stray.stop()
    told = [one for one in scene.history.unacked if one.producer == "stray"]
    told_errors = [one.error for one in told]
    told_errors += [one.error for one in (*scene.history.errors, *scene.history.notices)]
    assert any("uthoriz" in text for text in told_errors), told_errors[:5]
    assert not [one for one in scene.history.unacked if one.producer != "stray"]
    # It was told, and is not judged for it; what it was acknowledged is.
    scene.history.unacked = []
    scene.history.errors = [one for one in scene.history.errors if one.client != "stray"]
    acked = {one.sequence for one in scene.history.acks if one.producer == "stray"}
    assert len(acked) > 50
    for producer in scene.producers:
        await producer.stop()
    refused = len(scene.history.sends["stray"]) - len(acked)
    print(f"stray: {len(acked)} acknowledged, {refused} refused")
    await scene.judge(unknown=refused)


async def test_killed_behind_the_fence_the_next_life_opens_the_source(make_scene: MakeScene) -> None:
    scene = await make_scene()
    await asyncio.to_thread(allow_all, scene)
    assert not await asyncio.to_thread(refused_at_the_source, scene)
    with stopped(scene.target.nodes[2]):  # abandoned within one life
        ended = await scene.settled(
            await scene.start_promote(fence_source=True, catch_up_timeout_ms=2000, fence_timeout_ms=1500)
        )
        assert ended.phase is PromotePhase.ABANDONED, ended
    assert ended.source_fenced == []
    assert await asyncio.to_thread(denials, scene) == []
    await scene.acked_more(50)
    await scene.wait_active()
    async with scene.standing_in(
        PromotePhase.FENCED, scene.target.nodes[2], fence_source=True, fence_timeout_ms=60_000
    ) as job_id:
        await asyncio.to_thread(_until_denied, scene)
        await asyncio.to_thread(_until_refused, scene)
        assert (await scene.job(job_id)).source_fenced == scene.names
        await scene.sidecar.kill()
        assert scene.stored_phases() == {"FENCED"}
    await scene.sidecar.start()
    ended = await scene.settled(job_id)
    assert ended.phase is PromotePhase.ABANDONED
    assert await asyncio.to_thread(denials, scene) == []
    assert not await asyncio.to_thread(refused_at_the_source, scene)
    await scene.acked_more(50)
    # A request of the life before to close it may be carried out late: it is opened again for two minutes, and only then
    # promoted.
    assert ended.source_fenced == scene.names
    await scene.wait_active()
    refused = await scene.sidecar.run("mirror", "promote", *scene.names, "--link", LINK)
    assert refused.exit_code == 1
    assert "try again in two minutes" in refused.errors
    await asyncio.to_thread(close_late, scene)
    await asyncio.to_thread(_until_open, scene)
    await scene.acked_more(50)
    assert not scene.history.errors  # none has reached an application in all this


def _until_refused(scene: Scene) -> None:
    """Who leads the partition may hear of the ACL later than who was asked for it."""
    for _ in range(20):
        if refused_at_the_source(scene):
            return
    raise AssertionError("the source takes writes though it is closed")


def _until_open(scene: Scene) -> None:
    for _ in range(200):
        if not denials(scene):
            return
        time.sleep(0.1)
    raise AssertionError("the source stays closed")


def _until_denied(scene: Scene) -> None:
    for _ in range(200):
        if denials(scene):
            return
    raise AssertionError("the source was not closed")
