"""Topic configs of a mirror: what is copied from the source, what mirroring forces, what promote puts back.
Pure.

Copied is what the source sets on the topic itself (its dynamic overrides), not the source's broker
defaults: the target's defaults are the choice of who runs it. Where a difference in the *effective* value
would change data, `compare_effective` says so before anything is created.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

UNCLEAN = "unclean.leader.election.enable"
SEGMENT_BYTES = "segment.bytes"
MAX_MESSAGE_BYTES = "max.message.bytes"
MIN_INSYNC = "min.insync.replicas"

# They say what the log is and how long it is kept: they mean the same at the target.
COPIED = frozenset(
    {
        "cleanup.policy",
        "compression.type",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        MAX_MESSAGE_BYTES,
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        MIN_INSYNC,
        "preallocate",
        "retention.bytes",
        "retention.ms",
        SEGMENT_BYTES,
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
    }
)

_BROKER_LIST = "names brokers of the source cluster, which mean others at the target"
_TIERED = "tiered storage is the target's own decision, and needs its remote storage set up"
_GONE = "no longer a topic config from Kafka 4.0 on"
SKIPPED: Mapping[str, str] = {
    "leader.replication.throttled.replicas": _BROKER_LIST,
    "follower.replication.throttled.replicas": _BROKER_LIST,
    "remote.storage.enable": _TIERED,
    "remote.log.copy.disable": _TIERED,
    "remote.log.delete.on.disable": _TIERED,
    "local.retention.ms": _TIERED,
    "local.retention.bytes": _TIERED,
    "message.format.version": _GONE,
    "message.downconversion.enable": _GONE,
    "message.timestamp.difference.max.ms": _GONE,
    "internal.segment.bytes": "for Kafka's own tests only",
}

# While the link broker is the only member of the ISR, an unclean election would make an unfinished copy the
# log.
FORCED: Mapping[str, str] = {UNCLEAN: "false"}

# Kafka 4.0 refuses smaller ones; older clusters may have them.
MIN_SEGMENT_BYTES = 1024 * 1024

# A batch of the source has to fit into one segment of a follower, with nothing else in it.
_COMPARED = ("cleanup.policy", "retention.ms", "retention.bytes", MAX_MESSAGE_BYTES, MIN_INSYNC)


class ConfigPlan(NamedTuple):
    create: Mapping[str, str]  # the mirror topic's overrides from the start
    restore: Mapping[str, str | None]  # what promote puts back; None: delete the override
    copied: Mapping[str, str]  # of `create`, what came from the source
    skipped: Mapping[str, str]  # config -> why it was not copied
    adjusted: Mapping[str, str]  # config -> what was changed and why


class ConfigFinding(NamedTuple):
    config: str
    fatal: bool
    message: str


def plan_configs(source_overrides: Mapping[str, str]) -> ConfigPlan:
    """From the overrides set on the source topic itself."""
    copied: dict[str, str] = {}
    skipped: dict[str, str] = {}
    adjusted: dict[str, str] = {}
    for name, value in sorted(source_overrides.items()):
        if name in FORCED:
            continue
        if name not in COPIED:
            skipped[name] = SKIPPED.get(name, "not known to this version of the linker")
            continue
        if name == SEGMENT_BYTES and value.isdigit() and int(value) < MIN_SEGMENT_BYTES:
            adjusted[name] = f"raised from {value} to {MIN_SEGMENT_BYTES}, the least that Kafka 4 accepts"
            value = str(MIN_SEGMENT_BYTES)
        copied[name] = value
    return ConfigPlan(
        create={**copied, **FORCED},
        restore={name: source_overrides.get(name) for name in FORCED},
        copied=copied,
        skipped=skipped,
        adjusted=adjusted,
    )


def changed_overrides(
    copied: Mapping[str, str], source_overrides: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The source's overrides changed while the mirror lives: what to set and what to delete at the target."""
    now = plan_configs(source_overrides).copied
    to_set = {name: value for name, value in now.items() if copied.get(name) != value}
    return to_set, sorted(name for name in copied if name not in now)


def compare_effective(
    topic: str,
    source: Mapping[str, str],
    target: Mapping[str, str],
    *,
    replication_factor: int,
    largest_batch: int | None = None,
) -> list[ConfigFinding]:
    """Preflight on effective values (defaults included), the target's as they will be once the topic exists.

    `largest_batch` is the largest batch known to be at the source; without it the source's
    max.message.bytes is the best guess, and a segment below it a warning only.
    """
    findings: list[ConfigFinding] = []
    segment = _number(target, SEGMENT_BYTES)
    most = _number(source, MAX_MESSAGE_BYTES)
    if segment is not None and largest_batch is not None and largest_batch > segment:
        findings.append(
            ConfigFinding(
                SEGMENT_BYTES,
                True,
                f"topic {topic}: the source has a batch of {largest_batch} bytes, the target's "
                f"segment.bytes is {segment}: no follower could append it",
            )
        )
    elif segment is not None and most is not None and most > segment:
        findings.append(
            ConfigFinding(
                SEGMENT_BYTES,
                False,
                f"topic {topic}: the source accepts batches of {most} bytes (max.message.bytes), more than "
                f"the target's segment.bytes {segment}: a larger batch would stop the mirror",
            )
        )
    insync = _number(target, MIN_INSYNC)
    if insync is not None and insync > replication_factor:
        # Brokers of 3.9 to 4.3 take min(min.insync.replicas, replicas): writes go on, but no replica may be missing.
        findings.append(
            ConfigFinding(
                MIN_INSYNC,
                False,
                f"topic {topic}: min.insync.replicas {insync} is more than the replication factor "
                f"{replication_factor}: brokers go by {replication_factor} then, so that acks=all waits for every "
                f"replica; -r {insync} gives it as many as it asks for",
            )
        )
    findings += [
        ConfigFinding(
            name,
            False,
            f"topic {topic}: {name} is {source[name]} at the source and will be {target[name]} at the target",
        )
        for name in _COMPARED
        if name in source and name in target and source[name] != target[name]
    ]
    return findings


def unknown_configs(names: Collection[str]) -> list[str]:
    """Names that are neither copied, skipped for a reason, nor forced: for `doctor`."""
    return sorted(n for n in names if n not in COPIED and n not in SKIPPED and n not in FORCED)


def _number(configs: Mapping[str, str], name: str) -> int | None:
    value = configs.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
