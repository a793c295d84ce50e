"""Opens the source again after a promote that could not do so for certain.

The source was away just then, or a request to close it may still have been under way.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from controller.decide.source_fence import debts
from fleet.link_controller import LinkController
from linker.promote.source_fence import AclSourceFence
from wire.errors import LinkerError

log = logging.getLogger(__name__)

_EVERY = 2.0
#: Until nothing can close it any more: a broker tries for 60 s to hand a request on to its controller
#: (`NodeToControllerChannelManager`), and one may have waited in a queue.
_LATE = 120.0
_TIMEOUT = 10.0


async def open_owed(
    link: str, controller: LinkController, fence: AclSourceFence, reached: Callable[[], bool]
) -> None:
    """Until cancelled. `reached`: whether the source is there, and is the link's."""
    #: By job and topic: since when it has been open, as far as this process knows.
    since: dict[tuple[int, str], float] = {}
    while True:
        await asyncio.sleep(_EVERY)
        if not reached():
            continue
        all_owed = debts(controller.image, link)
        since = {key: at for key, at in since.items() if key[1] in all_owed.get(key[0], ())}
        for job_id, owed in all_owed.items():
            # The driver undoes what belongs to a job that runs, which must not find its fence taken away. Topics of
            # other jobs do not wait for it: until they are opened, nobody can write to them.
            busy = {topic for job in controller.image.running_jobs(link) for topic in job.topics}
            topics = [topic for topic in owed if topic not in busy]
            if not topics:
                continue
            try:
                await fence.open(topics, timeout=_TIMEOUT)
                now = time.monotonic()
                for topic in topics:
                    if (job_id, topic) not in since:
                        log.info("link %s: the source accepts writes to %s again", link, topic)
                        since[job_id, topic] = now
                settled = [topic for topic in topics if now - since[job_id, topic] >= _LATE]
                if settled:
                    await controller.note_source_fence(link, job_id, opened=settled)
            except LinkerError as error:
                for topic in topics:
                    since.pop((job_id, topic), None)  # an opening may come late, too: into the next promote
                log.warning(
                    "link %s: the source may still refuse writes to %s, for promote %d: %s (again)",
                    link,
                    ", ".join(topics),
                    job_id,
                    error,
                )
