"""Several sidecars with one store, as processes, and scenes with live producers on them.

The fleet is asked through any sidecar that runs; a sidecar that is stopped (SIGSTOP) is not asked meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from linker.admin.client import AdminClient, AdminError
from linker.admin.models import ControllerDescription, PromotePhase, SidecarState, SidecarStatus
from linker.demo.child_process import ChildError, tail
from linker.demo.kafka_cluster import KafkaCluster
from linker.demo.ports import PortReservation
from linker.demo.sidecar_process import CommandResult, SidecarProcess, SidecarSpec
from linker.demo.source_data import SourceFiller, SourceTopic
from tests.real.harness_promote import LINK, PATIENCE, POLL, RATE, Scene
from tests.real.harness_stalls import brokers_back
from wire.types import TopicPartition

SECRET = "known to every sidecar of it"
CALL_TIMEOUT = 10.0
PARTITIONS = 6
#: Answers that another sidecar, or a later moment, may better; the link controller changes in these tests.
ELSEWHERE = frozenset({0, 409, 421, 502, 503, 504})


class Led(NamedTuple):
    """By whom a partition is led, as the target has it."""

    leader: int | None
    epoch: int
    isr: frozenset[int]


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
    ) -> None:
        """`python` and `stores` are for single sidecars, by id."""
        self.target = target
        self.directory = directory
        self.store = dict(store)
        self.settings = dict(settings or {})
        self.cars: dict[int, SidecarProcess] = {}
        self._controls: list[PortReservation] = []
        self._stopped: set[int] = set()
        for broker_id in ids:
            more = {} if python is None or broker_id not in python else {"python": python[broker_id]}
            self.add(broker_id, store=(stores or {}).get(broker_id), **more)

    def add(
        self,
        broker_id: int,
        *,
        name: str | None = None,
        store: Mapping[str, Any] | None = None,
        target: KafkaCluster | None = None,
        keep: bool = True,
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
            ),
            self.directory / (name or f"sidecar-{broker_id}"),
            **more,
        )
        if keep:
            self.cars[broker_id] = car
        return car

    async def start(self) -> None:
        for car in self.cars.values():
            car.launch()
        for car in self.cars.values():
            await car.wait_ready(PATIENCE)
        await self.whole()

    async def close(self) -> None:
        for car in self.cars.values():
            await car.close()
        for control in self._controls:
            control.release()

    @property
    def ids(self) -> list[int]:
        return sorted(self.cars)

    def awake(self) -> list[SidecarProcess]:
        """Those that can answer."""
        return [car for n, car in sorted(self.cars.items()) if car.running and n not in self._stopped]

    @contextmanager
    def stopped(self, broker_id: int) -> Iterator[None]:
        """SIGSTOP for the length of the block, or until `resume`."""
        self.cars[broker_id].pause()
        self._stopped.add(broker_id)
        try:
            yield
        finally:
            self.resume(broker_id)

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

    async def next_head(self, after: ControllerDescription) -> ControllerDescription:
        """Whoever is the link controller with a higher epoch."""
        found = None
        async with _within(PATIENCE, lambda: f"no link controller after {after.id}: {found}"):
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
        async with _within(timeout, lambda: f"the fleet is not whole: {seen}"):
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
async def _within(timeout: float, story: Callable[[], str]) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise AssertionError(f"{story()} ({timeout:.0f} s)") from None


class FleetScene(Scene):
    """One topic of a test, mirrored by a fleet and written to by live producers."""

    def __init__(self, source: KafkaCluster, fleet: Fleet, topic: str) -> None:
        topics = [SourceTopic(topic, PARTITIONS, SourceFiller.history)]
        super().__init__(source, fleet.target, next(iter(fleet.cars.values())), topics)
        self.fleet = fleet

    async def ask(self, call: Callable[[Any], Any]) -> Any:
        return await self.fleet.ask(call)

    async def begin(self, *, rate: float = RATE) -> None:
        filler = SourceFiller(self.source.bootstrap, scale=0.05)
        await asyncio.to_thread(filler.create, self.topics, min(2, len(self.source.brokers)))
        await asyncio.to_thread(filler.fill, self.topics)
        links = await self.ask(lambda client: client.list_links())
        if LINK not in {link.name for link in links}:
            await self.fleet.linker("link", "create", LINK, "--bootstrap-servers", self.source.bootstrap)
        await self.fleet.linker(
            "mirror", "create", *self.names, "--link", LINK, "--replication-factor", str(self.copies)
        )
        await self.wait_active()
        await self.balanced()
        self.add_writers(rate)
        for producer in self.producers:
            await producer.start(self.target.bootstrap)
        await self.acked_more(20)

    # --- who leads

    async def led(self) -> dict[TopicPartition, Led]:
        mirror = await self.describe(self.names[0])
        return {
            TopicPartition(one.topic, one.partition): Led(
                one.leader, one.leader_epoch or 0, frozenset(one.isr)
            )
            for one in mirror.partition_status
        }

    async def led_by(self, broker_id: int) -> list[TopicPartition]:
        return [tp for tp, one in (await self.led()).items() if one.leader == broker_id]

    async def balanced(self, ids: Sequence[int] | None = None, timeout: float = PATIENCE) -> None:
        """Every ISR holds these sidecars (all, if not named), and each of them leads as much as the others."""
        wanted = sorted(ids or self.fleet.ids)
        share = PARTITIONS // len(wanted)
        found: dict[TopicPartition, Led] = {}
        async with _within(timeout, lambda: f"not balanced over {wanted}: {found}"):
            while True:
                found = await self.led()
                counts = Counter(one.leader for one in found.values())
                if counts == dict.fromkeys(wanted, share) and all(
                    one.isr == set(wanted) for one in found.values()
                ):
                    return
                await asyncio.sleep(0.1)

    async def nothing_led_by(self, broker_id: int, timeout: float = PATIENCE) -> None:
        """Others lead what it led."""
        found: dict[TopicPartition, Led] = {}
        async with _within(timeout, lambda: f"{broker_id} still leads, or nobody does: {found}"):
            while True:
                found = await self.led()
                if all(one.leader not in (broker_id, None, -1) for one in found.values()):
                    return
                await asyncio.sleep(POLL)

    async def acked_everywhere(self, since: float | None = None, timeout: float = PATIENCE) -> None:
        """Until every producer got an ack for every partition, after that moment (now)."""
        moment = self.history.clock() if since is None else since
        wanted = {(producer.name, tp) for producer in self.producers for tp in self.tps}
        missing = wanted
        async with _within(timeout, lambda: f"no acks for {sorted(missing)[:4]}"):
            while True:
                missing = wanted - {
                    (ack.producer, ack.partition) for ack in self.history.acks if ack.time > moment
                }
                if not missing:
                    return
                await asyncio.sleep(POLL)

    # --- the end

    async def finish(self) -> None:
        """Promote what is not promoted, and judge."""
        await self.fleet.whole()
        await self.acked_everywhere()
        mirrors = await self.ask(lambda client: client.list_mirrors(LINK))
        if {one.state for one in mirrors if one.topic in self.names} != {"PROMOTED"}:
            job = await self.settled(await self.start_promote())
            assert job.phase is PromotePhase.PROMOTED, job
            await self.acked_everywhere()
        await self.judge()

    def check_placement(self, placed: Mapping[TopicPartition, Any]) -> None:
        """Other tests' topics weigh too, so that no more is known than who may be a replica."""
        real = {node.node_id for node in self.target.brokers}
        assert all(set(one.replicas) <= real and one.leader in real for one in placed.values()), placed


MakeFleetScene = Callable[..., Awaitable[FleetScene]]


@asynccontextmanager
async def fleet_scenes(
    source: KafkaCluster, fleet: Fleet, unique_topic: Callable[[str], str]
) -> AsyncIterator[MakeFleetScene]:
    """`await make()`: a scene that is set, on a fleet that is whole."""
    made: list[FleetScene] = []

    async def make(*, rate: float = RATE) -> FleetScene:
        for broker_id, car in fleet.cars.items():
            fleet.resume(broker_id)
            if not car.running:  # a test before this one has failed
                car.launch()
        await brokers_back(fleet.target)
        await fleet.whole()
        made.append(FleetScene(source, fleet, unique_topic("fleet")))
        await made[-1].begin(rate=rate)
        return made[-1]

    try:
        yield make
    finally:
        for scene in made:
            try:
                await scene.close()
            except ChildError:
                pass


def ended_with(car: SidecarProcess, code: int, *words: str) -> str:
    """How a process ended; the line that says why."""
    assert car.exit_code == code, (car.exit_code, tail(car.log))
    lines = [line for line in tail(car.log, 40).splitlines() if line.startswith("linker: ")]
    assert lines, tail(car.log)
    assert not [word for word in words if word not in lines[-1]], lines[-1]
    assert "internal error" not in lines[-1], lines[-1]
    return lines[-1]
