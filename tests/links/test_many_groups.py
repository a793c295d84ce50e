"""Many groups that all commit within every second: what following them costs this process, and how old what it has is.

The clusters are in a process of their own, so that the processor time here is the sidecar's (and a little of the test's). A
machine with other work makes everything late, and dearer too: time spent waiting for a processor is allowed for. Strict is
this on a quiet machine only.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from controller.decide.groups import GroupRules
from controller.groups import GateKind
from controller.mirror_group import GroupPolicy
from fleet.stored_controller import StoredController
from groups.gates.coordinators import Coordinators
from groups.gates.settings import GateSettings
from groups.manager import GroupManager
from groups.settings import GroupSettings
from linker.service.group_status import groups_status
from router.fetch.first_fetches import FirstFetches
from tests.controller.memory_store import MemoryStore
from tests.links.far_groups import PARTITIONS, TOPIC, FarGroups, far_groups, waited
from tests.links.group_rig import LINK, link_tools, mirrored
from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity

NODES = 3
INTERVAL = 1.0  # seconds, groups.sync.interval.ms as it is by default
HEARTBEAT = "consumer_group_heartbeat"
BEATS = 5.0  # seconds: every gate renews its member once in about that time


@asynccontextmanager
async def managed(far: FarGroups) -> AsyncIterator[GroupManager]:
    """The groups of a link, with the gates that groups get whose members were seen at the source."""
    controller = await StoredController.open(MemoryStore())
    await controller.create_link(LINK, "source", {})
    copies = await mirrored(controller, TOPIC, PARTITIONS, far.source_topic_id, far.target_topic_id)
    clusters = [
        Cluster(name, parse_bootstrap_servers(where), ClientSecurity.plaintext(), "test")
        for name, where in (("source", far.source), ("target", far.target))
    ]
    coordinators = Coordinators(clusters[1])
    tools = link_tools(controller, clusters, coordinators, copies, FirstFetches(), GateSettings())
    rules = GroupRules((re.compile(".*"),), (), GroupPolicy.MANUAL, GateKind.CONSUMER_AND_TRANSACTION)
    manager = GroupManager(tools, GroupSettings(rules, INTERVAL), consumer_protocol=lambda: True)
    running = asyncio.create_task(manager.run())
    try:
        yield manager
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await coordinators.close()
        for cluster in clusters:
            await cluster.close()


class Usage:
    """Of this process, from now on."""

    def __init__(self) -> None:
        self._began, self._computed, self._waited = time.monotonic(), time.process_time(), waited()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def computing(self) -> float:
        return time.process_time() - self._computed

    @property
    def waiting(self) -> float:
        return waited() - self._waited


async def there(far: FarGroups, groups: int, offset: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while (seen := await far.look(offset))["there"] < groups:
        assert time.monotonic() < deadline, f"{seen['there']} of {groups} groups have {offset}"
        await asyncio.sleep(0.25)


def age_and_round(manager: GroupManager) -> tuple[float, float]:
    """Seconds, as the status shows them."""
    book = manager._tools.book
    status = groups_status(book.all(), manager)
    assert status.sync_age_ms is not None, status
    assert status.sync_ms is not None
    return status.sync_age_ms / 1000, status.sync_ms / 1000


@pytest.mark.parametrize(
    ("groups", "seconds", "processor"),
    [
        # Twice what it took beside other tests on a full host (0.17), where a processor does less in its time.
        pytest.param(100, 3, 0.35, id="100"),
        pytest.param(2000, 12, 0.9, id="2000", marks=[pytest.mark.slow, pytest.mark.timeout(360)]),
    ],
)
async def test_groups_that_all_change_every_second_are_synced_within_it(
    groups: int, seconds: int, processor: float
) -> None:
    """On one core, over one connection per coordinator; the figures are printed."""
    async with far_groups(groups, NODES) as far:
        await far.commit(1)
        async with managed(far) as manager:
            await there(far, groups, 1, timeout=240)
            await far.look(1)
            still = Usage()
            await asyncio.sleep(BEATS)
            share = still.computing / still.seconds
            before, commits, rounds = await far.look(1), manager.stats.commits, manager.stats.rounds
            # At least as many as are due: where they came late, they must not seem dear, and the commits cheap.
            beats = max(before["asked"]["target"][HEARTBEAT], groups * still.seconds / (0.9 * BEATS))
            beat = still.computing / beats
            moving, ages, took = Usage(), [], []
            for offset in range(2, 2 + seconds):
                await far.commit(offset)
                while moving.seconds < (offset - 1) * INTERVAL:
                    await asyncio.sleep(0.2)
                    age, newest_round = age_and_round(manager)
                    ages.append(age)
                    took.append(newest_round)
            length, computing, waiting = moving.seconds, moving.computing, moving.waiting
            commits, rounds = manager.stats.commits - commits, manager.stats.rounds - rounds
            seen = await far.look(offset)
            await there(far, groups, offset, timeout=30)
            assert (manager.stats.errors, manager.stats.gates_lost) == (0, 0)
    waiting += seen["waited"] - before["waited"]
    asked = seen["asked"]["target"]
    # On a machine with nothing else to do every group is committed for once a second, and no heartbeat is late.
    needed = share + (computing - beat * asked[HEARTBEAT]) * groups / commits
    print(
        f"{groups} groups, all changed every second for {length:.1f} s: {needed:.2f} s of processor per second "
        f"({share:.2f} while nothing changed), {rounds} rounds of {sorted(took)[len(took) // 2]:.2f} s "
        f"(longest {max(took):.2f} s), age {sorted(ages)[len(ages) // 2]:.2f} s (oldest {max(ages):.2f} s), {asked}, "
        f"{seen['connections']} connections; {waiting:.1f} s waited for a processor"
    )
    assert needed <= processor * (1 + waiting / length)
    # Read at the beginning of a round, shown until the end of the next one, which begins an interval later.
    assert max(ages) <= 2.5 * INTERVAL + waiting
    assert sorted(took)[len(took) // 2] <= INTERVAL + waiting
    assert commits >= groups * (seconds - 2 - 2 * waiting)
    assert asked["offset_commit"] <= groups * seconds
    assert asked["consumer_group_describe"] <= commits / min(20, groups / NODES / 4) + NODES
    # One for each coordinator; one for questions to any of them, and one for lookups.
    assert sum(seen["connections"]) <= NODES + 2
