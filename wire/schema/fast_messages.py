"""The large or urgent messages that have a codec of their own: they hold thousands of entries, or producers wait for them.

The codec looks here first. Fields and attributes are those of the schema, but only the attributes that are used somewhere,
and error codes are plain numbers. kio handles everything else. Fetch and Produce are not decoded at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wire.errors import LocalProtocolError, MalformedFrame
from wire.frames.primitives import PARSE_ERRORS, skip_tags

Encode = Callable[[Mapping[str, Any]], bytearray]
Decode = Callable[[bytes, int], tuple[Any, int]]


class Message(NamedTuple):
    """A version of an api whose request, answer or both have a codec here; both are flexible versions."""

    fields: frozenset[str] = frozenset()  # that a request has to have to be encoded here
    encode: Encode | None = None
    decode: Decode | None = None  # from the position after the answer's header to the one after the answer
    further: frozenset[str] = frozenset()  # that it may have


Messages = Mapping[tuple[str, int], Message]


def encode_body(messages: Messages, api: str, version: int, fields: Mapping[str, Any]) -> bytearray | None:
    """A request after its header; None if it has no codec here."""
    message = messages.get((api, version))
    if message is None or message.encode is None:
        return None
    if not message.fields <= fields.keys() <= message.fields | message.further:
        return None
    try:
        return message.encode(fields)
    except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise LocalProtocolError(f"cannot encode: {error!r}", api=api, version=version) from error


def decode_answer(messages: Messages, api: str, version: int, data: bytes) -> Any:
    """A response from its correlation id on; None if it has no codec here. Raises MalformedFrame."""
    message = messages.get((api, version))
    if message is None or message.decode is None:
        return None
    try:
        answer, end = message.decode(data, skip_tags(data, 4))
    except PARSE_ERRORS as error:
        raise MalformedFrame(f"cannot decode: {error}", api=api, version=version) from error
    except MalformedFrame as error:
        raise MalformedFrame(error.message, api=api, version=version) from error
    if end < len(data):
        raise MalformedFrame(f"{len(data) - end} bytes follow the message", api=api, version=version)
    if end > len(data):
        raise MalformedFrame("a message longer than its frame", api=api, version=version)
    return answer
