"""Restoring sources after a failover or a promote: what they have beyond it, and asking for it. The link's runtime does the
work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from admin.models import RestorePartition, RestorePlan, RestoreRequest, RestoreState
from admin.service import IllegalState, ServiceError
from controller.decide import restores as decide
from controller.decide.reverse import reverse_name
from controller.errors import ControllerError, Refused
from controller.judge.hand_over import find
from controller.phases import Phase
from controller.state import MirrorPartition, MirrorTopic
from fleet.by_topic import DecideTopics, decide_by_topic
from linker.links.runtime import LinkRuntime
from linker.service.base import shown_as
from linker.service.switches import Switches
from linker.switch.log_tail import LogTails
from wire.errors import LinkerError
from wire.shown_id import listed
from wire.together import together

_ASK = 5.0
_COUNT = 15.0  # seconds in which the records of all partitions are counted
_AT_ONCE = 16
_FLEET = "a fleet of several sidecars cannot restore a source yet: linker sidecar leave makes it one"
_ABANDONED = "it was abandoned"


class RestoreRequests(Switches):
    def _restorable(self, link: str, request: RestoreRequest) -> list[str]:
        self._runtime(link)
        if not request.all:
            return list(dict.fromkeys(request.topics))
        failed_over = [
            mirror.topic
            for mirror in self._image.link_mirrors(link)
            if any(s.phase is Phase.FAILED_OVER for s in self._image.topic_partitions(link, mirror.topic))
        ]
        return [*failed_over, *(topic for topic in self._restored(link) if topic not in failed_over)]

    def _restored(self, link: str) -> list[str]:
        """Topics that were, and were not switched since."""
        back = reverse_name(link)
        return [
            mirror.topic
            for mirror in self._image.link_mirrors(back)
            if (link, mirror.topic) not in self._image.mirrors
            and any(
                s.taken is not None and s.taken.exported is not None
                for s in self._image.topic_partitions(back, mirror.topic)
            )
        ]

    async def plan_restore(self, link: str, request: RestoreRequest) -> RestorePlan:
        """The records that the source has beyond the take-over now, or where a restore stands that was asked for."""
        runtime = self._runtime(link)
        self._require_ready()
        partitions: list[RestorePartition] = []
        blockers: list[str] = []
        warnings: list[str] = []
        looked: list[MirrorPartition] = []
        restored = self._restored(link)
        for topic in self._restorable(link, request):
            if topic in restored:
                partitions += [
                    _done(state) for state in self._image.topic_partitions(reverse_name(link), topic)
                ]
            elif decide.under_way(self._image, link, topic) or self._asked_for(link, topic):
                partitions += [
                    _restoring(runtime, state) for state in self._image.topic_partitions(link, topic)
                ]
            elif (why := decide.obstacle(self._image, link, topic)) is not None:
                blockers.append(why)
            else:
                looked += self._image.topic_partitions(link, topic)
                warnings += self._closed(link, topic)
        if looked:
            try:
                self._check_joined(runtime)
            except ServiceError as error:
                blockers.append(str(error))
            if len(self._image.identities) > 1:
                blockers.append(_FLEET)
            member = self._sidecar.joined.get(link)
            if member is not None and member.membership.control is not None:
                blockers.append("a source that is run by ZooKeeper cannot be restored yet")
            found, why_not = await self._look(runtime, looked, force=request.force)
            partitions += found
            blockers += why_not
        return RestorePlan(
            link=link, partitions=partitions, blockers=list(dict.fromkeys(blockers)), warnings=warnings
        )

    def _closed(self, link: str, topic: str) -> list[str]:
        return [
            f"promote {job.id} closed topic {topic} at the source (--fence-source): its clients there are refused until "
            "somebody takes that ACL away"
            for (name, _), job in sorted(self._image.jobs.items())
            if name == link and not job.switch and topic in job.source_fenced
        ]

    def _asked_for(self, link: str, topic: str) -> bool:
        mirror = self._image.mirrors.get((link, topic))
        return mirror is not None and (mirror.restoring or bool(decide.back_states(self._image, link, topic)))

    async def _look(
        self, runtime: LinkRuntime, states: Sequence[MirrorPartition], *, force: bool
    ) -> tuple[list[RestorePartition], list[str]]:
        """The state of each partition at both clusters, and the reasons against a restore."""
        places = asyncio.Semaphore(_AT_ONCE)
        until = time.monotonic() + _COUNT
        blockers: list[str] = []

        async def one(state: MirrorPartition) -> RestorePartition:
            async with places:
                shown = RestorePartition(
                    topic=state.topic,
                    partition=state.partition,
                    state=RestoreState(state.phase),
                    end=decide.end_of(state),
                    reason=state.reason,
                )
                try:
                    return shown.model_copy(update=await self._beyond(runtime, state, until, force=force))
                except (LinkerError, TimeoutError) as error:
                    blockers.append(f"{state.tp}: {error or 'no answer in time'}")
                    return shown

        return await together(one(state) for state in states), blockers

    async def _beyond(
        self, runtime: LinkRuntime, state: MirrorPartition, until: float, *, force: bool
    ) -> dict[str, int | None]:
        """The records of one partition beyond the take-over; LinkerError if something is in the way."""
        tp, end = state.tp, decide.end_of(state)
        mirror = self._image.mirrors[runtime.name, tp.topic]
        await self._check_target(runtime, mirror, state)
        leader, topic_id = await self._source_leader(runtime, mirror, state)
        tails = LogTails(runtime.source, "restore plan")
        agreed = await tails.agreed(leader, tp, topic_id, decide.source_history(state), timeout=_ASK)
        span = await tails.span(leader, tp, timeout=_ASK)
        if agreed < end and span.end > agreed and not force:
            raise Refused(
                f"the source has other records than the target from offset {agreed} on, below {end}, where the target took "
                "over (it has lost its own, maybe). With --force they are exported and truncated, too"
            )
        start = max(agreed, span.start)
        records = await tails.count(leader, tp, topic_id, start, lambda: until - time.monotonic())
        return {"agreed": agreed, "source_end": span.end, "records": records}

    async def _check_target(self, runtime: LinkRuntime, mirror: MirrorTopic, state: MirrorPartition) -> None:
        """Check that the target still has its log up to the take-over, and has deleted nothing that the source lacks."""
        tp, end = state.tp, decide.end_of(state)
        topic = runtime.target.image.topics_by_name.get(tp.topic)
        if topic is None or topic.id != mirror.topic_id:
            raise Refused("the topic was deleted at the target since, or made anew")
        partition = topic.partitions[tp.partition]
        if partition.leader < 0 or partition.leader in runtime.link_brokers():
            raise Refused("no broker of the target's own leads it")
        tails = LogTails(runtime.target.cluster, "restore plan")
        span = await tails.span(partition.leader, tp, timeout=_ASK)
        if span.start > end:
            raise Refused(
                f"retention has deleted the target's records up to {span.start}, it took over at {end}"
            )
        if end <= (state.start_offset or 0):
            return
        agreed = await tails.agreed(
            partition.leader, tp, topic.id, decide.target_history(state), timeout=_ASK
        )
        if agreed < end:
            raise Refused(
                f"the target has lost records that it took over, from offset {agreed} up to {end} (an unclean election)"
            )

    async def _source_leader(
        self, runtime: LinkRuntime, mirror: MirrorTopic, state: MirrorPartition
    ) -> tuple[int, bytes]:
        """The broker id of the leader at the source, and the topic's id; LinkerError unless all brokers of the partition
        are there."""
        tp = state.tp
        await runtime.source.refresh([tp.topic], timeout=_ASK)
        topic = runtime.source.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        if (
            topic is None
            or partition is None
            or topic.topic_id is None
            or topic.topic_id != mirror.source_topic_id
        ):
            raise Refused("the source has no such topic any more, or another one of its name")
        if len(topic.partitions) != mirror.partitions:
            raise Refused(
                f"the source has {len(topic.partitions)} partitions of it, the target {mirror.partitions}"
            )
        member = self._sidecar.joined.get(runtime.name)
        if member is not None:
            known = find(member.membership.image, tp)
            if known is not None:
                missing = set(known.replicas) - set(known.isr) - member.link_brokers()
                if missing:
                    raise Refused(
                        f"brokers {sorted(missing)} of the source are not in its ISR {list(known.isr)}, and may have "
                        "records that no other has"
                    )
        if partition.leader < 0:
            raise Refused("nobody leads it at the source")
        return partition.leader, topic.topic_id

    async def restore_mirrors(self, link: str, request: RestoreRequest) -> RestorePlan:
        """All of these topics or none. They are restored one after the other, and this returns at once."""
        async with self._changing:
            topics = self._restorable(link, request)
            if request.abandon:
                waiting = [topic for topic in topics if self._asked_for(link, topic)]
                if not waiting:
                    raise IllegalState("nothing is being restored")
                await self._write(waiting, lambda image, some: decide.end(image, link, some, _ABANDONED))
                return await self.plan_restore(link, request)
            plan = await self.plan_restore(link, request)
            if plan.blockers:
                raise IllegalState(listed(plan.blockers, apart="; ", last="; and "))
            new = [topic for topic in topics if topic not in self._restored(link)]
            if not new:
                raise IllegalState(f"link {link} has nothing to restore: no topic of it was failed over")
            self._check_joined(self._runtime(link))
            await self._ensure_reverse(link)
            await self._write(new, lambda image, some: decide.begin(image, link, some))
        return plan

    async def _write(self, topics: Sequence[str], decide_: DecideTopics) -> None:
        with shown_as(IllegalState, ControllerError):
            await decide_by_topic(self._sidecar.controller, topics, decide_)


def _restoring(runtime: LinkRuntime, state: MirrorPartition) -> RestorePartition:
    return RestorePartition(
        topic=state.topic,
        partition=state.partition,
        state=RestoreState.RESTORING,
        end=decide.end_of(state),
        reason=runtime.switch.restores.reasons.get(state.topic, "it has just begun"),
    )


def _done(state: MirrorPartition) -> RestorePartition:
    exported = None if state.taken is None else state.taken.exported
    return RestorePartition(
        topic=state.topic,
        partition=state.partition,
        state=RestoreState.RESTORED,
        end=None if state.taken is None else state.taken.end,
        agreed=None if exported is None else exported.start,
        source_end=None if exported is None else exported.end,
        records=None if exported is None else exported.records,
        file=exported.path or None if exported is not None else None,
    )
