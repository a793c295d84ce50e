"""Takes topics over from their own brokers, in one request of each kind for all partitions, and gives them back.

Every loop looks at the metadata image, sends what `judge.take_over` says, and waits until the image has moved. No answer
decides anything. A take-over that is not over within its time is given back by its caller; so is one that a crash cut short,
except that a TAKEN partition stays until the promote that it belongs to decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from controller.alter_partition import AlterPartitionItem, alter_partition_item
from controller.cluster_view import ImageView
from controller.decide.mirrors import Leadership
from controller.decide.take_overs import OwnerTopic, Shrink
from controller.judge.hand_over import find
from controller.judge.take_over import (
    BackStep,
    NotNow,
    Reached,
    Shrinkable,
    TakeStep,
    back_step,
    obstacle,
    take_step,
)
from controller.phases import SWITCHING, Phase
from controller.plan.replicas import AlterIsr, ElectPreferred, Reassign
from controller.plan.taken_configs import TAKEN_CONFIGS
from controller.state import Exported
from linker.switch.owner import OwnerPorts, RealFollowers, SyncFollower
from linker.switch.records import TakeOverRecords
from wire.errors import BrokerError, LinkerError
from wire.frames.types import TopicPartition
from wire.together import together

log = logging.getLogger(__name__)

_CALL: Final = 5.0
_SLICE: Final = 0.25  # the image may stand still although a position has moved
_POLL: Final = 0.005
_POLLED: Final = 100  # partitions that double it
_READY: Final = 2.0  # for the ISR to have our link brokers: producers are held meanwhile
#: How long all of the real brokers that are alive are waited for. After that one that has everything is enough.
_PATIENCE: Final = 3.0


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
        self._followers = followers
        self._in_sync = in_sync
        self._most = most
        self._exported = exported
        self._ends: dict[TopicPartition, int] = {}
        self._since: dict[str, float] = {}  # when giving back began, by topic

    # --- there

    async def prepare(self, topics: Collection[str], *, timeout: float) -> None:
        """The part that no client waits for: returns when link brokers are the first of the replicas. Raises LinkerError:
        then `give_back`."""
        deadline = _now() + timeout
        await self._ready(topics, min(deadline, _now() + _READY))
        await self._records.begin({topic: self._owned(topic) for topic in topics})
        tps = self._partitions(topics)
        while turns := {tp: step for tp in tps if isinstance(step := self._take_step(tp), Reassign)}:
            if _now() >= deadline:
                raise LinkerError(f"the take-over is not prepared: {_said(_reasons(turns))}")
            await self._send(turns, deadline)
            await self._moved(self._take_step, turns, deadline)

    async def take(self, topics: Collection[str], *, timeout: float) -> None:
        """Returns when link brokers lead, and nothing else can. Raises LinkerError: then `give_back`."""
        deadline = _now() + timeout
        mirrors = [self._records.mirror(topic) for topic in topics]
        if any(mirror is None or mirror.given_back for mirror in mirrors):
            await self.prepare(topics, timeout=timeout)
        await self._ready(topics, min(deadline, _now() + _READY))
        tps = self._partitions(topics)
        self._ends = {tp: end for tp, end in self._ends.items() if tp not in tps}
        # An election needs no configs, and waits for the same write of the controller's. To shrink an ISR does need them.
        elected = {tp: step for tp in tps if isinstance(step := self._take_step(tp), ElectPreferred)}
        await together(
            [
                self._owner.set_configs(dict.fromkeys(topics, TAKEN_CONFIGS), timeout=_left(deadline)),
                self._send(elected, deadline),
            ]
        )
        await self._moved(self._take_step, elected, deadline)
        while True:
            steps = {tp: self._take_step(tp) for tp in tps}
            await self._note_taken(steps)
            open_ = {tp: step for tp, step in steps.items() if self._records.state(tp).phase is Phase.TAKING}
            if not open_:
                return
            hopeless = {tp: s.reason for tp, s in open_.items() if isinstance(s, NotNow) and not s.may_pass}
            if hopeless or _now() >= deadline:
                raise LinkerError(f"the take-over is not possible: {_said(hopeless or _reasons(open_))}")
            await self._send(open_, deadline)
            # Not those that have only now come so far: `_moved` would not wait for what was sent for them.
            here = [tp for tp, step in open_.items() if isinstance(step, Shrinkable | Reached)]
            await self._shrink(here, deadline)
            await self._moved(self._take_step, steps, deadline)

    async def reverse(self, tps: Collection[TopicPartition]) -> None:
        """The other cluster's metadata log says that its own brokers lead these."""
        await self._records.reverse(sorted({tp.topic for tp in tps}), frozenset(tps))

    async def _ready(self, topics: Collection[str], deadline: float) -> None:
        """Nothing was begun yet."""
        while True:
            obstacles = self._obstacles(topics)
            if not obstacles:
                return
            if _now() >= deadline or any(not found.may_pass for found in obstacles.values()):
                raise LinkerError(f"cannot be taken over: {_said(_reasons(obstacles))}")
            await self._owner.wait_until(lambda: not self._obstacles(topics), timeout=_left(deadline))

    def _obstacles(self, topics: Collection[str]) -> dict[TopicPartition, NotNow]:
        image, link = self._owner.image(), self._owner.link_brokers()
        return {
            tp: found
            for tp in self._partitions(topics)
            if (found := obstacle(image, tp, self._topic_id(tp.topic), link, self._in_sync(tp))) is not None
        }

    def _owned(self, topic: str) -> OwnerTopic:
        found, link = self._owner.image().topics_by_name[topic], self._owner.link_brokers()
        partitions = [found.partitions[index] for index in sorted(found.partitions)]
        return OwnerTopic(
            bytes(found.id),
            tuple(tuple(b for b in one.replicas if b not in link) for one in partitions),
            dict(self._owner.overrides(topic)),
            tuple(Leadership(one.leader, one.leader_epoch, tuple(one.isr)) for one in partitions),
        )

    def _take_step(self, tp: TopicPartition) -> TakeStep:
        image, link = self._owner.image(), self._owner.link_brokers()
        return take_step(image, tp, self._topic_id(tp.topic), link, tp.partition, self._most)

    async def _note_taken(self, steps: Mapping[TopicPartition, TakeStep]) -> None:
        taken = {
            tp: self._leadership(tp)
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
                item = _item(image, tp, isr)
                if item is not None:
                    items[tp] = item
                    send += [tp] if isinstance(step, Shrinkable) else []
        if not items:
            return
        unknown = [tp for tp in items if tp not in self._ends]
        if unknown:
            self._ends |= await self._follower.stop(unknown, timeout=_left(deadline))
        fresh = {
            tp: Shrink(
                self._ends[tp],
                item.attempt,
                Leadership(item.leader.broker_id, item.leader_epoch, _isr(item)),
                self._exported(tp),
            )
            for tp, item in items.items()
            if (state := self._records.state(tp)).attempt != item.attempt or state.taken is None
        }
        if fresh:
            await self._records.note_shrinks(fresh)
        if send:
            await self._try(self._owner.alter_partition([items[tp] for tp in send], timeout=_left(deadline)))

    # --- and back

    async def give_back(self, topics: Collection[str], *, timeout: float) -> None:
        """Returns when real brokers lead all of them, their configs are as before, and nothing of it is written down any
        more. Nothing to give back: no change. May be repeated, by the next link controller, too."""
        deadline = _now() + timeout
        await self._records.refresh()
        topics = [topic for topic in topics if self._switching(topic)]
        if not topics:
            return
        await self._records.give_back(topics)
        # Requests of an earlier link controller are in the log, or their partition epochs are over.
        await self._owner.caught_up(timeout=min(_CALL, _left(deadline)))
        for topic in topics:
            self._since.setdefault(topic, _now())
        began = _now()
        waiting, left = set(self._partitions(topics)), set(topics)
        while left:
            steps = {tp: self._back_step(tp) for tp in waiting}
            if back := [tp for tp, step in steps.items() if isinstance(step, Reached)]:
                await self._led_again(back)
                waiting -= set(back)
                continue
            over = left - {tp.topic for tp in waiting}
            # Together, unless some take long: those that are back are switched again, or change hands.
            if over and (over == left or _now() > began + _PATIENCE):
                # One that was back may have lost its brokers again while the others were waited for.
                lost = {tp for tp in self._partitions(over) if not isinstance(self._back_step(tp), Reached)}
                over -= {tp.topic for tp in lost}
                await self._end_giving_back(over, max(deadline, _now() + _CALL))
                waiting |= lost
                left -= over
                continue
            if _now() >= deadline:
                raise LinkerError(f"not given back yet: {_said(_reasons(steps))}")
            await self._find_ends(steps, deadline)
            await self._send(steps, deadline)
            await self._widen([tp for tp, one in steps.items() if isinstance(one, AlterIsr)], deadline)
            await self._moved(self._back_step, steps, deadline)

    async def _led_again(self, tps: Collection[TopicPartition]) -> None:
        """Real brokers lead these, and take records: where the log ended holds no more. That is written down before link
        brokers follow and tell, for from then on they may be elected again."""
        moved = [tp for tp in tps if self._ends_anew(tp)]
        if moved:
            await self._records.forget_ends(moved)
        self._follower.go_on(tps)

    def _ends_anew(self, tp: TopicPartition) -> bool:
        """A topic that is closed takes none; one that is gone is led by nobody."""
        mirror, partition = self._records.mirror(tp.topic), find(self._owner.image(), tp)
        known = self._records.state(tp).taken is not None
        return known and partition is not None and mirror is not None and not mirror.finished

    async def _end_giving_back(self, topics: Collection[str], deadline: float) -> None:
        if not topics:
            return
        await self._put_back(topics, deadline)
        await self._records.given_back(topics)
        for topic in topics:
            self._since.pop(topic, None)

    async def rescue(self, topics: Collection[str], *, timeout: float) -> None:
        """Give back topics that nobody took over: their own brokers died one after the other, and the link broker was the
        last of the ISR. It takes no writes; as soon as one of the others has come back and has all, that one leads.
        Begun by another process: gone on with."""
        fresh = [topic for topic in topics if not self._switching(topic)]
        owned = {topic: self._owned(topic) for topic in fresh if topic in self._owner.image().topics_by_name}
        if owned:
            await self._records.begin(owned, given_back=True)
        await self.give_back(topics, timeout=timeout)

    def _switching(self, topic: str) -> bool:
        states = self._records.image.topic_partitions(self._records.back, topic)
        return any(state.phase in SWITCHING for state in states)

    def _back_step(self, tp: TopicPartition) -> BackStep:
        state, mirror = self._records.state(tp), self._records.mirror(tp.topic)
        return back_step(
            self._owner.image(),
            tp,
            b"" if mirror is None else mirror.topic_id,
            self._owner.link_brokers(),
            attempt=state.attempt,
            end=None if state.taken is None else state.taken.end,
            positions=self._followers.positions([tp]).get(tp, {}),
            order=() if mirror is None else mirror.replicas_of(tp.partition),
            patient=_now() - self._since[tp.topic] < _PATIENCE,
            closed=mirror is not None and mirror.finished,
        )

    async def _find_ends(self, tps: Collection[TopicPartition], deadline: float) -> None:
        """Partitions that link brokers lead: where they end is written down, for their own brokers follow to there."""
        image, link = self._owner.image(), self._owner.link_brokers()
        unknown = [
            tp
            for tp in tps
            if self._records.state(tp).taken is None
            and (partition := find(image, tp)) is not None
            and partition.leader in link
        ]
        if not unknown:
            return
        ends = await self._told_ends(unknown, min(_SLICE, _left(deadline)))
        led = {tp: (end, at) for tp, end in ends.items() if (at := self._leadership(tp)).leader in link}
        if led:
            await self._records.note_ends(led)

    async def _told_ends(self, tps: list[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """One whose end nobody knows yet keeps no other from it."""
        try:
            return await self._follower.stop(tps, timeout=timeout)
        except (LinkerError, TimeoutError) as error:
            log.info("where link brokers end is not known: %s", error)
        if len(tps) == 1:
            return {}
        half = len(tps) // 2
        found = await together([self._told_ends(part, timeout) for part in (tps[:half], tps[half:])])
        return {tp: end for ends in found for tp, end in ends.items()}

    async def _widen(self, tps: Collection[TopicPartition], deadline: float) -> None:
        image = self._owner.image()
        items = [
            item
            for tp in tps  # judged anew: a broker that has restarted meanwhile would be named with its new epoch
            if isinstance(step := self._back_step(tp), AlterIsr)
            and (item := _item(image, tp, step.new_isr)) is not None
        ]
        if not items:
            return
        fresh = {
            item.tp: item.attempt for item in items if self._records.state(item.tp).attempt != item.attempt
        }
        if fresh:
            await self._records.note_widening(fresh)
        await self._try(self._owner.alter_partition(items, timeout=min(_CALL, _left(deadline))))

    async def _put_back(self, topics: Collection[str], deadline: float) -> None:
        """Configs, and the order of the replicas with the link brokers last."""
        image, link = self._owner.image(), self._owner.link_brokers()
        configs: dict[str, Mapping[str, str | None]] = {}
        for topic in topics:
            mirror = self._records.mirror(topic)
            if mirror is not None and topic in image.topics_by_name:
                now = self._owner.overrides(topic)
                differing = {n: v for n, v in mirror.restore_configs.items() if now.get(n) != v}
                configs |= {topic: differing} if differing else {}
        if configs:
            await self._owner.set_configs(configs, timeout=_left(deadline))
        orders: dict[TopicPartition, tuple[int, ...] | None] = {}
        for tp in self._partitions(topics):
            partition, mirror = find(image, tp), self._records.mirror(tp.topic)
            if partition is None or mirror is None or partition.adding or partition.removing:
                # A link broker that was to come beside the leader, and died on its way.
                if partition is not None and partition.adding and set(partition.adding) <= set(link):
                    orders[tp] = None
                continue
            listed = [b for b in mirror.replicas_of(tp.partition) if b in partition.replicas]
            rest = [b for b in partition.replicas if b not in listed]
            order = (*listed, *sorted(rest, key=lambda b: b in link))
            if order != tuple(partition.replicas):
                orders[tp] = order
        if orders:
            await self._try(self._owner.reassign(orders, timeout=_left(deadline)))

    # --- both ways

    async def _send(self, steps: Mapping[TopicPartition, TakeStep | BackStep], deadline: float) -> None:
        """The reassignment, and right behind it the election of those that had their order before."""
        turns = {tp: step.replicas for tp, step in steps.items() if isinstance(step, Reassign)}
        if turns:
            await self._try(self._owner.reassign(turns, timeout=min(_CALL, _left(deadline))))
        elected = [tp for tp, step in steps.items() if isinstance(step, ElectPreferred)]
        if elected:
            await self._try(self._owner.elect(elected, timeout=min(_CALL, _left(deadline))))

    @staticmethod
    async def _try(request: Awaitable[None]) -> None:
        """Its outcome is read from the metadata log."""
        try:
            await request
        except (LinkerError, TimeoutError) as error:
            log.warning("%s (looked at again)", error)

    async def _moved(
        self,
        judge: Callable[[TopicPartition], TakeStep | BackStep],
        steps: Mapping[TopicPartition, TakeStep | BackStep],
        deadline: float,
    ) -> None:
        """The image, or a follower's position, has brought another step."""

        def changed() -> bool:
            return not steps or any(judge(tp) != step for tp, step in steps.items())

        until = min(deadline, _now() + _SLICE)
        # A look at a thousand partitions takes longer than the pause between two of one would be.
        poll = _POLL * (1 + len(steps) / _POLLED)
        while not changed() and _now() < until:
            await self._owner.wait_until(changed, timeout=min(poll, _left(until)))

    def _partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        image = self._records.image
        found = []
        for topic in sorted(topics):
            mirror = image.mirrors.get((self._records.link, topic)) or self._records.mirror(topic)
            found += [] if mirror is None else list(mirror.topic_partitions())
        return found

    def _topic_id(self, topic: str) -> bytes:
        mirror = self._records.mirror(topic)
        if mirror is not None:
            return mirror.topic_id
        found = self._owner.image().topics_by_name.get(topic)
        return b"" if found is None else bytes(found.id)

    def _leadership(self, tp: TopicPartition) -> Leadership:
        partition = find(self._owner.image(), tp)
        if partition is None:
            raise LinkerError(f"{tp} is gone")
        return Leadership(partition.leader, partition.leader_epoch, tuple(partition.isr))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _left(deadline: float) -> float:
    return max(0.001, deadline - _now())


def _item(image: ImageView, tp: TopicPartition, new_isr: tuple[int, ...]) -> AlterPartitionItem | None:
    try:
        return alter_partition_item(image, tp, new_isr)
    except BrokerError:
        return None  # a broker has gone: the next look has another step


def _isr(item: AlterPartitionItem) -> tuple[int, ...]:
    return tuple(member.broker_id for member in item.new_isr)


def _reasons(steps: Mapping[TopicPartition, TakeStep | BackStep]) -> dict[TopicPartition, str]:
    return {
        tp: step.reason if isinstance(step, NotNow) else f"its next step is {type(step).__name__}"
        for tp, step in steps.items()
    }


def _said(reasons: Mapping[TopicPartition, str]) -> str:
    shown = [f"{what}: {why}" for what, why in list(reasons.items())[:5]]
    return "; ".join(shown) + (f" and {len(reasons) - 5} more" if len(reasons) > 5 else "")
