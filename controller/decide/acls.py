"""The ACLs that a link has made at the target: noted before they are made, forgotten after they are removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from controller.access.acls import Acl, Resource
from controller.decide.links import link_of
from controller.image import ControllerImage
from controller.state import CarriedAcls, Grant, Record, RemoveCarriedAcls


def carried(image: ControllerImage, link: str) -> frozenset[Acl]:
    """The ACLs that the link has made, or was about to make."""
    return frozenset(
        Acl(resource, *grant)
        for (name, resource), noted in image.acls.items()
        if name == link
        for grant in noted.grants
    )


def note_acls(
    image: ControllerImage, link: str, *, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()
) -> list[Record]:
    """Records of the resources whose ACLs of the link change."""
    link_of(image, link)
    changed: dict[Resource, set[Grant]] = defaultdict(set)
    added, removed = frozenset(add), frozenset(remove)
    for resource in {acl.resource for acl in added | removed}:
        noted = image.acls.get((link, resource))
        changed[resource] = set() if noted is None else set(noted.grants)
    for acl in removed:
        changed[acl.resource].discard(_grant(acl))
    for acl in added:
        changed[acl.resource].add(_grant(acl))
    records: list[Record] = []
    for resource, grants in sorted(changed.items()):
        noted = image.acls.get((link, resource))
        if not grants and noted is not None:
            records.append(RemoveCarriedAcls(link, resource))
        elif grants and (noted is None or grants != set(noted.grants)):
            records.append(CarriedAcls(link=link, resource=resource, grants=tuple(sorted(grants))))
    return records


def _grant(acl: Acl) -> Grant:
    return Grant(acl.principal, acl.host, acl.operation, acl.permission)
