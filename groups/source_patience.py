"""A source that does not answer while a group is promoted: for how long it is asked, and what counts instead.

Whether a promote may go on without it at all is the controller's decision (group_decisions.without_source).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from controller.decide import groups
from controller.judge.group_offsets import Offsets
from controller.state import MirrorGroup
from groups.gate_keeper import Unstable
from groups.group_book import GroupBook
from groups.group_run import GroupRun
from wire.errors import LinkerError

log = logging.getLogger(__name__)

T = TypeVar("T")

# A coordinator that moves, or a broker that is restarted, is no dead source.
PATIENCE = 3.0


class GaveUp(LinkerError):
    """A promote or demote that waited as long as it was told to, or that has nothing to wait for any more."""


class SilentSource:
    """Of one group, for as long as one process tends it."""

    def __init__(self, book: GroupBook, run: GroupRun, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._run = run
        self._clock = clock
        self._since: float | None = None  # None: it has answered, or was not asked

    def answered(self) -> None:
        """Whatever it said."""
        self._since = None

    async def ask(self, group: MirrorGroup, question: Callable[[], Awaitable[T]]) -> T | None:
        """Its answer; None if it has been silent for a while and the promote may go on without it. Raises what asking
        raises otherwise, to be asked again."""
        try:
            answer = await question()
        except (GaveUp, Unstable):
            raise
        except (LinkerError, TimeoutError) as error:
            now = self._clock()
            if self._since is None:
                self._since = now
            why = groups.without_source(self._book.image, group)
            if why is None or now - self._since < PATIENCE:
                raise
            log.warning(
                "link %s: group %s goes on without the source, %s: %s",
                self._book.link,
                self._run.name,
                why,
                error,
            )
            return None
        self.answered()
        return answer

    def newest(self, group: MirrorGroup, on_target: Offsets) -> tuple[Offsets, str]:
        """The newest offsets that are known without it, and what is to be said of that.

        What this process has read there last may be newer than what the target has: commits are refused while clients wait
        and the gate's member is out.
        """
        why = groups.without_source(self._book.image, group)
        age = self._run.sync_age()
        before = "" if age is None else f", {age:.0f} s before"
        said = f"promoted without its source, which did not answer ({why}): from the offsets that were brought over last"
        return {**on_target, **(self._run.source or {})}, f"{said}{before}"
