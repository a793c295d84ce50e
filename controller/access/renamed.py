"""The ACLs of a source whose topics have a prefix before their names at the target: what their readers need there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from controller.access.acls import ALL, ALLOW, PREFIXED, TOPIC, Acl, Resource

_READS: Final = ("DESCRIBE", "READ")


def under_prefix(acls: Iterable[Acl], prefix: str) -> Iterator[Acl]:
    """Of topics alone, under their names at the target, with no right to change anything there; as they are without a
    prefix. Groups and transactional ids of the target have nothing to do with those of the source. An ACL of all topics
    of the source is one of all topics with the prefix."""
    for acl in acls:
        if not prefix:
            yield acl
        elif acl.resource.kind == TOPIC:
            resource = acl.resource
            renamed = (
                Resource(TOPIC, PREFIXED, prefix)
                if resource.everything
                else Resource(TOPIC, resource.pattern, prefix + resource.name)
            )
            if acl.permission == ALLOW and acl.operation == ALL:
                yield from (acl._replace(resource=renamed, operation=one) for one in _READS)
            elif acl.permission != ALLOW or acl.operation in _READS:
                yield acl._replace(resource=renamed)
