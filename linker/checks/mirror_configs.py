"""Differences between a mirror's topic configs at the target and those that it is to have.

The metadata log has the topic's overrides, so nobody is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from admin.models import Check, CheckResult
from controller.plan.config_drifts import differing
from controller.plan.topic_configs import FOLLOWED

NAME = "mirror configs"
_OFTEN = 3  # times: somebody's tool does it, and will after the promote, when nobody puts anything back


class Changed(NamedTuple):
    config: str
    wanted: str | None  # None: no override
    found: str | None

    def __str__(self) -> str:
        def shown(value: str | None) -> str:
            return "not set" if value is None else f"'{value}'" if value == "" else value

        return f"{self.config} is {shown(self.found)}, to be {shown(self.wanted)}"

    def matters(self) -> bool:
        """Whether the config decides what the log holds, or what clients may do with it."""
        return self.wanted is not None or self.config in FOLLOWED

    def repair(self, topic: str) -> str:
        """As an operator does it."""
        what = (
            f"--delete-config {self.config}"
            if self.wanted is None
            else f"--add-config '{self.config}=[{self.wanted}]'"
            if "," in self.wanted
            else f"--add-config {self.config}={self.wanted}"
        )
        return f"kafka-configs.sh --bootstrap-server <target> --alter --entity-type topics --entity-name {topic} {what}"


def changed(
    wanted: Mapping[str, str], found: Mapping[str, str], from_target: Collection[str] = ()
) -> list[Changed]:
    """`wanted`: the overrides that the mirror is to have; `found`: those that its topic has. Configs that no mirror gets
    (throttles, tiered storage) are not compared, nor those whose value is to be the target's (`from_target`).
    The rule is the one by which configs are put back; here are those too that nobody puts back."""
    return [Changed(*one) for one in differing(wanted, found, from_target)]


def config_checks(topics: Iterable[tuple[str, list[Changed]]]) -> list[Check]:
    """A line for each topic with a difference, FAIL if it is one that matters; one line that says that there is none."""
    checked = list(topics)
    checks = [
        Check(
            name=NAME,
            result=CheckResult.FAIL if any(one.matters() for one in found) else CheckResult.WARN,
            detail=f"topic {topic} at the target is not as it was made: {'; '.join(map(str, found))}",
            remedy=found[0].repair(topic) + (" (and so for the others)" if len(found) > 1 else ""),
        )
        for topic, found in checked
        if found
    ]
    if checked and not checks:
        checks.append(
            Check(name=NAME, result=CheckResult.OK, detail="at the target as each mirror is to have them")
        )
    return checks


def kept_checks(put_back: Mapping[str, Mapping[str, int]], troubles: Mapping[str, str]) -> list[Check]:
    """The configs that are put back by themselves: those that could not be put back (`troubles`, by topic), and those
    that somebody changes again and again."""
    checks = [
        Check(
            name=NAME,
            result=CheckResult.FAIL,
            detail=f"topic {topic}: {why}",
            remedy="the log of the sidecar has more; ALTER_CONFIGS on the topic at the target is needed",
        )
        for topic, why in sorted(troubles.items())
    ]
    for topic, configs in sorted(put_back.items()):
        told = ", ".join(f"{config} {times} times" for config, times in sorted(configs.items()) if times)
        if not told:
            continue
        often = max(configs.values()) >= _OFTEN
        checks.append(
            Check(
                name=NAME,
                result=CheckResult.WARN if often else CheckResult.OK,
                detail=f"topic {topic}: somebody changed at the target what was put back at once: {told}",
                remedy="find the tool that does it (Terraform, Strimzi, Julie): after the promote nobody puts it back"
                if often
                else None,
            )
        )
    return checks


def reported_checks(reported: Mapping[str, str]) -> list[Check]:
    """A line for each topic whose source's configs have changed and are not followed, by `topic_config_sync=report`."""
    return [
        Check(
            name=NAME,
            result=CheckResult.WARN,
            detail=f"topic {topic}: configs at the source have changed since, and are not followed: {changes}",
            remedy="linker link update LINK --option topic_config_sync=follow, or topic_config_exclude for those that are "
            "to be the target's own",
        )
        for topic, changes in sorted(reported.items())
    ]
