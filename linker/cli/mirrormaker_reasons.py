"""Keys of MirrorMaker 2 and of Connect that no key of a link file corresponds to, and why none is needed."""

from __future__ import annotations

_CONNECT = "Connect's own; there are no workers, tasks or internal topics here"
_OFFSETS = "not needed: offsets are the same at both clusters, so nothing is translated"
_HEARTBEATS = "the lag of every replica is known (linker lag, metrics); the option heartbeat_topic has records written, too"

#: By the longest beginning of a key.
NO_COUNTERPART = {
    "client": "no counterpart: a link has clients of its own, see LinkOptions in the reference of the admin API",
    "admin.timeout.ms": _CONNECT,
    "checkpoints.": _OFFSETS,
    "client.": "no counterpart: a link has clients of its own",
    "config.providers": "no counterpart: secrets are referred to as ${env:LINKER_LINK_...} or ${file:/path}",
    "config.property.filter.class": "no counterpart: topic_config_exclude names configs, no class is run",
    "config.storage": _CONNECT,
    "connector.class": _CONNECT,
    "consumer.": "no counterpart: a link has clients of its own",
    "admin.": "no counterpart: a link has clients of its own",
    "producer.": "no counterpart: nothing is produced, the target's brokers fetch",
    "dedicated.mode": _CONNECT,
    "emit.checkpoints": _OFFSETS,
    "emit.heartbeats": _HEARTBEATS,
    "emit.offset-syncs": _OFFSETS,
    "exactly.once": "not needed: batches are copied as they are, each at its offset",
    "forwarding.admin.class": "no counterpart: no class is run",
    "group.filter.class": "no counterpart: groups_include and groups_exclude are patterns, no class is run",
    "group.id": _CONNECT,
    "header.converter": _CONNECT,
    "heartbeats": _HEARTBEATS,
    "key.converter": _CONNECT,
    "name": _CONNECT,
    "offset-syncs.": _OFFSETS,
    "offset.flush": _CONNECT,
    "offset.lag.max": _OFFSETS,
    "offset.storage": _CONNECT,
    "refresh.groups": "no counterpart: the link itself looks for groups that read a mirrored topic",
    "refresh.topics": "no counterpart: topics are named, so none is looked for",
    "replication.policy.separator": "names stay; a link's option prefix has its separator in itself",
    "replication.policy.internal": "no counterpart: there are no internal topics",
    "status.storage": _CONNECT,
    "sync.group.offsets": "no counterpart: see sync.group.offsets.enabled",
    "sync.topic.acls": "no counterpart: see sync.topic.acls.enabled",
    "sync.topic.configs": "no counterpart: the source's configs are read every 15 s",
    "task": _CONNECT,
    "topic.creation": "no counterpart: a mirror is made by its link",
    "topic.filter.class": "no counterpart: topics are named or taken by patterns, no class is run",
    "transforms": "no counterpart: records are never changed",
    "predicates": "no counterpart: records are never changed",
    "use.defaults.from": "no counterpart: a mirror has the source's effective values, its brokers' defaults included",
    "value.converter": _CONNECT,
    "worker": _CONNECT,
}


def reason_for(key: str) -> str:
    found = max(
        (one for one in NO_COUNTERPART if one != "client" and key.startswith(one)), key=len, default=None
    )
    return "no key that is known here" if found is None else NO_COUNTERPART[found]
