"""Which link brokers hold a new topic: it lies on them alone, and the one that leads the least leads a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from controller.phases import ENDED
from controller.state import MirrorTopic
from linker.links.link_part import LinkContext, LinkPart
from linker.links.topic_shape import first_leaders
from linker.membership.topic_operations import NewTopic


class NewTopics(LinkPart):
    """Of one link."""

    def __init__(self, context: LinkContext, replicas: int) -> None:
        """`replicas`: how many link brokers a partition is given."""
        super().__init__(context)
        self._replicas = replicas

    def leaders(self, partitions: int) -> list[list[int]]:
        """The link brokers of so many new partitions, each one's leader first."""
        return list(self._choose(partitions, self._led()).values())

    def plan(self, mirrors: Iterable[MirrorTopic]) -> dict[str, NewTopic]:
        """As they are to be made."""
        led = self._led()
        planned: dict[str, NewTopic] = {}
        for mirror in mirrors:
            chosen = self._choose(mirror.partitions, led)
            planned[mirror.topic] = NewTopic(chosen, mirror.copied_configs)
        return planned

    def _led(self) -> Counter[int]:
        """How many mirror partitions of the cluster each link broker leads."""
        image = self._controller.image
        at = image.at(self._link)
        return Counter(
            state.leader
            for state in image.partitions.values()
            if state.phase not in ENDED and image.at(state.link) == at
        )

    def _choose(self, partitions: int, led: Counter[int]) -> dict[int, list[int]]:
        image, own = self._target.image, self._target.broker_id
        fleet_controller = self._fleet_controller()
        alive: set[int | None] = {own}
        if fleet_controller is not None:
            state = self._controller.image
            able = fleet_controller.alive() - fleet_controller.draining()
            alive = {state.broker_at(state.at(self._link), sidecar) for sidecar in able}
        ready = sorted(
            b for b in alive if b is not None and b in image.brokers and not image.brokers[b].fenced
        )
        chosen = first_leaders(partitions, ready or [own], led, self._replicas)
        led.update(replicas[0] for replicas in chosen.values())
        return chosen
