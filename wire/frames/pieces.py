"""Large answers are read and written in pieces while clients wait for theirs.

An answer of megabytes is read by one system call and written by another, a millisecond or two each, and everything
that arrives meanwhile waits. Without clients that is the cheapest. While clients send requests, no connection reads
or writes more than a piece in one turn of the event loop, so that client requests are served in between.
"""

from __future__ import annotations

import threading
from typing import Final

#: Bytes of one read or write in a turn while clients wait.
PIECE: Final = 512 * 1024
#: Seconds after a client's request for which clients count as waiting.
LATELY: Final = 0.05


class _Clients(threading.local):
    """The time of the last client request, per thread: each thread runs one event loop."""

    asked_at = float("-inf")


_clients = _Clients()


def client_asked(now: float) -> None:
    """Note a request that is not a follower's. `now`: the event loop's time."""
    _clients.asked_at = now


def in_pieces(now: float) -> bool:
    """Whether clients have sent requests lately."""
    return now - _clients.asked_at < LATELY
