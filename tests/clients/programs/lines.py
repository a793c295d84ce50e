"""What the Python programs share: arguments, lines, the pace of a producer, the end by SIGTERM."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

FILLER = b"the quick brown fox jumps over the lazy dog " * 2
TICK = 0.01
MAX_BURST = 100


class Arguments:
    """`key=value` arguments, the ones for the library apart."""

    def __init__(self, arguments: Iterable[str]) -> None:
        pairs = dict(argument.split("=", 1) for argument in arguments)
        self.settings = {key[4:]: value for key, value in pairs.items() if key.startswith("set.")}
        self._pairs = {key: value for key, value in pairs.items() if not key.startswith("set.")}

    def text(self, key: str, default: str | None = None) -> str:
        value = self._pairs.get(key, default)
        if value is None:
            raise SystemExit(f"{key}=... is missing")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        return int(self.text(key, None if default is None else str(default)))


class Lines:
    """The lines of one program; callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acked: list[tuple[int, int, int]] = []

    def say(self, event: str, **more: Any) -> None:
        self._write({"e": event, "t": now(), **more})

    def acked(self, number: int, offset: int | None) -> None:
        """Note an acknowledgement; `flush` prints it with the others."""
        with self._lock:
            self._acked.append((number, -1 if offset is None else offset, now()))

    def flush(self) -> None:
        with self._lock:
            acked, self._acked = self._acked, []
        if acked:
            self.say("acked", r=acked)

    def failed(self, numbers: Iterable[int], error: object, *, written: bool = True) -> None:
        self.say("failed", r=list(numbers), written=written, error=str(error) or repr(error))

    def records(self, topic: str, partition: int, records: Iterable[tuple[int, bytes | None]]) -> None:
        self.say("records", topic=topic, p=partition, r=[[o, *identity(v)] for o, v in records])

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()


class Pace:
    """Which records are due: `rate` per second from now on, numbered from `first`."""

    def __init__(self, arguments: Arguments, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = arguments.text("name")
        self.topic = arguments.text("topic")
        self.next = arguments.number("first", 0)
        self._partitions = arguments.number("partitions")
        self._rate = arguments.number("rate")
        self._clock = clock
        self._started = clock()
        self._sent = 0

    def due(self) -> list[tuple[int, int, bytes]]:
        """(number, partition, value) of what is to be sent now."""
        count = min(int((self._clock() - self._started) * self._rate) - self._sent, MAX_BURST)
        numbers = range(self.next, self.next + max(count, 0))
        self._sent += len(numbers)
        self.next += len(numbers)
        return [
            (n, n % self._partitions, b"live|%s|%d|%s" % (self.name.encode(), n, FILLER)) for n in numbers
        ]


class Stop:
    """Whether SIGTERM came."""

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._come)

    def _come(self, *_: object) -> None:
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def identity(value: bytes | None) -> tuple[str, int]:
    """Who wrote a value and as which number."""
    parts = (value or b"").split(b"|", 3)
    if len(parts) != 4 or parts[0] != b"live":
        return "", -1
    return parts[1].decode(), int(parts[2])
