"""Paths and contents of the znodes of a Kafka cluster, as of Kafka 2.1 to 3.9 (kafka.zk.ZkData). Pure."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from linker.membership.identity import PROTOCOL_IDS, AdvertisedListener
from wire.errors import MalformedFrame
from wire.metadata.image import NO_LEADER, BrokerImage, Endpoint, PartitionImage

BROKERS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CLUSTER_ID: Final = "/cluster/id"
#: There only while, and after, a cluster is brought over to KRaft (KIP-866).
MIGRATION: Final = "/migration"
#: A key of our own in a broker's znode, which Kafka does not read: sidecars know each other by it, as by log dirs in KRaft.
_MARK: Final = "kafka-linker"
_PROTOCOLS: Final = {number: name for name, number in PROTOCOL_IDS.items()}


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def config_path(topic: str) -> str:
    return f"/config/topics/{topic}"


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


class TopicNode(NamedTuple):
    """Replicas by partition, and which of them are being added and removed."""

    id: bytes
    replicas: dict[int, tuple[int, ...]]
    adding: dict[int, tuple[int, ...]]
    removing: dict[int, tuple[int, ...]]


def broker(broker_id: int, data: bytes, created: int) -> BrokerImage:
    """The broker's epoch is the transaction that made its znode. A broker that is gone has none: none of them is fenced."""
    fields = _object(broker_path(broker_id), data)
    endpoints: dict[str, Endpoint] = {}
    protocols = fields.get("listener_security_protocol_map") or {}
    try:
        for text in fields.get("endpoints") or ():
            name, _, address = str(text).partition("://")
            host, _, port = address.rpartition(":")
            protocol = PROTOCOL_IDS[protocols.get(name, name)]
            endpoints[name] = Endpoint(host.strip("[]"), int(port), protocol)
        mark = bytes.fromhex(str(fields.get(_MARK, "")))
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise MalformedFrame(f"znode {broker_path(broker_id)}: {error!r}") from error
    rack = fields.get("rack")
    return BrokerImage(
        id=broker_id,
        epoch=created,
        incarnation_id=bytes(16),
        rack=None if rack is None else str(rack),
        endpoints=endpoints,
        fenced=False,
        in_controlled_shutdown=False,
        log_dirs=(mark,) if mark else (),
    )


def own_broker(listeners: Sequence[AdvertisedListener], rack: str | None, mark: bytes) -> bytes:
    """The registration as real brokers write it (version 5), with our mark beside it."""
    first = listeners[0]
    names = {one.name: _PROTOCOLS[one.security_protocol] for one in listeners}
    fields: dict[str, Any] = {
        "version": 5,
        "host": first.host,
        "port": first.port,
        "jmx_port": -1,
        "timestamp": str(int(time.time() * 1000)),
        "endpoints": [f"{one.name}://{_shown(one.host)}:{one.port}" for one in listeners],
        "listener_security_protocol_map": names,
        "features": {},
        _MARK: mark.hex(),
    }
    if rack is not None:
        fields["rack"] = rack
    return json.dumps(fields).encode()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def topic(name: str, data: bytes, created: int) -> TopicNode:
    """Before Kafka 2.8 topics have no ids: name and creation stand for one, so that a topic made anew is another one."""
    fields = _object(topic_path(name), data)
    try:
        text = fields.get("topic_id")
        if text is None:
            topic_id = hashlib.sha256(f"{name}/{created}".encode()).digest()[:16]
        else:
            topic_id = base64.urlsafe_b64decode(f"{text}==")
        found = TopicNode(
            topic_id,
            _replicas(fields["partitions"]),
            _replicas(fields.get("adding_replicas") or {}),
            _replicas(fields.get("removing_replicas") or {}),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise MalformedFrame(f"znode {topic_path(name)}: {error!r}") from error
    if len(found.id) != 16:
        raise MalformedFrame(f"znode {topic_path(name)}: a topic id of {len(found.id)} bytes")
    return found


def _replicas(fields: Mapping[str, Sequence[int]]) -> dict[int, tuple[int, ...]]:
    return {int(index): tuple(int(one) for one in replicas) for index, replicas in fields.items()}


def partition(name: str, index: int, of: TopicNode, data: bytes, version: int) -> PartitionImage:
    """The version of a state's znode is the partition epoch."""
    where = state_path(name, index)
    fields = _object(where, data)
    try:
        return PartitionImage(
            index=index,
            replicas=of.replicas[index],
            isr=tuple(int(one) for one in fields["isr"]),
            adding=of.adding.get(index, ()),
            removing=of.removing.get(index, ()),
            leader=max(int(fields["leader"]), NO_LEADER),
            leader_epoch=int(fields["leader_epoch"]),
            partition_epoch=version,
            leader_recovery_state=int(fields.get("leader_recovery_state", 0)),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise MalformedFrame(f"znode {where}: {error!r}") from error


def configs(name: str, data: bytes) -> dict[str, str]:
    """The overrides of a topic."""
    found = _object(config_path(name), data).get("config") or {}
    return {str(key): str(value) for key, value in found.items()}


def cluster_id(data: bytes) -> str:
    return str(_object(CLUSTER_ID, data).get("id", ""))


def _object(path: str, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise MalformedFrame(f"znode {path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedFrame(f"znode {path} is not a JSON object")
    return found
