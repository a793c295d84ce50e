"""Real Kafka for the tests in this directory: a source and a target cluster per session, more on demand.

Every test here is marked `real`, runs on the session's event loop and takes topics that no other test knows.
A test that would leave a shared cluster broken starts its own with `start_cluster`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lab.clusters.kafka_cluster import KafkaCluster, KafkaClusterSpec
from lab.clusters.kafka_jars import ensure_distribution
from lab.clusters.sidecar_process import SidecarProcess, SidecarSpec
from tests.real.harness_fleet import Fleet
from tests.real.harness_fleet_scene import MakeFleetScene, fleet_scenes
from tests.real.harness_trouble import linked_sidecar

HERE = Path(__file__).parent
REAL_TEST_TIMEOUT = 180
#: Files that take longest go first, or one worker has them at the end and the others nothing.
LONG_ONES = (
    "test_record_validation",
    "test_failover",
    "test_promote",
    "test_trouble_source",
    "test_trouble_target",
    "test_fleet_figures",
    "test_membership",
    "test_validation",
    "test_promote_restart",
    "test_validation_spark",
)

# A broker that was killed is only let in again once its old session is over: 9 s by default.
QUICK_FENCING = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "1000"}
# A group may be given a session that a test can wait for the end of: 45 s by default.
TARGET_PROPERTIES = {**QUICK_FENCING, "group.consumer.min.session.timeout.ms": "10000"}
SOURCE_PROPERTIES = {
    **QUICK_FENCING,
    "log.cleaner.backoff.ms": "300",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "500",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.real)
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(REAL_TEST_TIMEOUT))
    places = {name: place for place, name in enumerate(LONG_ONES)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def clusters(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[KafkaCluster, KafkaCluster]]:
    """Source (2 brokers, one of them the controller too) and target (3 brokers, 3 racks, 1 controller)."""
    directory = tmp_path_factory.mktemp("kafka")
    await ensure_distribution()  # the download is not part of any start
    source = KafkaCluster(
        KafkaClusterSpec(name="source", brokers=2, racks=("a", "b"), properties=SOURCE_PROPERTIES), directory
    )
    target = KafkaCluster(
        KafkaClusterSpec(
            name="target", brokers=3, controllers=1, racks=("a", "b", "c"), properties=TARGET_PROPERTIES
        ),
        directory,
    )
    async with AsyncExitStack() as stack:
        for cluster in await asyncio.gather(
            stack.enter_async_context(source), stack.enter_async_context(target), return_exceptions=True
        ):
            if isinstance(cluster, BaseException):
                raise cluster
        yield source, target


@pytest.fixture(scope="session")
def source_cluster(clusters: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    """The session's source cluster. Leave it as you found it."""
    return clusters[0]


@pytest.fixture(scope="session")
def target_cluster(clusters: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    """The session's target cluster. Leave it as you found it."""
    return clusters[1]


@pytest_asyncio.fixture(loop_scope="session")
async def start_cluster(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[KafkaCluster]]]:
    """`await start_cluster(name="source", brokers=2, ...)`: a cluster of the test's own."""
    async with AsyncExitStack() as stack:

        async def start(**spec: Any) -> KafkaCluster:
            properties = {**SOURCE_PROPERTIES, **spec.pop("properties", {})}
            return await stack.enter_async_context(
                KafkaCluster(KafkaClusterSpec(properties=properties, **spec), tmp_path)
            )

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sidecar(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    tmp_path_factory: pytest.TempPathFactory,
    _numbers: Iterator[int],
) -> AsyncIterator[SidecarProcess]:
    """A sidecar with a link between the session's clusters, for all tests of one file."""
    async with linked_sidecar(
        source_cluster, target_cluster, 900 + next(_numbers), tmp_path_factory.mktemp("sidecar")
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def start_sidecar(
    tmp_path: Path, _numbers: Iterator[int]
) -> AsyncIterator[Callable[..., Awaitable[SidecarProcess]]]:
    """`await start_sidecar(target.bootstrap, ...)`: a sidecar that is ready, see SidecarSpec.

    It is killed at the end of the test; `linker sidecar leave` before that is the test's business. Broker ids
    are never used twice, so that one which was killed is in nobody's way.
    """
    async with AsyncExitStack() as stack:

        async def start(target_bootstrap: str, **spec: Any) -> SidecarProcess:
            broker_id = spec.pop("broker_id", None) or 900 + next(_numbers)
            sidecar = SidecarProcess(
                SidecarSpec(target_bootstrap=target_bootstrap, broker_id=broker_id, **spec),
                tmp_path / f"sidecar-{broker_id}",
            )
            return await stack.enter_async_context(sidecar)

        yield start


@pytest.fixture(scope="session")
def _numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def unique_topic(request: pytest.FixtureRequest, _numbers: Iterator[int]) -> Callable[[str], str]:
    """`unique_topic("orders")`: a topic name that is used by this test only."""
    test = re.sub(r"[^a-zA-Z0-9._-]", "-", request.node.name)[:120]

    def name(stem: str = "topic") -> str:
        return f"{stem}.{test}.{next(_numbers)}"

    return name


@pytest_asyncio.fixture(loop_scope="session")
async def make_scene(
    source_cluster: KafkaCluster, fleet: Fleet, unique_topic: Callable[[str], str]
) -> AsyncIterator[MakeFleetScene]:
    """For modules that have a `fleet` of their own; others say themselves what their scenes are."""
    async with fleet_scenes(source_cluster, fleet, unique_topic) as make:
        yield make
