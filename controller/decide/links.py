"""Links: made, changed and deleted.

Functions of the image as in `mirrors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controller import keys
from controller.decide.reverse import reverse_of
from controller.decide.source_fence import refuse_while_owed
from controller.errors import AlreadyExists, NotFound, Refused
from controller.image import ControllerImage
from controller.phases import ENDED, Phase
from controller.state import (
    JsonValue,
    Link,
    MirrorPartition,
    ProducerIdFloor,
    Record,
    RemoveLink,
)
from wire.shown_id import listed


def link_of(image: ControllerImage, name: str) -> Link:
    link = image.links.get(name)
    if link is None:
        known = ", ".join(sorted(image.links)) or "none"
        raise NotFound(f"link {name!r} does not exist (links: {known})")
    return link


def create_link(image: ControllerImage, link: Link) -> list[Record]:
    keys.check_link_name(link.name)
    if link.name in image.links:
        raise AlreadyExists(f"link {link.name!r} exists already")
    return [link]


def update_link(
    image: ControllerImage,
    name: str,
    properties: Mapping[str, str] | None,
    options: Mapping[str, JsonValue] | None,
) -> list[Record]:
    link = link_of(image, name)
    changed = replace(
        link,
        properties=link.properties if properties is None else dict(properties),
        options=link.options if options is None else dict(options),
    )
    if changed.prefix != link.prefix and any(image.link_mirrors(name)):
        raise Refused(
            f"the prefix of link {name!r} is that of its mirrors: delete them first, or make another link"
        )
    reverse = reverse_of(image, name)
    return [changed] if reverse is None else [changed, replace(reverse, options=changed.options)]


def delete_link(image: ControllerImage, name: str, force: bool = False) -> list[Record]:
    """`force`: also if a topic of the source was left closed, which is never undone without the link."""
    link_of(image, name)
    alive = sorted(
        {s.topic for s in image.link_partitions(name) if s.phase not in ENDED and not left_out(image, s)}
    )
    if alive:
        raise Refused(f"link {name!r} still mirrors {listed(alive)}: promote, fail over or delete them first")
    reverse = reverse_of(image, name)
    switched = [] if reverse is None else [mirror.topic for mirror in image.link_mirrors(reverse.name)]
    if switched:
        raise Refused(f"topics of link {name!r} were switched and are not finished: {listed(switched)}")
    if not force:
        refuse_while_owed(image, name)
    return [RemoveLink(name)] if reverse is None else [RemoveLink(reverse.name), RemoveLink(name)]


def left_out(image: ControllerImage, state: MirrorPartition) -> bool:
    """Whether a failover of its topic has left it out: the source had just added it, and nothing of it was copied."""
    mirror = image.mirrors.get((state.link, state.topic))
    return (
        mirror is not None
        and mirror.added(state.partition)
        and state.session_epoch < 0
        and any(one.phase is Phase.FAILED_OVER for one in image.topic_partitions(state.link, state.topic))
    )


def set_producer_id_floor(image: ControllerImage, floor: ProducerIdFloor) -> list[Record]:
    link_of(image, floor.link)
    return [floor]
