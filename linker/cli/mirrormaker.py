"""Properties of MirrorMaker 2 as entries of a link file, with a comment for each key that is not the same here.

Names and defaults are those of Kafka's MirrorMakerConfig, MirrorSourceConfig, MirrorCheckpointConfig and their base classes.
Values are shown in comments only where they cannot be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from admin.base import TOPIC_NAME_PATTERN
from admin.models import LinkOptions
from linker.cli.link_export import reference_for
from linker.cli.link_file import LinkEntry, MirrorEntry
from linker.cli.mirrormaker_reasons import NO_COUNTERPART, reason_for
from wire.client.properties import CLIENT_PROPERTIES, PropertyError, check_client_properties
from wire.client.secrets import HIDDEN, redact

TOPICS_EXCLUDE = r".*[\-\.]internal, .*\.replica, __.*"
GROUPS_EXCLUDE = "console-consumer-.*, connect-.*, __.*"
PLACEHOLDER = "source-broker:9092"
HEARTBEAT_TOPIC = "linker-heartbeats"
_OLD_NAMES = {
    "topics.exclude": "topics.blacklist",
    "groups.exclude": "groups.blacklist",
    "config.properties.exclude": "config.properties.blacklist",
}
_FOREIGN_REFERENCE = re.compile(r"\$\{(?!env:LINKER_LINK_)[^}]*\}")
_STORES = ("ssl.truststore.location", "ssl.keystore.location")


class MirrorMakerError(Exception):
    """One line why a file cannot be converted."""


@dataclass
class Flow:
    """From a source to a target, and the keys of the file that it has used."""

    source: str
    target: str
    properties: Mapping[str, str]
    connector: bool  # the form for a Connect cluster of one's own
    used: dict[str, str | None] = field(default_factory=dict)  # key of the file -> comment

    def keys(self, key: str) -> list[str]:
        """Where the file may have a setting of this flow; the first counts."""
        names = [key, *([_OLD_NAMES[key]] if key in _OLD_NAMES else [])]
        prefixes = [""] if self.connector else [f"{self.source}->{self.target}.", ""]
        return [prefix + name for prefix in prefixes for name in names]

    def client_keys(self, key: str) -> list[str]:
        """Likewise a client property of the source."""
        clients = ["source.cluster.", "source.consumer.", "source.admin."]
        if self.connector:
            return [one + key for one in clients]
        pair, cluster = f"{self.source}->{self.target}.", f"{self.source}."
        return [
            *(pair + one + key for one in clients),
            *(cluster + one + key for one in ("", "consumer.", "admin.")),
            key,
        ]

    def get(self, key: str, comment: str | None = None) -> str | None:
        return self.first(self.keys(key), comment)

    def first(self, keys: Sequence[str], comment: str | None = None) -> str | None:
        there = [key for key in keys if key in self.properties]
        for other in there[1:]:
            self.used.setdefault(other, f"{there[0]} comes first")
        if not there:
            return None
        self.used[there[0]] = comment
        return self.properties[there[0]].strip()

    def flag(self, key: str, default: bool, comment: str | None = None) -> bool:
        told = self.get(key, comment)
        return default if told is None else told.lower() == "true"

    def listed(self, key: str, default: str) -> list[str]:
        """An empty list matches nothing, as for MirrorMaker."""
        told = self.get(key)
        return _listed(default if told is None else told)

    def say(self, key: str, comment: str) -> None:
        """About a setting, or about its default."""
        there = next((one for one in self.keys(key) if one in self.properties), None)
        self.used[there or f"{key} (not set)"] = comment


def flows_of(properties: Mapping[str, str]) -> list[Flow]:
    """Those that are enabled, in the order of `clusters`."""
    if "clusters" in properties:
        clusters = _listed(properties["clusters"])
        return [
            Flow(source, target, properties, connector=False)
            for target in clusters
            for source in clusters
            if source != target
            and properties.get(f"{source}->{target}.enabled", "").strip().lower() == "true"
        ]
    if any(key.startswith("source.cluster.") for key in properties):
        names = [properties.get(f"{one}.cluster.alias", one).strip() for one in ("source", "target")]
        return [Flow(names[0], names[1], properties, connector=True)]
    raise MirrorMakerError(
        "these are no properties of MirrorMaker 2: neither clusters nor source.cluster.bootstrap.servers is there"
    )


def entry_for(flow: Flow, name: str) -> tuple[LinkEntry, list[str]]:
    """The link that does the same, and its comments."""
    flow.get("enabled")
    properties = _client_properties(flow, name)
    options: dict[str, Any] = {}
    mirrors = _topics(flow, options)
    _configs(flow, options)
    _acls(flow, options)
    _groups(flow, options)
    _heartbeats(flow, options)
    _names(flow)
    entry = LinkEntry(name=name, properties=properties, options=LinkOptions(**options), mirrors=mirrors)
    for key in flow.properties:
        if key not in flow.used and (reason := _reason(flow, key)) is not None:
            flow.used[key] = reason
    if f"{flow.target}->{flow.source}.enabled" in flow.properties and (
        flow.properties[f"{flow.target}->{flow.source}.enabled"].strip().lower() == "true"
    ):
        flow.used[f"{flow.target}->{flow.source}.enabled"] = (
            "a mirror has one direction: there is one topic of a name, its owner is one cluster, and a promote changes it"
        )
    order = {key: at for at, key in enumerate(flow.properties)}
    told = sorted(flow.used.items(), key=lambda one: order.get(one[0], len(order)))
    return entry, [f"{key}: {comment}" for key, comment in told if comment is not None]


def _client_properties(flow: Flow, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in ["bootstrap.servers", *sorted(CLIENT_PROPERTIES - {"bootstrap.servers", "client.id"})]:
        value = flow.first(flow.client_keys(key))
        if value is None:
            continue
        place = next(one for one in flow.client_keys(key) if one in flow.properties)
        reference = reference_for(name, "sasl.password" if key == "sasl.jaas.config" else key)
        shown = _FOREIGN_REFERENCE.sub(lambda _: HIDDEN, redact(key, value))
        if HIDDEN in shown and redact(key, "x") == "x" and "jaas" not in key:
            flow.used[place] = "a link resolves references in secrets only: give the value itself"
            if key == "bootstrap.servers":
                found[key] = PLACEHOLDER
            continue
        if HIDDEN in shown:
            flow.used[place] = f"a secret: set it as {reference[6:-1]} for every sidecar"
        elif key in _STORES:
            flow.used[place] = (
                "only PEM is read, and only below the sidecar's directory for links (sidecar.links.dir): put it there"
            )
        found[key] = shown.replace(HIDDEN, reference)
    if "bootstrap.servers" not in found:
        raise MirrorMakerError(
            f"{flow.client_keys('bootstrap.servers')[0 if flow.connector else 3]} is missing"
        )
    try:
        check_client_properties(found)
    except PropertyError as error:
        raise MirrorMakerError(str(error)) from None
    return found


def _topics(flow: Flow, options: dict[str, Any]) -> list[MirrorEntry]:
    topics = flow.listed("topics", ".*")
    exclude = flow.listed("topics.exclude", TOPICS_EXCLUDE)
    factor = flow.get("replication.factor")
    interval = flow.get("refresh.topics.interval.seconds")
    refresh = flow.flag("refresh.topics.enabled", True)
    if all(re.fullmatch(TOPIC_NAME_PATTERN, one) for one in topics):
        if any("." in one for one in topics):
            flow.say("topics", "a dot stands for itself here, and for any character in MirrorMaker's list")
        _interval(options, "topics_refresh_interval_ms", interval)
        if not refresh:
            flow.say(
                "refresh.topics.enabled", "partitions that are added at the source are mirrored all the same"
            )
        named = [one for one in topics if not any(_fits(pattern, one) for pattern in exclude)]
        if factor is None:
            flow.say(
                "replication.factor",
                "2 by default; a mirror has the source's, unless it names replication_factor",
            )
        number = int(factor) if factor is not None and factor.isdigit() else None
        return [MirrorEntry(topic=one, replication_factor=number) for one in dict.fromkeys(named)]
    flow.say("replication.factor", "topics that a pattern takes have the replication factor of the source")
    if not refresh:
        flow.say(
            "refresh.topics.enabled", "a pattern takes topics that are made later, and added partitions, too"
        )
    _pattern(flow, options, "topics_include", "topics", topics)
    _pattern(flow, options, "topics_exclude", "topics.exclude", exclude)
    _interval(options, "topics_refresh_interval_ms", interval)
    return []


def _configs(flow: Flow, options: dict[str, Any]) -> None:
    if not flow.flag("sync.topic.configs.enabled", True):
        options["topic_config_sync"] = "off"
        flow.say(
            "sync.topic.configs.enabled",
            "off here, too; a mirror begins with the source's configs, and those that would cost records are kept",
        )
    told = flow.get("config.properties.exclude")
    if told is None:
        flow.say(
            "config.properties.exclude",
            "by default MirrorMaker leaves out min.insync.replicas and message.timestamp.type; a mirror has the source's: "
            "name them in topic_config_exclude if the target's are wanted",
        )
        return
    taken, left = list[str](), list[str]()
    for one in _listed(told):
        plain = one.replace("\\", "")
        (taken if _accepted("topic_config_exclude", plain) else left).append(plain)
    if taken:
        options["topic_config_exclude"] = ",".join(taken)
    if left:
        flow.say(
            "config.properties.exclude",
            f"{', '.join(left)}: not one config that a mirror takes from its source by name, left out",
        )


def _acls(flow: Flow, options: dict[str, Any]) -> None:
    interval = flow.get("sync.topic.acls.interval.seconds")
    if not flow.flag("sync.topic.acls.enabled", True):
        flow.say("sync.topic.acls.enabled", "ACLs are compared (acl_sync: report), nothing is made")
        return
    options |= {"acl_sync": "follow", "acl_resources": "topic"}
    flow.say(
        "sync.topic.acls.enabled",
        "true, also by default; WRITE is carried as well, and ALL stays ALL: clients write to a mirror at the target",
    )
    _interval(options, "acl_sync_interval_ms", interval)


def _groups(flow: Flow, options: dict[str, Any]) -> None:
    groups = flow.listed("groups", ".*")
    exclude = flow.listed("groups.exclude", GROUPS_EXCLUDE)
    interval = flow.get("sync.group.offsets.interval.seconds")
    checkpoints = flow.flag("emit.checkpoints.enabled", True, reason_for("emit.checkpoints.enabled"))
    offsets = flow.flag("sync.group.offsets.enabled", False)
    if not (offsets or checkpoints):
        options["groups_include"] = ""
        flow.say(
            "sync.group.offsets.enabled", "no groups are held: neither offsets nor checkpoints were asked for"
        )
        return
    _pattern(flow, options, "groups_include", "groups", groups)
    _pattern(flow, options, "groups_exclude", "groups.exclude", exclude)
    if not offsets:
        flow.say(
            "sync.group.offsets.enabled",
            "false, also by default; here offsets of groups are always brought over, as they are, and each group is held at "
            "the target until its promote",
        )
        return
    _interval(options, "groups_sync_interval_ms", interval)


def _heartbeats(flow: Flow, options: dict[str, Any]) -> None:
    """Only if they are asked for: MirrorMaker's default writes to the source, a link's does not."""
    if not flow.flag("emit.heartbeats.enabled", False):
        return
    options["heartbeat_topic"] = HEARTBEAT_TOPIC
    flow.say(
        "emit.heartbeats.enabled",
        f"records of another format, in the topic {HEARTBEAT_TOPIC}.<cluster id of the source> of both clusters",
    )
    interval = flow.get("emit.heartbeats.interval.seconds")
    _interval(options, "heartbeat_interval_ms", interval)


def _names(flow: Flow) -> None:
    policy = flow.get("replication.policy.class")
    if policy is not None and "Identity" in policy:
        flow.say("replication.policy.class", "names stay here, too")
        return
    flow.say(
        "replication.policy.class",
        f"names stay here: orders is orders at the target, and not {flow.source}.orders as DefaultReplicationPolicy has it; "
        "clients of the target change the name that they use, once. For copies of several clusters side by side, which "
        f"nobody writes to, the option prefix: {flow.source}. has such names",
    )


def _reason(flow: Flow, key: str) -> str | None:
    """Of a key that nothing has used; None: it is of another flow."""
    if flow.connector:
        if key.startswith("target."):
            return "the target is the sidecar's own cluster: section target of linker.yaml"
        source = re.fullmatch(r"source\.(cluster\.|consumer\.|producer\.|admin\.)?(.*)", key)
        return NO_COUNTERPART["client"] if source else reason_for(key)
    pair = f"{flow.source}->{flow.target}."
    if "->" in key:
        if not key.startswith(pair):
            return None
        key = key.removeprefix(pair)
        if key.startswith("target."):
            return "the target is the sidecar's own cluster: section target of linker.yaml"
        return NO_COUNTERPART["client"] if key.startswith("source.") else reason_for(key)
    if key == "clusters":
        return f"this file is for the sidecar in {flow.target}; its link is to {flow.source}"
    first = key.partition(".")[0]
    if first == flow.target:
        return "the target is the sidecar's own cluster: section target of linker.yaml"
    if first == flow.source:
        return NO_COUNTERPART["client"]
    return None if first in _listed(flow.properties.get("clusters", "")) else reason_for(key)


def _pattern(flow: Flow, options: dict[str, Any], option: str, key: str, expressions: Sequence[str]) -> None:
    text = ",".join(expressions)
    if _accepted(option, text):
        options[option] = text
        return
    flow.say(
        key,
        "not taken: an expression that Java knows and Python does not; write it anew before this file is applied",
    )


def _interval(options: dict[str, Any], option: str, seconds: str | None) -> None:
    if seconds is None:
        return
    for milliseconds in (int(seconds) * 1000 if seconds.isdigit() else 0, 3_600_000):
        if _accepted(option, milliseconds):
            options[option] = milliseconds
            return
    raise AssertionError(option)


def _accepted(option: str, value: object) -> bool:
    try:
        LinkOptions.model_validate({option: value})
    except ValidationError:
        return False
    return True


def _fits(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:
        return False


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
