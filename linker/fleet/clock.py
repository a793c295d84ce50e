"""The clock of leases."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

# Prefer the clock that goes on while the machine is suspended: for the other sidecars that time has passed.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


#: Seconds since some moment, never set, read now (an event loop's own time may be of before a pause). Not a function of
#: ours: the lease is looked at twice for every forwarded produce.
lease_clock: Final[Callable[[], float]] = partial(time.clock_gettime, _CLOCK)
