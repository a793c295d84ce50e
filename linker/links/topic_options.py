"""The options of a link that say which topics it mirrors by itself, read from its stored options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from admin.models import LinkOptions, patterns
from controller.state import JsonValue

#: Followed as soon as they are written.
TOPIC_OPTIONS = frozenset(
    {"topics_include", "topics_exclude", "topics_refresh_interval_ms", "topics_deleted"}
)


@dataclass(frozen=True, slots=True)
class TopicPatterns:
    """Which topics of a source are taken."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, topic: str) -> bool:
        """Each expression is of a whole name. A name that begins with `__` is taken only if it is written as it is: `.*`
        means the topics of applications."""
        if topic.startswith("__"):
            wanted = self.names(topic)
        else:
            wanted = any(re.fullmatch(one, topic) for one in self.include)
        return wanted and not any(re.fullmatch(one, topic) for one in self.exclude)

    def names(self, topic: str) -> bool:
        """Whether an expression is this very name."""
        return any(one.replace("\\", "") == topic for one in self.include)

    def names_prefix(self, topic: str, prefix: str) -> bool:
        """Whether an expression that takes the topic begins with this prefix as it is written."""
        return any(
            re.fullmatch(one, topic) and one.replace("\\", "").startswith(prefix) for one in self.include
        )


def topic_patterns(include: str, exclude: str) -> TopicPatterns:
    """From two lists of regular expressions."""
    return TopicPatterns(tuple(patterns(include)), tuple(patterns(exclude)))


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A link's."""

    rules: TopicPatterns
    interval: float
    deleted: str


def topic_settings(options: Mapping[str, JsonValue]) -> TopicSettings:
    """Of a link's stored options; what is not there has its default."""
    given = LinkOptions.model_validate(dict(options))
    return TopicSettings(
        topic_patterns(given.topics_include, given.topics_exclude),
        given.topics_refresh_interval_ms / 1000,
        given.topics_deleted,
    )
