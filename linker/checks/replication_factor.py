"""A mirror that gets fewer replicas than the target's other topics: taken from the source, and easily overlooked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from linker.checks.preflight import TIMEOUT, PreflightFinding
from linker.links.configs import broker_config
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.shown_id import listed

NAME = "replication factor"
_DEFAULT = "default.replication.factor"


async def target_default(target: Cluster, brokers: Collection[int]) -> int | None:
    """The target's factor for a topic that names none; None if it does not tell."""
    if not brokers:
        return None
    try:
        value = await broker_config(target, min(brokers), _DEFAULT, timeout=TIMEOUT / 3)
    except LinkerError:
        return None
    return int(value) if value is not None and value.isdigit() else None


def few_replicas(
    factors: Mapping[str, int], default: int | None, *, asked: bool, begun: bool = False
) -> list[PreflightFinding]:
    """One line for all topics with the same factor. `asked`: the operator named it, which is no news then; `begun`: they
    are mirrored already."""
    if asked or default is None:
        return []
    alike: dict[int, list[str]] = {}
    for topic, factor in sorted(factors.items()):
        if factor < default:
            alike.setdefault(factor, []).append(topic)
    return [
        PreflightFinding(
            NAME,
            False,
            f"replication factor {factor} (as at the source; the target's default is {default}: -r {default}) for "
            f"{'topic' if len(topics) == 1 else 'topics'} {listed(topics)}",
            "after the promote: kafka-reassign-partitions.sh gives them more replicas; or delete the mirror and create it "
            f"with -r {default}"
            if begun
            else f"linker mirror create ... -r {default}",
        )
        for factor, topics in sorted(alike.items())
    ]
