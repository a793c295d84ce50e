"""A sidecar that stands still while its partitions are promoted, and then goes on: it acknowledges nothing any more."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack

import pytest
import pytest_asyncio

from admin.models import PromotePhase
from controller.operations import Versioned
from lab.clusters.kafka_cluster import KafkaCluster
from lab.workload.inspection import Placement, placements
from lab.workload.replica_log import open_replica
from linker.stores import Location
from tests.real.harness_fleet import Fleet, off_by
from tests.real.harness_fleet_scene import FleetScene, MakeFleetScene
from tests.real.harness_promote import LINK
from tests.real.harness_stalls import stopped
from wire.frames.types import TopicPartition

pytestmark = pytest.mark.timeout(400)
# The next link controller takes 4 s and more to be one, and what is left then must be seen to be waited for.
LEASE = 12.0
CLOCKS = (0, +2, -2)  # hours by which the sidecars' clocks are off
IN_FLIGHT = 0.4  # how long the source stands still before the sidecar does
NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS = 6, 7, 19
REFUSALS = {NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fleet(
    target_cluster: KafkaCluster, tmp_path_factory: pytest.TempPathFactory, _numbers: Iterator[int]
) -> AsyncIterator[Fleet]:
    ids = [900 + next(_numbers) for _ in range(3)]
    store = {"type": "topic", "topic": f"__state_{ids[0]}", "seat.timeout.ms": 4000}
    settings = {"lease.ms": round(LEASE * 1000), "failure.timeout.ms": 1500}
    directory = tmp_path_factory.mktemp("fleet")
    # Clocks of three machines, two of them set wrong.
    clocks = {broker_id: off_by(hours) for broker_id, hours in zip(ids, CLOCKS, strict=True) if hours}
    fleet = Fleet(target_cluster, ids, directory, store, settings, python=clocks, tapped=True)
    try:
        await fleet.start()
        yield fleet
    finally:
        await fleet.close()


Ends = dict[TopicPartition, int]


def source_ends(scene: FleetScene) -> Ends:
    return ends_of(scene, placements(scene.source.bootstrap, scene.topics))


def ends_of(scene: FleetScene, placed: Mapping[TopicPartition, Placement]) -> Ends:
    """Out of the leaders' files."""
    return {tp: open_replica(scene.source.log_dir(one.leader), tp).end() for tp, one in placed.items()}


async def stand_still(scene: FleetScene, broker_id: int) -> Ends:
    """Stopped with forwarded produces whose answers it has not read, and with requests it has not read either.

    Returns: the source's log end offsets at that moment. What lies behind them was answered later than that.
    """
    placed = await asyncio.to_thread(placements, scene.source.bootstrap, scene.topics)
    with ExitStack() as source:
        for node in scene.source.brokers:
            source.enter_context(stopped(node))
        await asyncio.sleep(IN_FLIGHT)
        scene.fleet.stop(broker_id)
        return await asyncio.to_thread(ends_of, scene, placed)


async def promoted_without(scene: FleetScene, broker_id: int) -> None:
    """The promote waits for the lease of the one that stands still, and does without it then."""
    await scene.nothing_led_by(broker_id)
    job = await scene.start_promote()
    await scene.reach(job, PromotePhase.CATCHING_UP, f"sidecar {broker_id} is away, and its lease ends in")
    left = ((await scene.fleet.sidecars())[broker_id].lease_ms or 0) / 1000
    asked = scene.history.clock()
    ended = await scene.settled(job)
    assert ended.phase is PromotePhase.PROMOTED, ended
    waited = scene.history.clock() - asked
    assert waited >= left - 0.5, f"promoted {waited:.1f} s later, the lease had {left:.1f} s to go"


async def acknowledges_nothing(scene: FleetScene, broker_id: int, stood: Ends, handed_over: Ends) -> None:
    """From the moment when it goes on again, but for what it had read before it stood still.

    stood: the source's ends when it was stopped.
    handed_over: those of the promote.
    """
    fleet = scene.fleet
    before = await asyncio.to_thread(source_ends, scene)
    assert before == handed_over
    resumed = scene.history.mark("resumed")
    fleet.resume(broker_id)
    await scene.acked_everywhere(timeout=120)
    await fleet.whole()
    tap = fleet.taps[broker_id]
    assert not tap.unread, tap.unread[0]
    later = [one for one in tap.answers_seen if one.time >= resumed]
    codes = Counter(one.code for one in later)
    # What the source had answered before all stood still was covered then. It may leave now, with what became of another
    # partition in the same produce, or of an earlier produce of the same client: answers of a connection keep their order.
    ends = {tp.partition: end for tp, end in stood.items()}
    told = [one for one in later if one.code == 0 and one.base_offset >= ends[one.partition]]
    assert not told, (
        f"what the source answered while it stood still was acknowledged: {codes}, {told}, {ends}"
    )
    assert set(codes) <= REFUSALS | {0}, codes
    assert codes[REQUEST_TIMED_OUT] > 0, f"answers of the source were waiting for it: {codes}"
    errors = await fleet.forward_errors(broker_id)
    assert errors.get("REQUEST_TIMED_OUT", 0) > 0, errors
    assert await asyncio.to_thread(source_ends, scene) == handed_over, "the source was written to"


async def test_a_leader_stands_still(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """Not the link controller."""
    scene = await make_scene()
    head = await fleet.controller()
    stale = next(n for n in fleet.ids if n != head.id)
    assert len(await scene.led_by(stale)) == 2
    stood = await stand_still(scene, stale)
    await promoted_without(scene, stale)
    handed_over = await asyncio.to_thread(source_ends, scene)
    await acknowledges_nothing(scene, stale, stood, handed_over)
    assert (await fleet.controller()).controller_epoch == head.controller_epoch
    await scene.finish()


async def test_the_link_controller_stands_still(make_scene: MakeFleetScene, fleet: Fleet) -> None:
    """It finds that another one has taken its place, and has written nothing meanwhile."""
    scene = await make_scene()
    head = await fleet.controller()
    assert len(await scene.led_by(head.id)) == 2
    stood = await stand_still(scene, head.id)
    following = await fleet.next_head(head)
    assert following.id != head.id
    await promoted_without(scene, head.id)
    handed_over = await asyncio.to_thread(source_ends, scene)
    said, nodes = fleet.said(head.id), await stored(fleet)
    await acknowledges_nothing(scene, head.id, stood, handed_over)
    news = fleet.said(head.id)[len(said) :]
    assert "not the link controller any more" in news, news
    after = await stored(fleet)
    changed = {path for path in nodes.keys() | after.keys() if nodes.get(path) != after.get(path)}
    changed.discard(f"/sidecars/identities/{head.id}")  # written by the next one, when this one joined
    looked = (
        f"/links/{LINK}/producer_ids"  # every half minute, by who is the link controller: whose clock says so
    )
    if looked in changed:
        changed.remove(looked)
        off = (after[looked].value["sampled_at"] / 1000 - time.time()) / 3600
        assert round(off) == CLOCKS[fleet.ids.index(following.id)], after[looked]
    assert not changed, {path: (nodes.get(path), after.get(path)) for path in changed}
    assert (await fleet.controller()).controller_epoch == following.controller_epoch
    await scene.finish()


async def stored(fleet: Fleet) -> dict[str, Versioned]:
    """All nodes of the state, epochs included."""
    store = await Location.parse(f"topic:{fleet.target.bootstrap}/{fleet.store['topic']}").open(create=False)
    try:
        return dict(await store.tree("/"))
    finally:
        await store.close()
