"""Striking: a planned fault on the processes and proxies of a run, healed when its time is over.

Whatever happens in between, what a fault has stopped goes on, and what it has ended is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from lab.clusters.child_process import ChildError, ChildProcess
from lab.clusters.kafka_cluster import KafkaCluster, KafkaNode
from tests.chaos.fleet import ApiRefused, ApiSilent, Fleet, Member
from tests.chaos.plan import NET_KINDS, FaultPlan, Kind, Path, Role
from tests.chaos.proxy import Mode, Proxy, Trouble
from tests.chaos.stage import Stage

NODE_START = 90.0
SLOW_DELAY = 0.15
MODES = {
    Kind.NET_CUT: Mode.CUT,
    Kind.NET_BLACKHOLE: Mode.BLACKHOLE,
    Kind.NET_DEAF: Mode.DEAF,
    Kind.NET_SLOW: Mode.SLOW,
}


@dataclass(slots=True)
class Strike:
    """What a fault did. Times are seconds since the run's workload began."""

    fault: str
    kind: str
    aimed_at: str | None
    met: str | None  # the phase that the promote was last seen in; None: no promote under way
    victim: str
    began: float
    healed: float | None = None
    trouble: str | None = None  # why it could not be carried out or healed


@dataclass(slots=True)
class Striker:
    """Everything that can be hit in a run. `roles` is who is who, as last seen."""

    stage: Stage
    fleet: Fleet
    roles: dict[Role, Member]
    clock: Callable[[], float] = time.monotonic
    strikes: list[Strike] = field(default_factory=list)

    async def strike(self, fault: FaultPlan, met: str | None) -> None:
        """Carry it out and heal it. Raises nothing but CancelledError: a fault that fails is noted."""
        # Before the first wait: whoever has the role now is hit, even if the process is busy with another fault.
        member = self.roles[fault.role or Role.HEAD]
        note = Strike(str(fault), fault.kind, fault.phase, met, "", self.clock())
        self.strikes.append(note)
        try:
            if fault.kind in NET_KINDS:
                note.victim = f"sidecar {member.broker_id} to {fault.path}"
                await self._network(fault, member)
            else:
                note.victim, action = self._process_fault(fault, member)
                await action
            note.healed = self.clock()
        except (ChildError, ApiRefused, ApiSilent, OSError) as error:
            note.trouble = str(error).splitlines()[0]

    # --- processes

    def _process_fault(self, fault: FaultPlan, member: Member) -> tuple[str, Awaitable[None]]:
        sidecar = f"sidecar {member.broker_id}"
        target = _picked(self.stage.target.brokers, fault.pick)
        source = _picked(self.stage.source.brokers, fault.pick)
        controller = self.stage.target.controllers[0]
        source_controller = self.stage.source.controllers[0]
        match fault.kind:
            case Kind.KILL_SIDECAR:
                return sidecar, self._restart_sidecar(member, member.kill, fault.seconds)
            case Kind.RESTART_SIDECAR:
                return sidecar, self._restart_sidecar(member, member.stop, fault.seconds)
            case Kind.PAUSE_SIDECAR:
                return sidecar, self._pause_sidecar(member, fault.seconds)
            case Kind.DRAIN_SIDECAR:
                return sidecar, self._drain(member, fault.seconds)
            case Kind.KILL_TARGET_BROKER:
                return target.name, _restart(target, fault.seconds)
            case Kind.PAUSE_TARGET_BROKER:
                return target.name, _pause(target, fault.seconds)
            case Kind.KILL_TARGET_CONTROLLER:
                return controller.name, _restart(controller, fault.seconds)
            case Kind.PAUSE_TARGET_CONTROLLER:
                return controller.name, _pause(controller, fault.seconds)
            case Kind.RESTART_TARGET_BROKER:
                return target.name, _restart(target, fault.seconds, gently=True)
            case Kind.KILL_SOURCE_CONTROLLER:
                return source_controller.name, _restart(source_controller, fault.seconds)
            case Kind.PAUSE_SOURCE_CONTROLLER:
                return source_controller.name, _pause(source_controller, fault.seconds)
            case Kind.PAUSE_SOURCE_BROKER:
                return source.name, _pause(source, fault.seconds)
            case Kind.KILL_SOURCE_BROKER:
                return source.name, _restart(source, fault.seconds)
            case Kind.RESTART_SOURCE_BROKER:
                return source.name, _restart(source, fault.seconds, gently=True)
            case Kind.KILL_ZOOKEEPER | Kind.PAUSE_ZOOKEEPER:
                return "zookeeper", self._zookeeper(fault)
        raise AssertionError(fault)

    async def _restart_sidecar(
        self, member: Member, end: Callable[[], Awaitable[None]], seconds: float
    ) -> None:
        async with member.lock:
            try:
                await end()
                await asyncio.sleep(seconds)
            finally:
                if not member.process.running:
                    member.launch()

    async def _pause_sidecar(self, member: Member, seconds: float) -> None:
        async with member.lock:
            await _pause(member.process, seconds)

    async def _drain(self, member: Member, seconds: float) -> None:
        """Take a sidecar out of service and back into it, as before and after an upgrade."""
        path = f"/v1/sidecars/{member.broker_id}:drain"
        async with member.lock:
            try:
                await self.fleet.call("POST", path, timeout=20.0)
                await asyncio.sleep(seconds)
            finally:
                await self.fleet.call("POST", path, query={"undo": "true"}, timeout=20.0)

    async def _zookeeper(self, fault: FaultPlan) -> None:
        server = self.stage.zookeeper
        assert server is not None
        async with _alone(server):
            if fault.kind is Kind.PAUSE_ZOOKEEPER:
                await _pause(server, fault.seconds)
                return
            try:
                await server.kill()
                await asyncio.sleep(fault.seconds)
            finally:
                if not server.running:
                    await server.start()

    # --- the network

    async def _network(self, fault: FaultPlan, member: Member) -> None:
        assert fault.path is not None
        with contextlib.ExitStack() as stack:
            for gate, pids in self._ways(fault.path, member):
                stack.enter_context(gate.troubled(Trouble(MODES[fault.kind], pids, SLOW_DELAY)))
            await asyncio.sleep(fault.seconds)

    def _ways(self, path: Path, member: Member) -> list[tuple[Proxy, Callable[[], set[int]] | None]]:
        """The proxies on a way, each with whose connections are meant."""
        match path:
            case Path.SOURCE:
                return [(gate, member.pids) for gate in self.stage.source_gates.values()]
            case Path.TARGET:
                return [(gate, member.pids) for gate in self.stage.target_gates.values()]
            case Path.CONTROLLER:
                return [(self.stage.controller_gate, member.pids)]
            case Path.STORE:
                return [(member.store_gate, None)]
            case Path.HEAD:
                # Out of it to whoever is the head, and from the others into it if that is itself.
                out = [(one.control_gate, member.pids) for one in self.fleet.members if one is not member]
                return [(member.control_gate, None), *out]
            case Path.CLIENTS:
                return [(member.client_gate, lambda: {os.getpid()})]
            case Path.FOLLOWERS:
                return [(member.client_gate, lambda: _pids(self.stage.target))]
            case Path.SOURCE_CONTROLLER:
                return [(self.stage.source_controller_gate, member.pids)]
            case Path.SOURCE_CLIENTS:
                return [(member.source_gate, lambda: {os.getpid()})]
            case Path.SOURCE_FOLLOWERS:
                return [(member.source_gate, lambda: _pids(self.stage.source))]
        raise AssertionError(path)


def _pids(cluster: KafkaCluster) -> set[int]:
    return {broker.pid for broker in cluster.brokers if broker.pid is not None}


_locks: WeakKeyDictionary[ChildProcess, asyncio.Lock] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def _alone(process: ChildProcess) -> AsyncIterator[None]:
    """One fault at a time for each process; the next one waits."""
    async with _locks.setdefault(process, asyncio.Lock()):
        yield


def _picked(nodes: Sequence[KafkaNode], pick: float) -> KafkaNode:
    return nodes[min(int(pick * len(nodes)), len(nodes) - 1)]


async def _pause(process: ChildProcess, seconds: float) -> None:
    """SIGSTOP, and SIGCONT to the same process."""
    if isinstance(process, KafkaNode):
        async with _alone(process):
            await _sleep_stopped(process, seconds)
    else:
        await _sleep_stopped(process, seconds)


async def _sleep_stopped(process: ChildProcess, seconds: float) -> None:
    process.pause()
    try:
        await asyncio.sleep(seconds)
    finally:
        if process.running:
            process.resume()


async def _restart(node: KafkaNode, seconds: float, *, gently: bool = False) -> None:
    async with _alone(node):
        try:
            if gently:
                await node.stop()
            else:
                await node.kill()
            await asyncio.sleep(seconds)
        finally:
            if not node.running:
                node.launch()
        await node.wait_started(NODE_START)
