"""The end of a link with more below it than a store takes in one commit: mirrors and groups go before it, in portions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from controller import keys
from controller.decide.groups import refuse_while_moving
from controller.decide.links import delete_link
from controller.decide.source_fence import owed_topics
from controller.image import ControllerImage
from controller.portions import MOST_BYTES, weight_of_removal
from controller.state import Record, RemoveCarriedAcls, RemoveGroup, RemoveMirror


def before_link(image: ControllerImage, name: str, force: bool = False) -> list[Record]:
    """The next portion; none if the rest can go with the link. Refused as the deletion of the link is.

    Mirrors go first, because groups whose mirrors are gone are not found again. A topic that the source still refuses
    writes to stays: a link that is not deleted after all has to open it.
    """
    delete_link(image, name, force)
    refuse_while_moving(image, name)
    top = keys.link(name)
    depth = top.count("/") + 3
    weights: Counter[str] = Counter()  # by mirror, group or whatever else is right below the link
    for path in image.versions:
        if path.startswith(f"{top}/"):
            weights["/".join(path.split("/", depth)[:depth])] += weight_of_removal(path)
    if weights.total() <= MOST_BYTES:
        return []
    records: list[Record] = []
    room = MOST_BYTES
    for path, record in _removals(image, name):
        if records and weights[path] > room:
            break
        records.append(record)
        room -= weights[path]
    return records


def _removals(image: ControllerImage, link: str) -> Iterator[tuple[str, Record]]:
    """Each with the path of all that goes with it."""
    owed = owed_topics(image, link)
    for mirror in image.link_mirrors(link):
        if mirror.topic not in owed:
            yield keys.mirror(link, mirror.topic), RemoveMirror(link, mirror.topic)
    for group in image.link_groups(link):
        yield keys.group(link, group.group), RemoveGroup(link, group.group)
    for name, resource in sorted(image.acls):
        if name == link:
            yield keys.carried_acls(link, resource), RemoveCarriedAcls(link, resource)
