"""AclKeeper follows the source's ACLs at the target, for one link; only the link controller does it.

An ACL is noted in the link's state before it is made at the target. The note is the only sign that it is the link's, so
an ACL that the target had before is never removed. A removal at the source has to be seen twice: one broker that is
behind, or that was just started, must not take rights from clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from controller.access.acls import DENY, Acl, AclSet
from controller.access.carry import AclPlan, AclRules, Selection, permitted, plan, select
from controller.access.renamed import under_prefix
from controller.decide.acls import carried
from controller.phases import LED_ELSEWHERE
from fleet.link_controller import wall_clock_ms
from linker.access.cluster_access import NoAuthorizer, Refusals, create_acls, delete_acls, read_acls
from linker.access.options import acl_options
from linker.links.link_part import LinkContext, LinkPart
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL: Final = 10.0  # where the link has no option
_CONFIRM_AFTER: Final = 3.0
_AT_ONCE: Final = 200  # ACLs noted in one commit
_TOLD: Final = 20  # lines of the log in one round


@dataclass(frozen=True, slots=True)
class AclState:
    """The outcome of the last comparison."""

    plan: AclPlan
    selection: Selection
    source: AclSet
    target: AclSet


class AclKeeper(LinkPart):
    """That of one link."""

    def __init__(self, context: LinkContext) -> None:
        super().__init__(context)
        self._to_confirm: frozenset[Acl] = frozenset()
        self._turn = asyncio.Lock()
        #: Why ACLs are not compared, or not carried; None while all is well.
        self.trouble: str | None = None
        #: Wall clock milliseconds of the last comparison that went well.
        self.compared_at: int | None = None
        self.last: AclState | None = None
        self.task = PeriodicTask(
            "ACLs", self._once, _INTERVAL, failed=self._failed, pause=lambda _task: self._pause()
        )

    @property
    def rules(self) -> AclRules:
        return acl_options(self._controller.image.links[self._link].options)[1]

    def topics(self) -> frozenset[str]:
        """Mirrors that real brokers of the target do not lead yet: after that their ACLs are the target's own."""
        image = self._controller.image
        found = set()
        for mirror in image.link_mirrors(self._link):
            states = image.topic_partitions(self._link, mirror.topic)
            if not states or any(state.phase not in LED_ELSEWHERE for state in states):
                found.add(mirror.topic)
        return frozenset(found)

    async def run(self) -> None:
        """Compare and follow, until cancelled."""
        await self.task.run()

    async def _once(self) -> None:
        link = self._controller.image.links.get(self._link)
        mode = "off" if link is None else acl_options(link.options)[0].acl_sync
        if mode == "off":
            self.trouble, self.last = None, None
            return
        try:
            await self.look(self.rules, follow=mode == "follow")
        except LinkerError as error:
            if mode == "follow":
                raise
            # Nobody asked for more than a look: without an authorizer there is nothing to see.
            if isinstance(error, NoAuthorizer):
                self.trouble, self.last = None, None
            else:
                self._failed(error)
            return
        self.trouble = None

    def _failed(self, error: Exception) -> None:
        if str(error) != self.trouble:
            log.warning("link %s: ACLs are not followed: %s", self._link, error)
        self.trouble = str(error)

    def _pause(self) -> float:
        link = self._controller.image.links.get(self._link)
        pause = _INTERVAL if link is None else acl_options(link.options)[0].acl_sync_interval_ms / 1000
        return min(pause, _CONFIRM_AFTER) if self._to_confirm else pause

    async def look(self, rules: AclRules, *, follow: bool, at_once: bool = False) -> AclState:
        """Compare both clusters, and with `follow` make the target as it is to be; `at_once`: what is gone at the source
        need not be seen twice. LinkerError if either cluster does not tell, or refuses."""
        async with self._turn:
            state = await self.compare(rules)
            if follow:
                if at_once:
                    self._to_confirm = frozenset(state.plan.remove)
                await self._carry(state.plan)
            return state

    async def compare(self, rules: AclRules) -> AclState:
        """Ask both clusters, and change nothing."""
        # The target first: without an authorizer there, nobody lacks anything.
        target = await read_acls(self._target.cluster, node=self.node())
        source = under_prefix(await read_acls(self._source), self._source.topic_names.prefix)
        topics = self.topics()
        here, there = AclSet(source), AclSet(target)
        others = self._target.image.topics_by_name.keys() - topics
        selection = select(here, rules, topics, others)
        noted = carried(self._controller.image, self._link)
        planned = plan(selection, there, noted, mirrored=topics, left=others)
        self.last = AclState(planned, selection, here, there)
        self.compared_at = wall_clock_ms()
        return self.last

    def node(self) -> int | None:
        """A real broker of the target: the sidecar has no authorizer of its own."""
        alive = self._target.image.live_brokers(self._link_brokers())
        return min((broker.id for broker in alive), default=None)

    async def _carry(self, planned: AclPlan) -> None:
        """Make the ACLs. One that the target refuses holds up no other, except the ALLOWs that a refused DENY would
        restrict."""
        removable = [acl for acl in planned.remove if acl in self._to_confirm]
        self._to_confirm = frozenset(planned.remove) - frozenset(removable)
        denials = [acl for acl in planned.add if acl.permission == DENY]
        refused = await self._make(denials)
        refused |= await self._make(permitted(planned.add[len(denials) :], refused))
        for part in _parts(removable):
            kept = await delete_acls(self._target.cluster, part, node=self.node())
            done = [acl for acl in part if acl not in kept]
            await self._controller.note_acls(self._link, remove=done)
            self._tell("removed", done)
            refused |= kept
        for part in _parts(planned.forget):
            await self._controller.note_acls(self._link, remove=part)
        for error in refused.values():
            more = f" (and {len(refused) - 1} more are refused)" if len(refused) > 1 else ""
            raise LinkerError(f"{error}{more}; the others are followed")

    async def _make(self, acls: Sequence[Acl]) -> Refusals:
        refused: Refusals = {}
        for part in _parts(acls):
            await self._controller.note_acls(self._link, add=part)
            kept = await create_acls(self._target.cluster, part, node=self.node())
            if kept:
                # These are not the link's: somebody may make them by hand.
                await self._controller.note_acls(self._link, remove=kept)
                refused |= kept
            self._tell("made", [acl for acl in part if acl not in kept])
        return refused

    def _tell(self, done: str, acls: Collection[Acl]) -> None:
        for acl in list(acls)[:_TOLD]:
            log.info("link %s: ACL %s at the target: %s", self._link, done, acl)
        if len(acls) > _TOLD:
            log.info("link %s: and %d more ACLs %s", self._link, len(acls) - _TOLD, done)


def _parts(acls: Sequence[Acl]) -> list[Sequence[Acl]]:
    return [acls[first : first + _AT_ONCE] for first in range(0, len(acls), _AT_ONCE)]
