"""Run a command that is killed by the kernel when whoever started it dies: `python die_with_parent.py COMMAND...`.

A test run that is killed must leave no broker behind, and a context manager cannot promise that. This file is run
by path (it must not import the package: it is on the way of every node's start). On systems without
PR_SET_PDEATHSIG the command runs all the same and only the context manager ends it.

The kernel watches the *thread* that forked, so nodes have to be started from a thread that lives as long as they
should: with asyncio that is the thread of the event loop.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "KAFKA_LINKER_PARENT"


def main(command: list[str]) -> int:
    """Arm the signal, make sure that the parent is still the one that started us, become the command."""
    if not command:
        sys.stderr.write("die_with_parent: which command?\n")
        return 2
    parent = int(os.environ.pop(PARENT_VARIABLE, "0"))
    if sys.platform == "linux":
        import ctypes  # costs 10 ms, so not where it is of no use

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.stderr.write(f"die_with_parent: prctl failed with errno {ctypes.get_errno()}\n")
            return 1
        if parent and os.getppid() != parent:
            return 1  # it died between the fork and the prctl
    os.execvp(command[0], command)  # noqa: S606 - that is what this file is for


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
