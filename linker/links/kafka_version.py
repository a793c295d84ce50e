"""The Kafka version of a cluster, for the evidence.

The protocol has no request for it, so it is concluded from the features that a broker names.
"""

from __future__ import annotations

from bisect import bisect_right

from linker.links.configs import broker_config
from wire.client.cluster import Cluster
from wire.errors import LinkerError

_TIMEOUT = 5.0
FEATURE = "metadata.version"
_PROTOCOL = "inter.broker.protocol.version"
#: The lowest feature level of each release (org.apache.kafka.server.common.MetadataVersion).
_FIRST = (
    *((1, "3.0"), (2, "3.1"), (3, "3.2"), (4, "3.3"), (8, "3.4"), (9, "3.5"), (12, "3.6"), (15, "3.7")),
    *((20, "3.8"), (21, "3.9"), (22, "4.0"), (26, "4.1"), (28, "4.2"), (30, "4.3")),
)
_NEWEST_KNOWN = 30


def release_of(level: int) -> str:
    """Of a level of metadata.version; one that is newer than this program is told as it is."""
    if level < 1 or level > _NEWEST_KNOWN:
        return f"{FEATURE} {level}"
    return _FIRST[bisect_right([first for first, _ in _FIRST], level) - 1][1]


def version_text(supported: int | None, finalized: int | None) -> str | None:
    """The newest release that a broker supports is its own; what is finalized may be older."""
    if supported is None:
        return None
    release = release_of(supported)
    if finalized is None or finalized == supported:
        return release
    return f"{release}, {FEATURE} at {release_of(finalized)}"


async def kafka_version(cluster: Cluster) -> str | None:
    """None if nothing tells. One broker is asked: during a rolling upgrade others may be of another version."""
    try:
        connection = await cluster.connection(None)
        supported = connection.supported_features.get(FEATURE)
        finalized = connection.finalized_features.get(FEATURE)
        text = version_text(
            None if supported is None else supported[1], None if finalized is None else finalized[1]
        )
        if text is not None or not cluster.nodes:
            return text
        # ZooKeeper's clusters have no such feature.
        protocol = await broker_config(cluster, min(cluster.nodes), _PROTOCOL, timeout=_TIMEOUT)
    except (LinkerError, TimeoutError):
        return None
    return None if not protocol else f"{_PROTOCOL} {protocol}"
