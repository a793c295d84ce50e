"""The commits of a take-over. Each needs the newest controller epoch: a deposed link controller gets no further."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from controller.decide import give_backs, reversals, take_overs
from controller.decide.mirrors import Leadership
from controller.decide.take_overs import OwnerTopic, Shrink, link_against
from controller.image import ControllerImage
from controller.plan.taken_configs import Changes, Overrides, changes
from controller.state import Attempt, MirrorPartition, MirrorTopic, Record, SwitchEnd
from fleet.link_controller import LinkController
from wire.frames.types import TopicPartition


class TakeOverRecords:
    """Of one link, whose mirrors are promoted (`link`), and the link against it (`back`)."""

    def __init__(
        self, controller: LinkController, link: str, now: Callable[[], int] = lambda: int(time.time() * 1000)
    ) -> None:
        self._controller = controller
        self.link = link
        self._now = now

    @property
    def image(self) -> ControllerImage:
        return self._controller.image

    def config_changes(self, overrides: Overrides) -> dict[str, Changes]:
        """The configs to set in the cluster that is left, or was."""
        return changes(self.image, self.link, self.back, overrides, self._now())

    @property
    def back(self) -> str:
        return link_against(self.image, self.link).name

    def mirror(self, topic: str) -> MirrorTopic | None:
        """Of the topic that is taken over, in the cluster that is left."""
        return self.image.mirrors.get((self.back, topic))

    def state(self, tp: TopicPartition) -> MirrorPartition:
        return self.image.partitions[self.back, tp]

    async def refresh(self) -> None:
        await self._controller.refresh()

    async def prove_newest(self) -> None:
        """Before configs are put back: of what is sent to a cluster they alone carry no epoch, and those of a deposed link
        controller would let the cluster's own brokers be elected that the next one has taken out. Raises LinkerError."""
        await self._controller.prove_newest()

    async def begin(self, topics: Mapping[str, OwnerTopic], *, given_back: bool = False) -> None:
        await self._decide(lambda image: take_overs.begin(image, self.link, topics, self._now(), given_back))

    async def note_shrinks(self, shrinks: Mapping[TopicPartition, Shrink]) -> None:
        await self._decide(lambda image: take_overs.note_shrinks(image, self.back, shrinks))

    async def note_ends(self, ends: Mapping[TopicPartition, tuple[int, Leadership]]) -> None:
        await self._decide(lambda image: take_overs.note_ends(image, self.back, ends))

    async def take(self, leaderships: Mapping[TopicPartition, Leadership]) -> None:
        await self._decide(lambda image: take_overs.take(image, self.back, leaderships, self._now()))

    async def give_back(self, topics: Collection[str]) -> None:
        await self._decide(lambda image: give_backs.give_back(image, self.back, topics, self._now()))

    async def note_widening(self, attempts: Mapping[TopicPartition, Attempt]) -> None:
        await self._decide(lambda image: give_backs.note_widening(image, self.back, attempts))

    async def forget_ends(self, tps: Collection[TopicPartition]) -> None:
        await self._decide(lambda image: give_backs.forget_ends(image, self.back, tps))

    async def given_back(
        self, topics: Collection[str], judged: Mapping[TopicPartition, Attempt | None]
    ) -> None:
        await self._decide(lambda image: give_backs.given_back(image, self.back, topics, judged, self._now()))

    async def reverse(self, topics: Sequence[str], led: Collection[TopicPartition] = ()) -> None:
        """The other cluster's own brokers lead: the mirrors in the cluster that was left follow them. `led`: its metadata
        log says so of these, and the state may not yet."""
        await self._decide(lambda image: reversals.reverse(image, self.link, topics, self._now(), led))

    async def begin_finish(self, topics: Collection[str], ending: SwitchEnd) -> None:
        await self._decide(
            lambda image: give_backs.begin_finish(image, self.back, topics, ending, self._now())
        )

    def to_finish(self) -> dict[str, MirrorTopic]:
        """Topics whose switch is to be final, with the mirrors in the cluster that was left."""
        return {one.topic: one for one in self.image.link_mirrors(self.back) if one.ending is not None}

    async def finish(self, topics: Collection[str]) -> None:
        """The switch is final: the mirrors in the cluster that was left are given back to its brokers."""
        await self._decide(lambda image: give_backs.finish(image, self.back, topics, self._now()))

    async def end_forward(self, topics: Sequence[str]) -> None:
        """The mirrors that were promoted are over."""
        await self._decide(lambda image: reversals.end_forward(image, self.link, topics, self._now()))

    async def _decide(self, decide: Callable[[ControllerImage], Sequence[Record]]) -> None:
        await self._controller.decide(lambda image: (decide(image), None))
