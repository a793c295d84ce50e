"""Groups that no gate holds: share groups, and groups that are refused for another reason."""

from __future__ import annotations

from collections.abc import Collection

from controller.group_phases import GroupPhase
from controller.image import ControllerImage
from controller.judge.group_gates import cannot_be_held, unheld
from controller.mirror_group import GroupProtocol, MirrorGroup
from wire.shown_id import listed, shown_id


def unheld_readers(image: ControllerImage, link: str, topics: Collection[str]) -> list[str]:
    """Groups that read one of the topics and are not held, each with the reason for that."""
    return [
        f"{_named(group)} reads {listed(sorted({*topics} & {*group.topics}))}: {group.reason}"
        if unheld(group.protocol)
        else f"group {shown_id(group.group)} is {group.phase}: {group.reason}"
        for group in image.link_groups(link)
        if group.phase in (GroupPhase.REFUSED, GroupPhase.FAILED) and not set(topics).isdisjoint(group.topics)
    ]


def _named(group: MirrorGroup) -> str:
    return f"{group.protocol} group {shown_id(group.group)}"


def how_it_moves(group: MirrorGroup) -> str:
    """For a person who promotes a group that no gate holds."""
    return f"{_named(group)}: {unheld(group.protocol)}"


def carried(image: ControllerImage, group: MirrorGroup) -> bool:
    """Whether a promote brings the offsets of the group over although no gate holds it."""
    return (
        group.phase is GroupPhase.REFUSED
        and unheld(group.protocol) is not None
        and owner_elsewhere(image, group) is None
    )


def of_another(link: str) -> str:
    return f"a group of this id is mirrored by link {link}: the two would be one group on the target"


def refusal(image: ControllerImage, group: MirrorGroup) -> str | None:
    """Why a group must not be gated, as far as the state shows; None if it may."""
    owner = owner_elsewhere(image, group)
    return never_held(group) if owner is None else of_another(owner)


def never_held(group: MirrorGroup) -> str | None:
    """Why the group cannot be held, whoever else mirrors it."""
    if group.protocol is GroupProtocol.STREAMS and group.unmirrored:
        return (
            f"it cannot be held while the link does not mirror {listed(group.unmirrored)}, which it reads or keeps its "
            f"state in; {unheld(group.protocol)}"
        )
    return cannot_be_held(group.protocol)


def owner_elsewhere(image: ControllerImage, group: MirrorGroup) -> str | None:
    """Another link that mirrors a group of this id."""
    for owner, name in image.groups:
        other = image.groups[owner, name]
        taken = other.phase is not GroupPhase.REFUSED
        if name == group.group and owner != group.link and taken:
            return owner
    return None
