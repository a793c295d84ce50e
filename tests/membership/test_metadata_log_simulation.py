"""Random lives of a quorum, followed over sockets: the image must end as the log says. A failure names its seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from linker.membership import TargetCluster
from tests.fakes.controller import DROP, FakeController, FakeQuorum
from tests.fakes.metadata_records import encode_record
from tests.membership.conftest import Member, eventually

NODES = 3


@pytest_asyncio.fixture
async def nodes(quorum: FakeQuorum) -> AsyncIterator[list[FakeController]]:
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(FakeController(quorum, n)) for n in range(1, NODES)]
        yield [quorum.nodes[0], *others]


class Life:
    """One random life. `truth` is what committed records add up to; what is only appended may be lost."""

    def __init__(self, quorum: FakeQuorum, nodes: list[FakeController], rng: random.Random) -> None:
        self.quorum = quorum
        self.nodes = nodes
        self.rng = rng
        self.truth: dict[str, int] = {}
        self.appended: list[tuple[str, int]] = []
        self.count = 0

    def step(self) -> None:
        self.rng.choice(
            [self.append, self.append, self.append, self.commit, self.elect, self.snapshot, self.fail]
        )()

    def append(self) -> None:
        self.quorum.hold = True
        self.count += 1
        name = f"f{self.rng.randrange(6)}"
        self.quorum.append("FeatureLevelRecord", {"name": name, "feature_level": self.count})
        self.appended.append((name, self.count))

    def commit(self) -> None:
        self.quorum.hold = False
        self.quorum.commit()
        self.truth.update(self.appended)
        self.appended.clear()

    def elect(self) -> None:
        """Somebody else leads; what was not committed may be gone."""
        if self.rng.random() < 0.5:
            self.quorum.truncate(self.quorum.high_watermark)
            self.appended.clear()
        self.quorum.hold = True
        self.quorum.elect(self.rng.randrange(NODES))

    def snapshot(self) -> None:
        self.commit()
        values = [
            encode_record("FeatureLevelRecord", {"name": name, "feature_level": level})
            for name, level in sorted(self.truth.items())
        ]
        for broker_id, broker in sorted(self.quorum.brokers.items()):
            record = {
                "broker_id": broker_id,
                "incarnation_id": broker.incarnation,
                "broker_epoch": broker.epoch,
                "fenced": broker.fenced,
                "rack": None,
            }
            values.append(encode_record("RegisterBrokerRecord", record))
        self.quorum.take_snapshot(values)

    def fail(self) -> None:
        """The next fetch at one node loses its connection."""
        node = self.rng.choice(self.nodes)

        def once(request: object) -> object:
            node.hooks.pop("fetch", None)
            return DROP

        node.hooks["fetch"] = once


def features(target: TargetCluster) -> dict[str, int]:
    return {name: level for name, level in target.image.features.items() if name.startswith("f")}


@pytest.mark.parametrize("seed", range(8))
async def test_the_image_ends_as_the_log_says(
    quorum: FakeQuorum, nodes: list[FakeController], make_member: Callable[[], Member], seed: int
) -> None:
    rng = random.Random(seed)
    target = make_member().target
    running = asyncio.ensure_future(target.join(20))
    life = Life(quorum, nodes, rng)
    await running
    for _ in range(60):
        life.step()
        for name, level in features(target).items():
            assert level <= life.truth.get(name, 0), f"seed {seed}: {name} was never committed"
        if rng.random() < 0.4:
            await asyncio.sleep(rng.random() * 0.02)
    life.commit()
    await eventually(lambda: features(target) == life.truth, timeout=30)
    assert target.image.brokers[900].incarnation_id == target.identity.incarnation_id, f"seed {seed}"
