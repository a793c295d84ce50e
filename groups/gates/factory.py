"""New gates, and gates rebuilt from the records of another sidecar."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from controller.groups import (
    ClassicMember,
    ConsumerMember,
    GateKind,
    GateRecord,
    PendingTransaction,
)
from groups.gates.base import Gate, Save
from groups.gates.classic import ClassicGate, ClassicHold
from groups.gates.consumer import ConsumerGate, ConsumerHold, new_member_id
from groups.gates.coordinators import Coordinators
from groups.gates.gate import PairGate
from groups.gates.ledger import Ledger
from groups.gates.member_part import MemberPart
from groups.gates.settings import DEFAULT_PROTOCOLS, GateSettings
from groups.gates.streams import StreamsHold
from groups.gates.transaction import TransactionGate
from groups.gates.transaction_part import TransactionPart
from wire.shown_id import shown_id

_CONSUMER = frozenset({GateKind.CONSUMER, GateKind.CONSUMER_AND_TRANSACTION, GateKind.STREAMS})
_CLASSIC = frozenset({GateKind.CLASSIC, GateKind.CLASSIC_AND_TRANSACTION})
_TRANSACTION = frozenset(
    {GateKind.TRANSACTION, GateKind.CONSUMER_AND_TRANSACTION, GateKind.CLASSIC_AND_TRANSACTION}
)
TRANSACTIONAL_ID_PREFIX = "kafka-linker-gate-"


def plan_gate(
    link: str,
    group: str,
    kind: GateKind,
    *,
    protocols: Sequence[str] = (),
    topology: str | None = None,
) -> GateRecord:
    """The record of a gate that is yet to be closed.

    `protocols`: the assignors of the source group's members, its current one first; the well-known ones are
    named after them. Only for classic gates. `topology`: of the application, for a streams gate.
    """
    names = tuple(dict.fromkeys([*protocols, *DEFAULT_PROTOCOLS]))
    return GateRecord(
        group=group,
        kind=kind,
        consumer=ConsumerMember(member_id=new_member_id(), topology=topology) if kind in _CONSUMER else None,
        classic=ClassicMember(protocols=names) if kind in _CLASSIC else None,
        transaction=PendingTransaction(transactional_ids=transactional_ids(link, group))
        if kind in _TRANSACTION
        else None,
    )


def transactional_ids(link: str, group: str) -> tuple[str, str]:
    """Transactional ids: readable for an administrator, of bounded length, distinct for every link and group."""
    digest = hashlib.sha256(f"{link}\0{group}".encode()).hexdigest()[:16]
    name = f"{TRANSACTIONAL_ID_PREFIX}{link[:60]}-{group[:120]}-{digest}"
    return f"{name}-a", f"{name}-b"


def make_gate(
    record: GateRecord,
    coordinators: Coordinators,
    save: Save,
    *,
    stored: bool,
    settings: GateSettings | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    jitter: Callable[[], float] = random.random,
) -> Gate:
    """A gate at work. `stored`: the record is durable already, so the gate was taken over and not planned."""
    settings = settings or GateSettings()
    ledger = Ledger(record, save, saved=stored)
    member: MemberPart | None = None
    transaction: TransactionPart | None = None
    if record.consumer is not None:
        hold = StreamsHold if record.kind is GateKind.STREAMS else ConsumerHold
        member = hold(coordinators, ledger, settings, clock=clock, sleep=sleep, jitter=jitter)
    elif record.classic is not None:
        member = ClassicHold(coordinators, ledger, settings, clock=clock, sleep=sleep, jitter=jitter)
    if record.transaction is not None:
        transaction = TransactionPart(coordinators, ledger, settings, clock=clock, sleep=sleep, jitter=jitter)
    if member is not None and transaction is not None:
        return PairGate(member, transaction)
    if transaction is not None:
        return TransactionGate(transaction)
    if isinstance(member, ClassicHold):
        return ClassicGate(member)
    if isinstance(member, ConsumerHold):
        return ConsumerGate(member)
    raise ValueError(
        f"group {shown_id(record.group)}: the record of a {record.kind} gate names no part of it"
    )
