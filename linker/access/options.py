"""The link's options about ACLs, read from its stored options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from admin.models import LinkOptions, compiled, principal_rules
from controller.access.carry import KINDS, AclRules, PrincipalRule
from controller.state import JsonValue

#: Followed as soon as they are written.
ACL_OPTIONS = frozenset(
    {
        "acl_sync",
        "acl_sync_interval_ms",
        "acl_resources",
        "acl_operations",
        "acl_principals_include",
        "acl_principals_exclude",
        "acl_names_include",
        "acl_names_exclude",
        "acl_principals_map",
    }
)


def acl_options(options: Mapping[str, JsonValue]) -> tuple[LinkOptions, AclRules]:
    """Of a link's stored options; what is not there has its default."""
    given = LinkOptions.model_validate(dict(options))
    return given, AclRules(
        kinds=frozenset(KINDS[kind] for kind in given.acl_resources.split(",")),
        principals=compiled(given.acl_principals_include),
        principals_not=compiled(given.acl_principals_exclude),
        names=compiled(given.acl_names_include),
        names_not=compiled(given.acl_names_exclude),
        operations=None
        if given.acl_operations == "all"
        else frozenset(one.upper() for one in given.acl_operations.split(",")),
        mapping=tuple(
            PrincipalRule(re.compile(expression, re.DOTALL), replacement)
            for expression, replacement in principal_rules(given.acl_principals_map)
        ),
        prefix=given.prefix,
    )
