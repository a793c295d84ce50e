"""Each gate through its life: closed, renewed, taken over, committed through, opened, released."""

from __future__ import annotations

import pytest

from controller.groups import GateKind, GateStage
from groups.gates.base import NO_OFFSET, CommitFailed, GateError, GateLost, LostReason, OffsetAndMetadata
from tests.fakes.groups import ClassicClient, ConsumerClient
from tests.groups.gates_kit import GROUP, KINDS, PAIRS, TOPIC, Target, at, offsets, partitions, target
from wire.frames.types import TopicPartition


def make_client(kind: GateKind, held: Target) -> ClassicClient | ConsumerClient:
    """One that the gate holds, of the protocol that the group has by then."""
    if kind in (GateKind.CLASSIC, GateKind.CLASSIC_AND_TRANSACTION, GateKind.TRANSACTION):
        return ClassicClient(held.groups, GROUP, (TOPIC,))
    return ConsumerClient(held.groups, GROUP, (TOPIC,))


def steps(client: ClassicClient | ConsumerClient, times: int = 4) -> None:
    for _ in range(times):
        client.step()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_waits_and_then_begins_at_the_final_offsets(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        record = await gate.close(at(100))
        assert record.stage is GateStage.HELD
        assert record == held.stored
        client = make_client(kind, held)
        await gate.commit(offsets(200))
        steps(client)
        assert client.reads == {}
        await held.renew_for(gate, 400.0)
        steps(client)
        assert client.reads == {}
        await gate.open(offsets(300))
        assert held.stored is not None
        assert held.stored.stage is GateStage.OPEN
        steps(client)
        assert client.reads == {(TOPIC, 0): 300, (TOPIC, 1): 301, (TOPIC, 2): 302}


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_committed_while_gated_is_there_for_all_but_readers_of_stable_offsets(
    kind: GateKind,
) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        await gate.commit(offsets(200))
        assert held.committed() == {0: 200, 1: 201, 2: 202}
        stored = held.groups.offsets.get(GROUP, (TOPIC, 1))
        assert stored is not None
        assert stored.metadata == "m"


@pytest.mark.parametrize("kind", KINDS)
async def test_another_sidecar_takes_over_and_nobody_is_let_in(kind: GateKind) -> None:
    async with target() as held:
        await held.gate(kind).close(at(100))
        client = make_client(kind, held)
        steps(client)
        for _ in range(3):
            held.groups.advance(20.0)
            gate = held.gate()
            await gate.close(at(100))
            await held.renew_for(gate, 300.0)
            steps(client)
            assert client.reads == {}
            assert gate.weakness() is None
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == {(TOPIC, 0): 300, (TOPIC, 1): 301, (TOPIC, 2): 302}


@pytest.mark.parametrize("kind", KINDS)
async def test_release_publishes_nothing(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        await gate.commit(offsets(200))
        await gate.release()
        client = make_client(kind, held)
        steps(client)
        assert client.reads == {(TOPIC, 0): 200, (TOPIC, 1): 201, (TOPIC, 2): 202}
        with pytest.raises(GateError, match="OPEN"):
            await gate.renew()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_partition_without_an_offset_is_held_and_stays_without(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100) | {TopicPartition(TOPIC, 2): NO_OFFSET})
        client = make_client(kind, held)
        steps(client)
        assert client.reads == {}
        await gate.open(offsets(300) | {TopicPartition(TOPIC, 2): OffsetAndMetadata(NO_OFFSET)})
        assert held.committed() == {0: 300, 1: 301}
        steps(client)
        assert client.reads == {(TOPIC, 0): 300, (TOPIC, 1): 301, (TOPIC, 2): -1}


@pytest.mark.parametrize("kind", KINDS)
async def test_closing_twice_changes_nothing(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        first = await gate.close(at(100))
        assert await gate.close(at(100)) == first


@pytest.mark.parametrize("stage", [GateStage.LEAVING, GateStage.ENDING, GateStage.PUBLISHING, GateStage.OPEN])
@pytest.mark.parametrize("kind", KINDS)
async def test_opening_goes_on_where_another_sidecar_died(kind: GateKind, stage: GateStage) -> None:
    class Died(Exception):
        pass

    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        client = make_client(kind, held)
        steps(client)

        def die(record: object) -> None:
            if getattr(record, "stage", None) is stage:
                raise Died

        held.on_save = die
        try:
            await gate.open(offsets(300))
            died = False
        except Died:
            died = True
        held.on_save = None
        if died:
            await held.gate().open(offsets(300))
        assert held.stored is not None
        assert held.stored.stage is GateStage.OPEN
        steps(client)
        assert client.reads == {(TOPIC, 0): 300, (TOPIC, 1): 301, (TOPIC, 2): 302}


@pytest.mark.parametrize("kind", PAIRS)
async def test_a_pair_never_sets_back_who_reads_before_it_is_open(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))

        def commit_more(record: object) -> None:
            if getattr(record, "stage", None) is GateStage.LEAVING:
                held.groups.offsets.commit(GROUP, (TOPIC, 0), 555, "")

        held.on_save = commit_more
        await gate.open(offsets(300))
        assert held.committed() == {0: 555, 1: 301, 2: 302}


@pytest.mark.parametrize("kind", PAIRS)
async def test_a_pair_holds_partitions_that_appear_while_clients_wait(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        client = make_client(kind, held)
        client.topics = (TOPIC, "new")
        steps(client)
        held.fake.add_topic("new", 2)
        await gate.close(at(100) | at(7, "new", 2))
        await held.renew_for(gate, 30.0)
        steps(client)
        assert client.reads == {}
        await gate.commit(offsets(200) | offsets(8, "new", 2))
        given = (
            kind is GateKind.CONSUMER_AND_TRANSACTION
        )  # and only the transaction stands before the records
        assert gate.unheld() == frozenset(partitions("new", 2)[-1:] if given else ())
        await gate.open(offsets(300) | offsets(9, "new", 2))
        steps(client)
        assert client.reads == {
            (TOPIC, 0): 300,
            (TOPIC, 1): 301,
            (TOPIC, 2): 302,
            ("new", 0): 9,
            ("new", 1): 10,
        }


async def test_a_consumer_gate_says_what_a_client_was_given() -> None:
    """The hole of a member alone: what comes into being while somebody waits goes to whoever waits."""
    async with target() as held:
        gate = held.gate(GateKind.CONSUMER)
        await gate.close(at(100))
        client = ConsumerClient(held.groups, GROUP, (TOPIC, "new"))
        client.step()
        held.fake.add_topic("new", 2)
        client.step()
        assert ("new", 0) in client.reads
        await gate.close(at(100) | at(7, "new", 2))
        assert TopicPartition("new", 0) in gate.unheld()
        with pytest.raises(CommitFailed, match="is read by app"):
            await gate.commit(offsets(8, "new", 2))


async def test_a_consumer_gate_owns_what_appears_while_it_is_alone() -> None:
    async with target() as held:
        gate = held.gate(GateKind.CONSUMER)
        await gate.close(at(100) | at(0, "new", 2))
        held.fake.add_topic("new", 2)
        await held.renew_for(gate, 20.0)
        client = ConsumerClient(held.groups, GROUP, (TOPIC, "new"))
        steps(client)
        assert client.reads == {}


async def test_a_topic_that_does_not_exist_yet_is_unheld_until_it_does() -> None:
    async with target() as held:
        gate = held.gate(GateKind.TRANSACTION)
        await gate.close(at(100) | at(0, "new", 1))
        assert gate.unheld() == frozenset(partitions("new", 1))
        held.fake.add_topic("new", 1)
        await held.renew_for(gate, 400.0)
        assert gate.unheld() == frozenset()


@pytest.mark.parametrize("kind", [GateKind.TRANSACTION, *PAIRS])
async def test_a_transaction_is_renewed_before_the_old_one_ends(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))

        def still_pending() -> None:
            nonlocal gaps
            gaps += not held.groups.offsets.unstable(GROUP, (TOPIC, 0))

        gaps = 0
        held.groups.on_change = still_pending
        seen = set()
        for _ in range(50):
            await held.renew_for(gate, 40.0)
            seen.add(gate.record.transaction.current)  # type: ignore[union-attr]
            for index in range(3):
                assert held.groups.offsets.unstable(GROUP, (TOPIC, index))
            assert sum(1 for t in held.groups.transactions.transactions.values() if t.state == "ongoing") == 1
        assert seen == {0, 1}
        assert gaps == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gate_that_nobody_renews_opens_by_itself_and_says_so(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        await gate.commit(offsets(200))
        held.groups.advance(3600.0)
        client = ConsumerClient(held.groups, GROUP, (TOPIC,))
        steps(client)
        assert client.reads == {(TOPIC, 0): 200, (TOPIC, 1): 201, (TOPIC, 2): 202}
        with pytest.raises(GateLost) as lost:
            await held.gate().close(at(100))
        assert lost.value.reason in (LostReason.SOMEBODY_ELSE, LostReason.CONVERTED, LostReason.EXPIRED)
        assert "app at 127.0.0.1" in str(lost.value)
        client.leave()
        again = held.gate()
        await again.close(at(200))
        waiting = make_client(kind, held)
        steps(waiting)
        assert waiting.reads == {}


async def test_what_comes_into_being_is_pending_soon_and_by_itself() -> None:
    async with target() as held:
        gate = held.gate(GateKind.TRANSACTION)
        await gate.close(at(100) | at(0, "new", 1))
        await held.renew_for(gate, 20.0)
        held.fake.add_topic("new", 1)
        await held.renew_for(gate, 35.0)
        assert held.groups.offsets.unstable(GROUP, ("new", 0))
        assert gate.unheld() == frozenset()


@pytest.mark.parametrize("kind", PAIRS)
async def test_a_pair_ends_its_transaction_before_its_member_leaves(kind: GateKind) -> None:
    """librdkafka reads from anywhere if its partitions change while it waits for stable offsets."""
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        await gate.open(offsets(300))
        asked = [
            "leave"
            if getattr(item.entity, "member_epoch", 0) == -1 or item.api == "leave_group"
            else item.api
            for item in held.fake.requests
        ]
        assert asked.count("leave") == 1
        assert asked.index("leave") > asked.index("end_txn")
        assert not {"end_txn", "txn_offset_commit"} & set(asked[asked.index("leave") :])
