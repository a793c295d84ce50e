"""The link that runs against another one: from that link's target to its source.

The reverse link has no properties of its own, since the configuration says how the target is reached. It has the options of
the link that it reverses. It is written down before the first topic is switched, and exists as long as the other link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controller.errors import AlreadyExists, NotFound, Refused
from controller.image import ControllerImage
from controller.state import Link, Record

_SUFFIX = ".reverse"


def reverse_name(link: str) -> str:
    """The name of the link that runs against this one."""
    return link + _SUFFIX


def reverse_of(image: ControllerImage, link: str) -> Link | None:
    """The link that runs against this one; None until the first topic is switched."""
    found = image.links.get(reverse_name(link))
    return None if found is None or found.reverse_of != link else found


def at_source(image: ControllerImage, link: str) -> str:
    """The cluster that a link mirrors, named as in `Link.at`. Only for clusters that sidecars can join."""
    found = image.links.get(link)
    return link if found is None or found.reverse_of is None else ""


def create_reverse(image: ControllerImage, link: Link, target_cluster_id: str, now: int) -> list[Record]:
    """Create the link against `link`, if there is none. AlreadyExists if an ordinary link has its name."""
    name = reverse_name(link.name)
    if reverse_of(image, link.name) is not None:
        return []
    if name in image.links:
        raise AlreadyExists(
            f"topics of link {link.name!r} cannot be switched while another link is named {name!r}: delete that link"
        )
    reverse = Link(
        name=name,
        source_cluster_id=target_cluster_id,
        properties={},
        options=link.options,
        created_at=now,
        reverse_of=link.name,
    )
    return [reverse]


def set_sync(image: ControllerImage, link: str, topics: Iterable[str], on: bool) -> list[Record]:
    """Have link brokers among the in-sync replicas of these topics in the cluster that owns them, or not."""
    records: list[Record] = []
    for topic in topics:
        mirror = image.mirrors.get((link, topic))
        if mirror is None:
            raise NotFound(f"link {link!r} has no mirror of topic {topic!r}")
        if not on and any(job.switch and topic in job.topics for job in image.running_jobs(link)):
            raise Refused(
                f"topic {topic!r} is being switched, which needs its sync: wait until the switch is over"
            )
        if on and mirror.ending is not None:
            raise Refused(
                f"the switch of topic {topic!r} is being finished: it cannot be switched back any more"
            )
        if mirror.sync != on:
            records.append(replace(mirror, sync=on))
    return records
