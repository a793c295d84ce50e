"""Messages that are encoded and decoded by hand because there are thousands of things in them, or producers wait meanwhile.

The codec looks here first: the same fields in, the same attributes out as by the schema, of which only those are kept
that somebody reads; error codes are plain numbers. Everything else stays with kio. Not here: what the messages look like
(group_messages.py, partition_messages.py), and Fetch and Produce, which are not decoded at all.
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
    """A version of an API whose request, answer or both are done by hand; both are flexible versions."""

    fields: frozenset[str] = frozenset()  # that a request has to have to be encoded here
    encode: Encode | None = None
    decode: Decode | None = None  # from the position after the answer's header to the one after the answer
    further: frozenset[str] = frozenset()  # that it may have


Messages = Mapping[tuple[str, int], Message]


def encode_body(messages: Messages, api: str, version: int, fields: Mapping[str, Any]) -> bytearray | None:
    """A request after its header; None for what is not encoded by hand."""
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
    """A response from its correlation id on; None for what is not decoded by hand. Raises MalformedFrame."""
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
