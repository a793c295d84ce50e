"""Every error that the wire package raises. Higher packages decide how to react to an error code."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypedDict, Unpack

from wire.frames.types import TopicPartition

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode


class LinkerError(Exception):
    """Base of all errors of this project: one line that a person can act on."""


class ErrorContext(TypedDict, total=False):
    """Where an error happened, as far as it is known."""

    api: str | None
    version: int | None
    topic_partition: TopicPartition | None
    offset: int | None
    peer: str | None


class WireError(LinkerError):
    """An error of one exchange, with api, version, partition, offset and peer as far as they are known."""

    def __init__(self, message: str, **context: Unpack[ErrorContext]) -> None:
        super().__init__(message)
        self.message = message
        self.api = context.get("api")
        self.version = context.get("version")
        self.topic_partition = context.get("topic_partition")
        self.offset = context.get("offset")
        self.peer = context.get("peer")

    def __str__(self) -> str:
        context = []
        if self.api is not None:
            context.append(self.api if self.version is None else f"{self.api} v{self.version}")
        elif self.version is not None:
            context.append(f"v{self.version}")
        if self.topic_partition is not None:
            context.append(f"partition {self.topic_partition.topic}-{self.topic_partition.partition}")
        if self.offset is not None:
            context.append(f"offset {self.offset}")
        if self.peer is not None:
            context.append(f"peer {self.peer}")
        return f"{self.message} ({', '.join(context)})" if context else self.message


class MalformedFrame(WireError):
    """The peer sent bytes that are not the protocol."""


class FrameTooLarge(MalformedFrame):
    """The peer announced a frame above the limit."""


class LocalProtocolError(WireError):
    """We used the protocol wrongly: a bug of ours, never the peer's."""


class UnsupportedApi(WireError):
    """Peer and we have no common version of an api."""


class BrokerError(WireError):
    """A well-formed answer that carries a Kafka error code."""

    def __init__(
        self,
        code: int,
        message: str | None = None,
        **context: Unpack[ErrorContext],
    ) -> None:
        self.code = int(code)
        self.retriable = error_is_retriable(self.code)
        name = error_name(self.code)
        super().__init__(f"{name}: {message}" if message else name, **context)


class ConnectionLost(WireError):
    """The connection died. With `sent` the request may have been carried out: its outcome is unknown."""

    def __init__(self, message: str, *, sent: bool, **context: Unpack[ErrorContext]) -> None:
        super().__init__(message, **context)
        self.sent = sent


class RequestTimedOut(ConnectionLost):
    """No answer within the deadline; the connection was closed because answers come in order."""


class HungUp(ConnectionLost):
    """The peer took the connection and ended it before it had said anything."""


class WrongCluster(ConnectionLost):
    """The address answers for another cluster. Nothing was asked of it, and its answers are ignored."""


class AuthenticationFailed(WireError):
    """TLS or SASL refused; retrying with the same credentials is pointless."""


class InvalidSecurityConfig(LinkerError):
    """The security properties contradict each other, are incomplete, or name files that cannot be used."""


class ClusterUnreachable(WireError):
    """No address of a cluster answered."""


@cache
def _known_errors() -> dict[int, ErrorCode]:
    from kio.schema.errors import ErrorCode  # a command line that only asks has to start quickly

    return {int(code): code for code in ErrorCode}


def error_name(code: int) -> str:
    """Kafka's name of an error code; its number for a code that is newer than our table."""
    known = _known_errors().get(int(code))
    return known.name.upper() if known is not None else f"UNKNOWN_ERROR_{int(code)}"


def error_is_retriable(code: int) -> bool:
    """Whether Kafka calls the code retriable; an unknown code is not."""
    known = _known_errors().get(int(code))
    return known is not None and bool(known.retriable)


def describe(error: BaseException) -> str:
    """An error in one phrase; some of Python's have an empty text."""
    return str(error) or type(error).__name__
