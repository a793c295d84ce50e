"""A client of a link's source, made from its Kafka client properties with the secrets resolved, and its fetcher."""

from __future__ import annotations

import contextlib

from admin.models import LinkOptions
from controller.state import Link
from fetcher.budget import MemoryBudget
from fetcher.directory import MirrorDirectory
from fetcher.link_fetcher import LinkFetcher
from fetcher.source_ports import FetchLimits
from fetcher.source_rate import SourceRate
from fetcher.spec import FetcherEvents
from linker.config.link_secrets import LinkSecrets
from linker.validation.validator import side
from validator import messages as m
from wire.client.cluster import Cluster
from wire.client.connection import Connection
from wire.client.properties import parse_bootstrap_servers
from wire.client.secrets import hiding_values
from wire.client.security import ClientSecurity
from wire.errors import InvalidSecurityConfig
from wire.frames.buffers import FramePool
from wire.frames.types import Node


def source_cluster(
    name: str, properties: dict[str, str], secrets: LinkSecrets, rack: str | None = None, *, prefix: str = ""
) -> Cluster:
    """A client's view of a source, from the link's Kafka client properties (secrets still by reference). Its topics have
    the names of their mirrors, with the link's prefix."""
    resolved = secrets.resolve(properties)
    with hiding_values(properties):
        return Cluster(
            f"source {name}",
            parse_bootstrap_servers(resolved["bootstrap.servers"]),
            ClientSecurity.from_properties(resolved),
            resolved.get("client.id", f"kafka-linker-{name}"),
            rack=resolved.get("client.rack", rack),
            topic_prefix=prefix,
        )


def nowhere(name: str, prefix: str = "") -> Cluster:
    """In the place of a source whose properties cannot even be read."""
    no_security = ClientSecurity.from_properties({})
    return Cluster(f"source {name}", (), no_security, "kafka-linker", topic_prefix=prefix)


def source_fetcher(
    link: str,
    source: Cluster,
    options: LinkOptions,
    budget: MemoryBudget,
    copies: MirrorDirectory,
    events: FetcherEvents,
    frames: FramePool,
    rate: SourceRate,
) -> LinkFetcher:
    """The fetcher of a link, as its options ask for."""

    async def open_connection(node: Node) -> Connection:
        """The large answers to a fetcher are received into buffers that are used again."""
        return await source.open_connection(node, alloc=frames.take)

    return LinkFetcher(
        link,
        source,
        budget,
        copies,
        events,
        open_connection=open_connection,
        client_id=source.client_id,
        rack=source.rack,
        limits=fetch_limits(options),
        fetchers_per_node=options.fetchers_per_node,
        rate=rate,
    )


def fetch_limits(options: LinkOptions) -> FetchLimits:
    return FetchLimits(partition_bytes=options.partition_fetch_bytes, max_bytes=options.request_fetch_bytes)


def source_side(link: Link, secrets: LinkSecrets) -> m.Side:
    """The source as the validator is told of it."""
    properties = dict(link.properties)
    resolved = secrets.resolve(properties)
    # Tried here, because the validator gets values only: its errors could not tell which to hide. It says itself which
    # value without a reference is wrong.
    with contextlib.suppress(InvalidSecurityConfig), hiding_values(properties):
        ClientSecurity.from_properties(resolved)
    with hiding_values(properties):
        return side(f"source {link.name}", resolved, link.source_cluster_id, link.prefix)
