"""Renewals, take-overs, zombies, restarts and lost answers in any order: nobody is let in while the gate is looked after.

The rule: a client that the gate is made for reads nothing as long as the gate was renewed within the time that it
holds on its own; afterwards it may, and then the gate must say so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.groups import GateKind
from groups.gates.base import Gate, GateLost, GroupActive, LostReason
from tests.groups.gates_kit import GROUP, KINDS, TOPIC, Target, at, offsets, target
from tests.groups.test_gates_life import make_client
from wire.errors import ConnectionLost, RequestTimedOut

# How long each holds on without anybody looking after it. A transaction is renewed after at most half of 600 s.
ALONE = {
    GateKind.CONSUMER: 40.0,
    GateKind.CLASSIC: 285.0,
    GateKind.TRANSACTION: 295.0,
    GateKind.CONSUMER_AND_TRANSACTION: 295.0,
    GateKind.CLASSIC_AND_TRANSACTION: 285.0,
}
# How long its member does; and a transaction that nobody renews, which taking over does not do at once.
MEMBER_ALONE = {
    GateKind.CONSUMER_AND_TRANSACTION: 40.0,
    GateKind.CLASSIC_AND_TRANSACTION: 285.0,
    GateKind.TRANSACTION: 0.0,
}
TRANSACTION_ALONE = 595.0
APIS = (
    "consumer_group_heartbeat",
    "consumer_group_describe",
    "heartbeat",
    "init_producer_id",
    "add_offsets_to_txn",
    "txn_offset_commit",
    "end_txn",
    "offset_commit",
)

STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([1.0, 6.0, 20.0, 39.0, 120.0, 280.0])),
    st.tuples(st.just("renew"), st.none()),
    st.tuples(st.just("client"), st.integers(0, 1)),
    st.tuples(st.just("take over"), st.none()),
    st.tuples(st.just("zombie"), st.integers(0, 3)),
    st.tuples(st.just("reload"), st.none()),
    st.tuples(st.just("commit"), st.integers(200, 299)),
    st.tuples(st.just("lose answer"), st.sampled_from(APIS)),
    st.tuples(st.just("lose request"), st.sampled_from(APIS)),
    st.tuples(st.just("cancel"), st.integers(1, 60)),
    st.tuples(st.just("extend"), st.none()),
)


class Run:
    def __init__(self, kind: GateKind, held: Target) -> None:
        self.kind = kind
        self.held = held
        self.assignment = at(100)
        self.gate: Gate = held.gate(kind)
        self.zombies: list[Gate] = []
        self.clients = [make_client(kind, held), make_client(kind, held)]
        self.looked_after = self.renewed = held.groups.now
        self.transaction = self.gate.record.transaction
        self.open_allowed = False

    async def begin(self) -> None:
        self.gate = self.held.gate(self.kind)
        await self.gate.close(self.assignment)
        self.held.groups.on_change = self.clients_step
        self.transaction, self.renewed = self.gate.record.transaction, self.held.groups.now
        self.tended()

    def clients_step(self) -> None:
        for client in self.clients:
            client.step()
        self.check()

    def tended(self) -> None:
        self.looked_after = self.held.groups.now

    async def tend(self) -> None:
        """What the link controller does. A gate that was lost is given up; the run ends with it."""
        try:
            await self.gate.close(self.assignment)
            await self.gate.renew()
        except (ConnectionLost, RequestTimedOut):
            return
        except GateLost as lost:
            assert lost.reason is not LostReason.FENCED
            assert self.overdue(), lost
            self.open_allowed = True
            return
        except GroupActive as active:
            assert self.overdue(), active
            self.open_allowed = True
            return
        self.tended()

    def overdue(self) -> bool:
        now = self.held.groups.now
        alone = now - self.looked_after
        if alone > ALONE[self.kind]:
            return True
        return (
            self.kind in MEMBER_ALONE
            and alone > MEMBER_ALONE[self.kind]
            and now - self.renewed > TRANSACTION_ALONE
        )

    async def step(self, name: str, given: Any) -> None:
        await self._step(name, given)
        if self.gate.record.transaction != self.transaction:
            self.transaction, self.renewed = self.gate.record.transaction, self.held.groups.now

    async def _step(self, name: str, given: Any) -> None:
        groups = self.held.groups
        match name:
            case "wait":
                groups.advance(given)
            case "renew":
                await self.tend()
            case "client":
                self.clients[given].step()
            case "take over":
                self.zombies.append(self.gate)
                self.gate = self.held.gate()
                await self.tend()
            case "zombie":
                if given < len(self.zombies):
                    await self.zombie(self.zombies[given])
            case "reload":
                groups.reload()
            case "commit":
                try:
                    await self.gate.commit(offsets(given))
                except GateLost:
                    assert self.overdue()
                    self.open_allowed = True
            case "lose answer" | "lose request":
                self.held.fake.inject(given, process=name == "lose answer", close_after=0)
            case "cancel":
                task = asyncio.get_running_loop().create_task(self.tend())
                for _ in range(given):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if task.done() and not task.cancelled() and task.exception() is not None:
                    raise task.exception() or AssertionError
            case "extend":
                name = f"more-{len(self.assignment)}"
                self.assignment |= at(0, name, 1)
                await self.tend()
                if not self.open_allowed:
                    self.held.fake.add_topic(name, 1)

    async def zombie(self, gate: Gate) -> None:
        """It was taken over from: the store takes no record from it."""

        def refuse(record: object) -> None:
            raise ConnectionLost("fenced by the store", sent=False)

        self.held.on_save = refuse
        try:
            await gate.renew()
        except (GateLost, ConnectionLost):
            pass
        finally:
            self.held.on_save = None

    def check(self) -> None:
        if self.overdue():
            self.open_allowed = True
        if not self.open_allowed:
            for client in self.clients:
                read = {place for place in client.reads if place[0] == TOPIC}
                assert not read, f"a client reads {read}"


@pytest.mark.parametrize("kind", KINDS)
@given(steps=st.lists(STEPS, max_size=25))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_nobody_is_let_in_while_the_gate_is_looked_after(
    kind: GateKind, steps: list[tuple[str, Any]]
) -> None:
    async def play() -> None:
        async with target() as held:
            run = Run(kind, held)
            await run.begin()
            for name, given_ in steps:
                await run.step(name, given_)
                run.check()
                if run.open_allowed:
                    return
            for _ in range(4):
                run.clients_step()
            if run.overdue():
                return
            held.fake.clear_faults()
            held.groups.on_change = lambda: None
            await run.gate.open(offsets(300))
            for _ in range(6):
                for client in run.clients:
                    client.step()
            reads = {place: offset for client in run.clients for place, offset in client.reads.items()}
            assert {p: o for p, o in reads.items() if p[0] == TOPIC} == {
                (TOPIC, 0): 300,
                (TOPIC, 1): 301,
                (TOPIC, 2): 302,
            }
            assert GROUP in held.groups.groups

    asyncio.run(play())
