"""A mirror of a mirror: cluster A to B by one sidecar, B to C by another one, and the logs are equal at both ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from admin.models import MirrorDescription, MirrorState
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.sidecar_process import SidecarProcess
from lab.workload.log_compare import compare_replica
from lab.workload.replica_log import ReplicaError, open_replica
from tests.real.test_prefix import PATIENCE, make, write
from tests.real.test_read_only import read, written
from wire.frames.types import TopicPartition

SLOW = pytest.mark.slow  # no other way than the one that is tried in each run
pytestmark = pytest.mark.timeout(420)

StartCluster = Callable[..., Awaitable[KafkaCluster]]
StartSidecar = Callable[..., Awaitable[SidecarProcess]]


def difference(first: KafkaCluster, topic: str, last: KafkaCluster, called: str) -> str | None:
    """The first one of two logs as they lie on disk: batches, offsets, every byte but the leader epoch."""
    for index in range(2):
        here, there = TopicPartition(called, index), TopicPartition(topic, index)
        try:
            compared = compare_replica(
                open_replica(first.log_dir(1), there), open_replica(last.log_dir(1), here), here, 1
            )
        except ReplicaError as error:  # the topic is not made yet
            return str(error)
        if not compared.identical or not compared.batches:
            return f"{called}-{index}: {compared}"
    return None


async def equal(first: KafkaCluster, topic: str, last: KafkaCluster, called: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := await asyncio.to_thread(difference, first, topic, last, called)) is not None:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


async def shown(sidecar: SidecarProcess, link: str, topic: str, state: MirrorState) -> MirrorDescription:
    def ask() -> MirrorDescription:
        with sidecar.client() as client:
            return client.describe_mirror(link, topic)

    deadline = time.monotonic() + PATIENCE
    while (found := await asyncio.to_thread(ask)).state is not state:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)
    return found


@pytest.mark.parametrize(
    ("first", "second"),
    [("", ""), pytest.param("a.", "b.", marks=SLOW)],
    ids=["same-name", "prefixes"],
)
async def test_a_mirror_of_a_mirror_is_equal_at_the_end(
    start_cluster: StartCluster, start_sidecar: StartSidecar, first: str, second: str
) -> None:
    a, b, c = await asyncio.gather(*(start_cluster(name=name, brokers=1) for name in "abc"))
    to_b, to_c = await start_sidecar(b.bootstrap), await start_sidecar(c.bootstrap)
    at_b = f"{first}orders"
    at_c = f"{second}{at_b}"
    await asyncio.to_thread(make, a, "orders", 400)
    for sidecar, link, source, prefix, topic in (
        (to_b, "from-a", a, first, "orders"),
        (to_c, "from-b", b, second, at_b),
    ):
        options = ["--option", f"prefix={prefix}"] if prefix else []
        await sidecar.linker("link", "create", link, "--bootstrap-servers", source.bootstrap, *options)
        await sidecar.linker("mirror", "create", "--link", link, topic)
    await equal(a, "orders", b, at_b)
    await equal(b, at_b, c, at_c)
    await equal(a, "orders", c, at_c)

    # The leader of the source, a sidecar, is away and comes back with a new epoch of its broker.
    await asyncio.to_thread(write, a, "orders", 200)
    await to_b.restart()
    await asyncio.to_thread(write, a, "orders", 200)
    await equal(a, "orders", c, at_c)
    await to_c.restart()
    await asyncio.to_thread(write, a, "orders", 200)
    await equal(a, "orders", c, at_c)
    deadline = time.monotonic() + PATIENCE  # the lag is known with each replica's next fetch
    while (found := await shown(to_c, "from-b", at_c, MirrorState.ACTIVE)).lag:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)
    assert found.lag == 0, found
    assert await asyncio.to_thread(read, c.bootstrap, at_c, "readers", 1000) == 1000

    error, _ = await asyncio.to_thread(written, c.bootstrap, at_c, **{"enable.idempotence": True})
    if second:
        assert error is not None
        assert error.name() == "POLICY_VIOLATION", error
    else:  # by both sidecars to the one source
        assert error is None, error
        await equal(a, "orders", c, at_c)
        assert await asyncio.to_thread(read, c.bootstrap, at_c, "all", 1001) == 1001
