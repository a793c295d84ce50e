"""Rules taken out of the product, one at a time: the simulation has to miss each of them.

Only here, and only by replacing what the classes have; the product knows nothing of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller import keys
from controller.operations import Delete, Operation, Put
from fleet import messages as m
from fleet.commands import Commands, FleetIncomplete
from fleet.fleet_controller import FleetController
from fleet.lease import Holder, Lease, LeaseTable
from fleet.member import Member
from fleet.shared_controller import SharedController
from fleet.stores.base import ControllerFenced
from linker.promote.checks import Checks
from tests.controller.memory_store import MemoryStore
from tests.sim import switch_mutations as of_switches
from tests.sim.directed import (
    BackAndDeadAgain,
    BackAndFollowedByAnother,
    Directed,
    EndOfOne,
    GivenBackByAnother,
    GivenBackByTwo,
    GivenBackHalfWay,
    LateAfterAll,
    RefusedAndUnknown,
    StoodStill,
)
from tests.sim.sidecar import ProcessLease
from tests.sim.store import StoreServer
from tests.sim.story import Kind
from tests.sim.switch_mutations import Patch
from wire.client.waiting import until_set
from wire.frames.types import TopicPartition


@dataclass(frozen=True)
class Mutation:
    name: str
    what: str
    patches: Callable[[], list[Patch]]
    kind: Kind | None = None  # of the stories that miss it
    story: type[Directed] | None = None  # that misses it, where no seed is known to


def _lease_check_off() -> list[Patch]:
    return [
        (ProcessLease, "valid", lambda self: True),
        (ProcessLease, "covers", lambda self, term: True),
    ]


def _covers_ignores_the_term() -> list[Patch]:
    return [(Lease, "covers", lambda self, term, now: self.valid(now))]


def _fence_not_waited_for() -> list[Patch]:
    original = Commands._command

    def command(self: Commands, what: str, *args: Any, **kwargs: Any) -> Any:
        pending = original(self, what, *args, **kwargs)
        if what == "fence":
            pending.waiting.clear()
        return pending

    return [(Commands, "_command", command)]


def _expiry_not_waited_for() -> list[Patch]:
    """Whoever is connected is waited for; whoever is not counts as harmless at once."""

    def may_hold(self: LeaseTable, now: float) -> list[Holder]:
        return []

    original = Commands._command

    def command(self: Commands, what: str, *args: Any, **kwargs: Any) -> Any:
        pending = original(self, what, *args, **kwargs)
        pending.waiting &= {member.holder for member in self._roster.members.values()}
        return pending

    async def fence(self: Commands, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        holders = {member.holder for member in self._roster.members.values()}
        pending = self._command("fence", link, tps, timeout, holders, everybody=True)
        deadline = self._clock() + timeout
        try:
            while pending.waiting:
                pending.waiting &= {member.holder for member in self._roster.members.values()}
                if not pending.waiting:
                    return
                if self._clock() >= deadline:
                    raise FleetIncomplete("not everybody who is connected")
                await until_set(pending.changed, 0.1)
        finally:
            self._pending.pop(pending.message.id, None)

    return [(LeaseTable, "may_hold", may_hold), (Commands, "_command", command), (Commands, "fence", fence)]


async def _commit(
    self: MemoryStore, operations: Sequence[Operation], epoch: int, *, versions: bool, fencing: bool
) -> None:
    """MemoryStore.commit, with two of its checks optional."""
    current = int(self.nodes.get(keys.CONTROLLER_EPOCH, ("0", 0))[0])
    if fencing and epoch < current:
        raise ControllerFenced(epoch, current)
    if versions:
        await _ORIGINAL_COMMIT(self, operations, controller_epoch=max(epoch, current))
        return
    changed: list[Operation] = []
    for operation in operations:
        node = self.nodes.get(operation.path)
        found = None if node is None else node[1]
        if isinstance(operation, Put):
            changed.append(Put(operation.path, operation.value, found))
        elif found is not None:
            changed.append(Delete(operation.path, found))
    await _ORIGINAL_COMMIT(self, changed, controller_epoch=max(epoch, current))


_ORIGINAL_COMMIT = MemoryStore.commit


def _versions_off() -> list[Patch]:
    async def commit(self: MemoryStore, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        await _commit(self, operations, controller_epoch, versions=False, fencing=True)

    # Only a store that lets a commit land after its process has read again would need the versions.
    return [(MemoryStore, "commit", commit), (StoreServer, "settles", False)]


def _epochs_off() -> list[Patch]:
    async def commit(self: MemoryStore, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        await _commit(self, operations, controller_epoch, versions=True, fencing=False)

    return [(MemoryStore, "commit", commit)]


class _NoProof:
    """A store whose proofs prove nothing."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def commit(self, operations: Sequence[Operation], *, controller_epoch: int) -> None:
        if operations:
            await self._store.commit(operations, controller_epoch=controller_epoch)


def _proof_skipped() -> list[Patch]:
    original = FleetController.__init__

    def init(self: FleetController, controller: Any, store: Any, *args: Any, **kwargs: Any) -> None:
        original(self, controller, _NoProof(store), *args, **kwargs)  # type: ignore[arg-type]

    return [(FleetController, "__init__", init)]


def _inherit_skipped() -> list[Patch]:
    return [(LeaseTable, "inherit", lambda self, holders, claimed_at: None)]


def _no_recheck() -> list[Patch]:
    """What the source's end was behind the fence is believed, whatever later readings say."""

    async def source_rests(self: Checks, tps: Collection[TopicPartition]) -> bool:
        ends = await self._read_ends(tps, 1.0)
        self._baseline = {**ends, **self._baseline}
        return True

    return [(Checks, "_source_rests", source_rests)]


def _fences_after_renewal() -> list[Patch]:
    """The welcome's image, and the fences in it, come into force only after the first renewal was answered."""
    waiting: dict[int, m.Welcome] = {}
    welcomed, renewed, apply = SharedController.welcomed, Member._renewed, SharedController.apply

    def later(self: SharedController, welcome: m.Welcome) -> None:
        if self.loaded:
            waiting[id(self)] = welcome
        else:
            welcomed(self, welcome)

    def first(self: Member, answer: m.Renewed, duration: float) -> None:
        renewed(self, answer, duration)
        welcome = waiting.pop(id(self._shared), None)
        if welcome is not None:
            welcomed(self._shared, welcome)

    def applied(self: SharedController, delta: m.Delta) -> None:
        welcome = waiting.pop(id(self), None)
        if welcome is not None:
            welcomed(self, welcome)
        apply(self, delta)

    return [
        (SharedController, "welcomed", later),
        (Member, "_renewed", first),
        (SharedController, "apply", applied),
    ]


def _given_up_is_renewed() -> list[Patch]:
    """A lease that was given back comes back with an answer that was on its way."""

    def given_up(self: Lease) -> None:
        self._until = float("-inf")

    return [(Lease, "given_up", given_up)]


def _lease_from_the_answer() -> list[Patch]:
    """The member counts its lease from when the answer came, not from when it asked."""
    original = Lease.renewed

    def renewed(self: Lease, sent_at: float, now: float, duration: float) -> None:
        original(self, now, now, duration)

    return [(Lease, "renewed", renewed)]


MUTATIONS: Mapping[str, Mutation] = {
    mutation.name: mutation
    for mutation in (
        Mutation("lease-check-off", "the router never looks at its lease", _lease_check_off),
        Mutation("term-ignored", "covers() takes a healed lapse for none", _covers_ignores_the_term),
        Mutation("fence-unanswered", "the fence does not wait for acknowledgements", _fence_not_waited_for),
        Mutation("expiry-ignored", "who is not connected counts as harmless", _expiry_not_waited_for),
        Mutation("versions-off", "the store writes whatever version a node has", _versions_off),
        Mutation("epochs-off", "a fenced controller may write", _epochs_off),
        Mutation("proof-skipped", "renewals are answered without asking the store", _proof_skipped),
        Mutation("inherit-skipped", "a new head forgets the leases of the old one", _inherit_skipped),
        Mutation(
            "no-recheck", "that the source's end has moved behind the fence is not looked at", _no_recheck
        ),
        Mutation("fences-late", "a welcome's fences come after the first renewal", _fences_after_renewal),
        Mutation("bye-renewed", "a lease that was given back is renewed", _given_up_is_renewed),
        Mutation("lease-from-answer", "the lease runs from the answer", _lease_from_the_answer),
        Mutation(
            "one-replica-in-sync",
            "in sync, one replica is enough",
            of_switches.one_replica_is_enough,
            Kind.SWITCH,
        ),
        Mutation(
            "epochs-unwritten",
            "a position is told before the leader epochs below it are written down",
            of_switches.epochs_unwritten,
            Kind.AMBUSH,
        ),
        Mutation(
            "led-is-taken",
            "a leader is enough, whoever is in the ISR",
            of_switches.leading_is_enough,
            Kind.SWITCH,
        ),
        Mutation(
            "unclean-elections",
            "what is taken over may be elected unclean",
            of_switches.unclean_elections,
            Kind.SWITCH,
        ),
        Mutation(
            "ends-forgotten",
            "giving back begins without the ends",
            of_switches.ends_forgotten_early,
            Kind.AMBUSH,
        ),
        Mutation(
            "back-to-anybody",
            "given back to whom records are missing",
            of_switches.back_to_anybody,
            Kind.AMBUSH,
        ),
        Mutation(
            "back-by-itself",
            "a part of a topic goes back",
            of_switches.back_by_itself,
            story=RefusedAndUnknown,
        ),
        Mutation(
            "unknown-is-refused", "no answer is a refusal", of_switches.unknown_is_refused, story=LateAfterAll
        ),
        Mutation(
            "loose-is-taken",
            "handed over, taken or not",
            of_switches.loose_is_taken,
            story=GivenBackByAnother,
        ),
        Mutation(
            "noted-is-taken", "noted once, taken for ever", of_switches.noted_is_taken, story=GivenBackHalfWay
        ),
        Mutation("ends-kept", "an end holds on", of_switches.ends_kept, story=BackAndDeadAgain),
        Mutation(
            "noted-is-followed",
            "a noted end is followed beyond",
            of_switches.noted_is_followed,
            story=BackAndFollowedByAnother,
        ),
        Mutation(
            "next-is-given-back",
            "a give-back outlives itself",
            of_switches.next_is_given_back,
            story=GivenBackByTwo,
        ),
        Mutation(
            "deposed-sets-configs",
            "a deposed link controller sets configs",
            of_switches.deposed_sets_configs,
            story=StoodStill,
        ),
        Mutation("end-unheld", "an end is told that replicas lack", of_switches.end_unheld, story=EndOfOne),
        Mutation("lease-off-both", "no lease is looked at, at either side", _lease_check_off, Kind.SWITCH),
    )
}


@contextlib.contextmanager
def mutated(name: str | None) -> Iterator[None]:
    """The product without one of its rules; None: as it is."""
    if name is None:
        yield
        return
    patches = MUTATIONS[name].patches()
    before = [(where, what, where.__dict__[what]) for where, what, _ in patches]
    for where, what, instead in patches:
        setattr(where, what, instead)
    try:
        yield
    finally:
        for where, what, instead in before:
            setattr(where, what, instead)
