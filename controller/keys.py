"""Names and paths in the state store, in the form of a ZooKeeper tree.

Link and topic names become path segments, so both are checked against Kafka's own rule for topic names: its alphabet has no
slash, and "." and ".." are refused. Nothing needs escaping after that, in any of the stores. Group ids may be any text in
Kafka; those outside that alphabet are written as hex digits.
"""

from __future__ import annotations

import re
from functools import lru_cache

from controller.access.acls import Resource
from controller.errors import InvalidName
from wire.frames.types import TopicPartition

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
MAX_TOPIC_NAME = 249  # Kafka's own: 255 for a file name minus "-" and the partition's digits
MAX_LINK_NAME = 100
MAX_GROUP_BYTES = 255  # of its UTF-8: Kafka's own limit is a string's, 32767
MAX_PARTITION = 2**31 - 1

_HEX = "hex."

CONTROLLER_EPOCH = "/controller_epoch"
LINKS = "/links"
SIDECARS = "/sidecars"


def check_link_name(name: str) -> str:
    return _check("link", name, MAX_LINK_NAME)


def check_topic_name(name: str) -> str:
    return _check("topic", name, MAX_TOPIC_NAME)


def _check(what: str, name: str, longest: int) -> str:
    if name in ("", ".", ".."):
        raise InvalidName(f"{what} name {name!r} is not allowed")
    if len(name) > longest:
        raise InvalidName(f"{what} name of {len(name)} characters is longer than {longest}")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidName(f"{what} name {name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'")
    return name


def _index(what: str, value: int) -> str:
    if not 0 <= value <= MAX_PARTITION:
        raise InvalidName(f"{what} {value} is out of range")
    return str(value)


def link(name: str) -> str:
    return f"{LINKS}/{check_link_name(name)}"


@lru_cache(maxsize=1024)  # a commit asks for the same topic once for each of its partitions
def mirror(link_name: str, topic: str) -> str:
    return f"{link(link_name)}/mirrors/{check_topic_name(topic)}"


def partition_state(link_name: str, tp: TopicPartition) -> str:
    return f"{mirror(link_name, tp.topic)}/{_index('partition', tp.partition)}/state"


def partition_validation(link_name: str, tp: TopicPartition) -> str:
    return f"{mirror(link_name, tp.topic)}/{_index('partition', tp.partition)}/validation"


def groups(link_name: str) -> str:
    return f"{link(link_name)}/groups"


def group(link_name: str, name: str) -> str:
    return f"{groups(link_name)}/{group_segment(name)}"


def group_segment(name: str) -> str:
    """A group id as a path segment: unchanged if it is legal, otherwise `hex.` and its UTF-8 bytes in hex digits."""
    raw = name.encode("utf-8", "surrogatepass")
    if not 0 < len(raw) <= MAX_GROUP_BYTES:
        raise InvalidName(f"group id of {len(raw)} bytes: 1 to {MAX_GROUP_BYTES} are allowed")
    if _LEGAL.fullmatch(name) and name not in (".", "..") and not name.startswith(_HEX):
        return name
    return _HEX + raw.hex()


def group_name(segment: str) -> str:
    """The group id of a path segment."""
    if not segment.startswith(_HEX):
        return segment
    return bytes.fromhex(segment.removeprefix(_HEX)).decode("utf-8", "surrogatepass")


def carried_acls(link_name: str, resource: Resource) -> str:
    name = group_segment(resource.name)  # ids of groups and transactions are any text, too
    return f"{link(link_name)}/acls/{resource.kind.lower()}.{resource.pattern.lower()}.{name}"


def acl_resource(segment: str) -> Resource:
    """The resource of a path segment."""
    kind, pattern, name = segment.split(".", 2)
    return Resource(kind.upper(), pattern.upper(), group_name(name))


def producer_ids(link_name: str) -> str:
    return f"{link(link_name)}/producer_ids"


def promote_job(link_name: str, job_id: int) -> str:
    return f"{link(link_name)}/promotes/{_index('promote job', job_id)}"


def sidecar_identity(broker_id: int) -> str:
    # /sidecars/ids/N is kept free: it is the ephemeral node that says a sidecar is alive now.
    return f"{SIDECARS}/identities/{_index('broker id', broker_id)}"


def split(path: str) -> tuple[str, ...]:
    """The segments of an absolute path; InvalidName for a path that no function above builds."""
    if not path.startswith("/") or path.endswith("/"):
        raise InvalidName(f"{path!r} is not an absolute path without a trailing slash")
    segments = tuple(path[1:].split("/"))
    for segment in segments:
        if segment in ("", ".", "..") or _LEGAL.fullmatch(segment) is None:
            raise InvalidName(f"{path!r} has the illegal segment {segment!r}")
    return segments
