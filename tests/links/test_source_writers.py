"""Producers of a source: who writes there without the sidecar, and what holds its last stable offset back."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from linker.links import source_writers
from linker.links.producer_states import ProducerState
from linker.links.producer_view import direct_warnings, source_producers
from linker.links.source_writers import RECENT_MS, AtSource, SourceWriters, direct_writers, open_transactions
from wire.cluster import Cluster
from wire.errors import LinkerError
from wire.security import ClientSecurity
from wire.types import TopicPartition

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
        "topic orders: 1 producers still write to the source itself, the last one 0.2 s ago (7)"
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
