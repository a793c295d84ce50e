"""The clusters that a topic has passed, and whether a mirror of it would close a ring. Pure.

Each mirror keeps the ids of the clusters that its records came through, from the one where the topic began to its source.
A source's sidecar tells them of each topic that is itself a mirror, so that whoever mirrors it further knows them all.
A topic is made after the one that it mirrors; so the last mirror of a ring is made when all others tell where they come
from, whatever the order of the links, and is the one that is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from controller.errors import Refused

#: In the place of the first clusters, where a sidecar does not know them.
UNKNOWN: Final = "?"
_MOST: Final = 64
_CLUSTER_ID: Final = re.compile(r"[!-~]{1,256}")


def tell(upstream: Sequence[str], source: str) -> str:
    """A sidecar's answer about a mirror with this direct source; a state of an older version has no `upstream`."""
    return ",".join(upstream or (UNKNOWN, source))


def told(value: str) -> tuple[str, ...]:
    """The clusters that a sidecar of the source tells; Refused if that cannot be."""
    clusters = tuple(value[: _MOST * 257].split(","))
    if len(clusters) > _MOST or any(not _CLUSTER_ID.fullmatch(one) for one in clusters):
        raise Refused(f"a sidecar of the source tells clusters that cannot be: {value[:200]!r}")
    return clusters


def refusal(topic: str, clusters: Sequence[str], source: str, target: str) -> str | None:
    """Why a topic of `source`, which has come through `clusters`, must not be mirrored to `target`; None if it may."""
    if target in clusters:
        way = " -> ".join((*clusters, source))
        return (
            f"topic {topic} of cluster {source} comes from this cluster ({way}): a mirror of it would lead its records "
            "round in a ring. Name it in topics_exclude, or promote it where it is a mirror first"
        )
    if UNKNOWN in clusters:
        return (
            f"topic {topic} of cluster {source} is a mirror there, and nobody tells where it comes from: it may be from "
            "this cluster. Upgrade the sidecars of that cluster, or promote the topic there first"
        )
    return None
