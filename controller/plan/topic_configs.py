"""Topic configs of a mirror: those of the source that it gets, those that mirroring forces, those that promote sets. Pure.

A mirror means what its source means. Two kinds of configs see to that:

- Overrides, set on the source topic itself, are copied.
- Configs that decide what clients may write and what they will still find (`FOLLOWED`) are compared by their *effective*
  values, the brokers' defaults included. Where the target would do something else, the source's value is set on the topic.

While the topic is mirrored only the source decides what is deleted: the target's own retention is off (`FORCED`), and the
copies follow the source's log start. Promote and failover set the source's retention. An operator who wants the target's
value of a config names it (`from_target`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

UNCLEAN = "unclean.leader.election.enable"
SEGMENT_BYTES = "segment.bytes"
MAX_MESSAGE_BYTES = "max.message.bytes"
MIN_INSYNC = "min.insync.replicas"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
CLEANUP_POLICY = "cleanup.policy"
TIMESTAMP_TYPE = "message.timestamp.type"
TIMESTAMP_BEFORE = "message.timestamp.before.max.ms"
TIMESTAMP_AFTER = "message.timestamp.after.max.ms"
#: Until Kafka 3.6 the one bound for both directions; gone in 4.0.
TIMESTAMP_DIFFERENCE = "message.timestamp.difference.max.ms"
NO_BOUND = str((1 << 63) - 1)

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
    TIMESTAMP_DIFFERENCE: "carried over as message.timestamp.before.max.ms and message.timestamp.after.max.ms",
    "internal.segment.bytes": "for Kafka's own tests only",
}

# Forced while the topic is mirrored. With the link broker alone in the ISR, an unclean election would make an unfinished
# copy the log. And retention of the target's own would delete from the copies what the source still has.
FORCED: Mapping[str, str] = {UNCLEAN: "false", RETENTION_MS: "-1", RETENTION_BYTES: "-1"}

#: Their effective values are the source's, whoever set them: they decide what clients may write and what they find.
FOLLOWED = (
    CLEANUP_POLICY,
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    MAX_MESSAGE_BYTES,
    TIMESTAMP_AFTER,
    TIMESTAMP_BEFORE,
    TIMESTAMP_TYPE,
    "min.compaction.lag.ms",
    MIN_INSYNC,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    "segment.ms",
)

#: Between the values of a default of which the target's brokers have several.
SEVERAL = " | "
#: Of several, the one that some broker goes by and that allows least.
_LEAST_ALLOWED: Mapping[str, Callable[[Iterable[int]], int]] = {
    SEGMENT_BYTES: min,
    MAX_MESSAGE_BYTES: min,
    MIN_INSYNC: max,
}

# Kafka 4.0 refuses smaller ones; older clusters may have them.
MIN_SEGMENT_BYTES = 1024 * 1024


class ConfigDifference(NamedTuple):
    """A followed config where source and target, left alone, would not do the same."""

    config: str
    source: str
    target: str  # by its brokers' defaults; several, parted by SEVERAL, where these differ
    from_target: bool  # the operator wants the target's

    @property
    def said(self) -> str:
        """One line for a person."""
        whose = (
            "the defaults of the target's brokers, which differ"
            if SEVERAL in self.target
            else "the target's defaults"
        )
        differs = f"{self.config} is {self.source} at the source and {self.target} by {whose}"
        if self.from_target:
            return f"{differs}: the topic gets the target's, as asked (--config-from-target)"
        if self.config in FORCED:
            return (
                f"{differs}: {FORCED[self.config]} while it is mirrored, so that only the source decides what is deleted; "
                "a promote sets the source's value"
            )
        stays = ", and stays although one of them is away" if SEVERAL in self.target else ""
        return f"{differs}: the source's value is set on the topic{stays}"


class ConfigPlan(NamedTuple):
    create: Mapping[str, str]  # the mirror topic's overrides while it is mirrored
    restore: Mapping[str, str | None]  # those that promote changes; None: delete the override
    copied: Mapping[str, str]  # of `create`, what came from the source
    skipped: Mapping[str, str]  # config -> why it was not copied
    adjusted: Mapping[str, str]  # config -> what was changed and why
    differences: tuple[ConfigDifference, ...] = ()


class ConfigFinding(NamedTuple):
    config: str
    fatal: bool
    message: str


def plan_configs(
    source_overrides: Mapping[str, str],
    source_effective: Mapping[str, str] | None = None,
    target_defaults: Mapping[str, str] | None = None,
    from_target: Collection[str] = (),
) -> ConfigPlan:
    """The configs of a mirror. `source_overrides`: those set on the source topic itself; `source_effective`: all of its
    values; `target_defaults`: what the target's topics have without an override (`ConfigDifference.target`); `from_target`:
    configs whose value is the target's own.

    A config that one side does not tell is left to the overrides.
    """
    effective = with_timestamp_bounds(source_effective or {})
    defaults = target_defaults or {}
    copied: dict[str, str] = {}
    skipped: dict[str, str] = {}
    adjusted: dict[str, str] = {}
    differences: list[ConfigDifference] = []
    for name, value in sorted(source_overrides.items()):
        if name == UNCLEAN:
            continue
        if name not in COPIED:
            skipped[name] = SKIPPED.get(name, "not known to this version of the linker")
        elif name not in from_target:
            copied[name] = value
    for name in FOLLOWED:
        if name == CLEANUP_POLICY and "compact" in effective.get(name, "") and name not in from_target:
            # Also where both clusters' brokers say so: it decides how logs are compared.
            copied[name] = effective[name]
        if name not in effective or name not in defaults or _same(name, effective[name], defaults[name]):
            continue
        differences.append(ConfigDifference(name, effective[name], defaults[name], name in from_target))
        if name not in from_target:
            copied[name] = effective[name]
    segment = copied.get(SEGMENT_BYTES, "")
    if segment.isdigit() and int(segment) < MIN_SEGMENT_BYTES:
        adjusted[SEGMENT_BYTES] = (
            f"raised from {segment} to {MIN_SEGMENT_BYTES}, the least that Kafka 4 accepts"
        )
        copied[SEGMENT_BYTES] = str(MIN_SEGMENT_BYTES)
    return ConfigPlan(
        create={**copied, **FORCED},
        restore={
            name: source_overrides.get(name) if name == UNCLEAN else copied.get(name) for name in FORCED
        },
        copied={name: value for name, value in copied.items() if name not in FORCED},
        skipped=skipped,
        adjusted=adjusted,
        differences=tuple(differences),
    )


def with_timestamp_bounds(effective: Mapping[str, str]) -> dict[str, str]:
    """The two bounds of KIP-937 also for a source that has the one that came before them, or both kinds
    (`LogConfig.messageTimestampBeforeMaxMs` of 3.6 to 3.9: the older one counts where the newer is not set)."""
    bounds = dict(effective)
    difference = effective.get(TIMESTAMP_DIFFERENCE)
    if difference is not None:
        for name in (TIMESTAMP_BEFORE, TIMESTAMP_AFTER):
            if effective.get(name, NO_BOUND) == NO_BOUND:
                bounds[name] = difference
    return bounds


def strictest(defaults: Mapping[str, str]) -> dict[str, str]:
    """One value of each default: any of the brokers may lead the topic, or follow."""
    found = dict(defaults)
    for name, allowed in _LEAST_ALLOWED.items():
        values = found.get(name, "").split(SEVERAL)
        if len(values) > 1 and all(value.isdigit() for value in values):
            found[name] = str(allowed(map(int, values)))
    return found


def keep_differing(
    plan: ConfigPlan,
    before: Mapping[str, str],
    restore: Mapping[str, str | None],
    effective: Mapping[str, str],
    from_target: Collection[str] = (),
) -> ConfigPlan:
    """The plan of a mirror that is there already: `before` and `restore` are those of the plan until now. A value of the
    source that was set on it, because some broker's default differs, stays while it is the source's: that broker may only
    be away. A value that is to be undone was set by a take-over, and says nothing of the source. Retention is off while
    there is a mirror; a promote sets the source's value, which stays in the same way."""
    kept = {
        name: before[name]
        for name in FOLLOWED
        if name not in FORCED and name not in plan.create and name not in from_target and name not in restore
        if name in before and before[name] == effective.get(name)
    }
    at_promote = {
        name: restore[name]
        for name in FOLLOWED
        if name in FORCED and name not in from_target and plan.restore.get(name) is None
        if restore.get(name) is not None and restore[name] == effective.get(name)
    }
    return plan._replace(
        create={**plan.create, **kept},
        copied={**plan.copied, **kept},
        restore={**plan.restore, **at_promote},
    )


def without_defaults(
    plan: ConfigPlan,
    before: Mapping[str, str],
    restore: Mapping[str, str | None],
    target_defaults: Mapping[str, str],
) -> ConfigPlan:
    """The plan of a way back: the owner may have overrides only because the brokers' defaults of the two clusters differ.
    A value that the topic has by default where it comes back to, and that was not set on it before, is not set now: that
    cluster may be too old to know the config. `before` and `restore` are those of the plan until now."""

    def needless(name: str, value: str | None) -> bool:
        was_set = restore[name] is not None if name in restore else name in before
        return (
            value is not None
            and not was_set
            and name in target_defaults
            and _same(name, value, target_defaults[name])
        )

    dropped = {name for name, value in plan.copied.items() if needless(name, value)}
    return plan._replace(
        create={name: value for name, value in plan.create.items() if name not in dropped},
        restore={name: None if needless(name, value) else value for name, value in plan.restore.items()},
        copied={name: value for name, value in plan.copied.items() if name not in dropped},
    )


def keep_own(plan: ConfigPlan, restore: Mapping[str, str | None], from_target: Collection[str]) -> ConfigPlan:
    """The plan of a mirror that came by a take-over: configs that are the cluster's own get the values that the take-over
    found. `restore`: of the plan until now."""
    found = {name: restore[name] for name in from_target if name in restore}
    return plan._replace(restore={**plan.restore, **found})


def keep_segments(
    plan: ConfigPlan, before: Mapping[str, str], target_defaults: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str | None]]:
    """(create, restore) of a mirror that is there already. Its segment.bytes does not become less while it is mirrored:
    the source may still have a batch of the time before, and a follower fails a partition whose batch fits no segment."""
    create, restore = dict(plan.create), dict(plan.restore)
    now, then = (
        _number(create, SEGMENT_BYTES),
        _number({**_largest(target_defaults), **before}, SEGMENT_BYTES),
    )
    if then is not None and (now < then if now is not None else SEGMENT_BYTES in before):
        restore[SEGMENT_BYTES] = create.get(SEGMENT_BYTES)
        create[SEGMENT_BYTES] = str(then)
    return create, restore


def _largest(defaults: Mapping[str, str]) -> dict[str, str]:
    values = [value for value in defaults.get(SEGMENT_BYTES, "").split(SEVERAL) if value.isdigit()]
    return {SEGMENT_BYTES: max(values, key=int)} if values else {}


def at_promote(
    create: Mapping[str, str], restore: Mapping[str, str | None], *, taken: bool = False
) -> dict[str, str | None]:
    """Overrides that a promote or a failover sets (None: deletes) on a topic that was mirrored with this plan.

    A plan that is older than one of the forced configs has the source's value among those to create. If it has none, nobody
    knows what the source means: what was forced stays, for deleted records do not come back.

    `taken`: the topic was taken over from its cluster's own brokers. That set min.insync.replicas on it, and a plan that
    follows the owner's value may have been written down without being carried out.
    """
    before = {MIN_INSYNC: create.get(MIN_INSYNC)} if taken else {}
    return (
        before | {name: create[name] for name in FORCED if name != UNCLEAN and name in create} | dict(restore)
    )


def _same(name: str, one: str, other: str) -> bool:
    if name == CLEANUP_POLICY:
        return _policies(one) == _policies(other)
    return one == other


def _policies(text: str) -> set[str]:
    return {part.strip() for part in text.split(",") if part.strip()}


def compare_effective(
    topic: str,
    source: Mapping[str, str],
    target: Mapping[str, str],
    *,
    replication_factor: int | None,
) -> list[ConfigFinding]:
    """Whether the mirror could be copied and written to, from effective values (defaults included), the target's as they
    will be once the topic exists.

    Nobody knows the largest batch at the source. Its max.message.bytes is the best guess, so a segment below it is a
    warning only.
    """
    findings: list[ConfigFinding] = []
    segment = _number(target, SEGMENT_BYTES)
    most = _number(source, MAX_MESSAGE_BYTES)
    if segment is not None and most is not None and most > segment:
        findings.append(
            ConfigFinding(
                SEGMENT_BYTES,
                False,
                f"topic {topic}: the source accepts batches of {most} bytes (max.message.bytes), more than "
                f"the target's segment.bytes {segment}: a larger batch would stop the mirror",
            )
        )
    insync = _number(target, MIN_INSYNC)
    if insync is not None and replication_factor is not None and insync > replication_factor:
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
    return findings


def _number(configs: Mapping[str, str], name: str) -> int | None:
    value = configs.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
