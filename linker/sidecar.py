"""The sidecar process: fleet, membership, listeners, links and admin API put together, and taken apart in order.

Start: target found -> store open, fleet joined, state loaded -> metadata replayed -> registered -> links -> listeners
-> unfenced -> admin API.
A link whose source is away does not keep the others, nor the admin API, from working. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable

import uvloop

from controller.state import Link
from fetcher.budget import MemoryBudget
from fleet.fleet_controller import FleetController
from fleet.messages import SidecarReport
from fleet.shared_controller import SharedController
from linker import __version__
from linker.checks.this_machine import check_local
from linker.config.model import Config
from linker.fleet.departures import Leaving
from linker.fleet.duties import ControllerDuties
from linker.fleet.fleet import Fleet
from linker.fleet.ports import SidecarPorts
from linker.link_broker import LinkBroker, LinkBrokerSettings, SharedBuffers, connect_cluster
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from linker.links.traffic import own_traffic
from linker.process.descriptors import DescriptorWatch
from linker.process.early_bind import PATIENCE, Doors
from linker.process.heap import give_back
from linker.process.private_files import be_private
from linker.running import Running
from linker.start_admin import start_admin
from linker.validation.process import ValidatorProcess
from linker.validation.validator import Validator, side
from validator import messages as m
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.errors import InvalidSecurityConfig
from wire.frames.buffers import FramePool
from wire.metadata.image import ClusterImage
from wire.server.partial_frames import PartialFrames
from wire.task_group import TaskGroup
from wire.together import first_error

log = logging.getLogger(__name__)

_FLEET_TIMEOUT = 60.0
_JOIN_TIMEOUT = 60.0
_SERVE_TIMEOUT = 60.0
_LISTENER_GRACE = 2.0
_IDLE_FRAMES = 32 << 20
_TRIM_INTERVAL = 5.0
_ANSWER_GRACE = 0.5
_ENDS_TIMEOUT = 5.0


class Sidecar:
    """The process: a link broker of the target, and all that works on its links. `run` until cancelled or until it has left
    the target cluster."""

    def __init__(self, config: Config, doors: Doors | None = None) -> None:
        self.config = config
        self._doors = doors or Doors()
        self.version = __version__
        self.links = RunningLinks(self._link_runtime, lambda: self.controller)
        self.budget = MemoryBudget(config.sidecar.memory_bytes)
        self.frames = FramePool(min(_IDLE_FRAMES, config.sidecar.memory_bytes // 4))
        self.partial = PartialFrames()
        self.controller: SharedController
        self.fleet: Fleet
        self._ports = SidecarPorts(config.sidecar.broker_id)
        #: The sidecar as a broker of the target.
        self.target: LinkBroker
        self.validator = Validator(
            config.validation,
            ValidatorProcess(config.validation, config.validator_dir),
            self._target_side,
            config.evidence_dir,
        )
        self._starting: str | None = "the sidecar is starting"
        self._left = asyncio.Event()
        self.duties = ControllerDuties(self.links, lambda: self.fleet.alone)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Returns after it has left the cluster; raises the first error that cannot be waited out."""
        await asyncio.to_thread(check_local, self.config, self._doors)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.validator.process.close)
            settings = LinkBrokerSettings.of_target(self.config)
            cluster = await connect_cluster(settings, stack)
            self.fleet = await Fleet.open(self.config, self._ports, self.duties, cluster, stack)
            self.controller = self.fleet.controller
            self._ports.state = lambda: self.controller.image
            try:
                async with TaskGroup() as group:
                    self.links.group = group
                    tasks = [
                        group.create_task(self.fleet.runner.run(), name="fleet"),
                        group.create_task(self._trim_frames(), name="frames"),
                    ]
                    try:
                        await self.fleet.wait_loaded(_FLEET_TIMEOUT)
                        self.target = self._link_broker(settings, cluster)
                        stack.push_async_callback(self.target.close)
                        tasks.append(group.create_task(self.target.run(), name="target"))
                        await self._start(stack)
                        if on_ready is not None:
                            on_ready()
                        tasks.append(group.create_task(self._leave_when_told(), name="leaving"))
                        await self._left.wait()
                    finally:
                        # While the channel is still there: whoever leads the fleet need not wait for our lease to end.
                        self.fleet.member.leave()
                    for task in [*self.links.tasks, *tasks]:
                        task.cancel()
            except BaseExceptionGroup as errors:
                raise first_error(errors) from errors
            finally:
                self.links.group = None

    def _target_side(self) -> m.Side:
        """As the validator reaches it, with the secrets resolved as they are now."""
        properties = self.config.target.client_properties()
        # Tried here, because the validator gets values only: its errors could not tell which to hide. It says itself
        # which value without a reference is wrong.
        with contextlib.suppress(InvalidSecurityConfig), self.config.target.hiding_values():
            ClientSecurity.from_properties(properties)
        return side("target", properties, self.target.membership.cluster.cluster_id)

    def _link_broker(self, settings: LinkBrokerSettings, cluster: Cluster) -> LinkBroker:
        """Not started yet; the state is loaded."""
        return LinkBroker(
            settings,
            cluster,
            self.fleet.identity.get(),
            self.fleet.identity.save,
            controller=self.controller,
            links=self.links,
            lease=self.fleet.lease,
            other_link_brokers=lambda: self.controller.image.identities,
            shared=SharedBuffers(frames=self.frames, partial=self.partial, doors=self._doors),
        )

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        broker = self.target
        await broker.join(_JOIN_TIMEOUT)
        ports = self._ports
        ports.target, ports.router, ports.hand_overs = broker.membership, broker.router, broker.hand_overs
        ports.links, ports.link_brokers = self.links, broker.link_brokers
        self.fleet.member.about = self._about
        stack.callback(broker.membership.metadata.subscribe(self._on_target_change))
        self.controller.listeners.add(self.links.follow)
        self.links.follow(())
        await broker.serve(_SERVE_TIMEOUT)
        running = self._running()
        self.duties.registered(running)
        await start_admin(running, stack)
        self._starting = None
        log.info(
            "sidecar %d of cluster %s is ready",
            broker.membership.broker_id,
            broker.membership.cluster.cluster_id,
        )

    def _running(self) -> Running:
        return Running(
            config=self.config,
            version=self.version,
            controller=self.controller,
            fleet=self.fleet,
            broker=self.target,
            target=self.target.membership,
            links=self.links,
            budget=self.budget,
            partial=self.partial,
            link_brokers=self.target.link_brokers,
            balancer=lambda: self.duties.balancer,
            periodic_tasks=lambda: [*self.duties.periodic_tasks, self.target.inter_broker.task],
            not_ready=self.not_ready,
            leave=self.leave,
        )

    async def _trim_frames(self) -> None:
        """Buffers of a burst are not kept for ever."""
        descriptors = DescriptorWatch()
        while True:
            await asyncio.sleep(_TRIM_INTERVAL)
            self.frames.trim()
            descriptors.look()
            await asyncio.to_thread(give_back)

    def not_ready(self) -> str | None:
        """None when brokers, clients and requests are served, else why not."""
        if self._starting is not None:
            return self._starting
        if self._left.is_set():
            return "the sidecar has left the target cluster"
        if not self.target.membership.registration.session_valid:
            return "the target's controller has not taken a heartbeat for a while"
        return None

    # --- roles -------------------------------------------------------------------------------------------------------

    async def _leave_when_told(self) -> None:
        """In a fleet the state says that a sidecar is to leave."""
        if self.fleet.alone:
            return
        leaving = Leaving(
            self.target.membership,
            self.fleet.session,
            lambda: self.controller.image,
            self._fleet_controller,
            self.controller.remove_sidecar,
        )
        self.fleet.runner.stand_aside = lambda: leaving.asked
        await leaving.run()
        log.info("this sidecar has left the fleet")
        self._left.set()

    def _about(self) -> SidecarReport:
        """The part of every report to the link controller that is for people."""
        age = time.monotonic() - self.target.membership.registration.last_heartbeat
        return SidecarReport(
            not_ready=self.not_ready(),
            heartbeat_age=None if age == float("inf") else age,
            # The link controller counts those of its own process itself.
            links=[]
            if self.fleet.fleet_controller is not None
            else [own_traffic(runtime) for runtime in self.links.values()],
        )

    def _fleet_controller(self) -> FleetController | None:
        return self.fleet.fleet_controller

    # --- links -------------------------------------------------------------------------------------------------------

    def _link_runtime(self, link: Link) -> LinkRuntime:
        return LinkRuntime(
            link,
            self.controller,
            self.target.membership,
            self.target.router,
            self.target.copies,
            self.budget,
            frames=self.frames,
            secrets=self.config.link_secrets,
            rack=self.config.sidecar.rack,
            link_brokers=self.target.link_brokers,
            fleet_controller=self._fleet_controller,
            link_replicas=self.config.fleet.link_brokers,
            before_promote=self.duties.settle_moves,
            validator=self.validator,
            internal_topics={self.config.store.topic},
        )

    def _on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        for runtime in self.links.values():
            runtime.on_target_change(image, topics)

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def leave(self, timeout: float) -> None:
        """Unregister, then end: shortly after, so that whoever asked gets the answer."""
        await self.target.membership.leave(timeout)
        asyncio.get_running_loop().call_later(_ANSWER_GRACE, self._left.set)


def run(config: Config, doors: Doors | None = None) -> None:
    """The process: until SIGTERM, Ctrl-C, or a fatal error (raised as one LinkerError)."""
    be_private(config)
    uvloop.run(_main(config, doors or Doors()))


async def _main(config: Config, doors: Doors) -> None:
    sidecar = Sidecar(config, doors)
    work = asyncio.create_task(sidecar.run())
    loop = asyncio.get_running_loop()
    loop.call_later(PATIENCE, doors.close)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("stopped")
    finally:
        doors.close()
