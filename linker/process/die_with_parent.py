"""`python die_with_parent.py COMMAND...`: a command that the kernel kills when whoever started it dies.

A test run that is killed must leave no broker behind, and a context manager cannot promise that. This file is
run by path (it must not import the package: it is on the way of every node's start). On systems without
PR_SET_PDEATHSIG the command runs all the same and only the context manager ends it.

The kernel watches the *thread* that forked, so nodes have to be started from a thread that lives as long as
they should: with asyncio that is the thread of the event loop.
"""

import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "KAFKA_LINKER_PARENT"


def main(command: list[str]) -> NoReturn:
    """Arm the signal, make sure that the parent is still the one that started us, become the command."""
    if not command:
        sys.exit("die_with_parent: which command?")
    parent = int(os.environ.pop(PARENT_VARIABLE, "0"))
    if sys.platform == "linux":
        import ctypes  # costs 10 ms, so not where it is of no use

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"die_with_parent: prctl failed with errno {ctypes.get_errno()}")
        if parent and os.getppid() != parent:
            sys.exit("die_with_parent: the parent is gone")  # it died between the fork and the prctl
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
