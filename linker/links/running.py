"""The links of this process by name: start, stop, restart, and follow the link controller."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final

from controller.state import Link, Record
from fleet.shared_controller import SharedController
from linker.links.runtime import LIVE_OPTIONS, LinkRuntime
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.task_group import TaskGroup
from wire.together import first_error

log = logging.getLogger(__name__)

_RESTART: Final = 5.0


class RunningLinks(Mapping[str, LinkRuntime]):
    """`group` is whose tasks they are; without one nothing can be started."""

    def __init__(
        self, make: Callable[[Link], LinkRuntime], controller: Callable[[], SharedController], at: str = ""
    ) -> None:
        """`at`: the cluster that the links mirror into (`controller.state.Link.at`)."""
        self._make = make
        self._controller = controller
        self._at = at
        self._links: dict[str, LinkRuntime] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # Ending a link waits for its task, and somebody may start the link again meanwhile: one of the two at a time
        # for each name.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._following: set[asyncio.Task[None]] = set()
        self.group: TaskGroup | None = None

    def __getitem__(self, name: str) -> LinkRuntime:
        return self._links[name]

    def source(self, name: str) -> Cluster:
        """The source of a link that runs; LinkerError where there is none. Asked for every forwarded produce."""
        runtime = self._links.get(name)
        if runtime is None:
            raise LinkerError(f"link {name} does not exist any more")
        return runtime.source

    def forwards(self, name: str) -> bool:
        """Whether produces may go to the source of the link. Asked for each of them."""
        runtime = self._links.get(name)
        return runtime is not None and runtime.forwards

    def refuses(self, name: str) -> str | None:
        """Why no produce goes to the source of the link until a person does something; None while one may soon."""
        runtime = self._links.get(name)
        return None if runtime is None else runtime.refuses

    def holds_reads(self, name: str, client_id: str | None, topic: str) -> bool:
        """Whether a consumer of this client id must not read this mirror before its promote; heartbeats are for everybody.
        Asked per partition of each fetch."""
        runtime = self._links.get(name)
        return runtime is not None and runtime.reads.holds(client_id) and topic != runtime.heartbeats.topic

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __contains__(self, name: object) -> bool:
        return name in self._links

    @property
    def tasks(self) -> Collection[asyncio.Task[None]]:
        """All tasks to cancel at the end, those that are about to start a link again included."""
        return (*self._following, *self._tasks.values())

    def follow(self, records: Sequence[Record]) -> None:
        """A listener of the controller. Where another sidecar decides, links come and go with what it has committed."""
        controller = self._controller()
        if controller.is_controller and records:
            return  # the service that asked for the change sees to it
        wanted = {name: link for name, link in controller.image.links.items() if link.at == self._at}
        for name in self._links.keys() - wanted.keys():
            self._spawn(self._agree(name))
        for name, link in wanted.items():
            runtime = self._links.get(name)
            if runtime is None:
                self.start(link)
            elif _begins_anew(runtime.link, link):
                self._spawn(self._agree(name))
            else:
                runtime.follow(records)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self.group is None:
            work.close()
            return
        task = self.group.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _agree(self, name: str) -> None:
        """Have a link run as the state says if it does not yet: only here does anybody see what was committed while the
        link was being ended."""
        async with self._locks[name]:
            runtime, link = self._links.get(name), self._controller().image.links.get(name)
            if runtime is not None and (link is None or _begins_anew(runtime.link, link)):
                await self._end(name)
            self._start_again(name)

    def start(self, link: Link) -> None:
        """Run a link of the controller's state."""
        if self.group is None:
            raise LinkerError("the sidecar is not running")
        runtime = self._links[link.name] = self._make(link)
        self._tasks[link.name] = self.group.create_task(self._run(runtime), name=f"link {link.name}")

    async def _run(self, runtime: LinkRuntime) -> None:
        """Until cancelled. A link that ends by itself is shown with the reason and begins again from its durable state,
        as it would in a new process; the other links go on.
        """
        before: str | None = None
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await runtime.run()
            except Exception as error:
                reason = first_error(error) if isinstance(error, BaseExceptionGroup) else error
                if isinstance(reason, LinkerError):
                    runtime.reach.trouble = str(reason)
                    if runtime.trouble != before:
                        log.warning("link %s cannot run: %s", runtime.name, reason)
                else:
                    runtime.reach.trouble = f"internal error: {reason!r}; see the log"
                    log.exception("link %s ended by a bug and begins again", runtime.name)
                before = runtime.trouble
            # Nothing fills the windows any more: who asks for a partition is told to come again.
            runtime.fetcher.remove(list(runtime.fetcher.partitions))
            # One whose source cannot even be asked has waited itself, and could be asked for a failover meanwhile.
            lasted = 0.0 if runtime.unusable is None else clock() - began
            await asyncio.sleep(max(0.0, _RESTART - lasted))
            link = self._controller().image.links.get(runtime.name)
            if link is None:
                return  # deleted; whoever did it takes the rest away
            runtime = self._links[runtime.name] = self._make(link)

    async def stop(self, name: str) -> None:
        """End a link's work. Its state is the controller's business."""
        async with self._locks[name]:
            await self._end(name)

    async def restart(self, name: str) -> None:
        """With its present state, after an update."""
        async with self._locks[name]:
            await self._end(name)
            self._start_again(name)

    async def _end(self, name: str) -> None:
        """Ends a link, under the lock of its name. Nothing that the link itself does may wait for that lock."""
        runtime, task = self._links.get(name), self._tasks.pop(name, None)
        if task is not None:
            task.cancel()  # once: another one would cut short what it does at its end
            self._ending[name] = task
        if name in self._ending:
            # Also if who cancelled it was cancelled here itself.
            await asyncio.wait([self._ending[name]])
            del self._ending[name]
        # Last, and without a wait in between: until here the router may ask for the link's source.
        if runtime is not None:
            runtime.fetcher.remove(list(runtime.fetcher.partitions))
            if self._links.get(name) is runtime:  # and not one that was started meanwhile
                del self._links[name]

    def _start_again(self, name: str) -> None:
        link = self._controller().image.links.get(name)
        if link is not None and name not in self._links:
            self.start(link)


def _begins_anew(before: Link, now: Link) -> bool:
    return before.properties != now.properties or _fetching(before) != _fetching(now)


def _fetching(link: Link) -> dict[str, Any]:
    """The options that a link has to begin anew for."""
    return {name: value for name, value in link.options.items() if name not in LIVE_OPTIONS}
