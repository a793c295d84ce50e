"""Several sidecars with one store, as processes. Scenes with live producers on them are harness_fleet_scene's.

The fleet is asked through any sidecar that runs; a sidecar that is stopped (SIGSTOP) is not asked meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from admin.client import AdminClient, AdminError
from admin.models import ControllerDescription, SidecarState, SidecarStatus
from lab.clusters.child_process import tail
from lab.clusters.kafka_cluster import KafkaCluster
from lab.clusters.ports import PortReservation
from lab.clusters.sidecar_process import CommandResult, SidecarProcess, SidecarSpec
from tests.chaos.proxy import Proxy
from tests.chaos.tap import ProduceTap
from tests.real.harness_promote import POLL
from tests.real.harness_stalls import PATIENCE
from wire.schema import codec

SECRET = "known to every sidecar of it"
CALL_TIMEOUT = 10.0
HOUR = 3600.0
#: Answers that another sidecar, or a later moment, may better; the link controller changes in these tests.
ELSEWHERE = frozenset({0, 409, 421, 502, 503, 504})


class Answer(NamedTuple):
    """Of a sidecar to one partition of a produce, whose answer is one frame; the time is the history's."""

    partition: int
    code: int
    time: float
    frame: int
    base_offset: int


class AnswerTap(ProduceTap):
    """Refusals too, and when each answer was seen."""

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self.answers_seen: list[Answer] = []
        self._frames = itertools.count()

    def _take(self, frame: bytes, version: int, asked: float) -> None:
        now = time.monotonic()
        super()._take(frame, version, asked)
        answer = codec.decode_response("produce", version, frame)
        number = next(self._frames)
        for topic in answer.responses:
            for one in topic.partition_responses:
                answer_of = (int(one.index), int(one.error_code), now, number, int(one.base_offset))
                self.answers_seen.append(Answer(*answer_of))


class Fleet:
    """Sidecars of one store. `start` launches them together; `close` ends whatever is left."""

    def __init__(
        self,
        target: KafkaCluster,
        ids: Sequence[int],
        directory: Path,
        store: Mapping[str, Any],
        settings: Mapping[str, Any] | None = None,
        *,
        python: Mapping[int, Sequence[str]] | None = None,
        stores: Mapping[int, Mapping[str, Any]] | None = None,
        tapped: bool = False,
    ) -> None:
        """`python` and `stores` are for single sidecars, by id. `tapped`: clients come through proxies, see `taps`."""
        self.target = target
        self.directory = directory
        self.store = dict(store)
        self.settings = dict(settings or {})
        self.cars: dict[int, SidecarProcess] = {}
        self._controls: list[PortReservation] = []
        self._stopped: set[int] = set()
        self.taps: dict[int, AnswerTap] = {}
        self._gates: list[Proxy] = []
        for broker_id in ids:
            gate = None
            if tapped:
                self.taps[broker_id] = AnswerTap(f"sidecar {broker_id}")
                gate = Proxy(f"clients of {broker_id}", tap=self.taps[broker_id])
                self._gates.append(gate)
            more: dict[str, Any] = {}
            if python is not None and broker_id in python:
                more["python"] = python[broker_id]
            self.add(broker_id, store=(stores or {}).get(broker_id), gate=gate, **more)

    def add(
        self,
        broker_id: int,
        *,
        name: str | None = None,
        store: Mapping[str, Any] | None = None,
        target: KafkaCluster | None = None,
        keep: bool = True,
        gate: Proxy | None = None,
        sources: Mapping[str, Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> SidecarProcess:
        """One more, not started. `name` is of its directory; whoever does not keep it in the fleet closes it."""
        control = PortReservation()
        self._controls.append(control)
        car = SidecarProcess(
            SidecarSpec(
                target_bootstrap=(target or self.target).bootstrap,
                broker_id=broker_id,
                sidecar={"control.listener": f"127.0.0.1:{control.port}", "control.secret": SECRET},
                store=store or self.store,
                fleet=self.settings,
                sources=sources or {},
                advertised={} if gate is None else {"PLAINTEXT": gate.address},
            ),
            self.directory / (name or f"sidecar-{broker_id}"),
            **more,
        )
        if gate is not None:
            host, _, port = car.address().rpartition(":")
            gate.upstream = (host, int(port))
        if keep:
            self.cars[broker_id] = car
        return car

    async def start(self) -> None:
        for gate in self._gates:
            await gate.start()
        for car in self.cars.values():
            car.launch()
        for car in self.cars.values():
            await car.wait_ready(PATIENCE)
        await self.whole()

    async def close(self) -> None:
        for car in self.cars.values():
            await car.close()
        for gate in self._gates:
            await gate.close()
        for control in self._controls:
            control.release()

    @property
    def ids(self) -> list[int]:
        return sorted(self.cars)

    def awake(self) -> list[SidecarProcess]:
        """Those that can answer."""
        return [car for n, car in sorted(self.cars.items()) if car.running and n not in self._stopped]

    def stop(self, broker_id: int) -> None:
        """SIGSTOP, until `resume`."""
        self._stopped.add(broker_id)
        self.cars[broker_id].pause()

    def resume(self, broker_id: int) -> None:
        if broker_id in self._stopped:
            self._stopped.discard(broker_id)
            self.cars[broker_id].resume()

    def said(self, broker_id: int) -> str:
        """The log of its present process."""
        return self.cars[broker_id]._log_since_start().decode(errors="replace")

    # --- the admin API

    async def ask(self, call: Callable[[Any], Any], timeout: float = PATIENCE) -> Any:
        """One call of the admin API, of whoever answers it; again while nobody is the link controller."""
        deadline = time.monotonic() + timeout
        why: object = "no sidecar runs"
        while True:
            for car in self.awake():
                try:
                    return await asyncio.to_thread(_call, car.admin_url, call)
                except AdminError as error:
                    if error.status not in ELSEWHERE:
                        raise
                    why = error
            assert time.monotonic() < deadline, f"no answer within {timeout:.0f} s: {why}"
            await asyncio.sleep(0.1)

    async def linker(self, *arguments: str) -> CommandResult:
        """A command that has to succeed, against one that is awake."""
        return await self.awake()[0].linker(*arguments)

    async def controller(self) -> ControllerDescription:
        found: ControllerDescription = await self.ask(lambda client: client.describe_controller())
        return found

    async def head(self) -> int:
        """Broker id of the link controller."""
        return (await self.controller()).id

    async def next_head(
        self, after: ControllerDescription, *, unasked: int | None = None
    ) -> ControllerDescription:
        """Whoever is the link controller with a higher epoch; one that does not know better is left unasked."""
        found = None
        if unasked is not None:
            self._stopped.add(unasked)
            try:
                return await self.next_head(after)
            finally:
                self._stopped.discard(unasked)
        async with within(PATIENCE, lambda: f"no link controller after {after.id}: {found}"):
            while True:
                found = await self.controller()
                if found.controller_epoch > after.controller_epoch:
                    return found
                await asyncio.sleep(POLL)

    async def sidecars(self) -> dict[int, SidecarStatus]:
        found: list[SidecarStatus] = await self.ask(lambda client: client.list_sidecars())
        return {one.id: one for one in found}

    async def whole(self, timeout: float = PATIENCE) -> None:
        """Every process of the fleet that runs is one of it, and serves."""
        seen: object = None
        async with within(timeout, lambda: f"the fleet is not whole: {seen}"):
            while True:
                for broker_id, car in self.cars.items():
                    if not car.running and broker_id not in self._stopped:
                        raise AssertionError(f"sidecar {broker_id} has ended: {tail(car.log)}")
                found = await self.sidecars()
                seen = {n: (one.state, one.reason) for n, one in found.items()}
                if all(n in found and found[n].state is SidecarState.RUNNING for n in self.cars):
                    return
                await asyncio.sleep(0.1)

    async def metrics(self, broker_id: int) -> str:
        async with httpx.AsyncClient(timeout=CALL_TIMEOUT, trust_env=False) as http:
            answer = await http.get(f"{self.cars[broker_id].admin_url}/metrics")
            answer.raise_for_status()
            return answer.text

    async def forward_errors(self, broker_id: int) -> dict[str, int]:
        """Kafka error name -> forwarded produces that a client got it for, since the process began."""
        found: Counter[str] = Counter()
        for line in (await self.metrics(broker_id)).splitlines():
            if line.startswith("linker_forward_errors_total{"):
                labels, _, value = line.rpartition(" ")
                found[labels.split('error="')[1].split('"')[0]] += int(float(value))
        return dict(found)

    async def started(self, broker_id: int) -> None:
        """Start one that does not run, and have it be one of the fleet."""
        await self.cars[broker_id].start(PATIENCE)
        await self.whole()


def _call(url: str, call: Callable[[Any], Any]) -> Any:
    with AdminClient(url, timeout=CALL_TIMEOUT) as client:
        return call(client)


@asynccontextmanager
async def within(timeout: float, story: Callable[[], str]) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise AssertionError(f"{story()} ({timeout:.0f} s)") from None


def off_by(hours: float) -> Sequence[str]:
    """The interpreter of a sidecar whose wall clock is wrong by so much."""
    return (sys.executable, str(Path(__file__).with_name("shifted_clock.py")), str(hours * HOUR))


def ended_with(car: SidecarProcess, code: int, *words: str) -> str:
    """How a process ended; the line that says why."""
    assert car.exit_code == code, (car.exit_code, tail(car.log))
    lines = [line for line in tail(car.log, 40).splitlines() if line.startswith("linker: ")]
    assert lines, tail(car.log)
    assert not [word for word in words if word not in lines[-1]], lines[-1]
    assert "internal error" not in lines[-1], lines[-1]
    return lines[-1]
