"""Seeded random histories: everything happens at once, and in the end every follower has the source's bytes."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import pytest

from fetcher.source_ports import FetchLimits
from tests.fakes.cluster import FakeCluster
from tests.fakes.follower import FollowerLog
from tests.fetcher.rig import SESSION_EPOCH, Rig, eventually

SMALL = FetchLimits(
    max_bytes=128 << 10,
    partition_bytes=32 << 10,
    max_wait_ms=50,
    request_timeout=0.5,
    reconnect_backoff=(0.02, 0.1),
)
# Cursors change over to the quiet fetcher and back all the time.
DIVIDED = dataclasses.replace(SMALL, quiet_after=0.02, quiet_again_after=0.02, busy_partitions=1)
STEPS = 50


@pytest.mark.parametrize("limits", [SMALL, DIVIDED], ids=["together", "divided"])
@pytest.mark.parametrize("seed", range(4))
async def test_random_history(seed: int, limits: FetchLimits) -> None:
    chance = random.Random(seed)
    async with FakeCluster(3, racks={1: "a", 2: "b", 3: "c"}) as source:
        source.add_topic("t", 4)
        rig = Rig(
            source,
            budget=512 << 10,
            limits=limits,
            window_bytes=64 << 10,
            rack=chance.choice([None, "b"]),
        )
        async with rig.running():
            rig.mirror("t")
            for replica in rig.replicas:
                rig.follow(
                    replica,
                    use_session=chance.random() < 0.8,
                    partition_bytes=chance.choice([10_000, 30_000, 1 << 20]),
                    version=chance.choice([13, 15, 17]),
                )
            for _ in range(STEPS):
                await step(chance, source, rig)
                await asyncio.sleep(chance.choice([0, 0, 0.01, 0.03]))
            source.clear_faults()
            for broker in source.brokers.values():
                if not broker.running:
                    await broker.start()
            for partition in range(4):
                source.publish("t", partition)
                source.add("t", partition)
            for follower in rig.followers.values():
                follower.running.set()
                follower.pause = 0.0
            await rig.settled(30)
            assert rig.events.failures == {}
            # A first batch comes whole: up to 72 kB where 32 KiB were asked for, from each of three nodes.
            assert rig.budget.peak <= rig.budget.limit + 3 * 40_000
        # An answer on its way is given back when its connection has ended, a turn of the loop later.
        await eventually(lambda: rig.budget.used == 0, 25)


async def step(chance: random.Random, source: FakeCluster, rig: Rig) -> None:
    partition = chance.randrange(4)
    replica = chance.choice(rig.replicas)
    follower = rig.followers[replica]
    action = chance.choices(
        ["produce", "leader", "fault", "truncate", "stall", "restart", "wipe", "node", "pause", "re-add"],
        [40, 6, 8, 3, 6, 4, 2, 2, 3, 2],
    )[0]
    mirror = rig.directory("t", partition)
    if action == "produce":
        for _ in range(chance.randrange(1, 12)):
            source.add(
                "t", partition, records=chance.randrange(1, 9), value_size=chance.choice([10, 500, 9000])
            )
    elif action == "leader":
        source.move_leader("t", partition, chance.randrange(1, 4), publish=chance.random() < 0.7)
    elif action == "fault":
        fault = chance.choice(
            [
                {"close_after": chance.randrange(0, 400)},
                {"drop": True},
                {"raw": chance.randbytes(chance.randrange(1, 300))},
                {"error": chance.choice([3, 6, 7, 56, 70, 71, 74, 75, 78, 100, -1])},
                {"delay_answer": 0.05},
            ]
        )
        source.inject("fetch", **fault)
    elif action == "truncate":
        log = source.partition("t", partition).log
        if mirror is not None and log.batches:
            source.truncate("t", partition, chance.choice(log.batches).info.base_offset)
    elif action == "stall":
        follower.running.clear() if follower.running.is_set() else follower.running.set()
    elif action == "restart":
        follower.restart()
    elif action == "wipe":
        for key, log in list(follower.logs.items()):
            if key[1] == partition:
                follower.logs[key] = FollowerLog(log.topic, log.topic_id, log.index, SESSION_EPOCH)
        follower.restart()
    elif action == "node":
        broker = source.brokers[chance.randrange(1, 4)]
        if broker.running and sum(b.running for b in source.brokers.values()) > 2:
            await broker.stop()
        elif not broker.running:
            await broker.start()
    elif action == "pause" and mirror is not None:
        rig.manager.pause([mirror.tp])
        await asyncio.sleep(0.02)
        rig.manager.resume([mirror.tp])
    elif action == "re-add" and mirror is not None:
        # What a restarted process knows: the epochs it persisted, who has to truncate, and no fetch offset.
        known = tuple(sorted({(e, o) for tp, e, o in rig.events.epochs if tp == mirror.tp}))
        spec = rig.spec(
            "t", partition, source_epochs=mirror.source_epochs, untruncated=tuple(mirror.untruncated.items())
        )
        assert set(mirror.source_epochs) <= set(known) | set(mirror.spec.source_epochs)
        rig.manager.remove([mirror.tp])
        rig.manager.add([spec])
