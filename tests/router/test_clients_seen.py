"""Who comes in and writes or reads a topic, over all of a client's connections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from router.clients_seen import FETCH, PRODUCE, TRANSACTION, ClientSeen, clients_seen
from router.fetch.held_readers import MOST, MOST_OF_A_NAME


@dataclass
class Connection:
    client_id: str | None
    last_request: float
    found: list[tuple[str, str]] = field(default_factory=list)
    host: str = "h"

    def touches(self) -> Iterable[tuple[str, str]]:
        return self.found


def test_each_client_is_named_once_for_what_it_does_with_a_topic() -> None:
    seen = clients_seen(
        [
            Connection("a", 5.0, [("t", PRODUCE), ("u", TRANSACTION)]),
            Connection("a", 9.0, [("t", PRODUCE)]),
            Connection(None, 2.0, [("t", FETCH)]),
            Connection("elsewhere", 3.0, [("v", FETCH)]),
            Connection("idle", 3.0),
        ],
        frozenset({"t", "u"}),
    )
    assert seen == [
        ClientSeen("t", "", "h", FETCH, 2.0),
        ClientSeen("t", "a", "h", PRODUCE, 9.0),
        ClientSeen("u", "a", "h", TRANSACTION, 5.0),
    ]


def test_many_clients_and_long_names_have_an_end() -> None:
    many = [Connection(f"c{number}", 1.0, [("t", FETCH)]) for number in range(MOST + 5)]
    assert len(clients_seen(many, frozenset({"t"}))) == MOST
    [one] = clients_seen([Connection("x" * 30_000, 1.0, [("t", FETCH)])], frozenset({"t"}))
    assert len(one.client_id) == MOST_OF_A_NAME
