"""`python shifted_clock.py SECONDS -m MODULE ...`: the module, in a process whose wall clock is off by so much.

The functions of `time` that tell the time of day are shifted, monotonic clocks are not: as on a machine whose clock
somebody has set wrong. `datetime` asks the system by itself; tests/controller/test_wall_clock.py looks at who uses it.
"""

from __future__ import annotations

import runpy
import sys
import time


def shift(seconds: float) -> None:
    real, real_ns, real_get = time.time, time.time_ns, time.clock_gettime
    real_local, real_gmt = time.localtime, time.gmtime

    def clock_gettime(clock: int) -> float:
        return real_get(clock) + (seconds if clock == time.CLOCK_REALTIME else 0.0)

    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)
    time.clock_gettime = clock_gettime
    time.localtime = lambda at=None: real_local(real() + seconds if at is None else at)
    time.gmtime = lambda at=None: real_gmt(real() + seconds if at is None else at)


if __name__ == "__main__":
    _, by, option, module, *rest = sys.argv
    assert option == "-m", sys.argv
    sys.path[0] = ""
    shift(float(by))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
