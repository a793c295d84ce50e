"""Opens at the source what a promote that was abandoned could not open, because the source was away just then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from controller.manager import LinkController
from controller.source_fence import debts
from linker.links.source_fence import AclSourceFence
from wire.errors import LinkerError

log = logging.getLogger(__name__)

_EVERY = 2.0
_TIMEOUT = 10.0


async def open_owed(
    link: str, controller: LinkController, fence: AclSourceFence, reached: Callable[[], bool]
) -> None:
    """Until cancelled. `reached`: whether the source is there, and is the link's."""
    while True:
        await asyncio.sleep(_EVERY)
        if not reached():
            continue
        for job_id, owed in debts(controller.image, link).items():
            # The driver undoes what belongs to a job that runs, which must not find its fence taken away. Topics of
            # other jobs do not wait for it: until they are opened, nobody can write to them.
            busy = {topic for job in controller.image.running_jobs(link) for topic in job.topics}
            topics = [topic for topic in owed if topic not in busy]
            if not topics:
                continue
            try:
                await fence.open(topics, timeout=_TIMEOUT)
                await controller.note_source_fence(link, job_id, opened=topics)
            except LinkerError as error:
                log.warning(
                    "link %s: the source still refuses writes to %s, for promote %d: %s (again)",
                    link,
                    ", ".join(topics),
                    job_id,
                    error,
                )
            else:
                log.info("link %s: the source accepts writes to %s again", link, ", ".join(topics))
