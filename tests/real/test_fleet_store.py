"""A fleet whose state store is away, loses a session, or holds what it should not; ZooKeeper can be stopped by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import KafkaCluster
from tests.chaos.proxy import Mode, Proxy, Trouble
from tests.real import harness_store_zookeeper as rig
from tests.real.fleet_figures import gaps
from tests.real.harness_fleet import Fleet, ended_with
from tests.real.harness_fleet_scene import MakeFleetScene, fleet_scenes
from tests.real.harness_promote import LINK, eventually
from tests.real.harness_stalls import PATIENCE, stopped
from tests.real.harness_trouble import create_topic
from tests.real.harness_zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.timeout(400)
LEASE = 9.0  # longer than a commit waits for the store
SHORT = 3.0
SLACK = 1.5  # an answer's way to the client's callback, on a busy machine
SILENCE = 3.0
PATH = "troubled"
server = rig.server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gates() -> AsyncIterator[dict[int, Proxy]]:
    """Each sidecar's way to ZooKeeper; filled by the fleet."""
    made: dict[int, Proxy] = {}
    yield made
    for gate in made.values():
        await gate.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    target_cluster: KafkaCluster,
    server: ZooKeeperServer,
    gates: dict[int, Proxy],
    tmp_path_factory: pytest.TempPathFactory,
    _numbers: Iterator[int],
) -> AsyncIterator[Fleet]:
    host, _, port = server.address.rpartition(":")
    ids = [900 + next(_numbers) for _ in range(2)]
    stores = {}
    for broker_id in ids:
        gates[broker_id] = Proxy(f"store of {broker_id}", (host, int(port)))
        await gates[broker_id].start()
        stores[broker_id] = store_at(gates[broker_id].address)
    fleet = Fleet(
        target_cluster,
        ids,
        tmp_path_factory.mktemp("fleet"),
        store_at(server.address),
        {"lease.ms": round(LEASE * 1000)},
        stores=stores,
        tapped=True,
    )
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


def store_at(address: str) -> dict[str, object]:
    return {"type": "zookeeper", "connect": f"{address}/{PATH}", "session.timeout.ms": 3000}


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster, fleet: Fleet, unique_topic: Callable[[str], str]
) -> AsyncIterator[MakeFleetScene]:
    async with fleet_scenes(source_cluster, fleet, unique_topic) as make:
        yield make


@pytest.mark.slow
async def test_away_for_less_than_a_lease(make_scene: MakeFleetScene, server: ZooKeeperServer) -> None:
    """No producer notices."""
    scene = await make_scene()
    since = scene.history.mark("stopped")
    with stopped(server):
        await scene.acked_everywhere()
        await asyncio.sleep(max(0.0, SHORT - (scene.history.clock() - since)))
        away = scene.history.clock() - since
        assert away < LEASE - 1.0, f"stopped for {away:.1f} s: the machine is too busy for this test"
        await scene.acked_everywhere(timeout=LEASE - away)
    await scene.acked_everywhere()
    found = gaps(scene.history.acks, since, scene.history.clock())
    assert max(found.values()) < away, found
    await scene.fleet.whole()
    await scene.finish()


async def test_away_for_longer_than_a_lease(
    make_scene: MakeFleetScene, fleet: Fleet, server: ZooKeeperServer, unique_topic: Callable[[str], str]
) -> None:
    """Changes are refused by then, and without a lease nothing is acknowledged; it is afterwards."""
    scene = await make_scene()
    other = unique_topic("other")
    await asyncio.to_thread(create_topic, scene.source.bootstrap, other)
    begun = scene.history.mark("stopped")
    with stopped(server):
        refused = await fleet.awake()[0].run("mirror", "create", other, "--link", LINK)
        line = refused.errors.strip()
        assert refused.exit_code == 1, refused
        assert line.startswith("linker: "), line
        assert "ZooKeeper" in line or "link controller" in line, (
            line
        )  # a slow machine asks when the seat is lost
        over = begun + LEASE + SLACK
        await asyncio.sleep(max(0.0, over - scene.history.clock()))
        quiet_from = scene.history.mark("leases are over")
        await asyncio.sleep(SILENCE)
        quiet_until = scene.history.mark("going on")
    acked = [ack for ack in scene.history.acks if quiet_from <= ack.time <= quiet_until]
    assert not acked, (
        f"{len(acked)} acks without a lease, the first {acked[0].time - begun:.2f} s after the stop"
    )
    assert [ack for ack in scene.history.acks if begun < ack.time < begun + LEASE - 2], (
        "leases went on until then"
    )
    await scene.acked_everywhere()
    codes = {one.code for tap in fleet.taps.values() for one in tap.answers_seen if one.time >= quiet_from}
    assert codes <= {0, 6}, f"held while there was no lease, or sent to look for another leader: {codes}"
    await fleet.whole()
    # Without the store's answer nobody knows: it may have taken the mirror when it went on, and that weighs in the balance.
    mirrors = await scene.ask(lambda client: client.list_mirrors(LINK))
    if other in {one.topic for one in mirrors}:
        await fleet.linker("mirror", "delete", other, "--link", LINK, "--yes")
    await scene.finish()


async def test_the_link_controllers_session_ends(
    make_scene: MakeFleetScene, fleet: Fleet, gates: dict[int, Proxy]
) -> None:
    """ZooKeeper hears nothing of it any more: another one decides, and leads what it led if it stays away."""
    scene = await make_scene()
    head = await fleet.controller()
    since = scene.history.mark("silent")
    with gates[head.id].troubled(Trouble(Mode.BLACKHOLE)):
        # It is not asked: until it has found out, it takes itself for the link controller.
        following = await fleet.next_head(head, unasked=head.id)
        await scene.acked_everywhere()
    found = gaps(scene.history.acks, since, scene.history.clock())
    assert following.id != head.id
    assert max(found.values()) < 3 * LEASE, found
    await fleet.whole()
    await scene.balanced()
    assert (await fleet.controller()).controller_epoch == following.controller_epoch
    await scene.finish()


async def test_strangers_are_refused(
    make_scene: MakeFleetScene, fleet: Fleet, source_cluster: KafkaCluster, _numbers: Iterator[int]
) -> None:
    """A second sidecar with the same id, and one of another target cluster on the same path."""
    scene = await make_scene()
    taken = fleet.ids[0]
    async with AsyncExitStack() as stack:
        double = fleet.add(taken, name="double", keep=False)
        stack.push_async_callback(double.close)
        stranger = fleet.add(900 + next(_numbers), name="stranger", target=source_cluster, keep=False)
        stack.push_async_callback(stranger.close)
        for car in (double, stranger):
            car.launch()
        for car in (double, stranger):
            await car.ended(PATIENCE)
        ended_with(double, 1, f"another sidecar with broker.id {taken} is running")
        line = ended_with(stranger, 1, "belongs to the fleet of target cluster", "a path of its own")
        assert source_cluster.cluster_id in line
        assert fleet.target.cluster_id in line
    assert set(await fleet.sidecars()) == set(fleet.ids)
    await fleet.whole()
    await scene.finish()


async def test_a_node_of_a_newer_program(
    make_scene: MakeFleetScene, fleet: Fleet, server: ZooKeeperServer
) -> None:
    """Whoever would have to read it refuses; the others serve on with what they know."""
    scene = await make_scene()
    head = await fleet.controller()
    other = next(n for n in fleet.ids if n != head.id)
    outsider = await asyncio.to_thread(server.outsider)
    try:
        node = f"/{PATH}/links/{LINK}"
        data, _ = await asyncio.to_thread(outsider.get, node)
        newer = json.dumps({**json.loads(data), "format": 99}).encode()
        await asyncio.to_thread(outsider.set, node, newer)
        await scene.acked_everywhere()
        begun = scene.history.clock()
        await fleet.cars[head.id].kill()
        await refusal(fleet, other, "cannot be the link controller", "newer version")
        assert fleet.cars[other].running
        served = [ack for ack in scene.history.acks if ack.time > begun]
        assert served, "what it led went on"
        await asyncio.to_thread(outsider.set, node, data)
    finally:
        await asyncio.to_thread(outsider.stop)
        await asyncio.to_thread(outsider.close)
    await fleet.next_head(head)
    await fleet.started(head.id)
    await scene.finish()


async def refusal(fleet: Fleet, broker_id: int, *words: str) -> None:
    """A line of its log."""

    def there() -> bool:
        return any(all(word in line for word in words) for line in fleet.said(broker_id).splitlines())

    await eventually(f"a line with {words} in {fleet.cars[broker_id].log}", there)
