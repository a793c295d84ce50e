"""The part of a link in a switch: its topics are taken over in the cluster that owns them, and reversed after the hand-over.

`linker.switch` has the steps; here they get this link's parts, and those of the link against it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from controller.decide.reverse import at_source
from controller.errors import ControllerError
from controller.judge.alignment import ReplicaPosition
from controller.judge.hand_over import find
from controller.phases import ENDED, LED_ELSEWHERE, SWITCHING, Phase
from controller.state import MirrorPartition, MirrorTopic, Record, RemoveMirror, SwitchEnd
from fetcher.partition_copy import PartitionCopy
from fetcher.progress import UNKNOWN_OFFSET
from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from linker.links.restoring import Restores
from linker.links.source_sync import SourceSync
from linker.promote.ports import ReplicaProgress, SwitchFence
from linker.switch.fence import TakeOverFence
from linker.switch.owner import OwnerCluster
from linker.switch.records import TakeOverRecords
from linker.switch.rescue import Rescues
from linker.switch.sync_replicas import OwnerMember, SyncReplicas
from linker.switch.take_over import TakeOver
from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask
from wire.together import together

log = logging.getLogger(__name__)

_INTERVAL: Final = 5.0
_CALL: Final = 10.0
_FINISH: Final = 30.0
#: No batch is as small: a broker refuses every write for good, and needs no authorizer for it.
_SIZE: Final = "max.message.bytes"
_NONE: Final = "0"


class LinkSwitch:
    """Of one link, on this sidecar."""

    def __init__(
        self,
        link: str,
        controller: LinkController,
        sync: SourceSync,
        joined: Callable[[], OwnerMember | None],
        ask: Callable[[str], None],
        against: Callable[[], ReplicaProgress | None],
        copies: Mapping[TopicPartition, PartitionCopy],
        fleet_controller: Callable[[], FleetController | None],
        most: int,
        source: Cluster,
        exports: Path,
        drop: Callable[[str], Awaitable[None]],
        forwards_again: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask`: has a mirror of this link looked at. `against`: how far the owner's brokers have followed the link that
        runs the other way; None while it does not run. `copies`: those that this sidecar serves. `most`: how many link
        brokers hold a partition that is taken over. `exports`: the directory of what is taken out of a source. `drop`:
        deletes the mirror of the link that runs the other way, and its topic. `forwards_again`: writes that waited may go
        to the source."""
        self._forwards_again = forwards_again
        self._held: set[TopicPartition] = set()  # by a switch
        self._fleet_controller = fleet_controller
        self._most = most
        self._link = link
        self._controller = controller
        self._sync = sync
        self._joined = joined
        self._against = against
        self._ask = ask
        self._copies = copies
        self._drop = drop
        self._finishing = asyncio.Lock()
        self._records = TakeOverRecords(controller, link)
        self._owner: tuple[OwnerMember, TakeOver] | None = None
        #: Keeps link brokers in the ISR of the topics that are to be in sync.
        self.replicas = SyncReplicas(link, controller, joined, self._follower)
        self.rescues = Rescues(link, controller, self.replicas.led_alone, self._take_over)
        self.restores = Restores(link, controller, source, sync, joined, self, exports)
        self.task = PeriodicTask("switched topics", self._look, _INTERVAL, failed=self._failed)
        self.finish_task = PeriodicTask(
            "switches to finish", self._finish_begun, _INTERVAL, failed=self._failed, first=_INTERVAL
        )

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        self.restores.on_records(records)
        self._note_released(records)
        for one in records:
            if isinstance(one, MirrorPartition) and one.phase is Phase.TAKEN and one.link != self._link:
                self._ends_at(one)
        given_back = {
            one.topic for one in records if isinstance(one, RemoveMirror) and one.link != self._link
        }
        if given_back or not records:
            against = self._name_against() or ""
            switched = {one.topic for one in self._controller.image.link_mirrors(against)}
            # Those, too, whose mirrors another sidecar leads by now: they may come back here, and nobody would tell then.
            of = [tp for tp in self._sync.followed if tp.topic not in switched]
            self._sync.begin([tp for tp in of if not records or tp.topic in given_back])
        for topic in {
            one.topic
            for one in records
            if isinstance(one, MirrorPartition) and one.link == self._link and one.taken is not None
        }:
            self._ask(topic)
        if not records or any(
            isinstance(one, MirrorPartition) and one.phase in LED_ELSEWHERE | SWITCHING for one in records
        ):
            self.task.wake()
        if any(isinstance(one, MirrorPartition | MirrorTopic) and one.link == self._link for one in records):
            self.replicas.task.wake()  # somebody else may lead

    def _note_released(self, records: Sequence[Record]) -> None:
        """Writes that came while a partition was taken over go to the other cluster from now on, or are refused at once."""
        states = records or list(self._controller.image.link_partitions(self._link))
        mine = [one for one in states if isinstance(one, MirrorPartition) and one.link == self._link]
        held = {one.tp for one in mine if one.phase in SWITCHING}
        removed = {one.topic for one in records if isinstance(one, RemoveMirror) and one.link == self._link}
        told = {one.tp for one in mine} if records else self._held
        released = {tp for tp in self._held - held if tp in told or tp.topic in removed}
        self._held = (self._held | held) - released
        if released:
            # All listeners hear of a commit in the same moment, those that the router asks among them.
            asyncio.get_running_loop().call_soon(self._forwards_again)

    def _ends_at(self, state: MirrorPartition) -> None:
        """Its source was taken over: all that was read of it is committed there, and nobody tells of that any more."""
        copy = self._copies.get(state.tp)
        if copy is not None and state.taken is not None and state.link == self._name_against():
            copy.note_answer(state.taken.end, UNKNOWN_OFFSET, UNKNOWN_OFFSET)
            copy.notify()

    # --- on the link controller ---------------------------------------------------------------------------------------

    def _take_over(self) -> TakeOver | None:
        """The same one as long as the sidecar is the same broker there: it knows where the logs end."""
        member = self._joined()
        if member is None:
            self._owner = None
        elif self._owner is None or self._owner[0] is not member:
            owner = OwnerCluster(member.membership, member.link_brokers)
            self._owner = member, TakeOver(self._records, owner, self, self, self._follower, self._most)
        return None if self._owner is None else self._owner[1]

    def fence(self, not_yet: Callable[[], str | None] = lambda: None) -> SwitchFence | None:
        """For a promote that is a switch; None while this sidecar is no broker of the cluster that owns the topics.
        `not_yet`: why the promote is to wait before it holds anybody."""
        take_over = self._take_over()
        return None if take_over is None else TakeOverFence(take_over, not_yet)

    async def finish(self, topics: Collection[str], ending: SwitchEnd, *, timeout: float) -> None:
        """Topics that were switched are the other cluster's for good: in the one that was left no producer writes to them
        any more, whatever its acks, and its own brokers lead what they have; or they are deleted there. Where it fails, or
        the sidecar dies, it is gone on with until it is done."""
        await self._records.begin_finish(topics, ending)
        await self._finish(topics, timeout)

    async def _finish(self, topics: Collection[str], timeout: float) -> None:
        take_over, member = self._take_over(), self._joined()
        if take_over is None or member is None:
            raise LinkerError(f"link {self._link}: this sidecar is no broker of the cluster that was left")
        async with self._finishing:
            begun = {topic: one for topic, one in self._records.to_finish().items() if topic in topics}
            for topic, mirror in begun.items():
                if mirror.ending is SwitchEnd.DELETED:
                    await self._drop(topic)
            closed = [topic for topic, one in begun.items() if one.ending is SwitchEnd.CLOSED]
            if fresh := [topic for topic in closed if not begun[topic].finished]:
                owner = OwnerCluster(member.membership, member.link_brokers)
                await owner.caught_up(timeout=min(_CALL, timeout))
                # One that somebody has deleted holds up no other, and one that he made in its place is none of ours.
                there = [
                    topic for topic in fresh if owner.overrides_of(topic, begun[topic].topic_id) is not None
                ]
                if there:
                    await owner.set_configs({topic: {_SIZE: _NONE} for topic in there}, timeout=timeout)
                    await owner.each_broker_goes_by(there, _SIZE, _NONE, timeout=timeout)
                await self._records.finish(fresh)
            await take_over.give_back(closed, timeout=timeout)

    async def _finish_begun(self) -> str | None:
        if self._joined() is None or self._name_against() is None or not (begun := self._records.to_finish()):
            return None
        try:
            await self._finish(begun, _FINISH)
        except (LinkerError, TimeoutError) as error:
            return f"the switch of {', '.join(begun)} is not finished yet: {error}"
        return None

    async def _look(self) -> None:
        await self._after_hand_over()
        member = self._joined()
        if member is None or self._name_against() is None:
            return
        owner = OwnerCluster(member.membership, member.link_brokers)
        if self._records.config_changes(owner.overrides_of):
            await self._records.prove_newest()
            if changes := self._records.config_changes(owner.overrides_of):
                log.warning(
                    "link %s: setting or removing switch configs at the source: %s",
                    self._link,
                    changes,
                )
                await owner.set_configs(changes, timeout=_CALL)

    async def _after_hand_over(self) -> None:
        """A partition that was handed over follows the other way; a topic that is reversed as a whole is no mirror of this
        link any more."""
        image, against = self._controller.image, self._name_against()
        reversed_, over = [], []
        for mirror in image.link_mirrors(self._link):
            states = image.topic_partitions(self._link, mirror.topic)
            back = [] if against is None else image.topic_partitions(against, mirror.topic)
            if not back or not any(state.phase in LED_ELSEWHERE for state in states):
                continue
            taken = {state.tp for state in back if state.phase is Phase.TAKEN}
            if any(state.tp in taken and state.phase in LED_ELSEWHERE for state in states):
                reversed_.append(mirror.topic)
            elif all(state.phase in ENDED for state in states) and not any(
                state.phase in SWITCHING for state in back
            ):
                over.append(mirror.topic)
        if reversed_:
            await self._records.reverse(reversed_)
            self.task.wake()
        jobs = {topic for job in image.running_jobs(self._link) for topic in job.topics}
        if ended := [topic for topic in over if topic not in jobs]:
            await self._records.end_forward(ended)

    def _name_against(self) -> str | None:
        """The link that runs the other way; None before it was needed."""
        try:
            return self._records.back
        except ControllerError:
            return None

    def _failed(self, error: Exception) -> None:
        log.warning("link %s: switched topics: %s", self._link, error)

    # --- linker.switch.owner.SyncFollower -----------------------------------------------------------------------------

    async def stop(self, tps: Collection[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, int]:
        """Each is asked of the sidecar that leads its mirror: nobody else hears what the replicas have. Mostly it is the one
        that leads it there, too, and has followed to the end."""
        member, fleet_controller, image = self._joined(), self._fleet_controller(), self._controller.image
        if member is None or fleet_controller is None:
            raise LinkerError(
                f"link {self._link}: this sidecar is no link controller that has joined its source"
            )
        by_sidecar: dict[int, list[TopicPartition]] = {}
        for tp in tps:
            partition = find(member.membership.image, tp)
            leader = -1 if partition is None else partition.leader
            sidecar = image.sidecar_at(self._there, leader)
            follower = self._follower(tp)
            hears = -1 if follower is None else image.sidecar_at(self._there, follower)
            sidecar = hears if -1 not in (sidecar, hears) else sidecar
            by_sidecar.setdefault(sidecar, []).append(tp)
        own = image.sidecar_at(self._there, member.membership.broker_id)
        commands = fleet_controller.commands
        found = await together(
            self._sync.stop(chosen, timeout=timeout)
            if sidecar == own
            else commands.stop_following(self._link, chosen, sidecar, timeout=timeout)
            for sidecar, chosen in by_sidecar.items()
        )
        return {tp: end for ends in found for tp, end in ends.items()}

    def go_on(self, tps: Collection[TopicPartition]) -> None:
        if (fleet_controller := self._fleet_controller()) is not None:
            fleet_controller.commands.follow_again(self._link, tps)

    def without_owner(self, tp: TopicPartition) -> bool:
        """Whether none of the source's own brokers leads a partition that link brokers are in-sync replicas of."""
        member, mirror = self._joined(), self._controller.image.mirrors.get((self._link, tp.topic))
        partition = (
            None if member is None or mirror is None or not mirror.sync else find(member.membership.image, tp)
        )
        return (
            partition is not None and member is not None and partition.leader in {-1, *member.link_brokers()}
        )

    @property
    def _there(self) -> str:
        """The cluster that the link mirrors, as `Link.at`."""
        return at_source(self._controller.image, self._link)

    def _follower(self, tp: TopicPartition) -> int | None:
        """The broker there that can follow a partition to its end: of the sidecar that leads its mirror, or this one's where
        its source is restored. -1: it is none there; None: nobody leads the mirror."""
        image, member = self._controller.image, self._joined()
        mirror = image.mirrors.get((self._link, tp.topic))
        if mirror is not None and mirror.restoring and member is not None:
            return member.membership.broker_id
        state = image.partitions.get((self._link, tp))
        if state is None or state.leader < 0:
            return None
        broker = image.broker_at(self._there, image.sidecar_at(image.at(self._link), state.leader))
        return -1 if broker is None else broker

    # --- linker.switch.owner.RealFollowers ----------------------------------------------------------------------------

    def positions(
        self, tps: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Mapping[int, ReplicaPosition]]:
        progress = self._against()
        return {} if progress is None else progress.positions(tps)
