"""Large answers are read and written in pieces while clients ask for something.

An answer of megabytes is taken from its socket by one system call and given to another socket by one more, a
millisecond or two each, and whatever else has arrived meanwhile waits for their end. With nobody there who minds, that
is the cheapest way. While clients send requests, no connection reads or writes more than a piece in one turn of the
event loop, so that theirs come in between.

Lives here: when, and how much. Not here: reading (channel.py) and writing (gathering.py) themselves.
"""

from __future__ import annotations

import threading
from typing import Final

#: Of one read or write in a turn, where clients wait. Bytes.
PIECE: Final = 512 * 1024
#: Clients are taken to be there for that long after a request. Seconds.
LATELY: Final = 0.05


class _Clients(threading.local):
    """Of one thread, which runs one event loop."""

    asked_at = float("-inf")


_clients = _Clients()


def client_asked(now: float) -> None:
    """A request that is not a follower's has come. `now`: the event loop's time."""
    _clients.asked_at = now


def in_pieces(now: float) -> bool:
    """Whether clients have asked for something lately."""
    return now - _clients.asked_at < LATELY
