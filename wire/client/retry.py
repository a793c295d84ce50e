"""The meaning of an error for the next try, as one table, and the one loop that tries again.

Kafka answers "not here, not now, not you" with other codes for each kind of node, so a code counts only for its kind:
UNKNOWN_TOPIC_OR_PARTITION makes a client look for a leader again, but from a group's coordinator it is an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Final, TypeVar

from wire.backoff import Backoff
from wire.errors import ClusterUnreachable, ConnectionLost, LinkerError
from wire.frames import error_codes as codes

T = TypeVar("T")


class NodeKind(Enum):
    """The node that a request is for."""

    LEADER = "the leader of a partition"
    COORDINATOR = "the coordinator of a group or transactional id"
    CONTROLLER = "the active controller"


class Meaning(Enum):
    MOVED = auto()  # look for the node again, then try again
    BUSY = auto()  # the same node again, a little later
    RIGHT = auto()  # the principal lacks a right
    FINAL = auto()  # no next try helps; also success


RIGHTS: Final = frozenset(
    {
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_TABLE: Final[Mapping[NodeKind, Mapping[Meaning, frozenset[int]]]] = {
    NodeKind.LEADER: {
        Meaning.MOVED: frozenset(
            {
                codes.UNKNOWN_TOPIC_OR_PARTITION,
                codes.LEADER_NOT_AVAILABLE,
                codes.NOT_LEADER_OR_FOLLOWER,
                codes.REPLICA_NOT_AVAILABLE,
                codes.NETWORK_EXCEPTION,
                codes.KAFKA_STORAGE_ERROR,
                codes.FENCED_LEADER_EPOCH,
                codes.UNKNOWN_LEADER_EPOCH,
            }
        ),
        Meaning.BUSY: frozenset({codes.OFFSET_NOT_AVAILABLE}),
    },
    NodeKind.COORDINATOR: {
        Meaning.MOVED: frozenset({codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR}),
        Meaning.BUSY: frozenset({codes.COORDINATOR_LOAD_IN_PROGRESS, codes.CONCURRENT_TRANSACTIONS}),
    },
    NodeKind.CONTROLLER: {Meaning.MOVED: frozenset({codes.NOT_CONTROLLER})},
}
_BY_CODE: Final = {
    (kind, code): meaning
    for kind, rows in _TABLE.items()
    for meaning, listed in (*rows.items(), (Meaning.RIGHT, RIGHTS))
    for code in listed
}


def meaning(kind: NodeKind, code: int) -> Meaning:
    """The meaning of an error code in an answer of that kind of node."""
    return _BY_CODE.get((kind, code), Meaning.FINAL)


def passing(kind: NodeKind, code: int) -> bool:
    """Whether the error ends when we know the right node, or when that node is ready."""
    return meaning(kind, code) in (Meaning.MOVED, Meaning.BUSY)


def _no_codes(answer: object) -> Iterable[int]:
    return ()


def _always(error: LinkerError) -> bool:
    return True


async def until_answered(
    kind: NodeKind,
    ask: Callable[[], Awaitable[T]],
    *,
    deadline: float,
    backoff: Backoff,
    codes_of: Callable[[T], Iterable[int]] = _no_codes,
    refused: Callable[[int], LinkerError] | None = None,
    forget: Callable[[], None] = lambda: None,
    again: Callable[[LinkerError], bool] = _always,
) -> T:
    """The answer of the right node at a time when it has one to give; at the deadline the last error.

    `ask` finds the node and asks it once. `forget` is called when the node may be another one by now. `refused` makes the
    error of a passing code (`codes_of` an answer), and `again` says of each error whether the request may be repeated:
    after ConnectionLost(sent=True) the first one may have been carried out.
    """
    while True:
        last: LinkerError
        try:
            answer = await ask()
        except (ConnectionLost, ClusterUnreachable) as error:
            forget()
            last = error
        else:
            code = next((code for code in codes_of(answer) if passing(kind, code)), None)
            if code is None or refused is None:
                return answer
            if meaning(kind, code) is Meaning.MOVED:
                forget()
            last = refused(code)
        if not again(last) or backoff.over(time.monotonic(), deadline):
            raise last
        await asyncio.sleep(backoff.next())
