"""The sizes and times that a source fetcher is given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Sizes and times of source fetches; Kafka's own defaults for a replica fetcher where it has them."""

    max_bytes: int = 8 << 20
    partition_bytes: int = 1 << 20
    max_wait_ms: int = 500
    request_timeout: float = 30.0
    reconnect_backoff: tuple[float, float] = (0.1, 5.0)
    #: The first of the polls that are short because something may change any moment.
    short_poll_ms: int = 5
    #: From the request that brought less than `small_answer` bytes, and less than half of what it asked for, until the
    #: next one, in seconds. A stream of small writes is copied several at a time then, by the source and by followers.
    small_answer_interval: float = 0.005
    small_answer: int = 64 << 10
    #: A partition without records for that long (seconds) is for the quiet fetcher, if the busy one has more than
    #: `busy_partitions` of them. One that got records there all the same stays with the busy one for longer: changing over
    #: costs both sessions something, and a quiet one that is answered all the time is no quiet one.
    quiet_after: float = 5.0
    quiet_again_after: float = 60.0
    busy_partitions: int = 32
