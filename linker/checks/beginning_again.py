"""Whether a FAILED mirror can be begun again with its topic, and what to do if it cannot. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from controller.state import UNBOUND, MirrorPartition, MirrorTopic
from linker.links.topic_shape import grown_apart, led_by_others
from wire.metadata.image import TopicImage
from wire.shown_id import listed


def topic_is_lost(mirror: MirrorTopic, found: TopicImage | None) -> str | None:
    """Whether the mirror's topic is gone. `found`: the target's topic of its name."""
    if mirror.topic_id == UNBOUND or (found is not None and found.id == mirror.topic_id):
        return None
    what = "deleted" if found is None else "deleted and created again by somebody"
    return f"its topic was {what} at the target"


def why_not(
    mirror: MirrorTopic,
    states: Sequence[MirrorPartition],
    found: TopicImage | None,
    link_brokers: Collection[int],
) -> str | None:
    """Why the mirror cannot begin again; None if its copies can be dropped and filled again. Leadership of a real broker
    cannot be taken back that way, and a topic that is gone does not come back."""
    lost = topic_is_lost(mirror, found)
    if lost is not None:
        return lost
    if found is None:
        return None
    led = list(led_by_others(states, found, frozenset(link_brokers)))
    if led:
        named = listed([f"{state.tp} by broker {leader}" for state, leader in led])
        return f"real brokers of the target lead it without a promote: {named}"
    return grown_apart(mirror, found)


def instead(mirror: MirrorTopic, found: TopicImage | None) -> str:
    """The remedy where beginning again does not help."""
    link, topic = mirror.link, mirror.topic
    foreign = found is not None and mirror.topic_id != UNBOUND and found.id != mirror.topic_id
    return (
        f"linker mirror delete {topic} --link {link} --dry-run says what would be dropped, in records; save what is "
        "needed, delete the mirror"
        + (", then the other topic of its name," if foreign else "")
        + f" and create it again: linker mirror create --link {link} {topic}"
    )
