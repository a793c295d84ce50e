"""How Fetch and Produce name a topic: by its name up to version 12, by its id from version 13 on."""

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import compact_string, read_compact_string
from wire.frames.types import Buffer

TopicKey = str | bytes
"""Topic name up to version 12, topic id (16 bytes) from version 13."""


def read_key(frame: Buffer, pos: int, version: int) -> tuple[TopicKey, int]:
    """A topic's name or id, and the position behind it."""
    if version >= 13:
        return bytes(frame[pos : pos + 16]), pos + 16
    name, pos = read_compact_string(frame, pos)
    if name is None:
        raise MalformedFrame("topic is null")
    return name, pos


def encode_key(key: TopicKey, version: int, api: str) -> bytes:
    """Encode the key; LocalProtocolError if the version names topics in the other form."""
    if version >= 13:
        if isinstance(key, str) or len(key) != 16:
            raise LocalProtocolError(f"topic {key!r} is not a topic id", api=api, version=version)
        return bytes(key)
    if not isinstance(key, str):
        raise LocalProtocolError(f"topic {key!r} is not a name", api=api, version=version)
    return compact_string(key)
