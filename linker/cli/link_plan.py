"""The difference between a link file and the links that are there, as a list of steps. Pure: it asks nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import BaseModel

from admin.models import (
    CreateLinkRequest,
    CreateMirrorsRequest,
    LinkDescription,
    LinkOptions,
    LinkOptionsUpdate,
    MirrorDescription,
    MirrorState,
    MirrorSummary,
    UpdateLinkRequest,
)
from admin.validation_models import ContinuousValidationRequest
from linker.cli.link_file import LinkEntry, LinkFile, MirrorEntry
from linker.links.topic_options import topic_patterns
from wire.client.secrets import redact

#: Topics of one request: it is answered within the time that a request has.
MOST_TOPICS = 200
#: Changed by an operation of its own.
INTERVAL = "validation_interval_ms"
FIXED = frozenset(LinkOptions.model_fields) - frozenset(LinkOptionsUpdate.model_fields) - {INTERVAL}
#: The topic is the target's; the mirror is only remembered.
_OVER = (MirrorState.PROMOTED, MirrorState.FAILED_OVER)


class StepKind(StrEnum):
    CREATE_LINK = "create link"
    UPDATE_LINK = "update link"
    CONTINUE_VALIDATION = "continue validation"
    CREATE_MIRRORS = "create mirrors"
    DELETE_MIRROR = "delete mirror"
    DELETE_LINK = "delete link"
    UNCHANGED = "unchanged"
    NOT_IN_FILE = "not in the file"
    CONFLICT = "conflict"  # a difference that no change of a link or mirror removes


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    link: str
    topics: tuple[str, ...] = ()
    request: BaseModel | None = None
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenLink:
    """A link as the admin API tells of it. `details`: of mirrors whose settings the file names."""

    link: LinkDescription
    mirrors: Mapping[str, MirrorSummary] = field(default_factory=dict)
    details: Mapping[str, MirrorDescription] = field(default_factory=dict)


def compare_links(
    file: LinkFile, seen: Mapping[str, SeenLink], *, delete_missing: bool = False
) -> list[Step]:
    """Links first, then mirrors, and deletions last: mirrors before their links."""
    owners = {topic: name for name, one in seen.items() for topic in one.mirrors}
    steps = [step for entry in file.links for step in _link_steps(entry, seen.get(entry.name))]
    for entry in file.links:
        steps += _mirror_steps(entry, seen.get(entry.name), owners)
    entries = {entry.name: entry for entry in file.links}
    for name, one in seen.items():
        if delete_missing and name not in entries:
            steps += _no_new_mirrors(one)
        steps += _missing_mirrors(entries.get(name), one, delete_missing)
    kind = StepKind.DELETE_LINK if delete_missing else StepKind.NOT_IN_FILE
    return steps + [Step(kind, name) for name in seen if name not in entries]


def _link_steps(entry: LinkEntry, seen: SeenLink | None) -> Iterator[Step]:
    if seen is None:
        request = CreateLinkRequest(
            name=entry.name,
            properties=entry.properties,
            options=entry.options,
            source_cluster_id=entry.source_cluster_id,
        )
        yield Step(StepKind.CREATE_LINK, entry.name, request=request)
        return
    conflicts = tuple(_conflicts(entry, seen.link))
    if conflicts:
        yield Step(StepKind.CONFLICT, entry.name, differences=conflicts)
        return
    differences: list[str] = []
    properties: dict[str, str | None] = {}
    there = seen.link.properties
    for key in sorted({*entry.properties, *there}):
        wanted = entry.properties.get(key)
        if wanted != there.get(key):
            properties[key] = wanted
            differences.append(f"{key}: {_shown(key, there.get(key))} -> {_shown(key, wanted)}")
    changed = {
        name: getattr(entry.options, name)
        for name in LinkOptions.model_fields
        if name not in FIXED and getattr(entry.options, name) != getattr(seen.link.options, name)
    }
    interval = changed.pop(INTERVAL, None) if INTERVAL in changed else 0
    differences += [
        f"{name}: {_value(getattr(seen.link.options, name))} -> {_value(value)}"
        for name, value in changed.items()
    ]
    if properties or changed:
        request_ = UpdateLinkRequest(properties=properties, options=LinkOptionsUpdate.model_validate(changed))
        yield Step(StepKind.UPDATE_LINK, entry.name, request=request_, differences=tuple(differences))
    if interval != 0:
        told = f"{INTERVAL}: {_value(seen.link.options.validation_interval_ms)} -> {_value(interval)}"
        continuous = ContinuousValidationRequest(enabled=interval is not None, interval_ms=interval)
        yield Step(StepKind.CONTINUE_VALIDATION, entry.name, request=continuous, differences=(told,))
    if not differences and interval == 0:
        yield Step(StepKind.UNCHANGED, entry.name)


def _conflicts(entry: LinkEntry, link: LinkDescription) -> Iterator[str]:
    if entry.source_cluster_id not in (None, link.source_cluster_id):
        yield f"source_cluster_id: the link is to {link.source_cluster_id}, the file names {entry.source_cluster_id}"
    for name in sorted(FIXED & entry.options.model_fields_set):
        there, wanted = getattr(link.options, name), getattr(entry.options, name)
        if there != wanted:
            yield f"{name} is {_value(there)} and fixed since the link was made, the file names {_value(wanted)}"


def _shown(key: str, value: str | None) -> str:
    return "none" if value is None else redact(key, value) or "''"


def _value(value: object) -> str:
    return "none" if value is None else str(value) or "''"


def _mirror_steps(entry: LinkEntry, seen: SeenLink | None, owners: Mapping[str, str]) -> Iterator[Step]:
    unchanged: list[str] = []
    missing: dict[str, list[MirrorEntry]] = {}
    for mirror in entry.mirrors:
        owner = owners.get(entry.called(mirror))
        if owner is None:
            missing.setdefault(str(sorted(mirror.settings().items())), []).append(mirror)
        elif owner != entry.name or seen is None:
            told = f"it is a mirror of link {owner}: delete it there first"
            yield Step(StepKind.CONFLICT, entry.name, (mirror.topic,), differences=(told,))
        elif differences := _fixed_settings(mirror, entry.called(mirror), seen):
            yield Step(StepKind.CONFLICT, entry.name, (mirror.topic,), differences=differences)
        else:
            unchanged.append(mirror.topic)
    if unchanged:
        yield Step(StepKind.UNCHANGED, entry.name, tuple(unchanged))
    for alike in missing.values():
        for at in range(0, len(alike), MOST_TOPICS):
            topics = [one.topic for one in alike[at : at + MOST_TOPICS]]
            request = CreateMirrorsRequest(topics=topics, **alike[0].settings())
            yield Step(StepKind.CREATE_MIRRORS, entry.name, tuple(topics), request)


def _fixed_settings(mirror: MirrorEntry, called: str, seen: SeenLink) -> tuple[str, ...]:
    """Named settings that the mirror was made without. Those of a topic that is the target's by now count no more."""
    if mirror.plain or seen.mirrors[called].state in _OVER:
        return ()
    detail = seen.details[called]
    return tuple(
        f"{name} is {_value(there)}, the file names {_value(wanted)}: it counts when a mirror is made"
        for name, wanted in mirror.settings().items()
        if (there := getattr(detail, name)) != wanted
    )


def taken_by_pattern(options: LinkOptions, topic: str) -> bool:
    """Whether the link mirrors the source's topic by itself, so that the file need not name it."""
    return topic_patterns(options.topics_include, options.topics_exclude).takes(topic)


def _no_new_mirrors(seen: SeenLink) -> Iterator[Step]:
    """A link that is to be deleted must not mirror anew the topics whose mirrors are deleted before it."""
    if told := seen.link.options.topics_include:
        options = LinkOptionsUpdate.model_validate({"topics_include": ""})
        differences = (f"topics_include: {told} -> ''",)
        yield Step(
            StepKind.UPDATE_LINK,
            seen.link.name,
            request=UpdateLinkRequest(options=options),
            differences=differences,
        )


def _missing_mirrors(entry: LinkEntry | None, seen: SeenLink, delete: bool) -> Iterator[Step]:
    named = {entry.called(one) for one in entry.mirrors} if entry is not None else set[str]()
    for topic, mirror in seen.mirrors.items():
        at_source = mirror.source_topic or topic
        if topic not in named and not (entry is not None and taken_by_pattern(entry.options, at_source)):
            kind = StepKind.DELETE_MIRROR if delete else StepKind.NOT_IN_FILE
            yield Step(kind, seen.link.name, (topic,))
