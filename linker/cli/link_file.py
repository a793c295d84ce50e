"""The link file: links with their properties, options and mirrored topics, as `linker apply` reads it and `linker export`
writes it. A file that cannot be used is one line that names the place in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator

from admin.base import LinkName, TopicName
from admin.models import CreateMirrorsRequest, LinkOptions, Model
from linker.cli.mirror import start_of
from linker.cli.output import one_line
from wire.client.properties import CLIENT_PROPERTIES, PropertyError, check_client_properties, nearest
from wire.client.secrets import SecretError, refuse_literal_secrets

MAX_FILE_BYTES = 1 << 20
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{one}" for one in ("str", "int", "float", "bool", "null", "timestamp", "map", "seq")
}

#: Keys and places in lists on the way from the top of a file.
Place = tuple[str | int, ...]


class LinkFileError(Exception):
    """One line why a file cannot be used."""


class MirrorEntry(Model):
    """A mirrored topic. Its settings count when the mirror is made; those that are named are compared afterwards."""

    topic: TopicName = Field(
        description="Its name at the source. A list of mirrors may hold plain names as well."
    )
    start: str | None = Field(
        default=None,
        description="earliest, latest, epoch milliseconds, or a date and time with zone. Default when it is made: earliest.",
    )
    replication_factor: int | None = Field(
        default=None, ge=1, le=32767, description="Of the target topic; default: as at the source."
    )
    configs_from_target: list[str] | None = Field(
        default=None, max_length=100, description="Topic configs whose value is the target's own."
    )

    @field_validator("start")
    @classmethod
    def _moment(cls, start: str | None) -> str | None:
        try:
            return None if start is None else start_of(start)
        except typer.BadParameter as error:
            raise ValueError(error.message.removeprefix("--start ")) from None

    @field_validator("configs_from_target")
    @classmethod
    def _sorted(cls, names: list[str] | None) -> list[str] | None:
        return None if names is None else sorted(set(names))

    def settings(self) -> dict[str, Any]:
        """Those that are named."""
        return self.model_dump(exclude={"topic"}, exclude_none=True)

    @property
    def plain(self) -> bool:
        return not self.settings()


class LinkEntry(Model):
    """A link of the file."""

    name: LinkName = Field(description="Its name.")
    source_cluster_id: str | None = Field(
        default=None, description="The link is refused if the source has another id."
    )
    properties: dict[str, str] = Field(
        description="All Kafka client properties of the source. A property that the link has and the file has not is "
        "removed. Secrets by reference, as `linker link create` takes them."
    )
    options: LinkOptions = Field(
        default=LinkOptions(),
        description="[LinkOptions](api.md#linkoptions). An option that is not named has its default; one that is fixed when "
        "a link is made is compared only if it is named.",
    )
    mirrors: list[MirrorEntry] = Field(
        default=[], description="Mirrored topics: names at the source, or [entries](#mirrorentry)."
    )

    def called(self, mirror: MirrorEntry) -> str:
        """The mirror's name at the target."""
        return self.options.prefix + mirror.topic


class LinkFile(Model):
    """A link file."""

    links: list[LinkEntry] = Field(description="[Entries](#linkentry).")


def parse_links(text: str) -> LinkFile:
    """The links of a YAML text; LinkFileError with line and path of the first thing that is wrong with it."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_FILE_BYTES:
        raise LinkFileError(f"it is larger than {MAX_FILE_BYTES} bytes")
    tree = _Tree(text)
    try:
        file = LinkFile.model_validate(tree.document)
    except ValidationError as error:
        raise _first_of(error, tree) from None
    for place, problem in _problems(file):
        raise tree.wrong(place, problem)
    return file


class _Loader(yaml.SafeLoader):
    """Makes nodes, which are few: an alias may stand for as many as it likes, so there are none."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            line = event.start_mark.line + 1
            raise LinkFileError(f"line {line}: *{one_line(event.anchor)}: aliases are not taken")
        return super().compose_node(parent, index)


class _Tree:
    """A YAML text as dicts, lists and texts, with the line of each place. All scalars are texts, as they are written: a
    topic may be called 007, and a property is a text anyway."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Place, int] = {}
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            self.document = {} if node is None else self._plain(node, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = "" if mark is None else f"line {mark.line + 1}: "
            raise LinkFileError(
                f"{where}not valid YAML: {one_line(error.problem or str(error.context))}"
            ) from None
        except yaml.YAMLError as error:
            raise LinkFileError(f"not valid YAML: {one_line(str(error).splitlines()[0])}") from None
        except RecursionError:
            raise LinkFileError("not valid YAML: nested too deep") from None
        if not isinstance(self.document, dict):
            raise LinkFileError("no link file: it holds a list of links below the key links")

    def _plain(self, node: yaml.Node, place: Place) -> Any:
        line = node.start_mark.line + 1
        self._lines.setdefault(place, line)
        if node.tag not in _PLAIN_TAGS:
            raise LinkFileError(f"line {line}: the tag {one_line(node.tag)} is not taken")
        if isinstance(node, yaml.ScalarNode):
            empty = "" if len(place) == 4 and place[2] == "properties" else None
            return empty if node.tag.endswith(":null") else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self._item(one, (*place, at)) for at, one in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise LinkFileError(f"line {line}: a key must be plain text")
            if key.value in found:
                raise LinkFileError(f"line {line}: key {one_line(key.value)} is given twice")
            self._lines[(*place, key.value)] = line
            told = self._plain(value, (*place, key.value))
            # Nothing behind `options:` or `mirrors:`, all of it commented out say, is nothing.
            if told is None and len(place) == 2:
                continue
            found[key.value] = told
        return found

    def _item(self, node: yaml.Node, place: Place) -> Any:
        told = self._plain(node, place)
        return (
            {"topic": told}
            if place[2:3] == ("mirrors",) and isinstance(told, str) and len(place) == 4
            else told
        )

    def wrong(self, place: Place, problem: str) -> LinkFileError:
        known = next(
            place[:end] for end in range(len(place), -1, -1) if place[:end] in self._lines or end == 0
        )
        line = f"line {self._lines[known]}: " if known else ""
        path = self._path(place)
        return LinkFileError(one_line(f"{line}{path}: {problem}" if path else f"{line}{problem}"))

    def _path(self, place: Place) -> str:
        """With names instead of places in lists, where they have one."""
        parts, at = list[str](), self.document
        for part in place:
            try:
                at = at[part]
            except (KeyError, IndexError, TypeError):
                at = {}
            named = (at.get("name") or at.get("topic")) if isinstance(at, dict) else None
            parts.append(str(named if isinstance(part, int) and isinstance(named, str) else part))
        return ".".join(parts)


def _first_of(error: ValidationError, tree: _Tree) -> LinkFileError:
    errors = error.errors(include_url=False, include_input=False)
    # A misspelt key is the reason why another one is missing.
    first = min(errors, key=lambda one: one["type"] != "extra_forbidden")
    place = tuple(part for part in first["loc"] if isinstance(part, str | int))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = _model_at(place[:-1]).model_fields
        message = f"unknown key{nearest(str(place[-1]), known)}"
    elif first["type"] == "missing":
        message = "is missing"
    return tree.wrong(place, message)


def _model_at(place: Place) -> type[BaseModel]:
    if len(place) < 2:
        return LinkFile
    if len(place) == 2:
        return LinkEntry
    return LinkOptions if place[2] == "options" else MirrorEntry


def _problems(file: LinkFile) -> Iterator[tuple[Place, str]]:
    """Mistakes that no single key shows, and those of Kafka's properties."""
    names: set[str] = set()
    owners: dict[str, str] = {}
    for at, link in enumerate(file.links):
        place: Place = ("links", at)
        if link.name in names:
            yield (*place, "name"), f"link {link.name} is in the file twice"
        names.add(link.name)
        for key, value in link.properties.items():
            if key not in CLIENT_PROPERTIES:
                yield (*place, "properties", key), f"unknown property{nearest(key, CLIENT_PROPERTIES)}"
            try:
                refuse_literal_secrets({key: value})
            except SecretError as error:
                yield (*place, "properties", key), str(error)
        try:
            check_client_properties(link.properties)
        except PropertyError as error:
            yield (*place, "properties"), str(error)
        for index, mirror in enumerate(link.mirrors):
            here: Place = (*place, "mirrors", index)
            called = link.called(mirror)
            if called in owners:
                yield here, f"topic {called} is in link {owners[called]} already"
            owners[called] = link.name
            try:
                CreateMirrorsRequest(topics=[mirror.topic], **mirror.settings())
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                yield (*here, *map(str, first["loc"][:1])), first["msg"].removeprefix("Value error, ")
