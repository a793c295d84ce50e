"""Keeps link brokers among the in-sync replicas of topics that are to be in sync, in the cluster that the link mirrors.

The link controller asks for it (`controller.plan.in_sync`), and looks again whenever that cluster's metadata log or the
state has moved: somebody's reassignment takes them out, brokers die, partitions are added. Whether they are in the ISR is
read from the log, never stored. A partition that a link broker leads unasked is given back; where none of its own brokers is
in the ISR any more, `rescue` does it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from controller.cluster_view import TopicView
from controller.phases import ENDED
from controller.plan.in_sync import InSync, SyncStep, sync_step
from controller.plan.replicas import CancelReassignment, ElectPreferred, Reassign
from controller.plan.topic_configs import MIN_INSYNC
from fleet.link_controller import LinkController
from linker.links.configs import topic_configs
from linker.membership import TargetCluster
from linker.switch.owner import OwnerCluster, OwnerPorts
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL = 0.5
_TIMEOUT = 10.0
#: How often min.insync.replicas is read anew, of topics that are to be in sync.
_MIN_INSYNC = 30.0
#: Looked at once more after so long, although nothing is known to have moved.
_LOOK_ANYWAY = 5.0


class OwnerMember(Protocol):
    """The sidecar as a broker of the cluster that the link mirrors (linker.link_broker.LinkBroker)."""

    @property
    def membership(self) -> TargetCluster: ...

    def link_brokers(self) -> frozenset[int]: ...


class SyncReplicas:
    """Of one link; its task runs on the link controller."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        joined: Callable[[], OwnerMember | None],
        follower: Callable[[TopicPartition], int | None] = lambda _tp: None,
    ) -> None:
        """`joined`: None while this sidecar is no broker of the cluster. `follower`: the broker there of the sidecar that
        leads a mirror: it alone hears what the replicas of the mirror have, any other one would hold up `acks=all` for
        nothing. -1: it is no broker there; None: nobody leads the mirror."""
        self._link = link
        self._controller = controller
        self._joined = joined
        self._follower = follower
        self._clock: Callable[[], float] = time.monotonic
        #: By topic, where each partition stands that is to be in sync, or is to be left yet.
        self._states: dict[str, list[SyncStep]] = {}
        self._min_insync: dict[str, int] = {}
        self._read_at = -_MIN_INSYNC
        self._looked_at = -_LOOK_ANYWAY
        self._seen: object = None
        self.task = PeriodicTask("in-sync link brokers", self._once, _INTERVAL, failed=self._failed)

    def _failed(self, error: Exception) -> None:
        log.warning("link %s: looking after in-sync link brokers failed: %s; tried again", self._link, error)

    def state(self, topic: str) -> tuple[InSync, str] | None:
        """The worst of a topic's partitions with its reason; None if it is not to be in sync."""
        found = self._states.get(topic, [])
        order = list(InSync)
        worst = min(found, key=lambda step: order.index(step.state), default=None)
        return None if worst is None else (worst.state, worst.reason)

    async def _once(self) -> str | None:
        member, image = self._joined(), self._controller.image
        if member is None:
            self._states, self._seen = {}, None
            return None
        now, seen = self._clock(), (member.membership.image.changes, image.stamp)
        if seen == self._seen and now < min(self._read_at + _MIN_INSYNC, self._looked_at + _LOOK_ANYWAY):
            return None
        owner: OwnerPorts = OwnerCluster(member.membership, member.link_brokers)
        wanted = {
            mirror.topic
            for mirror in image.link_mirrors(self._link)
            if mirror.restoring
            or (
                mirror.sync
                and any(s.phase not in ENDED for s in image.topic_partitions(self._link, mirror.topic))
            )
        }
        self._seen, self._looked_at = None, now
        await self._learn_min_insync(member.membership, wanted)
        steps = self._steps(owner, wanted)
        self._states = {}
        for tp, step in steps.items():
            if tp.topic in wanted or step.send or step.reason:
                self._states.setdefault(tp.topic, []).append(step)
        turns = {
            tp: one.send.replicas if isinstance(one.send, Reassign) else None
            for tp, one in steps.items()
            if isinstance(one.send, Reassign | CancelReassignment)
        }
        elected = [tp for tp, one in steps.items() if isinstance(one.send, ElectPreferred)]
        for tp, one in steps.items():
            if isinstance(one.send, CancelReassignment) and one.reason:
                log.warning("link %s: %s at the source: %s", self._link, tp, one.reason)
        if turns:
            await owner.reassign(turns, timeout=_TIMEOUT)
        if elected:
            log.warning("link %s: a link broker leads %s unasked: given back", self._link, elected[0])
            await owner.elect(elected, timeout=_TIMEOUT)
        if not turns and not elected:
            self._seen = seen
        return None

    def _steps(self, owner: OwnerPorts, wanted: Collection[str]) -> dict[TopicPartition, SyncStep]:
        """Of the topics that are to be in sync, and of all others that have a link broker among their replicas."""
        image, link = owner.image(), set(owner.link_brokers())
        steps: dict[TopicPartition, SyncStep] = {}
        for name, topic in image.topics_by_name.items():
            sync = name in wanted
            if not sync and all(link.isdisjoint(one.replicas) for one in topic.partitions.values()):
                continue
            if self._is_switched(name) or not (sync or self._came_by_sync(name, topic, link)):
                continue
            for index, partition in topic.partitions.items():
                tp = TopicPartition(name, index)
                follower = self._follower(tp)
                candidates = [] if follower is None else [follower]
                if follower is None and (self._link, tp) in self._controller.image.partitions:
                    # While nobody leads the mirror, all stays as it is.
                    candidates = [b for b in partition.replicas if b in link]
                steps[tp] = sync_step(
                    image,
                    partition,
                    link,
                    candidates,
                    1 if sync else 0,
                    # To leave what nobody reads the configs of: an ISR of one real broker is the least there can be.
                    self._min_insync.get(name, None if sync else 1),
                )
        return steps

    def _came_by_sync(self, name: str, topic: TopicView, link: Collection[int]) -> bool:
        """Whether it may be us who put link brokers among the replicas: always last, and in a record after that of the
        creation. A cluster that cannot cordon places them itself, and gets other brokers for them (`linker.evictor`)."""
        if (self._link, name) in self._controller.image.mirrors:
            return True
        return all(one.replicas[-1] in link and one.partition_epoch > 0 for one in topic.partitions.values())

    def _is_switched(self, topic: str) -> bool:
        """A link has it as a mirror in that very cluster: it is being switched, or was."""
        image = self._controller.image
        link = image.links.get(self._link)
        there = "" if link is not None and link.reverse_of is not None else self._link
        return image.mirror_of_topic(topic, there) is not None

    async def _learn_min_insync(self, membership: TargetCluster, wanted: Collection[str]) -> None:
        now = self._clock()
        if self._min_insync.keys() == set(wanted) and now - self._read_at < _MIN_INSYNC:
            return
        found: Mapping[str, str] = {}
        if wanted:
            configs = await topic_configs(membership.cluster, sorted(wanted), timeout=_TIMEOUT)
            found = {topic: one.effective.get(MIN_INSYNC, "1") for topic, one in configs.items()}
        self._min_insync = {topic: int(value) for topic, value in found.items() if value.isdigit()}
        self._read_at = now

    def led_alone(self) -> set[str]:
        """Topics in sync of which a link broker is the last of the ISR, and leads since all others died."""
        member = self._joined()
        if member is None:
            return set()
        topics, link = member.membership.image.topics_by_name, member.link_brokers()
        return {
            mirror.topic
            for mirror in self._controller.image.link_mirrors(self._link)
            if mirror.sync
            and not mirror.restoring
            and (found := topics.get(mirror.topic)) is not None
            and not self._is_switched(mirror.topic)
            and any(
                one.leader in link and link.issuperset(one.isr) and not link.issuperset(one.replicas)
                for one in found.partitions.values()
            )
        }
