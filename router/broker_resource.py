"""The configs of this broker, and the changes of them that it takes; pure.

It has no log and no replica of its own to throttle. Tools that throttle a reassignment set the rates on every broker that
they see, and take them off again; that must work, and means nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from wire.frames.types import BROKER_RESOURCE
from wire.metadata.image import BrokerImage

BROKER_LOGGER: Final = 8

#: A config of a topic that no broker has: asked for by name, a sidecar tells of a mirror the clusters that it came through.
UPSTREAM: Final = "kafka.linker.upstream"
#: A config of a sidecar, asked for by name: its links' producer ids (`controller.plan.producer_ids.tell`).
PRODUCER_IDS: Final = "kafka.linker.producer.ids"

THROTTLES: Final = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)

_STATIC: Final = 4  # ConfigSource.STATIC_BROKER_CONFIG
_INT: Final = 3
_STRING: Final = 2
_LIST: Final = 7


def ours(resource_type: int, name: str) -> bool:
    """Whether it is one of a named broker. The cluster's default has no name, and any broker tells it."""
    return (resource_type == BROKER_RESOURCE and name != "") or resource_type == BROKER_LOGGER


def misaddressed(broker_id: int, name: str) -> str | None:
    """Why it cannot be this broker that is meant, in the words that brokers have for it."""
    try:
        asked = int(name)
    except ValueError:
        return f"Broker id must be an integer, but it is: {name}"
    if asked != broker_id:
        return f"Unexpected broker id, expected {broker_id} or empty string, but received {name}"
    return None


def configs(broker_id: int, image: BrokerImage | None, keys: Collection[str] | None) -> list[dict[str, Any]]:
    """All configs that this broker truly has. None of them can be changed at the target."""
    found: list[tuple[str, str, int]] = [
        ("broker.id", str(broker_id), _INT),
        ("node.id", str(broker_id), _INT),
        ("process.roles", "broker", _LIST),
    ]
    if image is not None:
        listeners = ",".join(f"{name}://{at.host}:{at.port}" for name, at in image.endpoints.items())
        found.append(("advertised.listeners", listeners, _LIST))
        if image.rack is not None:
            found.append(("broker.rack", image.rack, _STRING))
    return [row(name, value, kind) for name, value, kind in found if not keys or name in keys]


def row(name: str, value: str, kind: int = _STRING) -> dict[str, Any]:
    """A config that cannot be changed."""
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": _STATIC,
        "is_sensitive": False,
        "synonyms": [],
        "config_type": kind,
        "documentation": None,
    }


def refusal(broker_id: int, resource_type: int, names: Iterable[str]) -> str | None:
    """Why these configs cannot be changed; None if they are replication throttles, which are taken and mean nothing."""
    if resource_type == BROKER_LOGGER:
        return (
            f"Broker {broker_id} is a Kafka Linker sidecar, which has none of Kafka's loggers; its log level is set in "
            "its own configuration file"
        )
    others = [name for name in names if name not in THROTTLES]
    if not others:
        return None
    return (
        f"Broker {broker_id} is a Kafka Linker sidecar, which has no {', '.join(others)}: its settings are in its own "
        "configuration file. Leave it out, and set the other brokers' or the cluster's default (--entity-default)"
    )
