"""Whether the process runs out of file descriptors: connections are then closed as they come, and nobody says why."""

from __future__ import annotations

import logging
import os
import resource

log = logging.getLogger(__name__)

_NEARLY, _AGAIN = 0.9, 0.8


class DescriptorWatch:
    """Says it once when nearly all are in use, and once when that is over."""

    def __init__(self) -> None:
        self._low = False

    def look(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return
        used = _least_free()
        if not self._low and used >= limit * _NEARLY:
            self._low = True
            log.warning(
                "%s of %d file descriptors are in use: new connections will be closed; raise LimitNOFILE of the service, or "
                "look who holds so many connections open",
                "all" if used >= limit else used,
                limit,
            )
        elif self._low and used < limit * _AGAIN:
            self._low = False
            log.info("file descriptors are free again: %d of %d are in use", used, limit)


def _least_free() -> int:
    """The number of the next one, which is about how many are in use: the system gives the lowest. Cheap, for any number."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 1 << 62
    os.close(descriptor)
    return descriptor
