"""A sidecar that holds groups is killed: another one takes its gates over as they stand, and promotes by policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka.admin import AdminClient

from admin.models import GroupState
from lab.clusters.kafka_cluster import KafkaCluster
from tests.real.harness_fleet import Fleet
from tests.real.harness_groups import GroupScene

pytestmark = pytest.mark.timeout(240)
PREFIX = "taken."


class FleetGroups(GroupScene):
    """Asks whichever sidecar answers."""

    def __init__(self, source: KafkaCluster, target: KafkaCluster, fleet: Fleet) -> None:
        super().__init__(source, target, fleet)  # type: ignore[arg-type]  # its command line is all that is used
        self.fleet = fleet

    async def ask(self, call: Callable[[Any], Any]) -> Any:
        return await self.fleet.ask(call)

    def gates(self, group: str) -> set[str]:
        """Member ids of the gates in a group on the target, as its coordinator tells."""
        admin = AdminClient({"bootstrap.servers": self.target.bootstrap})
        found = admin.describe_consumer_groups([group], request_timeout=10)[group].result(15)
        return {one.member_id for one in found.members if one.client_id.startswith("kafka-linker-")}


@pytest_asyncio.fixture(loop_scope="session")
async def scene(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, tmp_path: Path, _numbers: Iterator[int]
) -> AsyncIterator[FleetGroups]:
    ids = [900 + next(_numbers) for _ in range(2)]
    store = {"type": "topic", "topic": f"__state_{ids[0]}", "seat.timeout.ms": 4000}
    fleet = Fleet(target_cluster, ids, tmp_path, store, {"lease.ms": 5000})
    made = FleetGroups(source_cluster, target_cluster, fleet)
    try:
        await fleet.start()
        yield made
    finally:
        await made.close()
        await fleet.close()


async def test_the_next_sidecar_has_the_same_gate_and_promotes_when_the_source_is_left(
    scene: FleetGroups, unique_topic: Callable[[str], str]
) -> None:
    topic, group = unique_topic("topic"), unique_topic(f"{PREFIX}g")
    await scene.link(f"{PREFIX}.*", "groups_promote=auto")
    await scene.topic(topic)
    old = [
        scene.reader(scene.source, group, [topic], f"app-{n}", **{"auto.offset.reset": "earliest"})
        for n in range(2)
    ]
    await scene.all_read(old, topic)
    await scene.wait_active(topic)
    await scene.gated(group)
    gates = scene.gates(group)
    assert len(gates) == 1
    await old[0].close()
    new = [scene.reader(scene.target, group, [topic], "app-0")]
    await scene.waits(group, "app-0")
    head = await scene.fleet.controller()
    await scene.fleet.cars[head.id].kill()
    scene.write(topic, 3, 20)  # while nobody looks after the gate
    assert (await scene.fleet.next_head(head)).id != head.id
    await scene.all_read(old, topic)
    found = await scene.gated(group)
    assert found.reason is None
    assert scene.gates(group) == gates  # taken over, not closed anew
    assert not new[0].got
    # Nobody asks for the promote.
    await old[1].close()
    new.append(scene.reader(scene.target, group, [topic], "app-1"))
    await scene.state(group, GroupState.PROMOTED)
    scene.write(topic, 3, 20)
    await scene.all_read([*old, *new], topic)
    assert scene.repeated([*old, *new]) == []
    assert scene.gates(group) == set()
