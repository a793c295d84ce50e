"""LinkBroker is the sidecar as a broker of one cluster: its membership, its listeners, its answers to followers, its router.

A sidecar is one link broker in the target, and one more in each source that it joins. The link brokers of a process share
buffers, the budget of half received requests and the sockets that were bound early, and nothing else: each has its own
broker id, identity, metadata image, mirrored partitions, fences and numbers.

    async with TaskGroup() as group:
        running = group.create_task(broker.run())
        await broker.join(timeout)     # registered; the image is the cluster's
        await broker.serve(timeout)    # listeners open, unfenced
        running.cancel()
    await broker.close()
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from controller.decide.reverse import at_source
from controller.phases import ENDED
from controller.plan import producer_ids
from controller.plan.upstream import tell
from fetcher.directory import MirrorDirectory
from fetcher.followers import FollowerServer
from fleet.shared_controller import SharedController
from linker.checks.this_machine import CannotListen
from linker.config.listeners import ClientListener
from linker.fleet.hand_overs import HandOvers, Leading
from linker.fleet.ports import ClusterPorts, StateFences
from linker.link_broker_settings import LinkBrokerSettings
from linker.links.configs import broker_config
from linker.links.mirrors import Mirrors
from linker.links.replica_ends import replica_logs
from linker.links.running import RunningLinks
from linker.membership import AdvertisedListener, Identity, StillHosting, TargetCluster
from linker.membership.hosting import hosted_partitions
from linker.membership.identity import PROTOCOL_IDS, SaveIdentity
from linker.membership.inter_broker import InterBrokerListeners
from linker.membership.internal_topics import create_internal_topics
from linker.process.early_bind import EarlySockets
from linker.process.upstreams import Upstreams, relay_security
from linker.promote.new_leaders import wait_known
from router.dispatch import Router
from router.ports import LeasePort, RouterLimits, RouterPorts
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity, ListenerSecurity
from wire.errors import LinkerError
from wire.frames.buffers import FramePool
from wire.frames.types import TopicPartition, format_address
from wire.server.listener import Listener, ListenerInfo, start_listener
from wire.server.partial_frames import PartialFrames
from wire.task_group import TaskGroup
from wire.together import first_error

log = logging.getLogger(__name__)

_LISTENER_GRACE = 2.0
_ENDS_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBuffers:
    """Memory and sockets of the process, for all its link brokers."""

    frames: FramePool
    partial: PartialFrames
    early_sockets: EarlySockets


class LinkBroker:
    """Run `run` beside `join` and `serve`, and call `close` last: it leaves neither sockets nor tasks behind."""

    def __init__(
        self,
        settings: LinkBrokerSettings,
        cluster: Cluster,
        identity: Identity,
        save: SaveIdentity,
        *,
        controller: SharedController,
        links: RunningLinks,
        lease: LeasePort,
        other_link_brokers: Callable[[], Collection[int]],
        shared: SharedBuffers,
        at: str = "",
    ) -> None:
        """`links`: the links that mirror into this cluster. `at` names the cluster, as `Link.at` does. The state has to be
        loaded."""
        self._settings = settings
        self.links = links
        self._at = at
        self._controller = controller
        self._other_link_brokers = other_link_brokers
        self._shared = shared
        cluster.not_asked = self.link_brokers
        self._stack = contextlib.AsyncExitStack()
        properties = settings.client.client_properties()
        with settings.client.hiding_values():
            upstreams = Upstreams(relay_security(properties))
            controller_security = ClientSecurity.from_properties(settings.client.controller_properties())
        self.listeners: list[Listener] = []
        self.advertised = [
            AdvertisedListener(
                one.name, one.advertised_host, one.advertised_port, PROTOCOL_IDS[one.security_protocol]
            )
            for one in settings.listeners
        ]
        membership = self.membership = self._member(cluster, controller_security, identity, save)
        self.inter_broker = InterBrokerListeners(
            lambda broker, name, timeout: broker_config(cluster, broker, name, timeout=timeout),
            lambda: membership.image.brokers.keys() - self.link_brokers(),
            [one.name for one in self.advertised],
            settings.cluster,
            controlled=settings.zookeeper is not None,
        )
        self.copies = MirrorDirectory()
        self.followers = FollowerServer(
            self.copies,
            lambda: membership.image,
            membership.broker_id,
            ends=partial(replica_logs, cluster, timeout=_ENDS_TIMEOUT),
            switching=lambda key, index: self.mirrors.switching(key, index),
        )
        self.copies.listeners.append(self.followers.mirror_added)
        self.mirrors = Mirrors(
            lambda: controller.image,
            membership.image,
            self.copies,
            links.forwards,
            membership.broker_id,
            links.refuses,
            at=at,
        )
        self.router = Router(
            RouterPorts(
                broker_id=membership.broker_id,
                mirrors=self.mirrors,
                image=lambda: membership.image,
                source=links.source,
                target=lambda: cluster,
                local_log=lambda tp: self.copies(tp.topic, tp.partition),
                followers=self.followers,
                open_upstream=upstreams,
                events=self,
                link_brokers=self.link_brokers,
                lease=lease,
                inter_broker_listeners=self.inter_broker,
                control_listeners=self.inter_broker.control,
                producer_ids=self._producer_ids,
                upstream=self._upstream,
                followed=self._followed,
                holds_reads=links.holds_reads,
                control=membership.control,
            ),
            RouterLimits(),
        )
        self._stack.push_async_callback(membership.close)
        self._stack.push_async_callback(self.router.close)
        self._stack.callback(self.followers.close)
        self.hand_overs = HandOvers(self.router, self._wait_known)
        self.fences = StateFences(self.router, lambda: controller.image, self.hand_overs.look, at)

    def _member(
        self, cluster: Cluster, controllers: ClientSecurity, identity: Identity, save: SaveIdentity
    ) -> TargetCluster:
        settings = self._settings
        if settings.zookeeper is not None:
            # Imported late, with kazoo, which only clusters with ZooKeeper need.
            from linker.zookeeper.cluster import ZooKeeperCluster

            return ZooKeeperCluster(
                cluster,
                settings.zookeeper,
                security=controllers,
                identity=identity,
                save=save,
                listeners=self.advertised,
                rack=settings.rack,
                client_id=cluster.client_id,
            )
        return TargetCluster(
            cluster,
            controller_security=controllers,
            identity=identity,
            save=save,
            listeners=self.advertised,
            controller_bootstrap=settings.client.controller_bootstrap_servers() or (),
            rack=settings.rack,
            client_id=cluster.client_id,
        )

    def take_part(self, ports: ClusterPorts) -> None:
        """From now on the fleet's commands have their effects on this link broker."""
        ports.target, ports.router, ports.hand_overs = self.membership, self.router, self.hand_overs
        ports.links, ports.link_brokers = self.links, self.link_brokers

    def link_brokers(self) -> frozenset[int]:
        """Broker ids of all sidecars in this cluster."""
        return frozenset({self.membership.broker_id, *self._other_link_brokers()})

    def _producer_ids(self) -> str:
        """The state of this cluster's producer ids, told to sidecars with a link in the other direction."""
        image = self._controller.image
        floors = (
            (link, image.floors.get(name))
            for name, link in sorted(image.links.items())
            if link.at == self._at
        )
        return producer_ids.tell(
            producer_ids.IdsTold(link.source_cluster_id, None)
            if word is None
            else producer_ids.IdsTold(link.source_cluster_id, word.floor, word.unused)
            for link, word in floors
        )

    def _upstream(self, topic: str) -> str | None:
        """The clusters that a topic has passed, told to sidecars that mirror from this cluster. None: the topic begins here,
        because it is no mirror, or a promoted one."""
        image = self._controller.image
        mirror = image.mirror_of_topic(topic, self._at)
        if mirror is None or all(
            state.phase in ENDED for state in image.topic_partitions(mirror.link, topic)
        ):
            return None
        return tell(mirror.upstream, image.links[mirror.link].source_cluster_id)

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the metadata log and send heartbeats until cancelled; the first final error ends it."""
        name = self._settings.cluster
        try:
            async with TaskGroup() as group:
                group.create_task(self.membership.run(), name=f"{name} membership")
                group.create_task(self.inter_broker.run(), name=f"{name} inter-broker listeners")
        except* LinkerError as errors:
            raise first_error(errors) from None

    async def join(self, timeout: float) -> None:
        """Register. Returns when that is done, with mirrors and fences as the state has them."""
        await create_internal_topics(self.membership, timeout)
        await self.membership.join(timeout)
        self.mirrors.rebuild()
        self.fences.rebuild()
        for listener in (self.mirrors.on_records, self.fences.on_records):
            self._controller.listeners.add(listener)
            self._stack.callback(self._controller.listeners.discard, listener)
        self._stack.callback(self.membership.metadata.subscribe(self.hand_overs.on_target_change))

    async def serve(self, timeout: float) -> None:
        """Open the listeners. Returns when the cluster has unfenced us."""
        for one in self._settings.listeners:
            await self._listen(one)
        await self.membership.serve(timeout)

    async def _listen(self, one: ClientListener) -> None:
        properties = {
            **self._settings.listener_properties(one.name),
            "security.protocol": one.security_protocol,
        }
        try:
            listener = await start_listener(
                one.bind_host,
                one.port,
                ListenerInfo(one.name, one.security_protocol),
                ListenerSecurity.from_properties(properties),
                self.router,
                bound=self._shared.early_sockets.take(one.bind_host, one.port),
                alloc=self._shared.frames.take,
                partial=self._shared.partial,
            )
        except OSError as error:
            raise CannotListen(
                f"listener {one.name}: cannot bind to {format_address(one.host, one.port)}: {error.strerror or error}"
            ) from error
        self.listeners.append(listener)
        self._stack.push_async_callback(listener.close, _LISTENER_GRACE)

    @property
    def cordoned(self) -> bool:
        """Whether no new partition is ever placed on us (Kafka 4.3, KIP-1066)."""
        found = self.membership.image.brokers.get(self.membership.broker_id)
        return found is not None and self.membership.identity.log_dir_id in (found.cordoned_log_dirs or ())

    def _followed(self, topic: str) -> bool:
        """A link that mirrors this cluster, in either direction, has link brokers among the topic's replicas."""
        image = self._controller.image
        return any(
            (mirror.sync or mirror.restoring) and at_source(image, name) == self._at
            for name in image.links
            if (mirror := image.mirrors.get((name, topic))) is not None
        )

    def kept_in_sync(self, topic: str) -> int:
        """How many partitions of the topic, from 0 on, the link that mirrors this cluster has link brokers among the
        replicas of on purpose (linker.switch.sync_replicas). Those that were added since are not among them."""
        mirror = self._controller.image.mirrors.get((self._at, topic))
        return mirror.partitions if mirror is not None and (mirror.sync or mirror.restoring) else 0

    def check_may_leave(self) -> None:
        """StillHosting while a partition of the cluster names us."""
        leads, hosts = hosted_partitions(self.membership.image, self.membership.broker_id)
        if leads or hosts:
            raise StillHosting(self.membership.broker_id, leads, hosts)

    async def close(self) -> None:
        """Close listeners, router and connections to controllers. The client of the cluster is closed by its maker."""
        await self._stack.aclose()

    async def _wait_known(self, tps: Collection[TopicPartition], leading: Leading, timeout: float) -> bool:
        membership = self.membership
        return await wait_known(
            membership.cluster, membership.image, tps, self.link_brokers(), leading=leading, timeout=timeout
        )

    # --- router.ports.RouterEvents -----------------------------------------------------------------------------------

    def forwarding_refused(self, link: str, reason: str) -> None:
        log.error("link %s: the source refuses forwarded produces: %s", link, reason)

    def reader_held(self, link: str, topic: str, client_id: str, host: str) -> None:
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
