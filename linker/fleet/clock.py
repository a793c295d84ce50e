"""The clock of leases."""

from __future__ import annotations

import time
from typing import Final

# Where there is one, the clock that goes on while the machine is suspended: to the others that time has passed.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_clock() -> float:
    """Seconds since some moment, never set, read now (an event loop's own time may be of before a pause)."""
    return time.clock_gettime(_CLOCK)
