"""Mirrored groups: discovery, and the steps of a promote and a demote."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from controller.decide.links import link_of
from controller.decide.unheld_groups import carried, never_held, of_another
from controller.errors import NotFound, Refused
from controller.group_phases import GroupPhase, check_group_transition
from controller.groups import GateKind
from controller.image import ControllerImage
from controller.judge.group_gates import FoundGroup, cannot_be_held, choose_gate, made_again
from controller.keys import MAX_GROUP_BYTES
from controller.mirror_group import GroupMove, GroupPolicy, GroupProtocol, MirrorGroup
from controller.phases import ENDED, LED_ELSEWHERE, PROMOTING, Phase
from controller.state import Record, RemoveGroup
from wire.shown_id import listed, shown_id

# Phases in which discovery may change what a group covers and how it is held.
_AT_REST = frozenset(
    {
        GroupPhase.DISCOVERED,
        GroupPhase.GATED,
        GroupPhase.REFUSED,
        GroupPhase.FAILED,
        GroupPhase.DEMOTED,
    }
)
_NEVER_HELD = frozenset({GroupPhase.DISCOVERED, GroupPhase.REFUSED, GroupPhase.FAILED, GroupPhase.DEMOTED})


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The link's options for groups."""

    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...]
    policy: GroupPolicy = GroupPolicy.MANUAL
    gate: GateKind | None = None  # None: chosen by group

    def takes(self, group: str) -> bool:
        """Whether the link mirrors a group of this id."""
        if not 0 < len(group.encode("utf-8", "surrogatepass")) <= MAX_GROUP_BYTES:
            return False
        return self.matches(group)

    def matches(self, group: str) -> bool:
        """Whether the patterns select the group."""
        return any(pattern.fullmatch(group) for pattern in self.include) and not any(
            pattern.fullmatch(group) for pattern in self.exclude
        )


@dataclass(frozen=True, slots=True)
class Discovery:
    """The result of comparing the source's groups with the known ones."""

    records: Sequence[MirrorGroup]
    forget: Sequence[str]  # groups that are no longer to be mirrored: release them, then `forget`
    hold_otherwise: Mapping[str, GateKind]  # held groups that need another kind of gate now


def group_of(image: ControllerImage, link: str, name: str) -> MirrorGroup:
    link_of(image, link)
    group = image.groups.get((link, name))
    if group is None:
        raise NotFound(f"link {link!r} has no group {name!r}")
    return group


def live_topics(image: ControllerImage, link: str) -> frozenset[str]:
    """Topics of the link whose log is on the target or is being copied."""
    return frozenset(mirror.topic for mirror in image.link_mirrors(link) if mirror.target_replicas)


def discover(
    image: ControllerImage,
    link: str,
    found: Mapping[str, FoundGroup],
    rules: GroupRules,
    *,
    consumer_protocol: bool,
    now: int,
) -> Discovery:
    """Compare the source's groups with the known ones. Groups in a promote or a demote are left alone."""
    link_of(image, link)
    mirrored = live_topics(image, link)
    others = {name: owner for owner, name in image.groups if owner != link}
    records: list[MirrorGroup] = []
    forget: list[str] = []
    otherwise: dict[str, GateKind] = {}
    for name, seen in sorted(found.items()):
        if not rules.takes(name) or not seen.topics & mirrored:
            continue
        gate = choose_gate(seen, consumer_protocol=consumer_protocol, wanted=rules.gate)
        covered = {
            "topics": tuple(sorted(seen.topics & mirrored)),
            "unmirrored": tuple(sorted(seen.topics - mirrored)),
            "protocol": seen.protocol,
            "policy": rules.policy,
        }
        known = image.groups.get((link, name))
        if known is None:
            new = MirrorGroup(link=link, group=name, gate=gate, since=now, **covered)  # type: ignore[arg-type]
            if name in others:
                new = replace(new, phase=GroupPhase.REFUSED, reason=of_another(others[name]))
            elif (why := never_held(new)) is not None:
                new = replace(new, phase=GroupPhase.REFUSED, reason=why)
            records.append(new)
            continue
        if known.phase not in _AT_REST:
            continue
        if made_again(known.protocol, seen.protocol):
            forget.append(name)  # the next look finds it as a new group
            continue
        changed = replace(known, **covered)  # type: ignore[arg-type]
        if known.phase in _NEVER_HELD:
            # A demoted group has its gate already, and an empty group is no reason for another one.
            if seen.assignors or rules.gate is not None or known.gate_state is None:
                changed = replace(changed, gate=gate)
        elif (gate is not known.gate and seen.assignors) or seen.changed or never_held(changed) is not None:
            # Without members the assignors are unknown, which is no reason to change a closed gate.
            otherwise[name] = gate
        if changed != known:
            records.append(changed)
    for known in image.link_groups(link):
        seen_now = found.get(known.group)
        excluded = not rules.takes(known.group) or not (
            mirrored & (seen_now.topics if seen_now is not None else set(known.topics))
        )
        gone = seen_now is None and known.phase in _NEVER_HELD
        if known.phase is GroupPhase.PROMOTED:
            excluded, gone = not rules.takes(known.group), False
        elif known.phase not in _AT_REST:
            continue
        if (excluded or gone) and known.group not in forget:
            forget.append(known.group)
    return Discovery(records, forget, otherwise)


def step(
    image: ControllerImage, link: str, name: str, phase: GroupPhase, now: int, **fields: Any
) -> list[Record]:
    """Move a group to a phase."""
    known = group_of(image, link, name)
    check_group_transition(f"group {shown_id(name)} of link {link!r}", known.phase, phase)
    return [replace(known, phase=phase, since=now, **fields)]


def amend(image: ControllerImage, link: str, name: str, **fields: Any) -> list[Record]:
    """Change fields of a group, but not its phase."""
    known = group_of(image, link, name)
    changed = replace(known, **fields)
    return [] if changed == known else [changed]


def forget(image: ControllerImage, link: str, name: str) -> list[Record]:
    """Remove a group that is no longer mirrored and whose gate is released."""
    known = image.groups.get((link, name))
    if known is None:
        return []
    if known.phase not in _AT_REST | {GroupPhase.PROMOTED}:
        raise Refused(f"group {name!r} is {known.phase}: wait for the end of that")
    return [RemoveGroup(link, name)]


# Promote and demote.


def promotable(
    image: ControllerImage, link: str, names: Sequence[str] | None, *, force: bool, partial: bool
) -> list[MirrorGroup]:
    """The groups that a promote would take: those named, or all that are not promoted. Refused lists every reason."""
    link_of(image, link)
    if names is None:
        chosen = [group for group in image.link_groups(link) if group.phase is not GroupPhase.PROMOTED]
        if not chosen:
            raise Refused(f"link {link!r} has no group to promote")
    else:
        chosen = [group_of(image, link, name) for name in dict.fromkeys(names)]
    reasons = [
        f"group {shown_id(group.group)}: {why}"
        for group in chosen
        if (why := _not_promotable(image, group, force, partial)) is not None
    ]
    if reasons:
        raise Refused("; ".join(reasons))
    return chosen


def _not_promotable(image: ControllerImage, group: MirrorGroup, force: bool, partial: bool) -> str | None:
    match group.phase:
        case GroupPhase.GATED:
            pass
        case GroupPhase.REFUSED if carried(image, group):
            pass
        case GroupPhase.DRAINING | GroupPhase.FINAL_SYNC if _may_be_forced(group, force):
            return None  # the other checks were made when the promote was first asked for
        case GroupPhase.REFUSED | GroupPhase.FAILED:
            if not force:
                return (
                    f"it is {group.phase}: {group.reason}; with --force it is taken for promoted, with the offsets that its "
                    "members on the target have"
                )
        case _:
            return f"it is {group.phase}" + (f": {group.reason}" if group.reason else "")
    if group.unmirrored and not partial:
        return (
            f"it also reads {listed(group.unmirrored)}, which the link does not mirror: mirror them, or give "
            "--partial and its offsets of these topics stay behind"
            + (", and the state that is in its changelogs" if group.protocol is GroupProtocol.STREAMS else "")
        )
    return None


def _may_be_forced(group: MirrorGroup, force: bool) -> bool:
    """Whether a waiting promote (for members at the source, or for a dead source) is now to go on by force."""
    return force and group.move is not None and not group.move.force


def begin_promote(
    image: ControllerImage,
    link: str,
    names: Sequence[str] | None,
    *,
    force: bool,
    partial: bool,
    timeout_ms: int | None,
    now: int,
    automatic: bool = False,
) -> tuple[list[MirrorGroup], list[str]]:
    """Begin the promote of all the groups, or of none."""
    chosen = promotable(image, link, names, force=force, partial=partial)
    move = GroupMove(
        asked_at=now,
        until=None if timeout_ms is None else now + timeout_ms,
        force=force,
        automatic=automatic,
    )
    records: list[MirrorGroup] = []
    for group in chosen:
        unheld = carried(image, group)
        if group.phase is GroupPhase.GATED or unheld:
            asked = replace(move, unheld=unheld)
            changed = replace(group, phase=GroupPhase.DRAINING, move=asked, reason=None, since=now)
        elif group.phase in (GroupPhase.DRAINING, GroupPhase.FINAL_SYNC):
            unheld = group.move is not None and group.move.unheld
            changed = replace(group, move=replace(move, unheld=unheld))
        else:
            reason = f"taken for promoted by force: it was {group.phase} ({group.reason})"
            changed = replace(group, phase=GroupPhase.PROMOTED, gate_state=None, reason=reason, since=now)
        records.append(changed)
    return records, [group.group for group in chosen]


def begin_demote(
    image: ControllerImage, link: str, names: Sequence[str], *, timeout_ms: int | None, now: int
) -> tuple[list[MirrorGroup], list[str]]:
    """Begin to return groups to the source.

    Refused if a topic of the group is promoted or being promoted, because the source gets no new records of it.
    """
    chosen = [group_of(image, link, name) for name in dict.fromkeys(names)]
    reasons = [
        f"group {shown_id(group.group)}: {why}"
        for group in chosen
        if (why := _not_demotable(image, group)) is not None
    ]
    if reasons:
        raise Refused("; ".join(reasons))
    move = GroupMove(asked_at=now, until=None if timeout_ms is None else now + timeout_ms)
    records = [
        replace(
            group,
            phase=GroupPhase.DEMOTING,
            # One that was promoted before there was a gate for its kind names another.
            gate=GateKind.STREAMS if group.protocol is GroupProtocol.STREAMS else group.gate,
            move=move,
            reason=None,
            offsets=(),
            since=now,
        )
        for group in chosen
    ]
    return records, [group.group for group in chosen]


def _not_demotable(image: ControllerImage, group: MirrorGroup) -> str | None:
    if group.phase is not GroupPhase.PROMOTED:
        return f"it is {group.phase}, only promoted groups can be demoted"
    if cannot_be_held(group.protocol) is not None:
        return f"a {group.protocol} group is not taken back: nothing would hold its members; set its offsets at the source"
    return no_way_back(image, group) or promote_in_the_way(image, group)


def no_way_back(image: ControllerImage, group: MirrorGroup) -> str | None:
    """Why the offsets must not be returned to the source; None while they may.

    A topic's log that goes on at the target may have offsets beyond the end of the source's.
    """
    ended = _topics_in(image, group, LED_ELSEWHERE)
    return (
        f"its topics {listed(ended)} are promoted: the source has no new records of them" if ended else None
    )


def promote_in_the_way(image: ControllerImage, group: MirrorGroup) -> str | None:
    """Why a demote has to wait: the log of a topic may go on at the target before the state says so. None if it need not."""
    moving = _topics_in(image, group, PROMOTING - LED_ELSEWHERE)
    return f"its topics {listed(moving)} are being promoted" if moving else None


def _topics_in(image: ControllerImage, group: MirrorGroup, phases: Collection[Phase]) -> list[str]:
    """The group's topics with a partition in one of the phases."""
    return sorted(
        topic
        for topic in group.topics
        if any(state.phase in phases for state in image.topic_partitions(group.link, topic))
    )


def end_demote(image: ControllerImage, link: str, name: str, now: int, **fields: Any) -> list[Record]:
    """End a demote: the offsets are at the source.

    Refused if the promote of a topic has begun meanwhile: consumers at the source would wait for records in vain.
    """
    known = group_of(image, link, name)
    why = no_way_back(image, known) or promote_in_the_way(image, known)
    if why is not None:
        raise Refused(f"group {shown_id(name)} is not demoted: {why}")
    return step(image, link, name, GroupPhase.DEMOTED, now, **fields)


def returning(image: ControllerImage, link: str, topics: Collection[str]) -> list[str]:
    """Groups that read one of the topics and are being demoted."""
    return [
        group.group
        for group in image.link_groups(link)
        if group.phase is GroupPhase.DEMOTING and not set(topics).isdisjoint(group.topics)
    ]


def without_source(image: ControllerImage, group: MirrorGroup) -> str | None:
    """Why a promote of the group need not wait for a source that does not answer; None if it has to.

    After a failover the source cannot change the end of the target's log any more. Promoted topics alone are no reason: the
    source may still tell the last offsets.
    """
    if group.move is not None and group.move.force:
        return "it was to be promoted by force"
    phases = {state.phase for topic in group.topics for state in image.topic_partitions(group.link, topic)}
    return "its topics are failed over" if Phase.FAILED_OVER in phases and phases <= ENDED else None


def refuse_while_moving(image: ControllerImage, link: str) -> None:
    """Refused while a group of the link is being promoted or demoted."""
    busy = [group.group for group in image.link_groups(link) if group.move is not None]
    if busy:
        raise Refused(f"link {link!r} is moving groups {listed(busy)}: wait for the end of that")
