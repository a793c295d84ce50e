"""Look-ups and helpers that all parts of the service share."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any

from admin.models import MirrorSummary, UnmirroredTopic
from admin.service import (
    IllegalState,
    LinkNotFound,
    MirrorNotFound,
    NotReady,
    OutcomeUnknown,
    ServiceError,
)
from controller.decide.promotes import next_job
from controller.decide.reverse import reverse_of
from controller.errors import SourceClosed
from controller.image import ControllerImage
from controller.phases import ENDED, SWITCHING
from controller.plan.placement import ReplicaBroker
from controller.state import MirrorTopic, PromoteJob
from fleet.stores.base import ControllerFenced, NodeNotEmpty, StoreError, VersionConflict
from linker.checks.mirror_configs import Changed, changed
from linker.links import status as view
from linker.links.config_options import from_target
from linker.links.new_mirrors import real_brokers
from linker.links.runtime import LinkRuntime
from linker.manual_steps import undo_source_fence
from linker.promote.ports import PromoteSettings
from linker.running import Running
from linker.service.source_joins import members_of
from wire.errors import LinkerError
from wire.frames.types import TOPIC_RESOURCE

# For one commit. Longer than any store takes that works, and short enough for the request to be answered with what is known.
_WRITE_DOWN = 30.0
_ANSWERS_WITHIN = 5.0
_SUMMED_UP = 100  # mirrors in one turn of the event loop


class ServiceBase:
    """Lookups over one sidecar; the parts of the service derive from it."""

    def __init__(self, sidecar: Running) -> None:
        self._sidecar = sidecar
        self._changing = asyncio.Lock()

    @property
    def _image(self) -> ControllerImage:
        return self._sidecar.controller.image

    def ready(self) -> str | None:
        return self._sidecar.not_ready()

    def _runtime(self, link: str) -> LinkRuntime:
        known = self._image.links.get(link)
        runtime = (
            self._sidecar.links.get(link)
            if known is None or known.reverse_of is None
            else self._reverse(known.reverse_of)
        )
        if runtime is None:
            raise LinkNotFound(link)
        return runtime

    def _reverse(self, link: str) -> LinkRuntime | None:
        """The link that runs against this one; None while no topic of it was switched, or the source is not joined."""
        known, broker = reverse_of(self._image, link), self._sidecar.joined.get(link)
        return None if known is None or broker is None else broker.links.get(known.name)

    def _require_ready(self) -> None:
        reason = self._sidecar.not_ready()
        if reason is not None:
            raise NotReady(reason)

    def _require_started(self) -> None:
        """For what is done without the target."""
        reason = self._sidecar.not_started()
        if reason is not None:
            raise NotReady(reason)

    def _mirror(self, link: str, topic: str) -> tuple[LinkRuntime, MirrorTopic]:
        runtime = self._runtime(link)
        mirror = self._image.mirrors.get((link, topic))
        if mirror is None:
            if (back := self._reverse(link)) is not None and (back.name, topic) in self._image.mirrors:
                raise IllegalState(
                    f"topic {topic} was switched: the target owns it, and the source follows. linker mirror switch brings "
                    "it back, linker mirror finish ends that; this command is for topics that the target mirrors"
                )
            ours = self._image.links[link].prefix + topic
            raise MirrorNotFound(link, topic, ours if (link, ours) in self._image.mirrors else None)
        return runtime, mirror

    def _mirror_here(self, link: str, topic: str) -> tuple[LinkRuntime, MirrorTopic]:
        """The same for what is done to mirrors of the target only."""
        if (forward := self._image.links[link].reverse_of if link in self._image.links else None) is not None:
            raise IllegalState(
                f"link {link} runs against {forward}, and its mirrors lie in the source: they begin and end with linker "
                f"mirror switch and linker mirror finish of link {forward}"
            )
        return self._mirror(link, topic)

    def _own_topics(self, runtime: LinkRuntime, asked: bool) -> str | None:
        """Why topics of the link cannot end as `asked`, as the target's own or not; None if they can."""
        prefix = self._image.links[runtime.name].prefix
        if asked == bool(prefix):
            return None
        if asked:
            return f"link {runtime.name} has no prefix: its topics become the target's own in any case (--as-own-topic)"
        return (
            f"mirrors of link {runtime.name} are copies beside others (prefix={prefix}): whoever writes to their source "
            "topics goes on there; --as-own-topic ends the copying, and each is an ordinary topic of the target"
        )

    async def _write_down(
        self,
        runtime: LinkRuntime,
        begin: Callable[[], Awaitable[PromoteJob]],
        settings: PromoteSettings,
        command: str,
    ) -> PromoteJob:
        """A job that is written down and runs. `command` is the one that follows it."""
        promote = f"{runtime.name}-{next_job(self._image, runtime.name)}"
        try:
            async with asyncio.timeout(_WRITE_DOWN):
                return await runtime.begin_promote(begin, settings)
        except (ControllerFenced, VersionConflict, NodeNotEmpty):
            raise  # nothing was written
        except (StoreError, TimeoutError) as error:
            why = str(error) or f"the state store did not answer within {_WRITE_DOWN:.0f} s"
            raise OutcomeUnknown(
                f"whether {promote} was begun is not known: {why}; if it was written down it ends ABANDONED by itself, "
                f"and nothing of it happens: linker mirror {command} --attach {promote} shows it, then ask again"
            ) from error

    async def _mirrors(self, runtime: LinkRuntime) -> list[MirrorSummary]:
        """Describe mirrors, some at a time: leases and writes do not wait for thousands of them."""
        found: list[MirrorSummary] = []
        reverse = self._reverse(runtime.name)
        for one in (runtime,) if reverse is None else (runtime, reverse):
            for mirror in self._image.link_mirrors(one.name):
                if reverse is not None and one is not self._shown(runtime, reverse, mirror.topic):
                    continue
                if (one.name, mirror.topic) in self._image.mirrors:  # it may have been deleted meanwhile
                    summary = view.mirror_summary(one, mirror)
                    waits = [
                        r.switch.rescues.reasons.get(mirror.topic)
                        for r in (runtime, reverse)
                        if r is not None
                    ]
                    if why := next(filter(None, waits), None):
                        summary = summary.model_copy(update={"reason": why})
                    found.append(summary)
                if len(found) % _SUMMED_UP == 0:
                    await asyncio.sleep(0)
        return found

    def _shown(self, runtime: LinkRuntime, reverse: LinkRuntime, topic: str) -> LinkRuntime:
        """The direction of a topic that has a mirror in both while it is switched: the other way from the moment that all
        of it has gone there, though the switch may go on with other topics."""
        if (runtime.name, topic) not in self._image.mirrors:
            return reverse if (reverse.name, topic) in self._image.mirrors else runtime
        forward, back = (self._image.topic_partitions(one.name, topic) for one in (runtime, reverse))
        gone = all(state.phase in ENDED for state in forward) and not any(
            state.phase in SWITCHING for state in back
        )
        return reverse if back and gone else runtime

    def _summary_fields(self, runtime: LinkRuntime, mirrors: list[MirrorSummary]) -> dict[str, Any]:
        back = self._reverse(runtime.name)
        return {
            "name": runtime.name,
            "state": view.link_state(runtime, mirrors),
            "reason": runtime.trouble
            or "; ".join(runtime.source.foreign.values())
            or runtime.topics.trouble
            or (None if back is None or back.trouble is None else f"link {back.name}: {back.trouble}"),
            "source_cluster_id": runtime.link.source_cluster_id,
            "bootstrap_servers": runtime.link.properties.get("bootstrap.servers", ""),
            "mirrors": len(mirrors),
            "mirror_states": Counter(mirror.state for mirror in mirrors),
            "not_mirrored": [
                UnmirroredTopic(topic=runtime.source.topic_names.there(topic), reason=why)
                for topic, why in sorted(runtime.topics.not_mirrored.items())
            ],
            "source_membership": members_of(self._sidecar, runtime.name),
        }

    def _changed_configs(
        self, link: str, topics: Collection[str] | None = None
    ) -> list[tuple[str, list[Changed]]]:
        """Configs of the target's topics that are not as their mirrors are to have them; None: all topics."""
        image = self._runtime(link).target.image
        return [
            (
                mirror.topic,
                changed(
                    mirror.copied_configs,
                    image.configs.get((TOPIC_RESOURCE, mirror.topic), {}),
                    from_target(self._image, mirror),
                ),
            )
            for mirror in self._image.open_mirrors(link)
            if (topics is None or mirror.topic in topics)
            and (found := image.topics_by_name.get(mirror.topic)) is not None
            and found.id == mirror.topic_id
        ]

    def _brokers(self, runtime: LinkRuntime) -> list[ReplicaBroker]:
        """The real brokers of the cluster that the link's mirrors lie in."""
        return real_brokers(runtime.target, runtime.link_brokers())


@contextlib.contextmanager
def shown_as(kind: type[ServiceError], *errors: type[LinkerError]) -> Iterator[None]:
    """Errors whose text is the answer: what was asked for is refused."""
    try:
        yield
    except errors as error:
        raise kind(str(error)) from error


async def source_away(runtime: LinkRuntime) -> str | None:
    """Why nothing can be asked of a link's source; None if it answers. It may, and give nothing of what is mirrored: if the
    only partition of the only mirror has no leader, say."""
    if runtime.source_available:
        return None
    why: object = runtime.trouble
    if why is None:
        try:
            await runtime.source.refresh((), timeout=_ANSWERS_WITHIN)
            return None
        except LinkerError as error:
            why = error
    return f"the source of link {runtime.name} cannot be reached: {why}"


def still_closed(error: SourceClosed) -> str:
    """Why something is not deleted, and the way past that."""
    return (
        f"{error}. It is deleted all the same with --force (force=true); then, at the source: "
        f"{undo_source_fence(error.topics)}"
    )
