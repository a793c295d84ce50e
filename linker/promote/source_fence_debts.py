"""Opens the source again after a promote that could not do so for certain.

The source was away just then, or a request to close it may still have been under way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from controller.decide.source_fence import debts
from fleet.link_controller import LinkController
from linker.promote.ports import SourceFence
from linker.promote.source_fence import AclSourceFence
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_EVERY = 2.0
#: Until nothing can close it any more: a broker tries for 60 s to hand a request on to its controller
#: (`NodeToControllerChannelManager`), and one may have waited in a queue.
_LATE = 120.0
_TIMEOUT = 10.0


class SourceFenceDebts:
    """Those of one link. `reached`: whether the source is there, and is the link's."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        fence: AclSourceFence,
        reached: Callable[[], bool],
        switch: Callable[[], SourceFence | None] = lambda: None,
    ) -> None:
        """`switch`: the fence of jobs that are switches; None while this sidecar cannot give anything back."""
        self._switch = switch
        self._link = link
        self._controller = controller
        self._fence = fence
        self._reached = reached
        #: By job and topic: since when it has been open, as far as this process knows.
        self._since: dict[tuple[int, str], float] = {}
        self.task = PeriodicTask("sources that refuse writes", self._pay, _EVERY, first=_EVERY)

    async def _pay(self) -> str | None:
        if not self._reached():
            return None
        all_owed = debts(self._controller.image, self._link)
        self._since = {key: at for key, at in self._since.items() if key[1] in all_owed.get(key[0], ())}
        failed = None
        for job_id, owed in all_owed.items():
            # The driver undoes what belongs to a job that runs, which must not find its fence taken away. Topics of
            # other jobs do not wait for it: until they are opened, nobody can write to them.
            busy = {topic for job in self._controller.image.running_jobs(self._link) for topic in job.topics}
            topics = [topic for topic in owed if topic not in busy]
            if topics:
                failed = await self._open(job_id, topics) or failed
        return failed

    async def _open(self, job_id: int, topics: list[str]) -> str | None:
        since = self._since
        job = self._controller.image.jobs.get((self._link, job_id))
        switch = job is not None and job.switch
        fence = self._switch() if switch else self._fence
        if fence is None:
            return f"the sidecar is no broker of the source, which promote {job_id} took over"
        try:
            await fence.open(topics, timeout=_TIMEOUT)
            now = time.monotonic()
            for topic in topics:
                if (job_id, topic) not in since:
                    log.info("link %s: the source accepts writes to %s again", self._link, topic)
                    since[job_id, topic] = now
            # Nothing that comes late takes over again what was given back: its epochs are over (judge.take_over).
            late = 0.0 if switch else _LATE
            settled = [topic for topic in topics if now - since[job_id, topic] >= late]
            if settled:
                await self._controller.note_source_fence(self._link, job_id, opened=settled)
        except LinkerError as error:
            for topic in topics:
                since.pop((job_id, topic), None)  # an opening may come late, too: into the next promote
            reason = (
                f"the source may still refuse writes to {', '.join(topics)}, for promote {job_id}: {error}"
            )
            log.warning("link %s: %s; tried again", self._link, reason)
            return reason
        return None
