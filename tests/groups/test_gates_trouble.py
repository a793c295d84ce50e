"""What goes wrong at the target: somebody is there already, coordinators move, answers are lost, rights are missing."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from controller.groups import GateKind, GateStage
from groups.gates.base import CommitFailed, GateLost, GateRefused, GroupActive, LostReason
from groups.gates.codes import MissingGroupRight
from groups.gates.coordinators import Coordinators
from tests.fakes.groups import ClassicClient, ConsumerClient
from tests.groups.gates_kit import (
    GROUP,
    KINDS,
    MEMBER_KINDS,
    PAIRS,
    TOPIC,
    StoreGone,
    at,
    offsets,
    target,
)
from tests.groups.test_gates_life import make_client, steps
from wire.errors import WireError

WITH_TRANSACTION = [GateKind.TRANSACTION, *PAIRS]
OPENED = {(TOPIC, 0): 300, (TOPIC, 1): 301, (TOPIC, 2): 302}


@pytest.mark.parametrize("client_type", [ClassicClient, ConsumerClient])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_active_group_is_refused_with_its_members_named(
    kind: GateKind, client_type: type[ClassicClient | ConsumerClient]
) -> None:
    async with target() as held:
        client = client_type(held.groups, GROUP, (TOPIC,))
        steps(client)
        before = dict(client.reads)
        with pytest.raises(GroupActive, match="app at 127") as refused:
            await held.gate(kind).close(at(100))
        assert [member.client_id for member in refused.value.members] == ["app"]
        steps(client)
        assert client.reads == before  # nothing was taken from it


@pytest.mark.parametrize("kind", KINDS)
async def test_coordinators_move_and_load(kind: GateKind) -> None:
    async with target(nodes=3) as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        client = make_client(kind, held)
        steps(client)
        for node in (2, 3, 1):
            held.groups.move(0, GROUP, node)
            if gate.record.transaction is not None:
                for name in gate.record.transaction.transactional_ids:
                    held.groups.move(1, name, node)
            held.groups.loading.add(node)
            asyncio.get_running_loop().call_later(0.2, held.groups.loading.discard, node)
            await gate.commit(offsets(200 + node))
            if kind is not GateKind.TRANSACTION:  # with clients in the group, only opening publishes
                assert held.committed()[0] == 200 + node
            await held.renew_for(gate, 310.0)
            steps(client)
            assert client.reads == {}
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == OPENED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_coordinator_is_restarted(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        client = make_client(kind, held)
        steps(client)
        await held.fake.brokers[1].stop()
        held.groups.reload()
        again = asyncio.get_running_loop().create_task(gate.commit(offsets(200)))
        await asyncio.sleep(0.2)
        await held.fake.brokers[1].start()
        await again
        steps(client)
        await held.renew_for(gate, 310.0)
        steps(client)
        assert client.reads == {}
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == OPENED


async def test_the_transaction_has_a_coordinator_of_its_own() -> None:
    async with target(nodes=3) as held:
        gate = held.gate(GateKind.CONSUMER_AND_TRANSACTION)
        assert gate.record.transaction is not None
        first, second = gate.record.transaction.transactional_ids
        held.groups.placed = {(1, first): 2, (1, second): 3}
        await gate.close(at(100))
        await held.renew_for(gate, 700.0)
        asked = {(item.api, item.node) for item in held.fake.requests}
        assert {("init_producer_id", 2), ("init_producer_id", 3), ("add_offsets_to_txn", 3)} <= asked
        assert ("txn_offset_commit", 1) in asked
        assert not {("txn_offset_commit", 2), ("txn_offset_commit", 3)} & asked
        await gate.open(offsets(300))
        assert held.committed() == {0: 300, 1: 301, 2: 302}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_topic_of_offsets_is_not_there_yet(kind: GateKind) -> None:
    async with target() as held:
        held.groups.missing = 3
        assert (await held.gate(kind).close(at(100))).stage is GateStage.HELD


APIS = {
    "consumer_group_heartbeat": GateKind.CONSUMER,
    "consumer_group_describe": GateKind.CONSUMER,
    "join_group": GateKind.CLASSIC,
    "sync_group": GateKind.CLASSIC,
    "heartbeat": GateKind.CLASSIC,
    "leave_group": GateKind.CLASSIC,
    "offset_commit": GateKind.CLASSIC,
    "init_producer_id": GateKind.TRANSACTION,
    "add_offsets_to_txn": GateKind.TRANSACTION,
    "txn_offset_commit": GateKind.TRANSACTION,
    "end_txn": GateKind.TRANSACTION,
    "offset_fetch": GateKind.TRANSACTION,
}


@pytest.mark.parametrize("when", ["lost request", "lost answer"])
@pytest.mark.parametrize("api", APIS)
async def test_an_unknown_outcome_is_settled_by_asking_again(api: str, when: str) -> None:
    """Whether the request was carried out or not, all of a gate's life goes on as if nothing had been."""
    kind = APIS[api]
    async with target() as held:
        fault = held.fake.inject(api, process=when == "lost answer", close_after=0)
        gate = held.gate(kind)
        await gate.close(at(100))
        client = make_client(kind, held)
        steps(client)
        await gate.commit(offsets(200))
        await held.renew_for(gate, 400.0)
        assert client.reads == {}
        await gate.open(offsets(300))
        assert fault.hits == 1
        steps(client)
        assert client.reads == OPENED


RIGHTS = [
    ("consumer_group_heartbeat", 30, GateKind.CONSUMER, "READ on Group readers"),
    ("consumer_group_heartbeat", 29, GateKind.CONSUMER, "DESCRIBE on Topic orders"),
    ("consumer_group_describe", 30, GateKind.CONSUMER, "DESCRIBE on Group readers"),
    ("describe_groups", 30, GateKind.CLASSIC, "DESCRIBE on Group readers"),
    ("find_coordinator", 30, GateKind.CLASSIC, "DESCRIBE on Group readers"),
    ("join_group", 30, GateKind.CLASSIC, "READ on Group readers"),
    ("sync_group", 30, GateKind.CLASSIC, "READ on Group readers"),
    ("offset_commit", 29, GateKind.CLASSIC, "READ on Topic orders"),
    ("offset_commit", 30, GateKind.CONSUMER, "READ on Group readers"),
    ("init_producer_id", 53, GateKind.TRANSACTION, "WRITE on TransactionalId kafka-linker-gate-link-readers"),
    ("add_offsets_to_txn", 30, GateKind.TRANSACTION, "READ on Group readers"),
    ("txn_offset_commit", 29, GateKind.TRANSACTION, "READ on Topic orders"),
]


@pytest.mark.parametrize(("api", "code", "kind", "right"), RIGHTS)
async def test_a_missing_right_is_named(api: str, code: int, kind: GateKind, right: str) -> None:
    async with target() as held:
        held.fake.inject(api, error=code, times=None)
        gate = held.gate(kind)

        async def use() -> None:
            await gate.close(at(100))
            await gate.commit(offsets(200))

        with pytest.raises(MissingGroupRight, match=f"lacks the right {right}") as refused:
            await use()
        assert "kafka-acls.sh" in str(refused.value)


async def test_a_target_without_the_consumer_protocol() -> None:
    async with target(
        api_versions={"consumer_group_heartbeat": None, "consumer_group_describe": None}
    ) as held:
        with pytest.raises(GateRefused, match="choose a classic gate"):
            await held.gate(GateKind.CONSUMER).close(at(100))
        await held.gate(GateKind.CLASSIC_AND_TRANSACTION).close(at(100))
    async with target() as held:  # 3.9: it knows the api and has it switched off
        held.fake.inject("consumer_group_heartbeat", error=35, times=None)
        held.fake.inject("consumer_group_describe", error=35, times=None)
        with pytest.raises(GateRefused, match="switched off"):
            await held.gate(GateKind.CONSUMER).close(at(100))
        await held.gate(GateKind.CLASSIC_AND_TRANSACTION).close(at(100))


async def test_the_target_wants_shorter_sessions_and_transactions() -> None:
    async with target() as held:
        held.groups.max_session = 100.0
        held.groups.transactions.max_timeout = 100.0
        gate = held.gate(GateKind.CLASSIC_AND_TRANSACTION)
        await gate.close(at(100))
        joined = gate.record.classic
        await held.renew_for(gate, 600.0)
        assert gate.weakness() is None
        assert gate.record.classic == joined  # it never had to join again
        assert held.groups.offsets.unstable(GROUP, (TOPIC, 0))


async def test_a_classic_gate_notices_that_the_group_was_converted() -> None:
    async with target() as held:
        gate = held.gate(GateKind.CLASSIC)
        await gate.close(at(100))
        client = ConsumerClient(held.groups, GROUP, (TOPIC,))
        client.step()
        held.groups.advance(11.0)
        with pytest.raises(GateLost) as lost:
            await gate.renew()
        assert lost.value.reason is LostReason.CONVERTED
        assert "app at 127.0.0.1" in str(lost.value)
        assert held.stored is not None
        assert held.stored.stage is GateStage.PLANNED


async def test_a_pair_goes_on_without_its_member_and_names_who_is_there() -> None:
    """A client of the consumer protocol converts the group; it asks for stable offsets, so it is held all the same."""
    async with target() as held:
        gate = held.gate(GateKind.CLASSIC_AND_TRANSACTION)
        await gate.close(at(100))
        client = ConsumerClient(held.groups, GROUP, (TOPIC,))
        for _ in range(40):
            client.step()
            await held.renew_for(gate, 20.0)
            assert client.reads == {}
        weakness = gate.weakness()
        assert weakness is not None
        assert weakness.reason in (LostReason.CONVERTED, LostReason.SOMEBODY_ELSE)
        assert "app at 127.0.0.1" in str(weakness)
        await gate.commit(offsets(200))
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == OPENED


async def test_a_pair_takes_its_member_again_once_the_others_have_gone() -> None:
    async with target() as held:
        gate = held.gate(GateKind.CONSUMER_AND_TRANSACTION)
        await gate.close(at(100))
        held.groups.advance(50.0)  # the member's session
        client = ConsumerClient(held.groups, GROUP, (TOPIC,))
        steps(client)
        await gate.renew()
        assert gate.weakness() is not None
        client.leave()
        await held.renew_for(gate, 20.0)
        assert gate.weakness() is None
        reader = ConsumerClient(held.groups, GROUP, (TOPIC,), stable=False)
        steps(reader)
        assert reader.reads == {}


@pytest.mark.parametrize("part", ["member", "transaction"])
@pytest.mark.parametrize("kind", PAIRS)
async def test_a_pair_survives_the_loss_of_one_part(kind: GateKind, part: str) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        if part == "member":
            group = held.groups.groups[GROUP]
            for member_id in list(group.members):
                group.leave(member_id)
        else:
            transactions = held.groups.transactions
            transactions._deadlines = dict.fromkeys(transactions._deadlines, 0.0)
            assert [one.state for one in transactions.transactions.values()].count("ongoing") == 1
            held.groups.advance(0.0)
            assert not held.groups.offsets.unstable(GROUP, (TOPIC, 0))
        before = gate.record.transaction
        gate = held.gate()
        await gate.close(at(100))
        # Only what was lost is taken again.
        assert (gate.record.transaction != before) == (part == "transaction")
        assert len(held.groups.groups[GROUP].members) == 1
        client = make_client(kind, held)
        client.stable = False
        steps(client)
        assert client.reads == {}
        assert held.groups.offsets.unstable(GROUP, (TOPIC, 0))


@pytest.mark.parametrize(
    ("old_renewed", "new_renewed"), [(True, True), (False, True), (False, False), (True, False)]
)
@pytest.mark.parametrize("kind", WITH_TRANSACTION)
async def test_a_sidecar_that_was_taken_over_from_cannot_open_the_transaction(
    kind: GateKind, old_renewed: bool, new_renewed: bool
) -> None:
    """Nor at its first renewal, when it takes up a transactional id that only the next one has used."""
    async with target() as held:
        old = held.gate(kind)
        await old.close(at(100))
        if old_renewed:
            await held.renew_for(old, 310.0)
        new = held.gate()
        await new.close(at(100))
        if new_renewed:
            await held.renew_for(new, 310.0)
        before = held.stored
        with pytest.raises(GateLost) as lost:
            await held.renew_for(old, 310.0)
        assert lost.value.reason is LostReason.FENCED
        assert held.stored == before
        assert held.groups.offsets.unstable(GROUP, (TOPIC, 0))
        await new.close(at(100))
        await held.renew_for(new, 310.0)
        assert held.groups.offsets.unstable(GROUP, (TOPIC, 0))


@pytest.mark.parametrize("fail_at", range(6))
@pytest.mark.parametrize("kind", KINDS)
async def test_a_sidecar_dies_while_it_takes_the_group(kind: GateKind, fail_at: int) -> None:
    """Whatever step the record was lost after, the next one finds the traces and takes the group."""
    async with target() as held:
        count = 0

        def fail(record: object) -> None:
            nonlocal count
            count += 1
            if count > fail_at:
                raise StoreGone

        held.on_save = fail
        gate = held.gate(kind)
        failed = False
        try:
            await gate.close(at(100))
        except StoreGone:
            failed = True
        held.on_save = None
        if held.stored is None:  # nothing had been done yet
            assert failed
            assert not any(
                item.api in ("join_group", "init_producer_id") for item in held.fake.requests if fail_at == 0
            ) or kind in (GateKind.CLASSIC, GateKind.CLASSIC_AND_TRANSACTION)
            gate = held.gate(kind)
        else:
            gate = held.gate()
        client = make_client(kind, held)
        if held.stored is not None and held.stored.stage is GateStage.HELD:
            steps(client)
        await gate.close(at(100))
        steps(client)
        assert client.reads == {}
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == OPENED


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_at_any_moment_the_gate_can_be_taken_again(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        for delay in range(12):
            task = asyncio.get_running_loop().create_task(gate.close(at(100)))
            for _ in range(delay * delay):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await gate.close(at(100))
        client = make_client(kind, held)
        steps(client)
        for delay in range(8):
            held.groups.advance(max(0.0, gate.due() - held.groups.now))
            task = asyncio.get_running_loop().create_task(gate.renew())
            for _ in range(delay * delay):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await gate.renew()
            steps(client)
            assert client.reads == {}
        for delay in range(8):
            task = asyncio.get_running_loop().create_task(gate.open(offsets(300)))
            for _ in range(delay * delay):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await gate.open(offsets(300))
        steps(client)
        assert client.reads == OPENED


@pytest.mark.parametrize("kind", MEMBER_KINDS)
async def test_offsets_of_a_topic_that_does_not_exist_are_named(kind: GateKind) -> None:
    async with target() as held:
        gate = held.gate(kind)
        await gate.close(at(100))
        with pytest.raises(CommitFailed, match="gone-0: UNKNOWN_TOPIC_OR_PARTITION"):
            await gate.commit(offsets(200) | offsets(1, "gone", 1))
        assert held.committed() == {0: 200, 1: 201, 2: 202}


async def test_a_coordinator_that_never_answers_does_not_hold_up_the_caller() -> None:
    async with target() as held:
        held.coordinators = Coordinators(held.cluster, call_timeout=60.0)
        gate = held.gate(GateKind.CONSUMER)
        await gate.close(at(100))
        held.fake.inject("consumer_group_heartbeat", drop=True, times=None)
        held.groups.advance(10.0)
        async with asyncio.timeout(25):
            with pytest.raises(WireError):
                await gate.renew()
        held.fake.clear_faults()
        held.groups.advance(10.0)
        await gate.renew()  # it was no loss
        await held.coordinators.close()


async def test_the_members_epoch_moves_between_asking_and_committing() -> None:
    async with target() as held:
        gate = held.gate(GateKind.CONSUMER)
        await gate.close(at(100))
        held.fake.inject("offset_commit", error=113)
        await gate.commit(offsets(200))
        assert held.committed() == {0: 200, 1: 201, 2: 202}


@pytest.mark.parametrize("epoch", [1, 99])
async def test_a_record_with_another_epoch_than_the_coordinators_releases_nothing(epoch: int) -> None:
    """To join again with epoch 0 would: such a request says that it owns nothing."""
    async with target() as held:
        await held.gate(GateKind.CONSUMER).close(at(100))
        client = ConsumerClient(held.groups, GROUP, (TOPIC,))
        steps(client)
        client.leave()
        steps(client)
        record = held.stored
        assert record is not None
        assert record.consumer is not None
        held.stored = dataclasses.replace(
            record, consumer=dataclasses.replace(record.consumer, member_epoch=epoch)
        )
        gate = held.gate()
        await gate.close(at(100))
        steps(client)
        assert client.reads == {}
        await held.renew_for(gate, 100.0)
        steps(client)
        assert client.reads == {}
        await gate.commit(offsets(200))
        assert held.committed() == {0: 200, 1: 201, 2: 202}
