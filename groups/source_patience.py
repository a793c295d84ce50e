"""A silent source during a promote: for how long it is asked, and which offsets count instead.

Whether a promote may go on without the source is the controller's decision (controller.decide.groups.without_source).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from controller.decide import groups
from controller.judge.group_offsets import Offsets
from controller.mirror_group import MirrorGroup
from groups.gate_keeper import Unstable
from groups.group_book import GroupBook
from groups.group_run import GroupRun
from wire.errors import LinkerError
from wire.shown_id import shown_id

log = logging.getLogger(__name__)

T = TypeVar("T")

# A moving coordinator, or a restarting broker, is no dead source.
PATIENCE = 3.0


class GaveUp(LinkerError):
    """A promote or demote that has waited for its whole time, or that has nothing left to wait for."""


class SourcePatience:
    """The patience with the source of one group, for as long as one process tends it."""

    def __init__(self, book: GroupBook, run: GroupRun, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._run = run
        self._clock = clock
        self._since: float | None = None  # None: it has answered, or was not asked

    def answered(self) -> None:
        """The source has answered, whatever the answer."""
        self._since = None

    async def ask(self, group: MirrorGroup, question: Callable[[], Awaitable[T]]) -> T | None:
        """The source's answer; None if it has been silent for a while and the promote may go on without it. Otherwise
        raises the error, so that the question is repeated."""
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
                shown_id(self._run.name),
                why,
                error,
            )
            return None
        self.answered()
        return answer

    def newest(self, group: MirrorGroup, on_target: Offsets) -> tuple[Offsets, str]:
        """The newest offsets known without the source, and the text about them.

        Offsets that this process has read may be newer than those on the target: commits are refused while clients
        wait and the gate's member is out.
        """
        why = groups.without_source(self._book.image, group)
        age = self._run.sync_age()
        before = "" if age is None else f", {age:.0f} s before"
        said = f"promoted without its source, which did not answer ({why}): from the offsets that were brought over last"
        return {**on_target, **(self._run.source or {})}, f"{said}{before}"
