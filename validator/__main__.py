"""`python -m validator`: the validator process. Events go to the stdout it was started with; whatever else writes to
stdout, the JVM above all, is sent to stderr."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from typing import NoReturn

from validator.driver import Driver


def main() -> NoReturn:
    """Ends the process."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's Ctrl-C is the sidecar's to handle
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    commands = os.fdopen(os.dup(0), "rb")
    # the JVM gets a pipe of its own; nobody else may eat commands
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    code = Driver(commands, events).serve()
    with contextlib.suppress(BrokenPipeError):
        events.flush()
    logging.shutdown()
    # a thread may still wait for commands, one for a JVM that does not come up: nobody waits for them
    os._exit(code)


if __name__ == "__main__":
    main()
