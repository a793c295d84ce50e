"""Which sidecar answers a request of an operator. What carries it there is admin.forward."""

from __future__ import annotations

from typing import NamedTuple


class Destination(NamedTuple):
    """The link controller's sidecar, and host:port of its admin API."""

    broker_id: int
    address: str


class NoController(Exception):
    """There is nobody to pass a request on to; the text says why."""
