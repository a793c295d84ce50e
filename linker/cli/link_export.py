"""Links as the text of a link file. It never holds a secret: one that the sidecar hides is printed as a reference."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from admin.models import LinkDescription, MirrorDescription
from linker.cli.link_file import LinkEntry, MirrorEntry
from linker.cli.link_plan import taken_by_pattern
from linker.cli.output import one_line
from wire.client.secrets import HIDDEN, redact


def reference_for(link: str, key: str) -> str:
    """A reference that the sidecar resolves for a link, named after both."""
    name = re.sub(r"[^A-Z0-9]+", "_", f"{link}_{key}".upper()).strip("_")
    return f"${{env:LINKER_LINK_{name}}}"


def entry_of(link: LinkDescription, mirrors: Iterable[MirrorDescription]) -> tuple[LinkEntry, list[str]]:
    """The link's entry, and the keys whose secrets have to be set as variables before it is applied."""
    properties, replaced = dict[str, str](), list[str]()
    for key, value in link.properties.items():
        shown = redact(key, value)
        if HIDDEN in shown:
            shown = shown.replace(HIDDEN, reference_for(link.name, key))
            replaced.append(key)
        properties[key] = shown
    entry = LinkEntry(
        name=link.name,
        source_cluster_id=link.source_cluster_id or None,
        properties=properties,
        options=link.options,
        mirrors=[
            MirrorEntry(
                topic=one.source_topic or one.topic,
                start=one.start,
                replication_factor=one.replication_factor or None,
                configs_from_target=one.configs_from_target,
            )
            for one in mirrors
            if not _made_by_pattern(link, one)
        ],
    )
    return entry, replaced


def _made_by_pattern(link: LinkDescription, mirror: MirrorDescription) -> bool:
    """As the link makes it by itself: the pattern is in the file."""
    plain = mirror.start == "earliest" and not mirror.configs_from_target
    return plain and taken_by_pattern(link.options, mirror.source_topic or mirror.topic)


def links_text(entries: Sequence[LinkEntry], comments: Mapping[str, Sequence[str]]) -> str:
    """The file, each link below its comments."""
    parts = ["links:" if entries else "links: []"]
    for entry in entries:
        parts += [f"# {one_line(comment)}".rstrip() for comment in comments.get(entry.name, ())]
        parts.append(_yaml([_plain(entry)]))
    return "\n".join(parts) + "\n"


def _plain(entry: LinkEntry) -> dict[str, Any]:
    """Only what differs from the defaults, topics that need no settings as names."""
    told: dict[str, Any] = {"name": entry.name}
    if entry.source_cluster_id is not None:
        told["source_cluster_id"] = entry.source_cluster_id
    told["properties"] = dict(entry.properties)
    if options := entry.options.model_dump(mode="json", exclude_defaults=True):
        told["options"] = options
    if entry.mirrors:
        told["mirrors"] = [_mirror(one) for one in entry.mirrors]
    return told


def _mirror(mirror: MirrorEntry) -> str | dict[str, Any]:
    settings = mirror.settings()
    if settings.get("start") == "earliest":
        del settings["start"]
    if not settings.get("configs_from_target", True):
        del settings["configs_from_target"]
    return {"topic": mirror.topic, **settings} if settings else mirror.topic


def _yaml(document: Any) -> str:
    # A line of its own for each key, however long a value is: a difference then shows what changed.
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text.rstrip("\n")
