"""Configs that a promote sets at its end, asked for before it begins: one that the cluster refuses then (an
alter.config.policy, or two values that do not go together) would keep the job from its end, with the clients moved."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

from linker.checks.preflight import PreflightFinding
from linker.membership.errors import OperationFailed
from wire.errors import LinkerError

log = logging.getLogger(__name__)

_TIMEOUT = 2.0


class ConfigOperations(Protocol):
    """linker.membership.topic_operations.TopicOperations, as far as needed."""

    async def set_configs_of_topics(
        self, configs: Mapping[str, Mapping[str, str | None]], *, timeout: float, validate_only: bool
    ) -> None: ...


async def refused_configs(
    operations: ConfigOperations, wanted: Mapping[str, Mapping[str, str | None]]
) -> list[PreflightFinding]:
    """`wanted`: by topic, the overrides that are set in the end (None deletes one). A controller that does not answer soon
    keeps no promote from beginning: the last step waits for it in any case."""
    try:
        await operations.set_configs_of_topics(wanted, timeout=_TIMEOUT, validate_only=True)
    except OperationFailed as error:
        return [
            PreflightFinding(
                "configs",
                True,
                f"topic {topic}: the cluster refuses what a promote sets in the end, {_shown(wanted.get(topic, {}))}: {why}",
                "change what stands in the way of it on the topic, or in the cluster, and try again",
            )
            for topic, why in sorted(error.failed.items())
        ]
    except LinkerError as error:
        log.info("the configs that a promote sets in the end are not tried before it: %s", error)
    return []


def _shown(configs: Mapping[str, str | None]) -> str:
    return ", ".join(
        f"no {name}" if value is None else f"{name}={value}" for name, value in sorted(configs.items())
    )
