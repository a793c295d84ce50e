"""Which consumers are held until their promote (``RouterPorts.holds_reads``): they find a topic empty, so people are told.

Lives here: a bounded book of them. Not here: who is held (``linker.links.reads``), and how (``decision.py``).
Pure: the time is passed in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MOST: Final = 1000
#: Characters of a client id that are kept: clients choose theirs, up to 32 KiB each.
MOST_OF_A_NAME: Final = 200
#: Seconds. A consumer asks every half second; one that has not for so long is gone, or is held no more.
SILENT: Final = 60.0


class HeldConsumer(NamedTuple):
    """One consumer that reads one topic, as far as the connection tells."""

    link: str
    topic: str
    client_id: str
    host: str


class HeldReaders:
    """Of all links; since when each is held, and when it asked last."""

    def __init__(self) -> None:
        self._seen: dict[HeldConsumer, tuple[float, float]] = {}
        self._told: dict[tuple[str, str, str], None] = {}

    def note(
        self, link: str, topic: str, client_id: str | None, host: str, now: float
    ) -> HeldConsumer | None:
        """A consumer asked and got nothing. Returns the reader if nobody was told of this client on this link before."""
        reader = HeldConsumer(link, topic, (client_id or "")[:MOST_OF_A_NAME], host)
        known = self._seen.get(reader)
        if known is not None and now - known[1] <= SILENT:
            self._seen[reader] = known[0], now
            return None
        if len(self._seen) >= MOST:
            self._forget(now)
        if len(self._seen) < MOST:
            self._seen[reader] = now, now
        told = (link, reader.client_id, host)
        if told in self._told:
            return None
        if len(self._told) >= MOST:
            del self._told[next(iter(self._told))]
        self._told[told] = None
        return reader

    def held(self, link: str, now: float, topic: str | None = None) -> list[tuple[HeldConsumer, float]]:
        """Those that are held now, with the seconds since when."""
        return sorted(
            (reader, now - since)
            for reader, (since, last) in self._seen.items()
            if reader.link == link and topic in (None, reader.topic) and now - last <= SILENT
        )

    def _forget(self, now: float) -> None:
        for reader, (_, last) in list(self._seen.items()):
            if now - last > SILENT:
                del self._seen[reader]
