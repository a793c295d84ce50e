"""Creating, pausing and deleting mirrors. A refused request has changed nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from admin.models import Action, ChangeResult, CreateMirrorsRequest, MirrorDescription, MirrorSummary
from admin.service import (
    IllegalState,
    InvalidRequest,
    NameTaken,
    NotReady,
    PreflightFailed,
    SourceTopicNotFound,
)
from controller import errors as refused
from controller.decide.links import left_out
from controller.decide.mirrors import refuse_while_running
from controller.decide.source_fence import owed_topics
from controller.phases import ENDED, PROMOTING, Phase
from controller.plan.taken_configs import configs_at_promote
from controller.state import MirrorTopic, same_source_topic
from linker.access.report import who_may_not
from linker.checks import preflight
from linker.checks.beginning_again import instead, why_not
from linker.checks.holdings import Held, drop_actions, holdings, lost_records, warnings
from linker.checks.topic_names import is_internal
from linker.links import status as view
from linker.links.new_mirrors import Wanted
from linker.links.reads import clients_left, held_readers
from linker.links.runtime import LinkRuntime
from linker.links.topic_options import topic_patterns, topic_settings
from linker.manual_steps import undo_source_fence
from linker.service.base import ServiceBase, shown_as, source_away, still_closed
from wire.errors import LinkerError
from wire.frames.types import topic_id_str
from wire.metadata.image import TopicImage


class MirrorChanges(ServiceBase):
    async def create_mirrors(
        self, link: str, request: CreateMirrorsRequest, *, dry_run: bool
    ) -> ChangeResult:
        runtime = self._runtime(link)
        self._require_ready()
        if (away := await source_away(runtime)) is not None:
            raise NotReady(away)
        async with self._changing:
            runtime = self._runtime(link)  # a link update may have begun it anew
            new, names = runtime.new_mirrors, runtime.source.topic_names
            topics = [names.ours(topic) for topic in request.topics]
            for topic in request.topics:
                self._refuse_existing(runtime, topic)
            for name, other in new.collisions(topics):
                raise InvalidRequest(
                    f"topics {name} and {other} differ in '.' and '_' only, and a cluster of today's Kafka takes one of "
                    "them: mirror one, nothing was made"
                )
            wanted = Wanted(request.start, request.replication_factor, tuple(request.configs_from_target))
            with shown_as(PreflightFailed, preflight.PreflightError):
                if request.include:
                    rules = topic_patterns(request.include, request.exclude)
                    planned = await runtime.topics.examine(rules, wanted)
                else:
                    planned = await new.plan(topics, wanted)
            if planned.missing:
                raise SourceTopicNotFound([names.there(topic) for topic in planned.missing])
            if not dry_run:
                await new.write_down(planned.mirrors)
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(
                    action="create mirror",
                    resource=mirror.topic,
                    detail=_layout(mirror, request.replication_factor, planned.at_source[mirror.topic]),
                )
                for mirror in planned.mirrors
            ],
            warnings=[
                *(f"topic {topic} is not mirrored: {why}" for topic, why in sorted(planned.refused.items())),
                *([] if planned.mirrors or planned.refused else ["the source has no other topic that fits"]),
                *(finding.detail for finding in planned.findings if not finding.fatal),
                *(
                    await who_may_not(runtime, [mirror.topic for mirror in planned.mirrors])
                    if dry_run
                    else []
                ),
            ],
        )

    def _refuse_existing(self, runtime: LinkRuntime, topic: str) -> None:
        if is_internal(topic, {self._sidecar.config.store.topic}):
            raise InvalidRequest(f"topic {topic} is internal to Kafka and is not mirrored")
        why = runtime.new_mirrors.name_taken(runtime.source.topic_names.ours(topic))
        if why is not None:
            raise NameTaken(why)

    async def list_mirrors(self, link: str) -> list[MirrorSummary]:
        return await self._mirrors(self._runtime(link))

    async def describe_mirror(self, link: str, topic: str) -> MirrorDescription:
        reverse = self._reverse(link)
        if reverse is not None:
            link = self._shown(self._runtime(link), reverse, topic).name
        runtime, mirror = self._mirror(link, topic)
        summary = view.mirror_summary(runtime, mirror)
        states = self._image.topic_partitions(link, topic)
        return MirrorDescription(
            **summary.model_dump(),
            topic_id=topic_id_str(mirror.topic_id),
            source_topic_id=None if mirror.source_topic_id is None else topic_id_str(mirror.source_topic_id),
            start=mirror.start,
            replication_factor=mirror.replication_factor or 0,
            created_at=view.moment(mirror.created_at),
            configs=dict(mirror.copied_configs),
            configs_at_promote=configs_at_promote(self._image, mirror),
            configs_from_target=list(mirror.configs_from_target),
            configs_put_back=dict(runtime.configs.put_back.get(topic, {})),
            upstream=list(mirror.upstream),
            held_readers=held_readers(runtime.router.hub, link, topic),
            clients_left=clients_left(runtime.router.hub, [topic]) if runtime is reverse else [],
            partition_status=[view.partition_status(runtime, state) for state in states],
        )

    async def pause_mirror(self, link: str, topic: str, *, dry_run: bool) -> ChangeResult:
        return await self._set_paused(link, topic, True, dry_run)

    async def resume_mirror(self, link: str, topic: str, *, restart: bool, dry_run: bool) -> ChangeResult:
        if restart:
            return await self._restart(link, topic, dry_run)
        return await self._set_paused(link, topic, False, dry_run)

    async def _restart(self, link: str, topic: str, dry_run: bool) -> ChangeResult:
        """The operator's override of FAILED. Without a lost offset there is nothing to override."""
        runtime, mirror = self._mirror_here(link, topic)
        self._require_ready()
        states = self._image.topic_partitions(link, topic)
        failed = [state for state in states if state.phase is Phase.FAILED]
        if not failed:
            raise IllegalState(f"topic {topic} has no FAILED partition")
        self._refuse_while_running(link, topic)
        topics, missing, findings = await preflight.read_source_topics(runtime.source, [topic])
        with shown_as(PreflightFailed, preflight.PreflightError):
            preflight.refuse(findings)
        if missing:
            raise SourceTopicNotFound([mirror.source_topic])
        there = topics[topic]
        same = same_source_topic(mirror.source_topic_id, there.topic_id)
        known = None not in (mirror.source_topic_id, there.topic_id)
        # Added partitions are mirrored, too. Only where topics have no ids are they taken for a sign of another topic.
        same_size = there.partitions >= mirror.partitions if known else there.partitions == mirror.partitions
        if not same or not same_size:
            raise IllegalState(
                f"topic {topic} is another one at the source now (deleted and created again, or with other "
                "partitions): delete the mirror and create it again"
            )
        found = self._refuse_stuck(mirror)
        held = (
            [] if found is None else await self._held(runtime, mirror, found, [s.partition for s in failed])
        )
        if not dry_run:
            async with self._changing:
                self._refuse_while_running(link, topic)
                self._refuse_stuck(mirror)
                # Larger batches may be why it failed: segments become as large as the source's before it begins again.
                with contextlib.suppress(LinkerError):
                    await self._runtime(link).configs.follow([topic])
                await self._runtime(link).bring_up.restart(topic)
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(
                    action="begin again",
                    resource=str(state.tp),
                    detail="at the source's present log start; the target's copies are dropped",
                )
                for state in failed
            ]
            + drop_actions(held),
            warnings=warnings(held),
        )

    def _refuse_stuck(self, mirror: MirrorTopic) -> TopicImage | None:
        """The mirror's topic at the target; IllegalState where beginning again would do nothing."""
        found = self._sidecar.target.image.topics_by_name.get(mirror.topic)
        states = self._image.topic_partitions(mirror.link, mirror.topic)
        why = why_not(mirror, states, found, self._sidecar.link_brokers())
        if why is not None:
            raise IllegalState(f"topic {mirror.topic} cannot be begun again: {why}; {instead(mirror, found)}")
        return found

    async def _held(
        self, runtime: LinkRuntime, mirror: MirrorTopic, found: TopicImage, wanted: Iterable[int]
    ) -> list[Held]:
        return await holdings(runtime, mirror, found, self._sidecar.link_brokers(), wanted=wanted)

    def _refuse_while_running(self, link: str, topic: str) -> None:
        """A failover takes FAILED mirrors too, and a mirror that begins again has nothing to take over."""
        with shown_as(IllegalState, refused.Refused):
            refuse_while_running(self._image, link, topic)

    async def _set_paused(self, link: str, topic: str, paused: bool, dry_run: bool) -> ChangeResult:
        # Checked and done under one lock, as a delete is: a promote that began in between would find its topic paused.
        async with self._changing:
            runtime, mirror = self._mirror_here(link, topic)
            tps = mirror.topic_partitions()
            states = self._image.topic_partitions(link, topic)
            if any(state.phase in PROMOTING | ENDED for state in states):
                raise IllegalState(f"topic {topic} is being promoted or was promoted already")
            failed = [state.tp for state in states if state.phase is Phase.FAILED]
            if failed and not any(state.phase is Phase.PAUSED for state in states):
                # An error, not a silent success: the missing data do not come back by themselves.
                raise IllegalState(
                    f"{failed[0]} has FAILED, there is nothing to {'pause' if paused else 'go on with'}: see mirror "
                    "describe for the reason; mirror resume --restart begins again, without what the source has lost"
                )
            controller = self._sidecar.controller
            with shown_as(IllegalState, refused.Refused):
                await (controller.pause if paused else controller.resume)(link, topic, dry_run=dry_run)
            if not dry_run:
                (runtime.fetcher.pause if paused else runtime.fetcher.resume)(tps)
                if not paused:
                    runtime.bring_up.ask(topic)
        return ChangeResult(
            dry_run=dry_run,
            actions=[Action(action="pause mirror" if paused else "resume mirror", resource=topic)],
        )

    async def delete_mirror(
        self, link: str, topic: str, *, keep_data: bool, force: bool = False, dry_run: bool
    ) -> ChangeResult:
        # Checked and done under one lock: a promote that began in between would lose its topic at the target.
        async with self._changing:
            runtime, mirror = self._mirror_here(link, topic)
            states = [
                one for one in self._image.topic_partitions(link, topic) if not left_out(self._image, one)
            ]
            ended = all(state.phase in ENDED for state in states)
            if not ended and any(state.phase in ENDED for state in states):
                raise IllegalState(f"topic {topic} is promoted in part: promote the rest first")
            closed = owed_topics(self._image, link, topic)
            try:
                await self._sidecar.controller.delete_mirror(link, topic, force=force, dry_run=True)
            except refused.SourceClosed as error:
                raise IllegalState(still_closed(error)) from error
            except refused.Refused as error:
                raise IllegalState(str(error)) from error
            if keep_data and not ended:
                raise InvalidRequest(
                    f"topic {topic} is not promoted, so nobody but the link broker leads it: promote it to keep its data"
                )
            actions = [Action(action="delete mirror", resource=topic)]
            told: list[str] = []
            found = self._sidecar.target.image.topics_by_name.get(topic)
            # Only the mirror's own topic: somebody may have deleted it and made another one of that name.
            if not ended and found is not None and found.id == mirror.topic_id:
                actions.append(Action(action="delete topic", resource=topic, detail="at the target"))
                held = await self._held(runtime, mirror, found, found.partitions)
                actions += drop_actions(held)
                told = warnings(held)
                lost = lost_records(held)
                if lost and not (force or dry_run):
                    raise IllegalState(
                        f"topic {topic} holds {lost} acknowledged records that exist at the target alone "
                        f"({told[0]}): save them first; --force (force=true) deletes them"
                    )
            if not dry_run:
                await runtime.bring_up.delete(topic, topic_too=len(actions) > 1, force=force)
        if not ended and topic_settings(self._image.links[link].options).rules.takes(mirror.source_topic):
            told = [
                *told,
                f"topics_include of link {link} takes topic {mirror.source_topic} again: name it in topics_exclude",
            ]
        if not closed:
            return ChangeResult(dry_run=dry_run, actions=actions, warnings=told)
        warning = (
            f"the source still refuses writes to {topic}; that is undone when it can be reached, as long as the link is "
            f"there, or by hand, at the source: {undo_source_fence(closed)}"
        )
        return ChangeResult(dry_run=dry_run, actions=actions, warnings=[*told, warning])


def _layout(mirror: MirrorTopic, asked: int | None, at_source: int) -> str:
    """How many partitions and replicas the topic gets, why as many, and where."""
    factor = mirror.replication_factor or 0
    if asked is not None:
        why = "as asked"
    elif factor == at_source:
        why = "as at the source"
    else:
        why = f"the source's is {at_source}, and the target has {factor} brokers"
    brokers = sorted({broker for replicas in mirror.target_replicas for broker in replicas})
    of = f"of the source's {mirror.source_name}: " if mirror.source_name is not None else ""
    return (
        f"{of}{mirror.partitions} partition{'s' if mirror.partitions != 1 else ''}, replication factor {factor} ({why}), on "
        f"broker{'s' if len(brokers) != 1 else ''} {', '.join(map(str, brokers))}"
    )
