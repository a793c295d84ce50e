"""Makes the link broker of a link's source, and has it take part: the links that run the other way mirror into that cluster.

`joined_sources` says when one is joined and left.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from controller.state import Link
from fleet.shared_controller import SharedController
from linker.config.model import Config
from linker.fleet.identity import IdentityFile
from linker.fleet.ports import ClusterPorts, SidecarPorts
from linker.link_broker import LinkBroker, SharedBuffers
from linker.link_broker_settings import LinkBrokerSettings
from linker.links.reverse import Reversed
from linker.links.running import RunningLinks
from linker.links.runtime import LinkRuntime
from linker.links.source import source_side
from linker.membership import Identity
from linker.validation.validator import Validator
from router.ports import LeasePort
from validator import messages as m
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity
from wire.metadata.image import ClusterImage


class MakeRuntime(Protocol):
    def __call__(
        self, broker: LinkBroker, link: Link, validator: Validator, reverses: Reversed | None = None
    ) -> LinkRuntime:
        """The runtime of a link whose mirrors lie in the broker's cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBrokers:
    """Of one sidecar."""

    config: Config
    shared: SharedBuffers
    #: Those that mirror into the target.
    links: RunningLinks
    ports: SidecarPorts
    validator: Callable[[], Validator]
    target_side: Callable[[], m.Side]
    controller: Callable[[], SharedController]
    lease: Callable[[], LeasePort]
    runtime: MakeRuntime

    def make(
        self,
        link: Link,
        settings: LinkBrokerSettings,
        cluster: Cluster,
        identity: Identity,
        file: IdentityFile,
        link_brokers: Callable[[], Collection[int]],
    ) -> LinkBroker:
        """Not started yet. `link_brokers`: of all sidecars there. The mirrors that lie there are those of the link that runs
        the other way."""
        broker: LinkBroker
        reversed_ = Reversed(
            connect=self._connect_target,
            source_side=self.target_side,
            producer_ids_apart=lambda: (
                (forward := self.links.get(link.name)) is not None and forward.producer_ids.allowed
            ),
        )
        validator = self.validator().towards(lambda: source_side(link, self.config.link_secrets))
        broker = LinkBroker(
            settings,
            cluster,
            identity,
            file.save,
            controller=self.controller(),
            links=RunningLinks(
                lambda reverse: self.runtime(broker, reverse, validator, reversed_),
                self.controller,
                link.name,
            ),
            lease=self.lease(),
            other_link_brokers=link_brokers,
            shared=self.shared,
            at=link.name,
        )
        return broker

    def _connect_target(self, link: str) -> Cluster:
        """The target as the source of a reverse link."""
        properties = self.config.target.client_properties()
        with self.config.target.hiding_values():
            security = ClientSecurity.from_properties(properties)
        return Cluster(
            f"source {link}",
            self.config.target.bootstrap_servers(),
            security,
            properties.get("client.id", f"kafka-linker-{link}"),
            rack=self.config.sidecar.rack,
        )

    @contextlib.asynccontextmanager
    async def take_part(self, link: Link, broker: LinkBroker) -> AsyncIterator[None]:
        """The links that run the other way run, and the fleet's commands reach this broker."""
        links = broker.links
        ports = self.ports.clusters[link.name] = ClusterPorts(
            broker.membership.broker_id, lambda: self.controller().image
        )
        broker.take_part(ports)
        links.group = self.links.group

        def on_change(image: ClusterImage, topics: frozenset[bytes]) -> None:
            for runtime in links.values():
                runtime.on_target_change(image, topics)

        unsubscribe = broker.membership.metadata.subscribe(on_change)
        self.controller().listeners.add(links.follow)
        links.follow(())
        try:
            yield
        finally:
            self.controller().listeners.discard(links.follow)
            unsubscribe()
            links.group = None
            for name in list(links):
                await links.stop(name)
            del self.ports.clusters[link.name]
