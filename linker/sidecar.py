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
from collections.abc import Callable, Collection
from functools import partial

import uvloop

from controller.state import Link
from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.followers import FollowerServer
from fleet.fleet_controller import FleetController
from fleet.messages import SidecarReport
from fleet.shared_controller import SharedController
from linker import __version__
from linker.checks.this_machine import CannotListen, check_local
from linker.config.cluster_addresses import one_cluster
from linker.config.model import Config
from linker.fleet.departures import Leaving
from linker.fleet.fleet import Fleet
from linker.fleet.hand_overs import HandOvers, Leading
from linker.fleet.ports import SidecarPorts, StateFences
from linker.fleet.reign import ControllerDuties
from linker.links.configs import broker_config
from linker.links.mirrors import Mirrors
from linker.links.replica_ends import replica_logs
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from linker.links.traffic import own_traffic
from linker.membership import AdvertisedListener, StillHosting, TargetCluster
from linker.membership.hosting import hosted_partitions
from linker.membership.inter_broker import InterBrokerListeners
from linker.membership.internal_topics import create_internal_topics
from linker.process.descriptors import DescriptorWatch
from linker.process.early_bind import PATIENCE, Doors
from linker.process.heap import give_back
from linker.process.private_files import be_private
from linker.process.upstreams import Upstreams, relay_security
from linker.promote.new_leaders import wait_known
from linker.running import Running
from linker.start_admin import start_admin
from linker.validation.process import ValidatorProcess
from linker.validation.validator import Validator, side
from router.dispatch import Router
from router.ports import RouterLimits, RouterPorts
from validator import messages as m
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.errors import InvalidSecurityConfig
from wire.frames.buffers import FramePool
from wire.frames.types import TopicPartition, format_address
from wire.metadata.image import ClusterImage
from wire.server.listener import Listener, ListenerInfo, start_listener
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
_PROTOCOL_IDS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Sidecar:
    """One link broker. `run` until cancelled or until it has left the target cluster."""

    def __init__(self, config: Config, doors: Doors | None = None) -> None:
        self.config = config
        self._doors = doors or Doors()
        self.version = __version__
        self.links = RunningLinks(self._link_runtime, lambda: self.controller)
        self.copies = MirrorDirectory()
        self.budget = MemoryBudget(config.sidecar.memory_bytes)
        self.frames = FramePool(min(_IDLE_FRAMES, config.sidecar.memory_bytes // 4))
        self.partial = PartialFrames()
        self.listeners: list[Listener] = []
        self.advertised: list[AdvertisedListener] = []
        self.controller: SharedController
        self.fleet: Fleet
        self._ports = SidecarPorts(config.sidecar.broker_id)
        self.target: TargetCluster
        self.router: Router
        self.validator = Validator(
            config.validation,
            ValidatorProcess(config.validation, config.validator_dir),
            self._target_side,
            config.evidence_dir,
        )
        self.mirrors: Mirrors
        self.followers: FollowerServer
        self._upstreams: Upstreams
        self.inter_broker: InterBrokerListeners
        self._starting: str | None = "the sidecar is starting"
        self._left = asyncio.Event()
        self.reign = ControllerDuties(self.links, lambda: self.fleet.alone)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Returns after it has left the cluster; raises the first error that cannot be waited out."""
        await asyncio.to_thread(check_local, self.config, self._doors)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.validator.process.close)
            cluster = await self._find_target(stack)
            self.fleet = await Fleet.open(self.config, self._ports, self.reign, cluster, stack)
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
                        self._make_target(cluster, stack)
                        tasks.append(group.create_task(self.target.run(), name="target"))
                        tasks.append(
                            group.create_task(self.inter_broker.run(), name="inter-broker listeners")
                        )
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
        # Tried here, because the validator gets values only: its errors could not tell which to hide. What is wrong
        # without a reference it says itself.
        with contextlib.suppress(InvalidSecurityConfig), self.config.target.hiding_values():
            ClientSecurity.from_properties(properties)
        return side("target", properties, self.target.cluster.cluster_id)

    async def _find_target(self, stack: contextlib.AsyncExitStack) -> Cluster:
        """The target as a client sees it: its id says which fleet this is."""
        settings = self.config.sidecar
        properties = self.config.target.client_properties()
        with self.config.target.hiding_values():
            security = ClientSecurity.from_properties(properties)
        cluster = Cluster(
            "target",
            self.config.target.bootstrap_servers(),
            security,
            properties.get("client.id", f"kafka-linker-{settings.broker_id}"),
            rack=settings.rack,
        )
        stack.push_async_callback(cluster.close)
        await cluster.connect()
        await one_cluster(cluster)
        return cluster

    def _make_target(self, cluster: Cluster, stack: contextlib.AsyncExitStack) -> None:
        """Everything that the target's membership consists of, not started yet."""
        settings = self.config.sidecar
        properties = self.config.target.client_properties()
        with self.config.target.hiding_values():
            self._upstreams = Upstreams(relay_security(properties))
            controller_security = ClientSecurity.from_properties(self.config.target.controller_properties())
        self.advertised = [
            AdvertisedListener(
                one.name, one.advertised_host, one.advertised_port, _PROTOCOL_IDS[one.security_protocol]
            )
            for one in settings.client_listeners()
        ]
        self.target = TargetCluster(
            cluster,
            controller_security=controller_security,
            identity=self.fleet.identity(),
            save=self.fleet.save_identity,
            listeners=self.advertised,
            controller_bootstrap=self.config.target.controller_bootstrap_servers() or (),
            rack=settings.rack,
            client_id=cluster.client_id,
        )
        stack.push_async_callback(self.target.close)
        self.inter_broker = InterBrokerListeners(
            lambda broker, name, timeout: broker_config(cluster, broker, name, timeout=timeout),
            lambda: self.target.image.brokers.keys() - self.link_brokers() - {settings.broker_id},
            [one.name for one in self.advertised],
        )

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        await create_internal_topics(self.target, _JOIN_TIMEOUT)
        await self.target.join(_JOIN_TIMEOUT)
        self.followers = FollowerServer(
            self.copies,
            lambda: self.target.image,
            self.target.broker_id,
            ends=partial(replica_logs, self.target.cluster, timeout=_ENDS_TIMEOUT),
        )
        self.copies.listeners.append(self.followers.mirror_added)
        self.mirrors = Mirrors(
            lambda: self.controller.image,
            self.target.image,
            self.copies,
            self.links.forwards,
            self.target.broker_id,
            self.links.refuses,
        )
        self.mirrors.rebuild()
        self.controller.listeners.add(self.mirrors.on_records)
        self.router = Router(
            RouterPorts(
                broker_id=self.target.broker_id,
                mirrors=self.mirrors,
                image=lambda: self.target.image,
                source=self.links.source,
                target=lambda: self.target.cluster,
                local_log=lambda tp: self.copies(tp.topic, tp.partition),
                followers=self.followers,
                open_upstream=self._upstreams,
                events=self,
                link_brokers=self.link_brokers,
                lease=self.fleet.lease,
                inter_broker_listeners=self.inter_broker,
                holds_reads=self._holds_reads,
            ),
            RouterLimits(),
        )
        stack.push_async_callback(self.router.close)
        hand_overs = HandOvers(self.router, self._wait_known)
        fences = StateFences(self.router, lambda: self.controller.image, hand_overs.look)
        fences.rebuild()
        self.controller.listeners.add(fences.on_records)
        self._ports.target, self._ports.router = self.target, self.router
        self._ports.hand_overs = hand_overs
        stack.callback(self.target.metadata.subscribe(hand_overs.on_target_change))
        self._ports.links, self._ports.link_brokers = self.links, self.link_brokers
        self.fleet.member.about = self._about
        stack.callback(self.target.metadata.subscribe(self._on_target_change))
        self.controller.listeners.add(self.links.follow)
        self.links.follow(())
        await self._listen(stack)
        await self.target.serve(_SERVE_TIMEOUT)
        running = self._running()
        self.reign.registered(running)
        await start_admin(running, stack)
        self._starting = None
        log.info("sidecar %d of cluster %s is ready", self.target.broker_id, self.target.cluster.cluster_id)

    def _running(self) -> Running:
        return Running(
            config=self.config,
            version=self.version,
            controller=self.controller,
            fleet=self.fleet,
            target=self.target,
            router=self.router,
            links=self.links,
            budget=self.budget,
            partial=self.partial,
            listeners=self.listeners,
            advertised=self.advertised,
            link_brokers=self.link_brokers,
            balancer=lambda: self.reign.balancer,
            not_ready=self.not_ready,
            check_may_leave=self.check_may_leave,
            leave=self.leave,
        )

    async def _listen(self, stack: contextlib.AsyncExitStack) -> None:
        for one in self.config.sidecar.client_listeners():
            properties = {
                **self.config.sidecar.listener_properties(one.name),
                "security.protocol": one.security_protocol,
            }
            host = one.bind_host
            try:
                listener = await start_listener(
                    host,
                    one.port,
                    ListenerInfo(one.name, one.security_protocol),
                    ListenerSecurity.from_properties(properties),
                    self.router,
                    bound=self._doors.take(host, one.port),
                    alloc=self.frames.take,
                    partial=self.partial,
                )
            except OSError as error:
                raise CannotListen(
                    f"listener {one.name}: cannot bind to {format_address(one.host, one.port)}: {error.strerror or error}"
                ) from error
            self.listeners.append(listener)
            stack.push_async_callback(listener.close, _LISTENER_GRACE)

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
        if not self.target.registration.session_valid:
            return "the target's controller has not taken a heartbeat for a while"
        return None

    # --- roles -------------------------------------------------------------------------------------------------------

    async def _leave_when_told(self) -> None:
        """In a fleet the state says that a sidecar is to leave."""
        if self.fleet.alone:
            return
        leaving = Leaving(
            self.target,
            self.fleet.session,
            lambda: self.controller.image,
            self._head,
            self.controller.remove_sidecar,
        )
        self.fleet.runner.stand_aside = lambda: leaving.asked
        await leaving.run()
        log.info("this sidecar has left the fleet")
        self._left.set()

    def _about(self) -> SidecarReport:
        """What the link controller is told with every report, for people."""
        age = time.monotonic() - self.target.registration.last_heartbeat
        return SidecarReport(
            not_ready=self.not_ready(),
            heartbeat_age=None if age == float("inf") else age,
            links=[own_traffic(runtime) for runtime in self.links.values()],
        )

    async def _wait_known(self, tps: Collection[TopicPartition], leading: Leading, timeout: float) -> bool:
        return await wait_known(
            self.target.cluster, self.target.image, tps, self.link_brokers(), leading=leading, timeout=timeout
        )

    def _head(self) -> FleetController | None:
        return self.fleet.head

    # --- links -------------------------------------------------------------------------------------------------------

    def _link_runtime(self, link: Link) -> LinkRuntime:
        return LinkRuntime(
            link,
            self.controller,
            self.target,
            self.router,
            self.copies,
            self.budget,
            frames=self.frames,
            secrets=self.config.link_secrets,
            rack=self.config.sidecar.rack,
            link_brokers=self.link_brokers,
            head=self._head,
            link_replicas=self.config.fleet.link_brokers,
            before_promote=self.reign.settle_moves,
            validator=self.validator,
        )

    def link_brokers(self) -> frozenset[int]:
        """Broker ids of all sidecars that this store knows."""
        return frozenset({self.target.broker_id, *self.controller.image.identities})

    def _on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        for runtime in self.links.values():
            runtime.on_target_change(image, topics)

    # --- leaving -----------------------------------------------------------------------------------------------------

    def check_may_leave(self) -> None:
        """StillHosting while a partition of the target names us."""
        leads, hosts = hosted_partitions(self.target.image, self.target.broker_id)
        if leads or hosts:
            raise StillHosting(self.target.broker_id, leads, hosts)

    async def leave(self, timeout: float) -> None:
        """Unregister, then end: shortly after, so that whoever asked gets the answer."""
        await self.target.leave(timeout)
        asyncio.get_running_loop().call_later(_ANSWER_GRACE, self._left.set)

    # --- for the router ------------------------------------------------------------------------------------------------

    def _holds_reads(self, link: str, client_id: str | None) -> bool:
        runtime = self.links.get(link)
        return runtime is not None and runtime.reads.holds(client_id)

    def forwarding_refused(self, link: str, reason: str) -> None:
        """router.ports.RouterEvents"""
        log.error("link %s: the source refuses forwarded produces: %s", link, reason)

    def reader_held(self, link: str, topic: str, client_id: str, host: str) -> None:
        """router.ports.RouterEvents"""
        log.warning(
            "link %s: client %r at %s is held: it gets no records of %s (and finds it empty) until the promote, because "
            "its client id matches unpromoted_reads_hold; to let it read: linker link update %s --option "
            "unpromoted_reads_allow=...",
            link,
            client_id,
            host,
            topic,
            link,
        )


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
