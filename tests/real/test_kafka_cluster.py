"""The harness itself: nodes come up, go down and return under the same address, and die with their parent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from lab.clusters.child_process import ChildError
from lab.clusters.kafka_cluster import KafkaCluster


async def brokers_seen(bootstrap: str) -> dict[int, int]:
    metadata = await asyncio.to_thread(AdminClient({"bootstrap.servers": bootstrap}).list_topics, timeout=10)
    return {broker.id: broker.port for broker in metadata.brokers.values()}


FIRST_LINK_BROKER = 900


async def test_the_shared_clusters_run(source_cluster: KafkaCluster, target_cluster: KafkaCluster) -> None:
    for cluster, count in ((source_cluster, 2), (target_cluster, 3)):
        seen = await brokers_seen(cluster.bootstrap)
        # A link broker of a test before this one may not be fenced yet.
        ours = {broker: port for broker, port in seen.items() if broker < FIRST_LINK_BROKER}
        assert ours == {node.node_id: node.port() for node in cluster.brokers}
        assert len(cluster.brokers) == count
    assert len(target_cluster.controllers) == 1


async def test_a_killed_node_returns_under_its_address(
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
) -> None:
    cluster = await start_cluster(name="solo")
    node = cluster.nodes[1]
    address = node.address()
    await node.kill()
    assert not node.running
    with pytest.raises(ChildError, match="does not run"):
        node.pause()
    await node.start()
    assert node.address() == address
    assert await brokers_seen(cluster.bootstrap) == {1: node.port()}
    await node.stop()
    await node.start()
    assert await brokers_seen(cluster.bootstrap) == {1: node.port()}


async def test_a_node_that_cannot_start_says_why(
    start_cluster: Callable[..., Awaitable[KafkaCluster]],
) -> None:
    with pytest.raises(ChildError, match=r"(?s)ended while starting.*num\.io\.threads"):
        await start_cluster(name="broken", properties={"num.io.threads": "many"})


async def test_nodes_die_with_whoever_started_them(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from pathlib import Path
        from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec

        async def main():
            async with KafkaCluster(KafkaClusterSpec(name="orphan"), Path(sys.argv[1])) as cluster:
                print(cluster.nodes[1].pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    deadline = time.monotonic() + 5
    while Path(f"/proc/{int(done.stdout)}").exists():
        assert time.monotonic() < deadline, "the broker outlived its parent"
        await asyncio.sleep(0.02)
