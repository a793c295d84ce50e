"""A consumer that names a replica by its client.rack gets that replica's records or none."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from router.fetch.decision import named_replica
from tests.router.rig import LINK_BROKER, Log, Progress, Rig
from tests.router.test_consumer_fetch import fetch, log_of


@pytest.mark.parametrize(
    ("rack", "broker"),
    [
        ("linker.replica=2", 2),
        ("linker.replica=0", 0),
        ("linker.replica=2147483647", 2147483647),
        ("linker.replica=", None),
        ("linker.replica=-1", None),
        ("linker.replica=+2", None),
        ("linker.replica= 2", None),
        ("linker.replica=2_0", None),
        ("linker.replica=٢", None),
        ("linker.replica=" + "9" * 5000, None),
        ("linker.replica", None),
        ("Linker.replica=2", None),
        ("a", None),
        ("", None),
    ],
)
def test_what_names_a_replica(rack: str, broker: int | None) -> None:
    assert named_replica(rack) == broker


def copied(rig: Rig, count: int = 5, *, age: float = 0.0) -> Log:
    """Topic "orders", partition 0: five records, brokers 1 and 2 have copied them `age` seconds ago."""
    log = log_of(rig)
    log.append(count)
    at = asyncio.get_running_loop().time() - age
    log.followers = {1: Progress(count, at), 2: Progress(count, at)}
    return log


@pytest.mark.parametrize("broker", [1, 2])
async def test_redirected_to_exactly_the_named_one(broker: int) -> None:
    async with Rig() as rig:
        copied(rig, age=3600)  # neither its rack nor how closely it follows matters
        client = await rig.client()
        for offset in (0, 5):
            answer = await fetch(client, rig, {0: offset}, rack_id=f"linker.replica={broker}")
            part = answer.partitions[0]
            assert (part.error, part.preferred_read_replica) == (0, broker)
            assert answer.values() == []


@pytest.mark.parametrize("broker", [3, LINK_BROKER])
async def test_no_replica_of_the_partition_is_served_as_any_consumer(broker: int) -> None:
    async with Rig() as rig:
        copied(rig)
        answer = await fetch(await rig.client(), rig, {0: 0}, rack_id=f"linker.replica={broker}")
        assert answer.partitions[0].preferred_read_replica == -1
        assert len(answer.values()) == 5


async def test_a_rack_of_that_name_is_still_a_rack() -> None:
    async with Rig() as rig:
        copied(rig)
        rig.image.brokers[2] = replace(rig.image.brokers[2], rack="linker.replica=x")
        answer = await fetch(await rig.client(), rig, {0: 0}, rack_id="linker.replica=x")
        assert answer.partitions[0].preferred_read_replica == 2


@pytest.mark.parametrize("why", ["behind", "fenced", "gone", "never asked"])
async def test_a_replica_that_cannot_answer_yet_is_waited_for_and_nobody_answers_for_it(why: str) -> None:
    async with Rig() as rig:
        log = copied(rig)
        rig.source.add("orders", 0, 5)
        if why == "behind":
            log.followers[2] = Progress(2, log.followers[2].caught_up_monotonic)
        elif why == "fenced":
            rig.image.brokers[2] = replace(rig.image.brokers[2], fenced=True)
        elif why == "gone":
            del rig.image.brokers[2]
        else:
            del log.followers[2]
        client = await rig.client()
        before = asyncio.get_running_loop().time()
        answer = await fetch(client, rig, {0: 3}, rack_id="linker.replica=2", max_wait_ms=200)
        part = answer.partitions[0]
        assert (part.error, part.preferred_read_replica, answer.values()) == (0, -1, [])
        assert asyncio.get_running_loop().time() - before >= 0.19
        assert not log.listeners


async def test_what_the_replica_itself_deleted_is_out_of_range() -> None:
    async with Rig() as rig:
        log = copied(rig)
        log.followers[2].log_start_offset = 3
        client = await rig.client()
        for offset, error, replica in ((2, 1, -1), (3, 0, 2)):
            part = (await fetch(client, rig, {0: offset}, rack_id="linker.replica=2")).partitions[0]
            assert (part.error, part.preferred_read_replica) == (error, replica)


async def test_other_partitions_of_the_same_fetch_do_not_wait_for_it() -> None:
    async with Rig() as rig:
        del copied(rig).followers[2]
        other = log_of(rig, 1)
        other.append(2)
        other.followers = {2: Progress(2, 0.0)}
        answer = await asyncio.wait_for(
            fetch(await rig.client(), rig, {0: 0, 1: 0}, rack_id="linker.replica=2", max_wait_ms=60_000), 25
        )
        assert answer.partitions[1].preferred_read_replica == 2
        assert answer.values(0) == []


async def test_after_the_hand_over_the_new_leader_is_named_instead() -> None:
    async with Rig() as rig:
        copied(rig)
        rig.elect("orders", 0, 1, 9)
        rig.router.handed_over([*rig.logs])
        part = (await fetch(await rig.client(), rig, {0: 0}, rack_id="linker.replica=2")).partitions[0]
        assert (part.error, part.preferred_read_replica) == (6, -1)
