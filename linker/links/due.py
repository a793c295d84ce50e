"""The order in which mirrors are looked at: new requests first, mirrors in trouble after a pause.

Mirrors are looked at one after the other, and one try of a mirror in trouble may take seconds (a source that does not
answer). So mirrors that were asked for meanwhile go first, and a wake-up for one mirror shortens no other's pause.
No clock and no I/O.
"""

from __future__ import annotations

import heapq

from wire.backoff import Backoff

_FIRST, _LONGEST = 0.2, 5.0
#: A step that fails may ask again itself, and without a wait in between nobody else would run.
_LEAST = 0.05


class DueTopics:
    """`now` is any clock that does not go back."""

    def __init__(self) -> None:
        self._asked: dict[str, None] = {}  # in the order in which they were asked for
        #: In trouble: when it is tried again, and the pauses before that.
        self._again: dict[str, float] = {}
        self._pauses: dict[str, Backoff] = {}
        self._queue: list[tuple[float, str]] = []  # of _again; what does not agree with it is over

    @property
    def asked(self) -> frozenset[str]:
        """Topics that wait for nothing but their turn."""
        return frozenset(self._asked)

    @property
    def any_asked(self) -> bool:
        return bool(self._asked)

    @property
    def in_trouble(self) -> bool:
        return bool(self._again)

    def ask(self, topic: str, now: float) -> None:
        """Something about the mirror is new: it is due now, even if it was in trouble and in its pause."""
        at = self._again.get(topic)
        if at is None:
            self._asked[topic] = None
        elif at > now + _LEAST:
            self._put(topic, now + _LEAST)

    def take(self, now: float) -> str | None:
        """The next one, which is `done` or has `failed` before another is taken; None if nothing is due."""
        for topic in self._asked:
            del self._asked[topic]
            return topic
        at = self.next_at()
        if at is None or at > now:
            return None
        _, topic = heapq.heappop(self._queue)
        del self._again[topic]
        return topic

    def next_at(self) -> float | None:
        """When something in trouble is tried again."""
        while self._queue and self._again.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def done(self, topic: str) -> None:
        self._pauses.pop(topic, None)

    def failed(self, topic: str, now: float) -> None:
        if topic in self._asked:  # while it was tried
            del self._asked[topic]
            self._pauses.setdefault(topic, Backoff(_FIRST, _LONGEST, tries=1))
            self._put(topic, now + _LEAST)
            return
        self._put(topic, now + self._pauses.setdefault(topic, Backoff(_FIRST, _LONGEST)).next())

    def _put(self, topic: str, at: float) -> None:
        self._again[topic] = at
        heapq.heappush(self._queue, (at, topic))
