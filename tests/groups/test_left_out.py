"""One partition that the target refuses keeps none of the others of its group from being committed, nor the group from being
promoted; who looks is told which it is.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.group_phases import GroupPhase
from controller.groups import GateKind
from controller.judge.group_offsets import Committed
from groups import bounds
from groups.gates.base import OffsetAndMetadata
from groups.gates.pieces import MOST_BYTES, pieces, record_bytes, smaller
from groups.left_out import LeftOut
from linker.cli.group_tables import beginning
from linker.service import group_status
from tests.groups.gates_kit import GROUP, at, target
from tests.links.group_rig import LINK, Rig
from tests.links.test_groups import begin_demote, begin_promote
from wire.client.cluster_metadata import PartitionMetadata, TopicMetadata
from wire.errors import BrokerError
from wire.frames.error_codes import (
    OFFSET_METADATA_TOO_LARGE,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.list_offsets import OffsetResult
from wire.frames.types import TopicPartition

LONG = "x" * 10_000
KINDS = [
    GateKind.CONSUMER_AND_TRANSACTION,
    GateKind.CLASSIC_AND_TRANSACTION,
    GateKind.TRANSACTION,
    GateKind.CLASSIC,
]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "_ABSENT_TIMEOUT", 0.1)


async def promote(rig: Rig, *, force: bool = False) -> str:
    await begin_promote(rig, "g", force=force)
    return (await rig.phase("g", GroupPhase.PROMOTED)).reason or ""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_text_that_is_too_long_stays_behind_and_its_offset_does_not(kind: GateKind) -> None:
    async with Rig(gate=kind) as rig:
        rig.commit("g", 10, metadata=LONG)
        rig.commit("g", 20, partition=1, metadata="short")
        rig.run()
        await rig.synced("g")
        assert rig.committed("g") == {0: Committed(10), 1: Committed(20, "short")}
        summary = group_status.group_summary(rig.group("g"), rig.manager)
        assert "offsets of orders-0 are committed without their texts" in (summary.reason or "")
        assert summary.difference == 0
        described = group_status.group_description(rig.group("g"), rig.manager, None, None)
        assert [one.note for one in described.partition_status] == [
            "without its text, which is too long for the target (10,000 characters)",
            None,
        ]
        reason = await promote(rig)
        assert "orders-0 are committed without their texts" in reason
        assert rig.committed("g") == {0: Committed(10), 1: Committed(20, "short")}


async def test_another_text_of_the_same_partition_is_tried_again() -> None:
    async with Rig() as rig:
        rig.commit("g", 10, metadata=LONG)
        rig.run()
        await rig.synced("g")
        rig.commit("g", 11, metadata="short")
        await rig.until("the text is there", lambda: rig.committed("g") == {0: Committed(11, "short")})
        assert group_status.group_summary(rig.group("g"), rig.manager).reason is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_for_a_partition_that_is_no_more_is_left_out(kind: GateKind) -> None:
    async with Rig(gate=kind) as rig:
        rig.commit("g", 10)
        rig.commit("g", 44, partition=9)
        rig.run()
        await rig.synced("g")
        assert rig.committed("g") == {0: Committed(10)}
        assert "orders-9 are left out" in (
            group_status.group_summary(rig.group("g"), rig.manager).reason or ""
        )
        reason = await promote(rig)
        assert "orders-9 are left out: the topic has no such partition any more" in reason
        assert rig.committed("g") == {0: Committed(10)}


async def test_a_new_partition_of_the_source_is_waited_for_and_left_out_by_force_only() -> None:
    """It exists at the source: its offset would be lost for good."""
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        grown = rig.source.topics["orders"]
        grown.partitions[2] = replace(grown.partitions[1], index=2)
        rig.commit("g", 0, partition=2)
        await begin_promote(rig, "g")
        await rig.until(
            "it waits for orders-2", lambda: "orders-2" in (rig.run_of("g").trouble or ""), timeout=20
        )
        assert rig.group("g").phase is GroupPhase.FINAL_SYNC
        reason = await promote(rig, force=True)
        assert "orders-2 are left out: the target refused it" in reason
        assert rig.committed("g") == {0: Committed(10)}


@pytest.mark.parametrize("kind", KINDS)
async def test_commits_of_many_partitions_go_in_pieces_that_the_coordinator_takes(kind: GateKind) -> None:
    async with target() as held:
        held.fake.add_topic("wide", 700)
        held.groups.most_in_a_batch = 200
        gate = held.gate(kind)
        await gate.close(at(0, "wide", 700))
        wanted = {TopicPartition("wide", index): OffsetAndMetadata(index, "m") for index in range(700)}
        await gate.commit(wanted)
        assert len(held.committed("wide")) == 700
        assert held.groups.offsets.committed[GROUP]["wide", 699].offset == 699


def test_pieces_are_bounded_in_bytes_and_lose_nothing() -> None:
    offsets = {
        TopicPartition(f"topic-{n % 7}", n): OffsetAndMetadata(n, "y" * (n % 900)) for n in range(9000)
    }
    cut = list(pieces("g" * 200, offsets))
    assert {tp: one for piece in cut for tp, one in piece.items()} == offsets
    assert sum(map(len, cut)) == len(offsets)
    for piece in cut:
        assert sum(record_bytes("g" * 200, tp, one) for tp, one in piece.items()) <= MOST_BYTES


def test_only_a_piece_that_was_refused_as_a_whole_is_cut_again() -> None:
    piece = {TopicPartition("t", n): OffsetAndMetadata(n, "y" * 100) for n in range(100)}
    refused = [UNKNOWN_SERVER_ERROR] * 100
    assert [len(half) for half in smaller("g", piece, refused)] == [50, 50]
    assert smaller("g", piece, refused[1:]) == []
    assert smaller("g", piece, [OFFSET_METADATA_TOO_LARGE] * 100) == []
    assert smaller("g", dict(list(piece.items())[:1]), refused[:1]) == []


def test_what_may_be_taken_later_is_not_given_up_by_force() -> None:
    left_out, tp = LeftOut(), TopicPartition("t", 0)
    assert not left_out.give_up({tp: 14})  # COORDINATOR_LOAD_IN_PROGRESS
    assert not left_out.give_up({})
    assert left_out.give_up({tp: UNKNOWN_TOPIC_OR_PARTITION})
    assert left_out.fitting({tp: Committed(5)}) == {}


def test_a_partition_is_left_out_of_an_opening_when_it_was_refused_twice_in_a_row() -> None:
    left_out, tp = LeftOut(), TopicPartition("t", 0)
    assert not left_out.refused_again({tp: UNKNOWN_TOPIC_OR_PARTITION})
    assert not left_out.refused_again({})
    assert not left_out.refused_again({tp: UNKNOWN_TOPIC_OR_PARTITION})
    assert left_out.refused_again({tp: UNKNOWN_TOPIC_OR_PARTITION})
    assert "the target has no such partition" in (left_out.said({tp: Committed(5)}) or "")


async def test_a_partition_that_is_deleted_while_its_group_opens_keeps_it_from_opening_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        rig.commit("g", 20, partition=1)
        rig.commit("g", 10)
        rig.run()
        await rig.synced("g")
        known = rig.at_target._refusal

        def refusal(topic: str, item: Any) -> int:
            opening = rig.group("g").phase is GroupPhase.OPENING
            return UNKNOWN_TOPIC_OR_PARTITION if opening and item.partition_index == 1 else known(topic, item)

        monkeypatch.setattr(rig.at_target, "_refusal", refusal)
        reason = await promote(rig)
        assert "orders-1 are left out: the target has no such partition" in reason


async def test_a_partition_that_is_no_more_at_the_source_does_not_hold_up_a_demote() -> None:
    async with Rig() as rig:
        rig.commit("g", 10)
        rig.commit("g", 20, partition=1)
        rig.run()
        await rig.synced("g")
        await promote(rig)
        del rig.source.topics["orders"].partitions[1]
        rig.at_source.offsets.committed["g"].pop(("orders", 1))
        await begin_demote(rig, "g")
        await rig.phase("g", GroupPhase.GATED)
        assert rig.at_source.offsets.committed["g"]["orders", 0].offset == 10


def test_a_long_text_is_shown_by_its_beginning() -> None:
    assert beginning("short") == "short"
    assert beginning(LONG) == "x" * 40 + "... (10,000 characters)"


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_partition_of_the_mirror_that_a_broker_does_not_name_is_not_gone(side: str) -> None:
    """That broker is behind: to call it gone would leave its offset out for good."""
    async with Rig() as rig:
        mirror = rig.controller.image.mirrors[LINK, "orders"]
        ours = mirror.topic_id if side == "target" else mirror.source_topic_id
        bounds = rig.tools.bounds
        found = TopicMetadata("orders", ours, 0, {0: PartitionMetadata(1, 0, (1,), (1,))})
        other = replace(found, topic_id=b"x" * 16)
        refused = OffsetResult(-1, -1, -1, UNKNOWN_TOPIC_OR_PARTITION)

        async def nothing(*_: Any, **__: Any) -> None: ...

        async def list_offsets(asked: Any, **_: Any) -> Any:
            return dict.fromkeys(asked, refused)

        cluster: Any = SimpleNamespace(
            topics={"orders": found}, refresh=nothing, list_offsets=list_offsets, name=side
        )
        setattr(bounds, f"_{side}", cluster)
        last, beyond = TopicPartition("orders", 1), TopicPartition("orders", mirror.partitions)
        assert mirror.partitions == 2
        if side == "target":
            bounds._ended = lambda _: True  # type: ignore[method-assign]
        with pytest.raises(BrokerError, match="orders-1"):
            await bounds.exact([last], timeout=1)
        assert (await bounds.exact([beyond], timeout=1)).gone == {beyond}
        cluster.topics["orders"] = other  # another topic of that name may have fewer
        assert (await bounds.exact([last], timeout=1)).gone == {last}
