"""The link's options about topic configs: whether the source's are followed, and which are the target's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from controller.image import ControllerImage
from controller.plan.topic_configs import FORCED, MIN_INSYNC, SEGMENT_BYTES
from controller.state import JsonValue, MirrorTopic

#: Followed as soon as they are written.
CONFIG_OPTIONS = frozenset({"topic_config_sync", "topic_config_exclude"})
#: Put back whatever the options say. With another value the copies lose records, are elected unfinished, cannot be elected
#: at all, or cannot take the source's batches.
ALWAYS_KEPT = frozenset({*FORCED, MIN_INSYNC, SEGMENT_BYTES})


class ConfigOptions(NamedTuple):
    """sync: follow, report or off. exclude: configs whose value is the target's own for every topic of the link."""

    sync: str = "follow"
    exclude: tuple[str, ...] = ()


def config_options(options: Mapping[str, JsonValue]) -> ConfigOptions:
    """Of a link's stored options, which were checked when they were written."""
    exclude = str(options.get("topic_config_exclude", ""))
    return ConfigOptions(
        str(options.get("topic_config_sync", "follow")), tuple(one for one in exclude.split(",") if one)
    )


def from_target(image: ControllerImage, mirror: MirrorTopic) -> tuple[str, ...]:
    """The configs of a mirror whose value is the target's own, as its creation or its link says."""
    link = image.links.get(mirror.link)
    excluded = () if link is None else config_options(link.options).exclude
    return tuple(dict.fromkeys((*mirror.configs_from_target, *excluded)))
