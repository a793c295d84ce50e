"""`python -m validator`: the validator process. Events go to the stdout it was started with; whatever else writes to
stdout, the JVM above all, is sent to stderr."""

from __future__ import annotations

import logging
import os
import signal
import sys

from validator.driver import Driver


def main() -> int:
    """Returns the exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's Ctrl-C is the sidecar's to handle
    with os.fdopen(os.dup(1), "wb") as events:
        os.dup2(2, 1)
        with os.fdopen(os.dup(0), "rb") as commands:
            # the JVM gets a pipe of its own; nobody else may eat commands
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
            return Driver(commands, events).serve()


if __name__ == "__main__":
    sys.exit(main())
