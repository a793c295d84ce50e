"""`fleet.balancer_ports.BalancerPorts` over the fleet controller, the links and one cluster with sidecars as brokers:
the target, or a source that they have joined. It decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from controller.cluster_view import ImageView
from controller.decide.mirrors import Leadership
from controller.judge.hand_over import find
from controller.phases import ENDED, Phase
from controller.plan.elections import SidecarBroker
from controller.plan.reassign import moved_to
from controller.plan.replicas import LiveBrokers
from fleet.balancer_ports import Mirrored, Tps
from fleet.fleet_controller import FleetController
from linker.links.runtime import LinkRuntime
from linker.membership import TargetCluster
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage
from wire.together import together

_MOST_ADOPTED = 500
_MOVABLE = frozenset({Phase.ACTIVE, Phase.PAUSED})


class FleetLeadership:
    """Exists while this sidecar is the link controller; `close` when it no longer is."""

    def __init__(
        self,
        fleet_controller: FleetController,
        target: TargetCluster,
        links: Mapping[str, LinkRuntime],
        link_brokers: Callable[[], frozenset[int]],
        *,
        known: Callable[[Tps], Awaitable[None]],
        at: str = "",
    ) -> None:
        """`known`: wait, not for long, until clients that ask are told the new leaders. `at`: the cluster, as `Link.at`."""
        self._at = at
        self._known = known
        self._fleet_controller = fleet_controller
        self._target = target
        self._links = links
        self._link_brokers = link_brokers
        self._changed = asyncio.Event()
        self._unsubscribe = target.metadata.subscribe(lambda image, topics: self._changed.set())
        fleet_controller.on_membership.add(self._changed.set)
        fleet_controller.controller.listeners.add(self._on_records)

    def close(self) -> None:
        self._unsubscribe()
        self._fleet_controller.on_membership.discard(self._changed.set)
        self._fleet_controller.controller.listeners.discard(self._on_records)

    def _on_records(self, _records: object) -> None:
        self._changed.set()

    def image(self) -> ImageView:
        return self._target.image

    def partitions(self) -> Mapping[TopicPartition, Mirrored]:
        state = self._fleet_controller.controller.image
        here = {link for link in state.links if state.at(link) == self._at}
        found: dict[TopicPartition, Mirrored] = {}
        if self._at and not any(state.link_mirrors(link) for link in here):
            return found  # nothing was switched
        promoting = {tp for link in state.links for job in state.running_jobs(link) for tp in job.partitions}
        for (link, tp), partition in state.partitions.items():
            mirror = state.mirrors.get((link, tp.topic))
            if link not in here:
                continue  # in another cluster
            if mirror is None or not mirror.target_replicas or partition.phase in ENDED | {Phase.HANDED_OVER}:
                continue
            topic = self._target.image.topics_by_name.get(tp.topic)
            if topic is None or topic.id != mirror.topic_id:
                continue  # the topic was deleted and made anew: not ours to manage
            runtime = self._links.get(link)
            leader = None if runtime is None else runtime.source.leader(tp)
            found[tp] = Mirrored(
                targets=mirror.target_replicas[tp.partition],
                rack=None if leader is None else leader.rack,
                movable=partition.phase in _MOVABLE
                and partition.session_epoch >= 0
                and tp not in promoting
                and not self._moved(topic.partitions.get(tp.partition), mirror.replicas_of(tp.partition)),
            )
        return found

    def _moved(self, partition: PartitionImage | None, replicas: Sequence[int]) -> bool:
        """Whether somebody reassigned the partition to other real brokers. The state has to follow first, so nothing is
        put back."""
        link = self._link_brokers()
        brokers = LiveBrokers(link=link, alive=link, registered=self._target.image.brokers.keys())
        return partition is not None and moved_to(partition, replicas, brokers) is not None

    def sidecars(self) -> Sequence[SidecarBroker]:
        alive = self._fleet_controller.alive()
        members = self._fleet_controller.members
        found = []
        state = self._fleet_controller.controller.image
        for sidecar, identity in sorted(state.identities.items()):
            broker_id = state.broker_at(self._at, sidecar)
            if broker_id is None:
                continue
            member = members.get(sidecar)
            broker = self._target.image.brokers.get(broker_id)
            rack = member.hello.rack if member is not None else None if broker is None else broker.rack
            found.append(
                SidecarBroker(
                    id=broker_id,
                    rack=rack,
                    alive=sidecar in alive,
                    draining=identity.draining,
                    leaving=identity.leaving,
                )
            )
        return found

    def link_brokers(self) -> Collection[int]:
        return self._link_brokers()

    async def wait_changed(self, *, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    async def wait_until(self, predicate: Callable[[ImageView], bool], *, timeout: float) -> bool:
        return await self._target.metadata.becomes(predicate, timeout)

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None:
        await self._target.operations.reassign(wanted, timeout=timeout)

    async def alter_isr(
        self, wanted: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        return await self._target.operations.alter_isr(wanted, timeout=timeout)

    async def elect_preferred(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, int]:
        return await self._target.operations.elect_preferred(tps, timeout=timeout)

    async def fence_broker(self, broker_id: int, broker_epoch: int, *, timeout: float) -> bool:
        return await self._target.operations.fence_broker(broker_id, broker_epoch, timeout=timeout)

    async def move_fence(self, tps: Tps, origin: int, *, timeout: float) -> None:
        await together(
            self._fleet_controller.commands.hold(link, chosen, self._sidecar(origin), timeout=timeout)
            for link, chosen in self._by_link(tps).items()
        )

    async def move_done(self, tps: Tps, origin: int, *, timeout: float) -> None:
        # A client that is sent away asks a real broker: one that still names the old leader costs it a back-off.
        image = self._target.image
        moved = [tp for tp in tps if (view := find(image, tp)) is not None and view.leader != origin]
        if moved:
            await self._known(moved)
        await together(
            self._fleet_controller.commands.release(link, chosen, self._sidecar(origin), timeout=timeout)
            for link, chosen in self._by_link(tps).items()
        )

    def _sidecar(self, broker_id: int) -> int:
        return self._fleet_controller.controller.image.sidecar_at(self._at, broker_id)

    def _by_link(self, tps: Tps) -> dict[str, list[TopicPartition]]:
        links: dict[str, list[TopicPartition]] = {}
        state = self._fleet_controller.controller.image
        for link, tp in state.partitions:
            if tp in tps and state.at(link) == self._at:
                links.setdefault(link, []).append(tp)
        return links

    async def adopt(self, tps: Tps) -> None:
        for link, chosen in self._by_link(tps).items():
            changes = {
                tp: Leadership(view.leader, view.leader_epoch, tuple(view.isr))
                for tp in chosen
                if (view := find(self._target.image, tp)) is not None
                and self._fleet_controller.controller.image.partitions[link, tp].session_epoch >= 0
            }
            # A store has a bound on one commit; each of these is right by itself.
            for part in _parts(changes):
                await self._fleet_controller.controller.adopt_leadership(link, part)


def _parts(changes: dict[TopicPartition, Leadership]) -> list[dict[TopicPartition, Leadership]]:
    items = list(changes.items())
    return [dict(items[at : at + _MOST_ADOPTED]) for at in range(0, len(items), _MOST_ADOPTED)]
