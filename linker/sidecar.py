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

from controller.decide.reverse import reverse_name
from controller.image import ControllerImage
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
from linker.fleet.ports import ClusterPorts, SidecarPorts
from linker.joined_sources import JoinedSources
from linker.link_broker import LinkBroker, SharedBuffers
from linker.link_broker_settings import LinkBrokerSettings, connect_cluster
from linker.links.reverse import Reversed
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from linker.links.traffic import own_traffic
from linker.membership import StillHosting
from linker.process.descriptors import DescriptorWatch
from linker.process.early_bind import PATIENCE, EarlySockets
from linker.process.heap import give_back
from linker.process.private_files import be_private
from linker.running import Running
from linker.source_brokers import SourceBrokers
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
_LEAVE_TIMEOUT = 30.0
_IDLE_FRAMES = 32 << 20
_TRIM_INTERVAL = 5.0
_ANSWER_GRACE = 0.5


class Sidecar:
    """The process: a link broker of the target, and all that works on its links. `run` until cancelled or until it has left
    the target cluster."""

    def __init__(self, config: Config, early_sockets: EarlySockets | None = None) -> None:
        self.config = config
        self._early_sockets = early_sockets or EarlySockets()
        self.version = __version__
        self.links = RunningLinks(self._link_runtime, lambda: self.controller)
        self.budget = MemoryBudget(config.sidecar.memory_bytes)
        self.frames = FramePool(min(_IDLE_FRAMES, config.sidecar.memory_bytes // 4))
        self.partial = PartialFrames()
        self._shared = SharedBuffers(
            frames=self.frames, partial=self.partial, early_sockets=self._early_sockets
        )
        self.controller: SharedController
        self.fleet: Fleet
        self._state: Callable[[], ControllerImage] = ControllerImage
        target_ports = ClusterPorts(config.sidecar.broker_id, lambda: self._state())
        self._ports = SidecarPorts(lambda: self._state(), target_ports)
        #: The sidecar as a broker of the target.
        self.target: LinkBroker
        #: The sidecar as a broker of sources, by link.
        self.joined = JoinedSources(
            config,
            self._early_sockets,
            lambda: self.controller.image,
            lambda: self.target.membership.cluster.cluster_id or "",
            SourceBrokers(
                config=config,
                shared=self._shared,
                links=self.links,
                ports=self._ports,
                validator=lambda: self.validator,
                target_side=self._target_side,
                controller=lambda: self.controller,
                lease=lambda: self.fleet.lease,
                runtime=self._runtime_in,
            ),
        )
        self.validator = Validator(
            config.validation,
            ValidatorProcess(config.validation, config.validator_dir),
            self._target_side,
            config.evidence_dir,
        )
        self._starting: str | None = "the sidecar is starting"
        self._left = asyncio.Event()
        self.duties = ControllerDuties(self._all_links, lambda: self.fleet.alone)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Returns after it has left the cluster; raises the first error that cannot be waited out."""
        await asyncio.to_thread(check_local, self.config, self._early_sockets)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.validator.process.close)
            settings = LinkBrokerSettings.of_target(self.config)
            cluster = await connect_cluster(settings, stack)
            self.fleet = await Fleet.open(self.config, self._ports, self.duties, cluster, stack)
            self.controller = self.fleet.controller
            self._state = lambda: self.controller.image
            try:
                async with TaskGroup() as group:
                    self.links.group = self.joined.group = group
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
                        self.joined.group = None  # nothing is begun any more
                    for task in [*self.links.tasks, *self.joined.tasks, *tasks]:
                        task.cancel()
            except BaseExceptionGroup as errors:
                raise first_error(errors) from errors
            finally:
                self.links.group = self.joined.group = None

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
            shared=self._shared,
        )

    def _all_links(self) -> list[LinkRuntime]:
        """In either direction."""
        reverse = (runtime for broker in self.joined.values() for runtime in broker.links.values())
        return [*self.links.values(), *reverse]

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        broker = self.target
        await broker.join(_JOIN_TIMEOUT)
        broker.take_part(self._ports.clusters[""])
        self.fleet.member.about = self._about
        stack.callback(broker.membership.metadata.subscribe(self._on_target_change))
        self.controller.listeners.add(self.links.follow)
        self.links.follow(())
        self.controller.listeners.add(self.joined.follow)
        self.joined.follow(())
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
            joined=self.joined,
            links=self.links,
            all_links=self._all_links,
            budget=self.budget,
            partial=self.partial,
            link_brokers=self.target.link_brokers,
            balancer=lambda: self.duties.balancer,
            periodic_tasks=lambda: [
                *self.duties.periodic_tasks,
                self.target.inter_broker.task,
                *self.joined.periodic_tasks,
            ],
            not_started=self.not_started,
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

    def not_started(self) -> str | None:
        if self._starting is not None:
            return self._starting
        return "the sidecar has left the target cluster" if self._left.is_set() else None

    def not_ready(self) -> str | None:
        """None when brokers, clients and requests are served, else why not."""
        if (reason := self.not_started()) is not None:
            return reason
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
            lambda: self.joined.hosting,
        )
        self.fleet.runner.stand_aside = lambda: leaving.asked
        await leaving.run()
        try:
            await self.joined.leave_all(_LEAVE_TIMEOUT)
        except StillHosting as error:  # since a moment ago
            log.warning("this sidecar stays registered at a source: %s", error)
        log.info("this sidecar has left the fleet")
        self._left.set()

    def _about(self) -> SidecarReport:
        """The part of every report to the link controller that is for people."""
        age = time.monotonic() - self.target.membership.registration.last_heartbeat
        return SidecarReport(
            not_ready=self.not_ready(),
            heartbeat_age=None if age == float("inf") else age,
            joined=self.joined.told(),
            # The link controller counts those of its own process itself.
            links=[]
            if self.fleet.fleet_controller is not None
            else [own_traffic(runtime) for runtime in self._all_links()],
        )

    def _fleet_controller(self) -> FleetController | None:
        return self.fleet.fleet_controller

    # --- links -------------------------------------------------------------------------------------------------------

    def _link_runtime(self, link: Link) -> LinkRuntime:
        return self._runtime_in(self.target, link, self.validator)

    def _runtime_in(
        self, broker: LinkBroker, link: Link, validator: Validator, reverses: Reversed | None = None
    ) -> LinkRuntime:
        """The link's mirrors lie in the cluster of the broker."""
        return LinkRuntime(
            link,
            self.controller,
            broker.membership,
            broker.router,
            broker.copies,
            self.budget,
            frames=self.frames,
            secrets=self.config.link_secrets,
            rack=self.config.sidecar.rack,
            link_brokers=broker.link_brokers,
            fleet_controller=self._fleet_controller,
            link_replicas=self.config.fleet.link_brokers,
            before_promote=self.duties.settle_moves,
            validator=validator,
            exports=self.config.exports_dir,
            internal_topics={self.config.store.topic},
            reverses=reverses,
            joined=lambda: self.target if link.reverse_of else self.joined.get(link.name),
            against=lambda: self._against(link),
        )

    def _against(self, link: Link) -> LinkRuntime | None:
        """The link that runs the other way, if it does."""
        if link.reverse_of is not None:
            return self.links.get(link.reverse_of)
        broker = self.joined.get(link.name)
        return None if broker is None else broker.links.get(reverse_name(link.name))

    def _on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        for runtime in self.links.values():
            runtime.on_target_change(image, topics)

    # --- leaving -----------------------------------------------------------------------------------------------------

    async def leave(self, timeout: float) -> None:
        """Unregister, then end: shortly after, so that whoever asked gets the answer."""
        self.target.check_may_leave()
        await self.joined.leave_all(timeout / 2)
        await self.target.membership.leave(timeout)
        asyncio.get_running_loop().call_later(_ANSWER_GRACE, self._left.set)


def run(config: Config, early_sockets: EarlySockets | None = None) -> None:
    """The process: until SIGTERM, Ctrl-C, or a fatal error (raised as one LinkerError)."""
    be_private(config)
    uvloop.run(_main(config, early_sockets or EarlySockets()))


async def _main(config: Config, early_sockets: EarlySockets) -> None:
    sidecar = Sidecar(config, early_sockets)
    work = asyncio.create_task(sidecar.run())
    loop = asyncio.get_running_loop()
    loop.call_later(PATIENCE, early_sockets.close)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        log.info("stopped")
    finally:
        early_sockets.close()
