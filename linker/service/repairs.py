"""Repairing a mirror whose leadership at the target was lost or taken. The copies stay, or it says why they cannot."""

from __future__ import annotations

from admin.models import Action, ChangeResult
from admin.service import IllegalState, PreflightFailed
from controller.phases import Phase
from linker.links import forks
from linker.links.leaderless import stranded
from linker.links.topic_shape import led_by_others
from linker.service.base import ServiceBase, shown_as
from wire.errors import LinkerError
from wire.shown_id import listed


class MirrorRepairs(ServiceBase):
    async def repair_mirror(
        self, link: str, topic: str, *, drop_target_records: bool, dry_run: bool
    ) -> ChangeResult:
        """Have the link broker lead again the partitions that nobody leads. A real broker that leads keeps its
        leadership."""
        runtime, mirror = self._mirror_here(link, topic)
        self._require_ready()
        found = self._sidecar.target.image.topics_by_name.get(topic)
        if found is None or found.id != mirror.topic_id:
            raise IllegalState(
                f"the mirror topic {topic} was deleted at the target, so there is nothing to repair: delete the mirror and "
                "create it again"
            )
        ours = self._sidecar.link_brokers()
        states = self._image.topic_partitions(link, topic)
        taken = [
            state for state, _ in led_by_others(states, found, ours) if state.phase not in (Phase.LINKING,)
        ]
        if taken:
            lost = await forks.look(self._sidecar.target.cluster, self._sidecar.target.image, taken)
            raise IllegalState(
                "a real broker of the target leads it, so clients may be writing there: "
                + "; ".join(fork.said for fork in lost)
                + ". Stop the producers at the target, read those offsets out of the topic and write them to the source if "
                "they are needed, then delete the mirror and create it again"
            )
        lost_leaders = stranded(states, found, ours)
        if not lost_leaders:
            raise IllegalState(
                f"every partition of {topic} has a leader, or one that KRaft will elect: nothing to repair"
            )
        unsure = [one.tp for one in lost_leaders if one.led_between]
        if unsure and not drop_target_records:
            raise PreflightFailed(
                f"a real broker may have led {listed(map(str, unsure))} since the link broker did, and records that "
                "it took would be truncated: repeat with --drop-target-records if none are needed"
            )
        if not dry_run:
            async with self._changing:
                with shown_as(IllegalState, LinkerError):
                    await runtime.bring_up.lead_again(topic, unsure_too=drop_target_records)
        return ChangeResult(
            dry_run=dry_run,
            actions=[
                Action(
                    action="lead again",
                    resource=str(one.tp),
                    detail="by the link broker; the copies on the target's brokers stay",
                )
                for one in lost_leaders
            ],
        )
