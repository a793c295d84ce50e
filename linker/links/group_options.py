"""The options of a link that concern groups, read from its stored options."""

from __future__ import annotations

from collections.abc import Mapping

from admin.models import LinkOptions, compiled
from controller.decide.groups import GroupRules
from controller.groups import GateKind
from controller.mirror_group import GroupPolicy
from controller.state import JsonValue
from groups.settings import GroupSettings

#: The options that are about groups. They are followed as soon as they are written: nothing else of a link depends on them.
GROUP_OPTIONS = frozenset(
    {"groups_include", "groups_exclude", "groups_sync_interval_ms", "groups_promote", "groups_gate"}
)


def group_settings(options: Mapping[str, JsonValue]) -> GroupSettings:
    """Of a link's stored options; what is not there has its default."""
    given = LinkOptions.model_validate(dict(options))
    if given.prefix:  # nobody moves to its mirrors: readers there have groups of their own
        given = given.model_copy(update={"groups_include": ""})
    return GroupSettings(
        GroupRules(
            compiled(given.groups_include),
            compiled(given.groups_exclude),
            GroupPolicy(given.groups_promote),
            None if given.groups_gate == "auto" else GateKind(given.groups_gate),
        ),
        given.groups_sync_interval_ms / 1000,
    )
