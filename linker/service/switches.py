"""Switching topics between the two clusters of a link, and the sync that a switch needs.

A topic has one mirror: of the link, while the source owns it, or of the link that runs the other way, once it was switched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from admin.models import (
    Action,
    ChangeResult,
    FinishRequest,
    PromoteJobStatus,
    PromotePlan,
    PromoteRequest,
    SyncRequest,
)
from admin.service import IllegalState, MirrorNotFound, PreflightFailed
from controller.decide import restores
from controller.decide.promotes import refuse_in_waves
from controller.decide.reverse import reverse_of, set_sync
from controller.errors import ControllerError
from controller.phases import ENDED, LED_ELSEWHERE, SWITCHING, Phase
from controller.state import PromoteJob, SwitchEnd
from fleet.by_topic import decide_by_topic
from linker.joined_sources import joins_source
from linker.links.named_transactions import transactions_with
from linker.links.reads import clients_left
from linker.links.runtime import LinkRuntime
from linker.links.topic_shape import kept_for_its_own, of_its_own
from linker.promote.driver import cut
from linker.promote.ports import PromoteSettings
from linker.service.base import shown_as
from linker.service.promotes import Promotes
from router.clients_seen import TRANSACTION
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.shown_id import listed

_FINISH_TIMEOUT = 30.0
_LOOK_TIMEOUT = 10.0


class Switches(Promotes):
    async def sync_mirrors(self, link: str, request: SyncRequest, *, dry_run: bool) -> ChangeResult:
        """Each topic on the link that mirrors it now."""
        self._require_ready()
        async with self._changing:
            runtime = self._runtime(link)
            chosen = self._by_link(link, request.topics, all_=request.all)
            if not request.off:
                self._check_joined(runtime)
                self._check_whole(chosen)
                self._check_not_begun(chosen)
            controller = self._sidecar.controller
            if not request.off and not dry_run:
                await self._ensure_reverse(link)
            with shown_as(IllegalState, ControllerError):
                for name, topics in chosen.items():
                    await decide_by_topic(
                        controller,
                        topics,
                        lambda image, some, name=name: set_sync(image, name, some, not request.off),  # type: ignore[misc]
                        dry_run=dry_run,
                    )
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(
                    action="end sync" if request.off else "sync",
                    resource=topic,
                    detail="link brokers leave its replicas"
                    if request.off
                    else "link brokers become in-sync replicas: acks=all waits for every replica of the mirror",
                )
                for topics in chosen.values()
                for topic in topics
            ],
        )

    async def _ensure_reverse(self, link: str) -> None:
        """The link that runs the other way is written down, and runs."""
        if reverse_of(self._image, link) is None:
            cluster_id = self._sidecar.target.cluster.cluster_id or ""
            reverse = await self._sidecar.controller.ensure_reverse(link, cluster_id)
            self._sidecar.joined[link].links.start(reverse)

    async def finish_mirrors(self, link: str, request: FinishRequest, *, dry_run: bool) -> ChangeResult:
        """Topics that the target owns, and that nobody is about to switch. Where the target is lost for good this is the
        way back, so nothing is asked of it."""
        self._require_started()
        async with self._changing:
            runtime, reverse = self._runtime(link), self._reverse(link)
            self._check_joined(runtime)
            switched = (
                [] if reverse is None else [one.topic for one in self._image.link_mirrors(reverse.name)]
            )
            topics = switched if request.all else list(dict.fromkeys(request.topics))
            if reverse is None or not topics or set(topics) - set(switched):
                other = sorted(set(topics) - set(switched))
                raise IllegalState(
                    f"{listed(other)}: the target does not own it: there is no switch to finish"
                    if other
                    else f"no topic of link {link} was switched"
                )
            jobs = [*self._image.running_jobs(link), *self._image.running_jobs(reverse.name)]
            if busy := sorted(set(topics).intersection(topic for job in jobs for topic in job.topics)):
                raise IllegalState(f"{listed(busy)}: a switch is under way")
            own = self._of_their_own(reverse, topics)
            if own and request.delete_source_topics:
                raise IllegalState(kept_for_its_own(*own[0]))
            untold = (
                []
                if request.delete_source_topics
                else await self._refuse_transactions(runtime, reverse, topics)
            )
            if not dry_run:
                end = SwitchEnd.DELETED if request.delete_source_topics else SwitchEnd.CLOSED
                try:
                    await runtime.switch.finish(topics, end, timeout=_FINISH_TIMEOUT)
                except ControllerError as error:
                    raise IllegalState(str(error)) from error
                except (LinkerError, TimeoutError) as error:
                    raise IllegalState(
                        f"the switch is not finished yet, or not of all topics: {error}; it is gone on with"
                    ) from error
        closed = (
            "deleted at the source"
            if request.delete_source_topics
            else "closed at the source: max.message.bytes=0"
        )
        return ChangeResult(
            dry_run=dry_run,
            actions=[Action(action="finish", resource=topic, detail=closed) for topic in topics],
            warnings=[
                "there is no way back: clients that are left at the source get errors from now on",
                *(
                    f"{tp} is led by broker {leader} of the source, and may have records that the target lacks: they stay "
                    "at the source"
                    for tp, leader in own
                ),
                *untold,
            ],
        )

    async def _refuse_transactions(
        self, runtime: LinkRuntime, reverse: LinkRuntime, topics: Sequence[str]
    ) -> list[str]:
        """IllegalState while a producer with transactions is left. A closed topic takes no markers either, and a coordinator
        that is told so gives up: the transactional id would hang, and others whose markers were in the same request. Returns
        warnings: what could not be looked at."""
        left = [one for one in clients_left(reverse.router.hub, topics) if one.does == TRANSACTION]
        seen = await transactions_with(runtime.source, topics, timeout=_LOOK_TIMEOUT)
        names = {one.topic: f"client {one.client_id} at {one.host}" for one in left}
        names |= {topic: f"transactional.id {listed(ids)}" for topic, ids in seen.ids.items()}
        for topic, name in names.items():
            raise IllegalState(
                f"topic {topic}: {name} still writes in transactions at the source. Closed, the topic takes no end of a "
                "transaction either, so that id could never be used again. Move or stop the producer, wait for its "
                "transaction.timeout.ms, and try again; or delete the topic there (--delete-source-topics)"
            )
        return seen.untold

    def _of_their_own(self, reverse: LinkRuntime, topics: Sequence[str]) -> list[tuple[TopicPartition, int]]:
        """Of each topic that may have records of its own in the cluster that was left, one partition that may."""
        there = reverse.target.image.topics_by_name
        found = []
        for topic in topics:
            mirror, left = self._image.mirrors[reverse.name, topic], there.get(topic)
            if left is not None and left.id == mirror.topic_id:
                own = of_its_own(mirror, left, reverse.link_brokers())
                found += [] if own is None else [own]
        return found

    def _check_whole(self, chosen: Mapping[str, Sequence[str]]) -> None:
        """A mirror without the first records is no log to switch to: the cluster that is left would drop them, too."""
        parts = [
            topic
            for name, topics in chosen.items()
            for topic in topics
            if self._image.mirrors[name, topic].start != "earliest"
        ]
        if parts:
            raise IllegalState(
                f"{listed(parts)} is not mirrored from its first record on, so it cannot be switched: once the target owns "
                "it the source would delete what lies before. Delete the mirror and create it from the beginning"
            )

    def _check_copies(self, link: str, topics: Sequence[str]) -> None:
        """A topic that is not copied just now never gets in sync, and the others would wait for it."""
        idle = {
            state.phase: state.topic
            for topic in topics
            for state in self._image.topic_partitions(link, topic)
            if state.phase in (Phase.PAUSED, Phase.FAILED)
        }
        for phase, topic in idle.items():
            raise IllegalState(
                f"topic {topic} is {phase}, so it cannot be switched: "
                + (
                    f"linker mirror resume {topic}"
                    if phase is Phase.PAUSED
                    else f"linker mirror describe {topic} says why"
                )
                + ", or name the others"
            )

    def _check_joined(self, runtime: LinkRuntime) -> None:
        """IllegalState unless link brokers of the link can be replicas at the source, and mirrors take the same names."""
        link = self._image.links[runtime.name]
        if not joins_source(link):
            raise IllegalState(
                f"link {link.name} has not joined its source: linker link update {link.name} --join-source"
            )
        if runtime.read_only is not None:
            raise IllegalState(f"link {link.name} has {runtime.read_only}: its topics cannot be switched")
        section = self._sidecar.config.sources.get(link.name)
        if len(self._image.identities) > 1 and section is not None and section.zookeeper_connect is not None:
            raise IllegalState(
                f"the source of link {link.name} is run by ZooKeeper: its topics are switched by one sidecar alone. "
                "linker sidecar leave makes a fleet one"
            )
        if link.name not in self._sidecar.joined:
            found = self._sidecar.joined.sources.get(link.name)
            why = "" if found is None or found.reason is None else f": {found.reason}"
            raise PreflightFailed(f"the sidecar is no broker of the source of link {link.name} yet{why}")

    def _by_link(self, link: str, topics: Sequence[str], *, all_: bool) -> dict[str, list[str]]:
        """The topics by the link that mirrors them now, in either direction."""
        reverse = reverse_of(self._image, link)
        names = [link] if reverse is None else [link, reverse.name]
        if all_:
            topics = list(
                dict.fromkeys(mirror.topic for name in names for mirror in self._image.link_mirrors(name))
            )
        found: dict[str, list[str]] = {}
        for topic in dict.fromkeys(topics):
            name = next((name for name in names if self._mirrored(name, topic)), None)
            if name is not None:
                found.setdefault(name, []).append(topic)
            elif not all_:
                self._refuse_moved(link, topic)
                raise MirrorNotFound(link, topic, None)
        return found

    def _refuse_moved(self, link: str, topic: str) -> None:
        """IllegalState for a topic that a switch or a restore has in its hands, or that a promote or a failover has moved
        as a whole, and nobody took its source over."""
        states = self._image.topic_partitions(link, topic)
        if self._under_way(link, topic):
            raise IllegalState(f"topic {topic} changes hands right now: try again in a moment")
        if states:
            raise IllegalState(
                f"topic {topic} is {states[0].phase}, and its source does not follow the target: linker mirror restore "
                f"{topic} --link {link} has it follow, and linker mirror switch goes back then"
            )

    def _check_not_begun(self, chosen: Mapping[str, Sequence[str]]) -> None:
        """A topic of which a promote moved a part, and nobody took over the source of that, is no longer one log: the
        source's brokers may have records of their own in what was moved."""
        for name, topics in chosen.items():
            for topic in topics:
                states = self._image.topic_partitions(name, topic)
                over = [state for state in states if state.phase in LED_ELSEWHERE]
                if not over or self._under_way(name, topic):
                    continue
                link = self._image.links[name].at or name
                off = (
                    f"end its sync (linker mirror sync {topic} --link {link} --off), "
                    if self._image.mirrors[name, topic].sync
                    else ""
                )
                raise IllegalState(
                    f"of topic {topic} {len(over)} of {len(states)} partitions are the target's already, by a promote that "
                    f"ended half way, and the source does not follow there: {off}promote the rest (linker mirror promote "
                    f"{topic} --link {link}), then linker mirror restore {topic} --link {link} has the source follow, and "
                    "linker mirror switch goes back"
                )

    def _under_way(self, link: str, topic: str) -> bool:
        """A job moves it, or link brokers hold its source."""
        jobs = self._image.running_jobs(link)
        return any(topic in job.topics for job in jobs) or bool(
            restores.back_states(self._image, link, topic)
        )

    def _mirrored(self, link: str, topic: str) -> bool:
        """Whether the link copies the topic: neither before its take-over is through, nor after it was handed over."""
        states = self._image.topic_partitions(link, topic)
        return bool(states) and any(state.phase not in ENDED | SWITCHING for state in states)

    async def promote(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        """A promote of topics that are in sync becomes a switch: nobody can write to the source past the fence, and
        there is a way back."""
        topics = self._promote_topics(link, request)
        synced = [topic for topic in topics if self._image.mirrors[link, topic].sync]
        if not synced:
            return await super().promote(link, request)
        if len(synced) < len(topics):
            raise IllegalState(
                f"{listed(synced)} is in sync, which makes a promote a switch, and the others are not: name them apart, or "
                f"end the sync (linker mirror sync --off --link {link})"
            )
        async with self._changing:
            self._check_joined(self._runtime(link))
            self._check_not_begun({link: topics})
            return await self._begin_promote(link, request, switch=True)

    async def plan_switch(self, link: str, request: PromoteRequest) -> PromotePlan:
        name, asked = self._switched_by(link, request)
        plan = await self.plan_promote(name, asked)
        changed = {
            "blockers": [*self._not_in_sync(name, asked.topics), *plan.blockers],
            "warnings": [*self._waves(name, asked), *plan.warnings],
        }
        return plan.model_copy(update=changed)

    def _waves(self, link: str, asked: PromoteRequest) -> list[str]:
        """A line if the topics do not go all together."""
        tps = [state.tp for topic in asked.topics for state in self._image.topic_partitions(link, topic)]
        settings = PromoteSettings().in_batches(asked.options.batch_partitions)
        waves = cut(tps, settings, PromoteJob(id=0, link=link, partitions=tuple(tps), switch=True))
        if len(waves) <= 1:
            return []
        line = (
            f"{len(tps)} partitions go in {len(waves)} waves of whole topics, one after the other: writers of a wave wait "
            "until it is over, and one that fails ends the switch and leaves those before it where they went"
        )
        return [line]

    async def switch_mirrors(self, link: str, request: PromoteRequest) -> PromoteJobStatus:
        async with self._changing:
            name, asked = self._switched_by(link, request)
            if blockers := self._not_in_sync(name, asked.topics):
                raise IllegalState("; ".join(blockers))
            return await self._begin_promote(name, asked, switch=True)

    def _switched_by(self, link: str, request: PromoteRequest) -> tuple[str, PromoteRequest]:
        """The link whose mirrors of these topics are promoted, and the request with the topics named."""
        self._check_joined(self._runtime(link))
        found = self._by_link(link, request.topics, all_=request.all)
        if not found:
            raise IllegalState(f"link {link} has nothing to switch")
        if len(found) > 1:
            there = found.pop(link)
            [back] = found.values()
            raise IllegalState(
                f"the source owns {listed(there)} and the target {listed(back)}: name those that are to be switched together"
            )
        self._check_not_begun(found)
        name, topics = next(iter(found.items()))
        self._check_copies(name, topics)
        try:
            refuse_in_waves(self._image, name, topics)
        except ControllerError as error:
            raise IllegalState(str(error)) from error
        return name, request.model_copy(update={"topics": topics, "all": False})

    def _not_in_sync(self, link: str, topics: Sequence[str]) -> list[str]:
        return [
            f"topic {topic} is not in sync: linker mirror sync {topic} --link {self._image.links[link].at or link}"
            for topic in topics
            if not self._image.mirrors[link, topic].sync
        ]
