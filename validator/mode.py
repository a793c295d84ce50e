"""How two logs are compared. Apart from the other facts, because the command line has to start quickly."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """The unit of a comparison."""

    BATCHES = "batches"
    RECORDS = "records"
