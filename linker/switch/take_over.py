"""Takes topics over from their own brokers, in one request of each kind for all partitions.

Every loop looks at the metadata image, sends what `judge.take_over` says, and waits until the image has moved. No answer
decides anything. A take-over that is not over within its time is given back by its caller; so is one that a crash cut short,
except that a TAKEN partition stays until the promote that it belongs to decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from controller.alter_partition import AlterPartitionItem
from controller.decide.mirrors import Leadership
from controller.decide.take_overs import Shrink
from controller.judge.hand_over import find
from controller.judge.take_over import NotNow, Reached, Shrinkable, TakeStep, obstacle, take_step
from controller.phases import Phase
from controller.plan.replicas import ElectPreferred, Reassign
from controller.plan.taken_configs import TAKEN_CONFIGS
from controller.state import Exported
from linker.switch.giving_back import GivingBack
from linker.switch.owner import OwnerPorts, RealFollowers, SyncFollower
from linker.switch.owner_steps import OwnerSteps, isr_of, item_of, now, reasons, said, time_left
from linker.switch.records import TakeOverRecords
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.together import together

#: Seconds for the ISR to have our link brokers: producers are held meanwhile.
_READY: Final = 2.0


class TakeOver:
    """Of one link: the topics that it mirrors, in the cluster that it mirrors them from."""

    def __init__(
        self,
        records: TakeOverRecords,
        owner: OwnerPorts,
        follower: SyncFollower,
        followers: RealFollowers,
        in_sync: Callable[[TopicPartition], int | None] = lambda _tp: None,
        most: int = 1,
        exported: Callable[[TopicPartition], Exported | None] = lambda _tp: None,
    ) -> None:
        """`in_sync`: the link broker that follows a partition to its end; None: any. `most`: link brokers that hold a
        partition once it is taken over, if there are as many: one may die at any time then. `exported`: what lies behind
        the end, of a source that is restored."""
        self._records = records
        self._owner = owner
        self._follower = follower
        self._steps = OwnerSteps(records, owner)
        self._back = GivingBack(self._steps, follower, followers)
        self._in_sync = in_sync
        self._most = most
        self._exported = exported
        self._ends: dict[TopicPartition, int] = {}

    async def prepare(self, topics: Collection[str], *, timeout: float) -> None:
        """The part that no client waits for: returns when link brokers are the first of the replicas. Raises LinkerError:
        then `give_back`."""
        deadline = now() + timeout
        await self._ready(topics, min(deadline, now() + _READY))
        await self._records.begin({topic: self._steps.owned(topic) for topic in topics})
        tps = self._steps.partitions(topics)
        while turns := {tp: step for tp in tps if isinstance(step := self._take_step(tp), Reassign)}:
            if now() >= deadline:
                raise LinkerError(f"the take-over is not prepared: {said(reasons(turns))}")
            await self._steps.send(turns, deadline)
            await self._steps.moved(self._take_step, turns, deadline)

    async def take(self, topics: Collection[str], *, timeout: float) -> None:
        """Returns when link brokers lead, and nothing else can. Raises LinkerError: then `give_back`."""
        deadline = now() + timeout
        mirrors = [self._records.mirror(topic) for topic in topics]
        if any(mirror is None or mirror.given_back for mirror in mirrors):
            await self.prepare(topics, timeout=timeout)
        await self._ready(topics, min(deadline, now() + _READY))
        tps = self._steps.partitions(topics)
        self._ends = {tp: end for tp, end in self._ends.items() if tp not in tps}
        # An election needs no configs, and waits for the same write of the controller's. To shrink an ISR does need them.
        elected = {tp: step for tp in tps if isinstance(step := self._take_step(tp), ElectPreferred)}
        await together(
            [
                self._owner.set_configs(dict.fromkeys(topics, TAKEN_CONFIGS), timeout=time_left(deadline)),
                self._steps.send(elected, deadline),
            ]
        )
        await self._steps.moved(self._take_step, elected, deadline)
        while True:
            steps = {tp: self._take_step(tp) for tp in tps}
            await self._note_taken(steps)
            open_ = {tp: step for tp, step in steps.items() if self._records.state(tp).phase is Phase.TAKING}
            if not open_:
                return
            hopeless = {tp: s.reason for tp, s in open_.items() if isinstance(s, NotNow) and not s.may_pass}
            if hopeless or now() >= deadline:
                raise LinkerError(f"the take-over is not possible: {said(hopeless or reasons(open_))}")
            await self._steps.send(open_, deadline)
            # Not those that have only now come so far: `_moved` would not wait for what was sent for them.
            here = [tp for tp, step in open_.items() if isinstance(step, Shrinkable | Reached)]
            await self._shrink(here, deadline)
            await self._steps.moved(self._take_step, steps, deadline)

    async def give_back(self, topics: Collection[str], *, timeout: float) -> None:
        """`GivingBack.give_back`."""
        await self._back.give_back(topics, timeout=timeout)

    async def rescue(self, topics: Collection[str], *, timeout: float) -> None:
        """`GivingBack.rescue`."""
        await self._back.rescue(topics, timeout=timeout)

    async def reverse(self, tps: Collection[TopicPartition]) -> None:
        """The other cluster's metadata log says that its own brokers lead these."""
        await self._records.reverse(sorted({tp.topic for tp in tps}), frozenset(tps))

    async def _ready(self, topics: Collection[str], deadline: float) -> None:
        """Nothing was begun yet."""
        while True:
            obstacles = self._obstacles(topics)
            if not obstacles:
                return
            if now() >= deadline or any(not found.may_pass for found in obstacles.values()):
                raise LinkerError(f"cannot be taken over: {said(reasons(obstacles))}")
            await self._owner.wait_until(lambda: not self._obstacles(topics), timeout=time_left(deadline))

    def _obstacles(self, topics: Collection[str]) -> dict[TopicPartition, NotNow]:
        image, link = self._owner.image(), self._owner.link_brokers()
        return {
            tp: found
            for tp in self._steps.partitions(topics)
            if (found := obstacle(image, tp, self._steps.topic_id(tp.topic), link, self._in_sync(tp)))
            is not None
        }

    def _take_step(self, tp: TopicPartition) -> TakeStep:
        image, link = self._owner.image(), self._owner.link_brokers()
        return take_step(image, tp, self._steps.topic_id(tp.topic), link, tp.partition, self._most)

    async def _note_taken(self, steps: Mapping[TopicPartition, TakeStep]) -> None:
        taken = {
            tp: self._steps.leadership(tp)
            for tp, step in steps.items()
            if isinstance(step, Reached)
            and (state := self._records.state(tp)).phase is Phase.TAKING
            and state.taken is not None
        }
        if taken:
            await self._records.take(taken)

    async def _shrink(self, tps: Collection[TopicPartition], deadline: float) -> None:
        """Real brokers out of the ISR; where they went by themselves, only the end is noted."""
        image = self._owner.image()
        items: dict[TopicPartition, AlterPartitionItem] = {}
        send: list[TopicPartition] = []
        for tp in tps:  # judged anew: epochs are taken from the image as it is now
            step, partition = self._take_step(tp), find(image, tp)
            if partition is not None and isinstance(step, Shrinkable | Reached):
                isr = step.new_isr if isinstance(step, Shrinkable) else tuple(partition.isr)
                item = item_of(image, tp, isr)
                if item is not None:
                    items[tp] = item
                    send += [tp] if isinstance(step, Shrinkable) else []
        if not items:
            return
        unknown = [tp for tp in items if tp not in self._ends]
        if unknown:
            self._ends |= await self._follower.stop(unknown, timeout=time_left(deadline))
        fresh = {
            tp: Shrink(
                self._ends[tp],
                item.attempt,
                Leadership(item.leader.broker_id, item.leader_epoch, isr_of(item)),
                self._exported(tp),
            )
            for tp, item in items.items()
            if (state := self._records.state(tp)).attempt != item.attempt or state.taken is None
        }
        if fresh:
            await self._records.note_shrinks(fresh)
        if send:
            await self._steps.attempt(
                self._owner.alter_partition([items[tp] for tp in send], timeout=time_left(deadline))
            )
