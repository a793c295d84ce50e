"""Moving the replicas of mirrors to other brokers of the target, before their promote."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from admin.models import Action, ChangeResult, ReassignRequest
from admin.service import IllegalState, InvalidRequest, PreflightFailed
from controller.phases import ENDED
from controller.plan.reassign import MOVABLE
from controller.state import MirrorTopic
from linker.checks.preflight import TIMEOUT
from linker.links.lost_brokers import MovePlan
from linker.links.runtime import LinkRuntime
from linker.service.base import ServiceBase
from validator.evidence.text import size
from wire.errors import LinkerError
from wire.frames.types import TopicPartition, per_topic
from wire.shown_id import listed
from wire.together import together_by_key


class MirrorReassigns(ServiceBase):
    async def reassign_mirrors(self, link: str, request: ReassignRequest, *, dry_run: bool) -> ChangeResult:
        """Refused as a whole if one of the mirrors cannot be moved: half of it would leave the broker in use."""
        self._require_ready()
        async with self._changing:
            link = self._mirrored_by(link, request)
            runtime = self._runtime(link)
            mirrors = self._chosen(link, request)
            alive = {broker.id for broker in self._brokers(runtime)}
            unable = sorted(set(request.to) - alive)
            if unable:
                raise InvalidRequest(
                    f"broker {unable[0]} can take no replica now; those of the target that can: {sorted(alive)}"
                )
            leave = set(request.away_from) or {
                broker for mirror in mirrors for replicas in mirror.target_replicas for broker in replicas
            } - set(request.to)
            plan = runtime.lost_brokers.plan(mirrors, leave, to=request.to, fewer=request.fewer_replicas)
            if plan.refused:
                topic, why = min(plan.refused.items())
                raise PreflightFailed(
                    f"topic {topic}: {why}; with --fewer-replicas (fewer_replicas) it has one less from now on"
                )
            sizes = await _sizes(runtime, plan.old, alive)
            if not dry_run and plan.moves:
                try:
                    await runtime.bring_up.move(plan.moves, afresh=request.afresh)
                except LinkerError as error:
                    raise IllegalState(
                        f"the replicas are not moved, or not all of them: {error}; linker mirror describe shows which"
                    ) from error
        return ChangeResult(
            dry_run=dry_run,
            actions=_actions(plan, sizes, request.afresh),
            warnings=self._left(link, mirrors, leave, plan.moves),
        )

    def _mirrored_by(self, link: str, request: ReassignRequest) -> str:
        """The link whose mirrors are named: of topics that were switched it is the one that runs the other way."""
        mirrors, reverse = self._image.mirrors, self._reverse(link)
        switched = [
            topic
            for topic in request.topics
            if reverse is not None and (link, topic) not in mirrors and (reverse.name, topic) in mirrors
        ]
        if reverse is None or not switched:
            return link
        if others := sorted(set(request.topics) - set(switched)):
            raise InvalidRequest(
                f"{listed(sorted(switched))}: switched, so its replicas are on brokers of the source, and those of "
                f"{listed(others)} on brokers of the target: name them apart"
            )
        return reverse.name

    def _chosen(self, link: str, request: ReassignRequest) -> list[MirrorTopic]:
        if request.all:
            return list(self._image.link_mirrors(link))
        return [self._mirror(link, topic)[1] for topic in dict.fromkeys(request.topics)]

    def _left(
        self,
        link: str,
        mirrors: Collection[MirrorTopic],
        leave: Collection[int],
        moves: Mapping[TopicPartition, object],
    ) -> list[str]:
        """The partitions that stay on a broker that is to be left, and why; or that there is nothing to move."""
        held = [
            f"{state.tp} ({state.phase})"
            for mirror in mirrors
            for state in self._image.topic_partitions(link, mirror.topic)
            if set(mirror.replicas_of(state.partition)) & set(leave)
            and state.phase not in ENDED
            and (state.phase not in MOVABLE or state.session_epoch < 0)
        ]
        if held:
            return [f"not moved, since a promote or its bring-up has it, or it FAILED: {listed(held)}"]
        return [] if moves else ["no replica of these mirrors has to be moved"]


async def _sizes(
    runtime: LinkRuntime, replicas: Mapping[TopicPartition, tuple[int, ...]], alive: Collection[int]
) -> dict[TopicPartition, int]:
    """Bytes of each partition's log on a broker that has a copy; one that no broker tells is left out."""
    holders: dict[int, list[TopicPartition]] = {}
    for tp, members in replicas.items():
        copy = runtime.copies.get(tp)
        there = [b for b in members if b in alive]
        if copy is not None:
            ends = {b: f.fetch_offset for b in there if (f := copy.followers.get(b)) is not None}
            there.sort(key=lambda b: -ends.get(b, -1))
        if there:
            holders.setdefault(there[0], []).append(tp)

    async def ask(broker: int, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        fields: dict[str, Any] = {
            "topics": [
                {"topic": topic, "partitions": [tp.partition for tp in of_topic]}
                for topic, of_topic in per_topic(tps).items()
            ]
        }
        try:
            answer = await runtime.target.cluster.call(
                "describe_log_dirs", fields, node_id=broker, timeout=TIMEOUT
            )
        except LinkerError:
            return {}
        return {
            TopicPartition(topic.name, part.partition_index): int(part.partition_size)
            for found in answer.results
            for topic in found.topics
            for part in topic.partitions
            if not part.is_future_key
        }

    answers = await together_by_key({broker: ask(broker, tps) for broker, tps in holders.items()})
    return {tp: told for answer in answers.values() for tp, told in answer.items()}


def _actions(plan: MovePlan, sizes: Mapping[TopicPartition, int], afresh: bool) -> list[Action]:
    actions: list[Action] = []
    total = unknown = 0
    for tp, new in plan.moves.items():
        old = plan.old[tp]
        copying = [b for b in new if afresh or b not in old]
        leaving = [b for b in old if b not in new]
        parts = []
        if copying:
            told = sizes.get(tp)
            unknown += told is None
            total += (told or 0) * len(copying)
            each = "bytes not known" if told is None else size(told)
            parts.append(f"broker {', '.join(map(str, copying))} copies it ({each} each)")
        if leaving:
            parts.append(
                f"broker {', '.join(map(str, leaving))} "
                + ("drops its copy at once" if afresh else "is left with the promote")
            )
        detail = f"{list(old)} -> {list(new)}: {'; '.join(parts)}"
        actions.append(Action(action="reassign", resource=str(tp), detail=detail))
    if actions:
        detail = f"{size(total)} in all" + (f", and {unknown} partitions of unknown size" if unknown else "")
        actions.append(Action(action="copy", resource=f"{len(plan.moves)} partitions", detail=detail))
    return actions
