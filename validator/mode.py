"""How two logs are compared. Apart from the other facts, because the command line has to start quickly."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """What is compared."""

    BATCHES = "batches"
    RECORDS = "records"
