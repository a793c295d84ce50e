"""Gives topics back to their own brokers: after a take-over that did not come to its end, at a switch back, or for good.

It may be begun by one process and ended by another: whatever is written down of a take-over, and its cluster's metadata log,
say the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from controller.judge.hand_over import find
from controller.judge.take_over import BackStep, NotNow, Reached, back_step
from controller.phases import SWITCHING
from controller.plan.replicas import AlterIsr
from linker.switch.owner import RealFollowers, SyncFollower
from linker.switch.owner_steps import CALL, SLICE, OwnerSteps, item_of, now, reasons, said, time_left
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.together import together

log = logging.getLogger(__name__)

#: Seconds that all of the real brokers that are alive are waited for. After that one that has everything is enough.
_PATIENCE: Final = 3.0


class GivingBack:
    """Of one link."""

    def __init__(self, steps: OwnerSteps, follower: SyncFollower, followers: RealFollowers) -> None:
        self._steps = steps
        self._records = steps.records
        self._owner = steps.owner
        self._follower = follower
        self._followers = followers
        self._since: dict[str, float] = {}  # when giving back began, by topic

    async def give_back(self, topics: Collection[str], *, timeout: float) -> None:
        """Returns when real brokers lead all of them, their configs are as before, and nothing of it is written down any
        more. Nothing to give back: no change. May be repeated, by the next link controller, too, and by others meanwhile:
        a topic that one of them has given back is left alone, though it be taken over again by then."""
        deadline = now() + timeout
        await self._records.refresh()
        topics = [topic for topic in topics if self._switching(topic)]
        if not topics:
            return
        await self._records.give_back(topics)
        # Requests of an earlier link controller are in the log, or their partition epochs are over.
        await self._owner.caught_up(timeout=min(CALL, time_left(deadline)))
        for topic in topics:
            self._since.setdefault(topic, now())
        began = now()
        waiting, left = set(self._steps.partitions(topics)), set(topics)
        while left := {topic for topic in left if self._going_back(topic)}:
            waiting = {tp for tp in waiting if tp.topic in left}
            steps = {tp: self._back_step(tp) for tp in waiting}
            if back := [tp for tp, step in steps.items() if isinstance(step, Reached)]:
                await self._led_again(back)
                waiting -= set(back)
                continue
            over = left - {tp.topic for tp in waiting}
            # Together, unless some take long: those that are back are switched again, or change hands.
            if over and (over == left or now() > began + _PATIENCE):
                # One that was back may have lost its brokers again while the others were waited for.
                lost = {
                    tp for tp in self._steps.partitions(over) if not isinstance(self._back_step(tp), Reached)
                }
                over -= {tp.topic for tp in lost}
                await self._end_giving_back(sorted(over), max(deadline, now() + CALL))
                waiting |= lost
                left -= over
                continue
            if now() >= deadline:
                raise LinkerError(f"not given back yet: {said(reasons(steps))}")
            await self._find_ends(steps, deadline)
            steps = {tp: self._back_step(tp) for tp in waiting}  # another one may have ended it meanwhile
            await self._steps.send(steps, deadline)
            await self._widen([tp for tp, one in steps.items() if isinstance(one, AlterIsr)], deadline)
            await self._steps.moved(self._back_step, steps, deadline)

    async def _led_again(self, tps: Collection[TopicPartition]) -> None:
        """Real brokers lead these, and take records: where the log ended holds no more. That is written down before link
        brokers follow and tell, for from then on they may be elected again."""
        moved = [tp for tp in tps if self._ends_anew(tp)]
        if moved:
            await self._records.forget_ends(moved)
        self._follower.go_on([tp for tp in tps if self._going_back(tp.topic)])

    def _ends_anew(self, tp: TopicPartition) -> bool:
        """A topic that is closed takes none; one that is gone is led by nobody."""
        mirror, partition = self._records.mirror(tp.topic), find(self._owner.image(), tp)
        known = self._records.state(tp).taken is not None
        return known and partition is not None and mirror is not None and not mirror.finished

    async def _end_giving_back(self, topics: Collection[str], deadline: float) -> None:
        if not topics:
            return
        judged = {tp: self._records.state(tp).attempt for tp in self._steps.partitions(topics)}
        await self._put_back(topics, deadline)
        await self._records.given_back(topics, judged)
        for topic in topics:
            self._since.pop(topic, None)

    async def rescue(self, topics: Collection[str], *, timeout: float) -> None:
        """Give back topics that nobody took over: their own brokers died one after the other, and the link broker was the
        last of the ISR. It takes no writes; as soon as one of the others has come back and has all, that one leads.
        Begun by another process: gone on with."""
        fresh = [topic for topic in topics if not self._switching(topic)]
        owned = {
            topic: self._steps.owned(topic) for topic in fresh if topic in self._owner.image().topics_by_name
        }
        if owned:
            await self._records.begin(owned, given_back=True)
        await self.give_back(topics, timeout=timeout)

    def _switching(self, topic: str) -> bool:
        states = self._records.image.topic_partitions(self._records.back, topic)
        return any(state.phase in SWITCHING for state in states)

    def _going_back(self, topic: str) -> bool:
        mirror = self._records.mirror(topic)
        return mirror is not None and mirror.given_back

    def _back_step(self, tp: TopicPartition) -> BackStep:
        if not self._going_back(tp.topic):
            return NotNow("it is given back already")
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
            patient=now() - self._since[tp.topic] < _PATIENCE,
            closed=mirror is not None and mirror.finished,
        )

    async def _find_ends(self, tps: Collection[TopicPartition], deadline: float) -> None:
        """Partitions that link brokers lead: where they end is written down, for their own brokers follow to there."""
        image, link = self._owner.image(), self._owner.link_brokers()
        unknown = [
            tp
            for tp in tps
            if self._going_back(tp.topic)
            and self._records.state(tp).taken is None
            and (partition := find(image, tp)) is not None
            and partition.leader in link
        ]
        if not unknown:
            return
        ends = await self._told_ends(unknown, min(SLICE, time_left(deadline)))
        led = {tp: (end, at) for tp, end in ends.items() if (at := self._steps.leadership(tp)).leader in link}
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
            and (item := item_of(image, tp, step.new_isr)) is not None
        ]
        if not items:
            return
        fresh = {
            item.tp: item.attempt for item in items if self._records.state(item.tp).attempt != item.attempt
        }
        if fresh:
            await self._records.note_widening(fresh)
        await self._steps.attempt(self._owner.alter_partition(items, timeout=min(CALL, time_left(deadline))))

    async def _put_back(self, topics: Collection[str], deadline: float) -> None:
        """Configs, and the order of the replicas with the link brokers last."""
        await self._records.prove_newest()
        image, link = self._owner.image(), self._owner.link_brokers()
        configs: dict[str, Mapping[str, str | None]] = {}
        for topic in topics:
            mirror = self._records.mirror(topic)
            found = image.topics_by_name.get(topic)
            if mirror is not None and found is not None and bytes(found.id) == mirror.topic_id:
                set_now = self._owner.overrides(topic)
                differing = {n: v for n, v in mirror.restore_configs.items() if set_now.get(n) != v}
                configs |= {topic: differing} if differing else {}
        if configs:
            await self._owner.set_configs(configs, timeout=time_left(deadline))
        orders: dict[TopicPartition, tuple[int, ...] | None] = {}
        for tp in self._steps.partitions(topics):
            partition, mirror = find(image, tp), self._records.mirror(tp.topic)
            if partition is None or mirror is None or not mirror.given_back:
                continue
            if bytes(image.topics_by_name[tp.topic].id) != mirror.topic_id:
                continue  # another topic of that name
            if partition.adding or partition.removing:
                # A link broker that was to come beside the leader, and died on its way.
                if partition.adding and set(partition.adding) <= set(link):
                    orders[tp] = None
                continue
            listed = [b for b in mirror.replicas_of(tp.partition) if b in partition.replicas]
            rest = [b for b in partition.replicas if b not in listed]
            order = (*listed, *sorted(rest, key=lambda b: b in link))
            if order != tuple(partition.replicas):  # a broker that was unregistered can be named in no list
                orders[tp] = tuple(b for b in order if b in image.brokers)
        if orders:
            await self._steps.attempt(self._owner.reassign(orders, timeout=time_left(deadline)))
