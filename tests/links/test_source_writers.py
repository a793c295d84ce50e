"""Producers of a source: who writes there without the sidecar, and what holds its last stable offset back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from linker.links import source_writers
from linker.links.producer_view import direct_warnings, source_producers
from linker.links.source_writers import RECENT_MS, AtSource, SourceWriters, direct_writers, open_transactions
from linker.promote.producer_states import ProducerState
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import LinkerError
from wire.frames.types import TopicPartition

TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 10_000_000
FLOOR = 5000


def producer(producer_id: int, *, ago: int = 0, txn: int = -1, epoch: int = 0) -> ProducerState:
    return ProducerState(producer_id, epoch, 3, NOW - ago, -1, txn)


def test_ids_of_the_target_were_moved_and_ids_of_the_source_were_not() -> None:
    moved, stray, newer = producer(FLOOR), producer(4999, ago=5000), producer(7, ago=10)
    assert direct_writers({TP: [moved, stray, newer]}, FLOOR, NOW) == {TP: [newer, stray]}
    assert direct_writers({TP: [moved]}, FLOOR, NOW) == {}


def test_one_that_stopped_long_ago_is_left_out_unless_its_transaction_is_open() -> None:
    old, hanging = producer(7, ago=RECENT_MS + 1), producer(8, ago=RECENT_MS + 1, txn=50)
    assert direct_writers({TP: [old, hanging]}, FLOOR, NOW) == {TP: [hanging]}


def test_without_a_floor_nothing_is_claimed() -> None:
    assert direct_writers({TP: [producer(7)]}, None, NOW) == {}


def test_what_holds_the_last_stable_offset_back_is_first() -> None:
    late, early = producer(1, txn=90), producer(2, txn=10)
    assert open_transactions({TP: [late, producer(3), early], OTHER: [producer(4)]}) == {TP: [early, late]}


def test_what_people_are_shown() -> None:
    seen = AtSource(
        NOW,
        direct={TP: [producer(7, ago=200, txn=12, epoch=2)], OTHER: [producer(7, ago=90_000)]},
        open={TP: [producer(7, ago=200, txn=12, epoch=2), producer(FLOOR, txn=20)]},
        transactional_ids={7: "billing"},
    )
    assert seen.describe(seen.direct[TP][0]) == (
        'producer 7 (epoch 2, transactional.id "billing", last wrote 0.2 s ago)'
    )
    shown = [(p.partition, p.producer_id, p.direct, p.open_since_offset) for p in source_producers(seen)]
    assert shown == [(0, 7, True, 12), (0, FLOOR, False, 20), (1, 7, True, None)]
    [line] = direct_warnings(seen)
    assert line.startswith(
        "topic orders: 1 producer wrote to the source itself in the last quarter of an hour, "
        "the last one 0.2 s ago (7)"
    )


class Looked(SourceWriters):
    """As if the source had said this; nothing connects."""

    def __init__(self, seen: AtSource) -> None:
        super().__init__(Cluster("source", [], ClientSecurity(), "test"), lambda: None)
        self._seen = seen

    async def look(self, tps: Collection[TopicPartition], *, timeout: float, named: bool = True) -> AtSource:
        return self._seen


async def test_a_transaction_without_a_name_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a live one that we may not describe: a marker would take its records, and it could still commit."""
    fenced: list[str] = []

    async def fence(cluster: Cluster, transactional_id: str, *, timeout: float) -> None:
        fenced.append(transactional_id)

    monkeypatch.setattr(source_writers, "fence_producer", fence)
    named, unnamed = producer(7, txn=12), producer(8, txn=20)
    names = {7: "billing"}
    seen = AtSource(NOW, open={TP: [named], OTHER: [unnamed]}, transactional_ids=names)
    text = r"orders-1: .*transactional.id of producer 8 .*offset 20.*DESCRIBE.*find-hanging"
    with pytest.raises(LinkerError, match=text):
        await Looked(seen).abort_open({TP, OTHER}, timeout=1)
    assert fenced == ["billing"]
    names[8] = "shop"
    assert set(await Looked(seen).abort_open({TP, OTHER}, timeout=1)) == {TP, OTHER}
    assert fenced == ["billing", "billing", "shop"]


class Brokers:
    """A source of two brokers; what each answers to ListTransactions: names by producer id, an error code, or an error."""

    name = "source"
    nodes = (1, 2)

    def __init__(self, *answers: object, slow: float = 0.0) -> None:
        self.answers = dict(zip(self.nodes, answers, strict=True))
        self.slow = slow
        self.timeouts: list[float] = []

    def leader(self, tp: TopicPartition) -> Any:
        return SimpleNamespace(id=1)

    async def call(self, api: str, fields: Any, *, node_id: int, timeout: float, version: int = 0) -> Any:
        self.timeouts.append(timeout)
        if api == "describe_producers":
            await asyncio.sleep(self.slow)
            one = SimpleNamespace(
                producer_id=7, producer_epoch=0, last_sequence=1, last_timestamp=0, coordinator_epoch=0
            )
            one.current_txn_start_offset = 12
            part = SimpleNamespace(partition_index=0, error_code=0, active_producers=[one])
            return SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[part])])
        assert api == "list_transactions"
        answer = self.answers[node_id]
        if isinstance(answer, LinkerError):
            raise answer
        code, names = (answer, {}) if isinstance(answer, int) else (0, answer)
        assert isinstance(names, dict)
        states = [SimpleNamespace(producer_id=i, transactional_id=name) for i, name in names.items()]
        return SimpleNamespace(error_code=code, transaction_states=states)


def writers_at(brokers: Brokers) -> SourceWriters:
    return SourceWriters(cast(Cluster, brokers), lambda: FLOOR)


async def test_why_a_producer_has_no_name_is_said() -> None:
    """A coordinator that is loading its log has no transactions to tell: that is not the same as having none."""
    brokers = Brokers(14, {7: "billing"})
    seen = await writers_at(brokers).look([TP], timeout=5)
    assert seen.transactional_ids == {7: "billing"}
    assert list(seen.unnamed) == ["broker 1 does not list its transactions: COORDINATOR_LOAD_IN_PROGRESS"]
    assert any("COORDINATOR_LOAD_IN_PROGRESS" in line for line in direct_warnings(seen))
    seen = await writers_at(Brokers(LinkerError("it is away"), {})).look([TP], timeout=5)
    assert list(seen.unnamed) == ["broker 1 does not list its transactions: it is away"]
    with pytest.raises(LinkerError, match=r"does not tell the transactional.id.*broker 1 .* it is away"):
        await writers_at(Brokers(LinkerError("it is away"), {})).abort_open({TP}, timeout=1)
    seen = await writers_at(Brokers({7: "billing"}, {})).look([TP], timeout=5)
    assert not seen.unnamed


async def test_one_deadline_for_all_that_is_asked() -> None:
    """Inside a fence producers are held: names are worth no more time than was given for the whole look."""
    brokers = Brokers({7: "billing"}, {}, slow=0.15)
    seen = await writers_at(brokers).look([TP], timeout=5)
    assert seen.transactional_ids == {7: "billing"}
    assert all(0 < left <= 4.86 for left in brokers.timeouts[1:]), brokers.timeouts
    late = Brokers({7: "billing"}, {}, slow=0.05)
    seen = await writers_at(late).look([TP], timeout=0.04)
    assert (seen.transactional_ids, len(late.timeouts)) == ({}, 1)
    assert "no time was left" in seen.unnamed[0]
    assert seen.open, "what is known is told all the same"
