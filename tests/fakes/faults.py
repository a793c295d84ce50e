"""What can be made to go wrong with an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Fault:
    """Applies to the next `times` requests of `api` (None: until removed) that `node` and `match` select.

    `process=False` skips the handler: the request is lost before it took effect. With `process=True` and
    `drop` or `close_after` it takes effect and only the answer is lost, which is what makes an outcome
    unknown.
    """

    api: str
    #: Put into every partition of the answer (or its top level) instead of doing the work.
    error: int = 0
    #: With `error`: do the work first, so that the error is a lie.
    apply: bool = False
    #: Seconds before the request is looked at.
    delay: float = 0.0
    #: Seconds between the work and the answer.
    delay_answer: float = 0.0
    #: Send only that many bytes of the answer (0: none), then close the connection.
    close_after: int | None = None
    #: Never answer; the connection stays open.
    drop: bool = False
    process: bool = True
    #: Bytes to send instead of the answer (size prefix included).
    raw: bytes | None = None
    times: int | None = 1
    node: int | None = None
    match: Callable[[Any], bool] | None = None
    hits: int = 0
