"""The ACLs that a link carries: chosen by filters, mapped to the target's principals, compared with the target.

A link carries the ACLs of its mirrored topics and, of the principals found there, those of groups and transactional
ids. An ACL that the target had before is never the link's: it is neither noted nor removed.

Nobody gets more at the target than at the source. A DENY that restricts a carried ALLOW comes along whatever the filters
say, and an ALLOW whose DENY cannot be carried is left out.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.access.acls import (
    ALLOW,
    CLUSTER,
    DENY,
    EVERYBODY,
    GROUP,
    TOPIC,
    TRANSACTIONAL_ID,
    Acl,
    AclSet,
    Resource,
)
from controller.keys import MAX_GROUP_BYTES

#: Kinds of resources whose ACLs may be carried, by their names in the option `acl_resources`.
KINDS = {"topic": TOPIC, "group": GROUP, "transactional_id": TRANSACTIONAL_ID, "cluster": CLUSTER}
_PRINCIPAL = re.compile(r"[A-Za-z]+:.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """Principals that match the expression as a whole become `replacement`, with groups as in `re.sub`."""

    expression: re.Pattern[str]
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRules:
    """A link's options about ACLs."""

    kinds: frozenset[str] = frozenset({TOPIC, GROUP, TRANSACTIONAL_ID})
    principals: tuple[re.Pattern[str], ...] = (re.compile(".*", re.DOTALL),)
    principals_not: tuple[re.Pattern[str], ...] = ()
    names: tuple[re.Pattern[str], ...] = (re.compile(".*", re.DOTALL),)
    names_not: tuple[re.Pattern[str], ...] = ()
    operations: frozenset[str] | None = None  # None: all
    mapping: tuple[PrincipalRule, ...] = ()
    prefix: str = ""  # of the topics' names at the target: names are chosen by those of the source

    def chosen(self, acl: Acl) -> bool:
        """Whether the filters take it."""
        return (
            acl.resource.kind in self.kinds
            and (self.operations is None or acl.operation in self.operations)
            and _matches(self.principals, acl.principal)
            and not _matches(self.principals_not, acl.principal)
            and _matches(self.names, acl.resource.name.removeprefix(self.prefix))
            and not _matches(self.names_not, acl.resource.name.removeprefix(self.prefix))
        )

    def mapped(self, principal: str) -> str:
        """The target's principal for one of the source. `User:*` stays: it is nobody's name."""
        if principal != EVERYBODY:
            for rule in self.mapping:
                if rule.expression.fullmatch(principal):
                    return rule.expression.sub(rule.replacement, principal, count=1)
        return principal


def _matches(expressions: Iterable[re.Pattern[str]], text: str) -> bool:
    return any(one.fullmatch(text) for one in expressions)


@dataclass(frozen=True, slots=True)
class NotCarried:
    """An ACL of the source that is not carried although the filters take it."""

    acl: Acl
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The source's ACLs as the target is to have them."""

    wanted: frozenset[Acl] = frozenset()
    left_out: tuple[NotCarried, ...] = ()
    principals: Mapping[str, str] = field(default_factory=dict)  # of the source -> of the target
    wide: tuple[Acl, ...] = ()  # of these, the ones that reach beyond the mirrors at the target


def select(
    source: AclSet, rules: AclRules, topics: Collection[str], target_topics: Collection[str] = ()
) -> Selection:
    """topics: those that are mirrored. target_topics: all topics of the target."""
    mirrored = sorted(topics)
    concerned = {acl for acl in source.all if rules.chosen(acl)}
    of_topics = [
        acl for acl in concerned if acl.resource.kind == TOPIC and _covers_any(acl.resource, mirrored)
    ]
    clients = {acl.principal for acl in of_topics if acl.permission == ALLOW}
    others = [
        acl
        for acl in concerned
        if acl.resource.kind != TOPIC
        and (acl.principal in clients or acl.principal == EVERYBODY or EVERYBODY in clients)
        and (acl.resource.kind != CLUSTER or acl.operation == "IDEMPOTENT_WRITE")
    ]
    found = {*of_topics, *others}
    denials = [acl for acl in source.all if acl.permission == DENY]
    found |= {deny for deny in denials if any(deny.restricts(allow) for allow in found)}
    principals = {acl.principal: rules.mapped(acl.principal) for acl in found}
    refused = _unusable(principals)
    reasons = {
        acl: reason for acl in found if (reason := refused.get(acl.principal) or _too_long(acl)) is not None
    }
    lost = [acl for acl in reasons if acl.permission == DENY]
    for allow in found - reasons.keys():
        deny = next((deny for deny in lost if deny.restricts(allow)), None)
        if deny is not None:
            reasons[allow] = f"{deny} restricts it and cannot be carried: {reasons[deny]}"
    wanted = {acl._replace(principal=principals[acl.principal]) for acl in found - reasons.keys()}
    left_out = [NotCarried(acl, reason) for acl, reason in sorted(reasons.items())]
    beyond = sorted(set(target_topics) - set(mirrored))
    wide = tuple(
        acl
        for acl in sorted(wanted)
        if acl.resource.kind == TOPIC and acl.permission == ALLOW and _covers_any(acl.resource, beyond)
    )
    usable = {one: other for one, other in principals.items() if one not in refused}
    return Selection(frozenset(wanted), tuple(left_out), usable, wide)


def _too_long(acl: Acl) -> str | None:
    """Why the ACL cannot be noted in the link's state."""
    size = len(acl.resource.name.encode("utf-8", "surrogatepass"))
    if 0 < size <= MAX_GROUP_BYTES:
        return None
    return f"the name of its resource has {size} bytes, and the state store takes 1 to {MAX_GROUP_BYTES}"


def permitted(allows: Iterable[Acl], missing: Collection[Acl]) -> list[Acl]:
    """Of these ALLOWs those that may be made although some DENYs could not."""
    return [allow for allow in allows if not any(deny.restricts(allow) for deny in missing)]


def _covers_any(resource: Resource, names: Sequence[str]) -> bool:
    """names: sorted."""
    if resource.everything:
        return bool(names)
    place = bisect_left(names, resource.name)
    return place < len(names) and resource.covers(names[place])


def _unusable(principals: Mapping[str, str]) -> dict[str, str]:
    """Principals of the source whose mapping cannot be used, with the reason."""
    sources: dict[str, list[str]] = defaultdict(list)
    for principal, mapped in principals.items():
        sources[mapped].append(principal)
    refused: dict[str, str] = {}
    for mapped, found in sources.items():
        if len(found) > 1:
            names = ", ".join(sorted(found))
            reason = f"acl_principals_map makes {mapped} of {names}: each would get the others' rights"
        elif _PRINCIPAL.fullmatch(mapped) is None:
            reason = f"acl_principals_map makes {mapped!r} of it, which is no principal (Type:name)"
        else:
            continue
        refused.update(dict.fromkeys(found, reason))
    return refused


@dataclass(frozen=True, slots=True)
class AclPlan:
    """The changes that make the target have what it is to have, in the order in which they are made."""

    add: tuple[Acl, ...]  # each DENY first: nobody is let in before he is kept out
    remove: tuple[Acl, ...]  # each ALLOW first
    forget: tuple[Acl, ...]  # noted as the link's, and not its business any more
    present: int  # of the wanted, how many are there


def plan(
    selection: Selection,
    target: AclSet,
    carried: Collection[Acl],
    *,
    mirrored: Collection[str],
    left: Collection[str],
) -> AclPlan:
    """carried: the ACLs that the link has made. mirrored: the topics that are followed. left: other topics of the target
    (promoted, or kept when their mirror was deleted): their ACLs stay and are the owner's from now on."""
    theirs = set(left)
    wanted = selection.wanted
    if not mirrored:
        return AclPlan((), (), tuple(sorted(carried)), 0)
    forget = {acl for acl in carried if _is_of(acl.resource, theirs)} - wanted
    gone = set(carried) - wanted - forget
    return AclPlan(
        add=tuple(sorted(wanted - target.all, key=lambda acl: (acl.permission != DENY, acl))),
        remove=tuple(sorted(gone & target.all, key=lambda acl: (acl.permission == DENY, acl))),
        forget=tuple(sorted(forget | (gone - target.all))),
        present=len(wanted & target.all),
    )


def _is_of(resource: Resource, topics: Collection[str]) -> bool:
    return resource.kind == TOPIC and resource.pattern != "PREFIXED" and resource.name in topics
