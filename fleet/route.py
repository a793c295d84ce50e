"""The sidecar that answers an operator's request; `admin.forward` passes it on."""

from __future__ import annotations

from typing import NamedTuple


class Destination(NamedTuple):
    """The link controller's sidecar, and host:port of its admin API."""

    broker_id: int
    address: str


class NoController(Exception):
    """No sidecar can take the request; the text says why."""
