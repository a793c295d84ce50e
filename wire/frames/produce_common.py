"""Versions, topic names and limits that Produce requests and responses share."""

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import compact_string, read_compact_string
from wire.frames.types import Buffer

API = "produce"
MIN_VERSION, MAX_VERSION = 3, 13
MAX_ENTRIES = 50_000
"""The most topics plus partitions in one request: parsed entries take far more memory than their bytes on the wire."""

TopicKey = str | bytes
"""Topic name up to version 12, topic id (16 bytes) from version 13."""

ONE = 2
"""The compact length of an array of one element. The usual forwarded write, one batch without optional fields, is read and
written in one go, in the layout that the general functions produce for it.
"""

SINGLE_END = b"\0\0\0"
"""The bytes after the only batch of a request: no tagged fields of the partition, the topic and the message."""


def read_key(frame: Buffer, pos: int, version: int) -> tuple[TopicKey, int]:
    """A topic's name or id, and the position behind it."""
    if version >= 13:
        return bytes(frame[pos : pos + 16]), pos + 16
    name, pos = read_compact_string(frame, pos)
    if name is None:
        raise MalformedFrame("topic is null")
    return name, pos


def encode_key(key: TopicKey, version: int) -> bytes:
    """Encode the key; LocalProtocolError if the version names topics in the other form."""
    if version >= 13:
        if isinstance(key, str) or len(key) != 16:
            raise LocalProtocolError(f"topic {key!r} is not a topic id", api=API, version=version)
        return bytes(key)
    if not isinstance(key, str):
        raise LocalProtocolError(f"topic {key!r} is not a name", api=API, version=version)
    return compact_string(key)
