"""Where the source's log ends is asked of its leader, and who that is of everybody who can be reached."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from controller.judge.alignment import SourceEnd
from linker.promote.failover_ports import make_failover_ports
from linker.promote.fleet_ports import ListedSourceEnds
from linker.promote.ports import PromotePorts
from wire.errors import ConnectionLost
from wire.frames.types import Node, TopicPartition

T0 = TopicPartition("orders", 0)


class Source:
    """Two brokers. The first was deposed and does not know; the second leads, and has one write more."""

    name = "source"

    def __init__(self) -> None:
        self.nodes = {1: Node(1, "a", 1), 2: Node(2, "b", 2)}
        self.known = (1, 3)  # leader and epoch
        self.readings: list[int] = []
        self.away: set[int] = set()
        self.asked: list[int | None] = []
        self.added: dict[int | None, int] = {}  # partitions that a broker knows of beside the first

    async def connection(self, node: int | None) -> Any:
        self.asked.append(node)
        if node in self.away:
            raise ConnectionLost("cannot connect", sent=False, peer=str(node))

        async def call(api: str, fields: Any, **options: Any) -> Any:
            await asyncio.sleep(0.01)
            leader, epoch = (1, 3) if node == 1 else (2, 4)
            parts = [
                SimpleNamespace(partition_index=index, leader_id=leader, leader_epoch=epoch)
                for index in range(1 + self.added.get(node, 0))
            ]
            brokers = [
                SimpleNamespace(node_id=n.id, host=n.host, port=n.port, rack=None)
                for n in self.nodes.values()
            ]
            return SimpleNamespace(brokers=brokers, topics=[SimpleNamespace(name="orders", partitions=parts)])

        return SimpleNamespace(call=call)

    def learn_leader(self, tp: TopicPartition, leader: int, epoch: int, node: Node | None = None) -> bool:
        if epoch <= self.known[1]:
            return False
        self.known = (leader, epoch)
        return True

    async def list_offsets(self, tps: Any, **options: Any) -> Any:
        self.readings.append(self.known[0])
        end = 5 if self.known[0] == 1 else 6
        return {tp: SimpleNamespace(offset=end, error=0) for tp in tps}


def ends_of(source: Any) -> ListedSourceEnds:
    return ListedSourceEnds(source)


async def test_the_end_that_a_deposed_leader_tells_is_void() -> None:
    source = Source()
    assert await ends_of(source).ends([T0], timeout=5) == {T0: SourceEnd(6, 6, 6)}
    assert source.readings == [1, 1, 1, 2, 2, 2]


async def test_a_broker_that_is_away_is_not_asked_again_and_again() -> None:
    source = Source()
    source.away = {2}
    port = ends_of(source)
    for _ in range(3):
        assert await port.ends([T0], timeout=5) == {T0: SourceEnd(5, 5, 5)}
    assert source.asked.count(2) == 1


async def test_one_broker_alone_is_not_asked_who_leads() -> None:
    source = Source()
    del source.nodes[2]
    assert await ends_of(source).ends([T0], timeout=5) == {T0: SourceEnd(5, 5, 5)}
    assert source.asked == []


async def test_how_many_partitions_there_are_was_told_beside_the_ends() -> None:
    """The broker that knows of most of them is right. No request is made for it behind a fence."""
    source = Source()
    source.added = {2: 3}
    port = ends_of(source)
    await port.ends([T0], timeout=5)
    asked = len(source.asked)
    assert await port.partitions(["orders"], timeout=5) == {"orders": 4}
    assert len(source.asked) == asked


async def test_what_was_told_of_partitions_before_does_not_stand_for_now() -> None:
    source = Source()
    port = ends_of(source)
    await port.ends([T0], timeout=5)
    assert await port.partitions(["orders"], timeout=5) == {"orders": 1}
    source.added = {None: 1, 1: 1, 2: 1}
    assert await port.partitions(["orders"], timeout=5) == {"orders": 2}, "it is asked"
    assert source.asked[-1] is None
    source.added = {1: 2, 2: 2}
    await port.ends([T0], timeout=5)
    source.added = {}  # made anew
    await port.ends([T0], timeout=5)
    assert await port.partitions(["orders"], timeout=5) == {"orders": 1}, "beside the last reading"


async def test_one_broker_alone_is_asked_for_partitions_once() -> None:
    source = Source()
    del source.nodes[2]
    source.added = {None: 1}
    port = ends_of(source)
    await port.ends([T0], timeout=5)
    assert await port.partitions(["orders"], timeout=5) == {"orders": 2}
    assert source.asked == [None]


async def test_a_topic_that_the_source_does_not_have_has_not_grown() -> None:
    source = Source()
    source.added = {None: -1}
    assert await ends_of(source).partitions(["orders"], timeout=5) == {}


def test_a_fail_over_does_not_ask_for_them() -> None:
    """Its source is dead."""
    anything: Any = SimpleNamespace()
    ports = PromotePorts(
        fencer=anything,
        progress=anything,
        source_ends=anything,
        tail_check=anything,
        hand_over=anything,
        configs=anything,
        source_topics=ListedSourceEnds(anything),
    )
    head: Any = SimpleNamespace(book=None, commands=SimpleNamespace(ask_progress=None))
    target: Any = SimpleNamespace(cluster=None)
    assert make_failover_ports("l", head, ports, target, frozenset).ports.source_topics is None
