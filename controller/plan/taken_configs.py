"""Topic configs that a take-over changes in the cluster that is left: kept while it lasts, and put back after.

A request to change configs may come late: a broker hands one on for a minute, and a controller that stood still carries out
what is in its socket. So each topic's configs are looked at again, against what is written down:
- of a topic that was taken over: one that puts the configs back, or somebody who changes them, would let its own brokers
  delete records, or let one be elected that accepts writes beside the other cluster
- of a topic that was given back: one of the take-over, or one that kept its configs, would leave it with less safety, and
  without retention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from controller.image import ControllerImage
from controller.phases import LED_ELSEWHERE, Phase
from controller.plan.topic_configs import FORCED, MIN_INSYNC, at_promote
from controller.state import MirrorTopic
from wire.frames.types import TopicId

#: Of a topic that is taken over. Brokers that leave the ISR below min.insync.replicas stay eligible leaders (KIP-966), and
#: one that is elected out of it would accept writes beside the other cluster.
TAKEN_CONFIGS: Final[Mapping[str, str]] = {MIN_INSYNC: "1", **FORCED}
#: How long after it was given back a topic is looked at, in milliseconds.
LATE: Final = 600_000

#: The overrides of a topic by its name, or None if there is none of that id. An id that is not known is any.
Overrides = Callable[[str, TopicId | None], Mapping[str, str] | None]
Changes = Mapping[str, str | None]


def configs_at_promote(image: ControllerImage, mirror: MirrorTopic) -> dict[str, str | None]:
    """Overrides that a promote, a failover or a switch sets on a mirror (None: deletes)."""
    states = image.topic_partitions(mirror.link, mirror.topic)
    taken = any(state.taken is not None for state in states)
    return at_promote(mirror.copied_configs, mirror.restore_configs, taken=taken)


def before_take_over(forward: MirrorTopic, overrides: Mapping[str, str], now: int) -> dict[str, str | None]:
    """The configs that giving back restores. Where a late request of the take-over before has changed them, those that it
    found. `forward`: the mirror that follows the topic."""
    before = {**overrides, **(_earlier(forward, overrides, now) or {})}
    return {name: before.get(name) for name in TAKEN_CONFIGS}


def changes(
    image: ControllerImage, link: str, back: str, overrides: Overrides, now: int
) -> dict[str, Changes]:
    """By topic of the cluster that `link` follows, the overrides to set; None deletes one. `back`: the link against it."""
    found: dict[str, Changes] = {}
    for mirror in image.link_mirrors(back):
        held = [
            state
            for state in image.topic_partitions(back, mirror.topic)
            if state.taken is not None and state.phase not in LED_ELSEWHERE | {Phase.TAKING}
        ]
        if held and not mirror.given_back:
            # min.insync.replicas follows the owner's once the topic is a mirror as any: it counted when the ISR shrank.
            found[mirror.topic] = _differing(FORCED, overrides(mirror.topic, mirror.topic_id))
    for mirror in image.link_mirrors(link):
        if mirror.put_back is None or (back, mirror.topic) in image.mirrors:
            continue
        now_set = overrides(mirror.topic, mirror.source_topic_id)
        if now_set is not None and (earlier := _earlier(mirror, now_set, now)) is not None:
            found[mirror.topic] = _differing(earlier, now_set)
    return {topic: wanted for topic, wanted in found.items() if wanted}


def _earlier(mirror: MirrorTopic, overrides: Mapping[str, str], now: int) -> Changes | None:
    """The configs before the take-over, if they were put back not long ago and are now what a late request sets, to the last
    one: all of a take-over, or those that are kept while it lasts."""
    noted = mirror.put_back
    if noted is None or now - noted.at > LATE:
        return None
    for late in (TAKEN_CONFIGS, FORCED):
        if all(overrides.get(name) == value for name, value in late.items()):
            return {name: value for name, value in noted.configs.items() if name in late}
    return None


def _differing(wanted: Changes, overrides: Mapping[str, str] | None) -> dict[str, str | None]:
    return {} if overrides is None else {n: v for n, v in wanted.items() if overrides.get(n) != v}
