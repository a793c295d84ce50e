"""Where the replicas of a mirror live: moved on request, after a broker is lost for good, and by another tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient

from admin.client import AdminError
from admin.models import MirrorDescription, ReassignRequest
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.inspection import placements
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.real.conftest import QUICK_FENCING
from tests.real.harness_promote import LINK
from tests.real.harness_tools import kafka_tool
from tests.real.harness_trouble import TroubleScene, linked_sidecar, patiently, refused

UniqueTopic = Callable[[str], str]
SLOW = pytest.mark.slow  # no other way than the one that is tried in each run
pytestmark = pytest.mark.timeout(400)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    sidecar: SidecarProcess,
    unique_topic: UniqueTopic,
) -> AsyncIterator[TroubleScene]:
    """One topic of three partitions, not begun."""
    topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
    made = TroubleScene(source_cluster, target_cluster, sidecar, [topic])
    yield made
    await made.close()


def staying(found: MirrorDescription) -> dict[int, list[int]]:
    """The brokers that hold each partition after a promote, as the mirror says."""
    return {
        one.partition: [replica.broker for replica in one.replicas if not replica.leaving]
        for one in found.partition_status
    }


def leaving(found: MirrorDescription) -> set[int]:
    return {replica.broker for one in found.partition_status for replica in one.replicas if replica.leaving}


async def held_by(scene: TroubleScene) -> dict[int, set[int]]:
    placed = await asyncio.to_thread(placements, scene.target.bootstrap, scene.topics)
    return {tp.partition: set(one.replicas) for tp, one in placed.items()}


async def reassign(scene: TroubleScene, *options: str) -> str:
    answer = await scene.sidecar.linker(
        "mirror", "reassign", *scene.names, "--link", LINK, *options, "-o", "json"
    )
    return answer.output


async def promoted_elsewhere(scene: TroubleScene, broker: int, copies: int) -> None:
    """The promote ends, and everything is equal on so many replicas, none of them on this broker."""
    await scene.promoted(catch_up_timeout_ms=60_000)
    held = await held_by(scene)
    assert all(broker not in brokers and len(brokers) == copies for brokers in held.values()), held
    await scene.judge()


async def test_away_from_a_broker_that_is_alive(scene: TroubleScene) -> None:
    """Under load: the new replicas copy, the old ones go on, no client sees any of it."""
    await scene.begin(factor=2)
    before = staying(await scene.describe())
    left = before[0][0]  # placed by load, which other tests leave behind
    plan = json.loads(await reassign(scene, "--away-from", str(left), "--dry-run"))
    moved = {partition for partition, brokers in before.items() if left in brokers}
    assert {one["resource"] for one in plan["actions"]} == {
        *(f"{scene.names[0]}-{partition}" for partition in moved),
        f"{len(moved)} partitions",
    }
    assert "not known" not in str(plan), plan
    assert staying(await scene.describe()) == before, "a dry run changed something"
    epochs = {one.partition: one.leader_epoch for one in (await scene.describe()).partition_status}
    await reassign(scene, "--away-from", str(left))
    found = await scene.describe()
    assert all(left not in brokers and len(brokers) == 2 for brokers in staying(found).values()), found
    assert leaving(found) == {left}
    assert f"leaves broker {left} with the promote" in (found.reason or ""), found
    await scene.acked_more(50)
    found = await scene.describe()
    assert {one.partition: one.leader_epoch for one in found.partition_status} == epochs, "a leader moved"
    await promoted_elsewhere(scene, left, copies=2)


async def test_a_tool_of_the_operator_moves_the_replicas(scene: TroubleScene, tmp_path: Path) -> None:
    """What kafka-reassign-partitions says is what the mirror has from then on, and the promote ends with it; a move there
    and back as well."""
    await scene.begin(factor=2)
    before = staying(await scene.describe())

    async def execute(wanted: dict[int, list[int]]) -> None:
        rows = [
            {"topic": scene.names[0], "partition": partition, "replicas": replicas}
            for partition, replicas in wanted.items()
        ]
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        how = ["--reassignment-json-file", str(plan), "--execute", "--additional"]
        told = await kafka_tool(scene.target.bootstrap, "kafka-reassign-partitions", *how)
        assert told.exit_code == 0, told

    async def followed(wanted: dict[int, list[int]]) -> None:
        for _ in range(100):
            if staying(await scene.describe()) == wanted:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"wanted {wanted}: {await scene.describe()}")

    # Fewer of those that are being added: no promote could complete that, so it is put back.
    await execute({2: before[2][:1]})
    await asyncio.sleep(2)
    await followed(before)
    others = {partition: ({1, 2, 3} - set(brokers)).pop() for partition, brokers in before.items()}
    # One replica moves, the link broker is named, replicas become fewer, all of them are others.
    wanted = {0: [before[0][0], others[0]], 1: [others[1], before[1][0]], 2: [others[2]]}
    await execute({**wanted, 1: [scene.sidecar.spec.broker_id, *wanted[1]]})
    await followed(wanted)
    await scene.acked_more(20)
    await execute({0: before[0]})
    wanted[0] = before[0]
    await followed(wanted)
    await scene.acked_more(20)
    await scene.promoted(catch_up_timeout_ms=60_000)
    assert await held_by(scene) == {partition: set(brokers) for partition, brokers in wanted.items()}
    await scene.judge()


async def test_fewer_replicas_and_copies_that_are_dropped_at_once(scene: TroubleScene) -> None:
    """Where no other broker is there, an operator may have a replica less; the copies begin from nothing then."""
    await scene.begin(factor=3)
    command = ["mirror", "reassign", *scene.names, "--link", LINK, "--away-from", "2"]
    refused(await scene.sidecar.run(*command), "no other broker", "--fewer-replicas")
    directory = scene.target.partition_dir(2, scene.tps[0])
    assert directory.exists()
    await scene.sidecar.linker(*command, "--fewer-replicas")
    await patiently("broker 2 has dropped its copy", lambda: not directory.exists(), 60)
    assert all(sorted(brokers) == [1, 3] for brokers in staying(await scene.describe()).values())
    await scene.acked_more(20)
    # And with another one in its place, dropped at once because that is asked for.
    await scene.sidecar.linker(
        "mirror", "reassign", *scene.names, "--link", LINK, "--away-from", "3", "--to", "2", "--afresh"
    )
    gone = scene.target.partition_dir(3, scene.tps[0])
    await patiently("broker 3 has dropped its copy", lambda: not gone.exists(), 60)
    await promoted_elsewhere(scene, 3, copies=2)


@pytest.mark.parametrize(
    "delay",
    [
        pytest.param(0.02, marks=SLOW),
        0.1,
        pytest.param(0.2, marks=SLOW),
        pytest.param(0.5, marks=SLOW),
    ],
)
async def test_the_sidecar_is_killed_in_the_middle(scene: TroubleScene, delay: float) -> None:
    """Whatever the target's log had by then is what the mirror has; it can be asked for again."""
    await scene.begin(factor=2)
    request = ReassignRequest(topics=scene.names, away_from=[2])

    async def ask() -> str:
        try:
            return str(await scene.ask(lambda client: client.reassign_mirrors(LINK, request)))
        except AdminError as error:
            return f"cut off: {error}"

    asked = asyncio.create_task(ask())
    await asyncio.sleep(delay)
    await scene.sidecar.kill()
    print(f"\n{delay} s: {await asked}")
    await scene.sidecar.start()
    await scene.wait_active()
    held = staying(await scene.describe())
    assert all(len(brokers) == 2 for brokers in held.values()), held
    print(f"\nafter {delay} s: {held}")
    await reassign(scene, "--away-from", "2")
    await scene.acked_more(20)
    await promoted_elsewhere(scene, 2, copies=2)


def live_brokers(bootstrap: str) -> set[int]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers)


@pytest.mark.parametrize("unregistered", [pytest.param(False, marks=SLOW), True])
async def test_a_broker_that_is_lost_for_good(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    unique_topic: UniqueTopic,
    tmp_path: Path,
    unregistered: bool,
) -> None:
    """Its replicas are copied to another broker by themselves, and a promote, begun before that, does not wait for it."""
    target = await start_cluster(
        name="target", brokers=3, controllers=1, racks=("a", "b", "c"), properties=QUICK_FENCING
    )
    async with linked_sidecar(source_cluster, target, 900, tmp_path / "sidecar") as sidecar:
        patience = "-1" if unregistered else "5000"
        await sidecar.linker("link", "update", LINK, "--option", f"broker_lost_after_ms={patience}")
        topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
        scene = TroubleScene(source_cluster, target, sidecar, [topic])
        await scene.begin(factor=2)
        assert any(2 in brokers for brokers in staying(await scene.describe()).values())
        await target.nodes[2].kill()
        if unregistered:
            told = await kafka_tool(target.nodes[1].address(), "kafka-cluster", "unregister", "--id", "2")
            assert told.exit_code == 0, told
        else:
            # A promote that begins before the target's controller has seen it would hold writes, and give up.
            await patiently("broker 2 is fenced", lambda: 2 not in live_brokers(target.nodes[1].address()))
        job = await scene.start_promote(catch_up_timeout_ms=120_000)
        ended = await scene.settled(job)
        assert ended.phase == "PROMOTED", ended
        held = await held_by(scene)
        assert all(brokers == {1, 3} for brokers in held.values()), held
        await scene.judge()
        await scene.close()


@pytest.mark.slow
async def test_most_brokers_are_down(
    source_cluster: KafkaCluster,
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
    unique_topic: UniqueTopic,
    tmp_path: Path,
) -> None:
    """That is an outage of the target: nothing is moved to the one that is left, and it goes on when they return."""
    target = await start_cluster(name="target", brokers=3, controllers=1, properties=QUICK_FENCING)
    async with linked_sidecar(source_cluster, target, 900, tmp_path / "sidecar") as sidecar:
        await sidecar.linker("link", "update", LINK, "--option", "broker_lost_after_ms=10000")
        topic = SourceTopic(unique_topic("t"), 3, SourceFiller.history)
        scene = TroubleScene(source_cluster, target, sidecar, [topic])
        await scene.begin(factor=2, writers=False)
        before = staying(await scene.describe())
        for broker in (1, 2):
            await target.nodes[broker].kill()

        def told() -> bool:
            with sidecar.client() as client:
                return "most brokers of the target are down" in client.status().model_dump_json()

        await patiently("said", told, 60)
        assert staying(await scene.describe()) == before
        await asyncio.gather(*(target.nodes[broker].start() for broker in (1, 2)))
        await scene.promoted()
        assert staying(await scene.describe()) == before
        await scene.close()
