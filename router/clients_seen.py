"""The clients that come in here and write or read a mirror: for people who want to know who has not moved.

Looked up in the open connections when somebody asks: nothing is kept for it per request but who asked last, and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from router.fetch.held_readers import MOST, MOST_OF_A_NAME

PRODUCE: Final = "produce"
#: Writes in transactions, which are not forwarded: it is told to try again.
TRANSACTION: Final = "transaction"
FETCH: Final = "fetch"


class ClientSeen(NamedTuple):
    """One client and what it does with one topic, over all of its connections."""

    topic: str
    client_id: str
    host: str
    does: str
    last: float  # its last request, by the loop's time


class Seen(Protocol):
    """A part of a client's connection."""

    last_request: float
    client_id: str | None

    @property
    def host(self) -> str: ...

    def touches(self) -> Iterable[tuple[str, str]]:
        """Topics, each with what it does with them."""
        ...


def clients_seen(connections: Iterable[Seen], topics: frozenset[str]) -> list[ClientSeen]:
    """The clients of one of these topics; at most as many as the book of held readers has."""
    found: dict[tuple[str, str, str, str], float] = {}
    for one in connections:
        for topic, does in one.touches():
            key = (topic, (one.client_id or "")[:MOST_OF_A_NAME], one.host, does)
            if topic in topics and (key in found or len(found) < MOST):
                found[key] = max(one.last_request, found.get(key, one.last_request))
    return sorted(ClientSeen(*key, last) for key, last in found.items())
