"""The shape of the generated metadata-record tables (schemas.py). No behaviour lives here."""

from typing import NamedTuple

Versions = tuple[int, int]
"""First and last version; NEWEST as the last one means "and later"."""
NEWEST = 0x7FFF


class Field(NamedTuple):
    """One field of a record or of a struct in it, named as in Kafka's schema but in snake_case."""

    name: str
    type: str  # Kafka's type, "[]" in front for arrays, "struct" for a nested one
    versions: Versions
    default: object = None
    nullable: Versions | None = None
    tag: int | None = None
    tagged: Versions | None = None
    fields: tuple["Field", ...] = ()


class RecordSchema(NamedTuple):
    """One record type of the metadata log."""

    name: str
    max_version: int
    fields: tuple[Field, ...]
