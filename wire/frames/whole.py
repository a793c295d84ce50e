"""A parser of a whole message: every error in it is a MalformedFrame that names the api and its version."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import wraps
from typing import TypeVar

from wire.errors import MalformedFrame
from wire.frames.primitives import PARSE_ERRORS

FrameT = TypeVar("FrameT", bound=Sized)
T = TypeVar("T")


def whole(
    api: str, what: str
) -> Callable[[Callable[[FrameT, int, int], tuple[T, int]]], Callable[[FrameT, int, int], T]]:
    """Decorates a parser of (frame, position, version) that returns its result and the end position. `what`: "request" or
    "response", for the errors.
    """

    def make(parse: Callable[[FrameT, int, int], tuple[T, int]]) -> Callable[[FrameT, int, int], T]:
        @wraps(parse)
        def read(frame: FrameT, pos: int, version: int) -> T:
            try:
                message, end = parse(frame, pos, version)
            except PARSE_ERRORS as error:
                raise MalformedFrame(f"{what} is garbled: {error}", api=api, version=version) from error
            except MalformedFrame as error:
                raise MalformedFrame(error.message, api=api, version=version) from error
            if end != len(frame):
                raise MalformedFrame(
                    f"{what} of {len(frame)} bytes ends at byte {end}", api=api, version=version
                )
            return message

        return read

    return make


def add_entries(entries: int, count: int, most: int) -> int:
    """The entries of a message so far plus `count`; MalformedFrame above `most`. Parsed entries take far more memory
    than their bytes on the wire.
    """
    if count < 0:
        raise MalformedFrame("array is null")
    entries += count
    if entries > most:
        raise MalformedFrame(f"more than {most} topics and partitions in one request")
    return entries
