"""Configs of a mirror that somebody changed at the target: found, said, and those of them that are put back. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from controller.plan.topic_configs import COPIED, FOLLOWED, FORCED


class Drift(NamedTuple):
    """Somebody changed a config of a mirror at the target."""

    config: str
    wanted: str | None  # None: no override
    found: str | None

    @property
    def said(self) -> str:
        wanted = "no value of its own" if self.wanted is None else self.wanted
        found = "its override was deleted" if self.found is None else f"somebody set it to {self.found}"
        return f"{self.config} is to be {wanted} while the topic is mirrored; {found}"


def drifts(
    wanted: Mapping[str, str], overrides: Mapping[str, str], from_target: Collection[str] = ()
) -> list[Drift]:
    """The overrides to put back. `wanted`: the mirror's overrides (`ConfigPlan.create`); `overrides`: those that the topic
    has at the target now. The forced configs are wanted of every mirror, also of one whose plan is older than they are.
    Other overrides of such a mirror are left alone until there is a plan of today: an operator may have set them by hand.
    Overrides that are nobody's business here (quotas, tiered storage) are always left alone.
    """
    of_today = FORCED.keys() <= wanted.keys()
    return [
        one
        for one in differing(wanted, overrides, from_target)
        if one.wanted is not None or (of_today and one.config in FOLLOWED)
    ]


def differing(
    wanted: Mapping[str, str], overrides: Mapping[str, str], from_target: Collection[str] = ()
) -> list[Drift]:
    """Everything that is not as the mirror is to have it, also if nobody puts it back."""
    wanted = {**wanted, **FORCED}
    return [
        Drift(name, wanted.get(name), overrides.get(name))
        for name in sorted({*wanted, *(COPIED & overrides.keys())})
        if (name not in from_target or name in FORCED) and overrides.get(name) != wanted.get(name)
    ]
