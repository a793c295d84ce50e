"""How a sidecar reaches one cluster, and how that cluster reaches it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from controller.state import Link
from linker.config.cluster_addresses import one_cluster
from linker.config.link_secrets import LinkSecrets
from linker.config.listeners import ClientListener
from linker.config.model import Config
from linker.config.source_section import SourceClient, SourceConfig, ZooKeeperAccess
from wire.client.cluster import Cluster
from wire.client.security import ClientSecurity


class ClusterClient(Protocol):
    """How a cluster is reached as a client; towards its controllers, too."""

    def bootstrap_servers(self) -> list[tuple[str, int]]: ...

    def controller_bootstrap_servers(self) -> list[tuple[str, int]] | None:
        """None: none is configured, and a broker is asked for them."""
        ...

    def client_properties(self) -> dict[str, str]:
        """With secrets resolved."""
        ...

    def controller_properties(self) -> dict[str, str]: ...

    def hiding_values(self) -> AbstractContextManager[None]:
        """Wrap it around whatever uses the properties: errors that leave it quote no secret that a reference stands for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBrokerSettings:
    """How the sidecar reaches one cluster, and how that cluster reaches it."""

    #: The cluster's name in messages, and the section of the configuration that says how to reach it.
    cluster: str
    client: ClusterClient
    broker_id: int
    listeners: Sequence[ClientListener]
    #: The ssl.* properties of one listener.
    listener_properties: Callable[[str], Mapping[str, str]]
    rack: str | None = None
    #: The id that the cluster has to have; None: any.
    cluster_id: str | None = None
    #: How the cluster's ZooKeeper is reached; None: the cluster is run by KRaft.
    zookeeper: ZooKeeperAccess | None = None

    @classmethod
    def of_target(cls, config: Config) -> LinkBrokerSettings:
        sidecar = config.sidecar
        return cls(
            cluster="target",
            client=config.target,
            broker_id=sidecar.broker_id,
            listeners=sidecar.client_listeners(),
            listener_properties=sidecar.listener_properties,
            rack=sidecar.rack,
        )

    @classmethod
    def of_source(cls, link: Link, section: SourceConfig, secrets: LinkSecrets) -> LinkBrokerSettings:
        return cls(
            cluster=f"source {link.name}",
            cluster_id=link.source_cluster_id,
            client=SourceClient(link.properties, secrets, section),
            broker_id=section.broker_id,
            listeners=section.client_listeners(),
            listener_properties=section.listener_properties,
            rack=section.rack,
            zookeeper=section.zookeeper_access(),
        )


async def connect_cluster(settings: LinkBrokerSettings, stack: contextlib.AsyncExitStack) -> Cluster:
    """A client of the cluster, closed by the stack. It knows the cluster's id by then, before anything joins the cluster."""
    properties = settings.client.client_properties()
    with settings.client.hiding_values():
        security = ClientSecurity.from_properties(properties)
    cluster = Cluster(
        settings.cluster,
        settings.client.bootstrap_servers(),
        security,
        properties.get("client.id", f"kafka-linker-{settings.broker_id}"),
        rack=settings.rack,
    )
    stack.push_async_callback(cluster.close)
    cluster.expect(settings.cluster_id)
    await cluster.connect()
    await one_cluster(cluster)
    return cluster
