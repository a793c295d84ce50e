"""The topics of a source as its brokers tell them: all of them, and whether one is certainly gone."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from wire.client.cluster import Cluster
from wire.errors import LinkerError
from wire.frames.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import ZERO_TOPIC_ID

_TIMEOUT = 10.0


class SourceTopicId(NamedTuple):
    """A topic that is there."""

    topic_id: bytes | None  # None: the source is too old for ids
    partitions: int


async def all_topics(source: Cluster) -> dict[str, SourceTopicId]:
    """Those that the link's principal may see."""
    answer = await source.call(
        "metadata", {"topics": None, "allow_auto_topic_creation": False}, timeout=_TIMEOUT
    )
    return {
        str(topic.name): SourceTopicId(_id(topic), len(topic.partitions))
        for topic in answer.topics
        if not int(topic.error_code) and topic.name is not None
    }


async def gone(source: Cluster, topics: Collection[str]) -> dict[str, SourceTopicId | None]:
    """Those of these topics that no broker knows (None), or that all brokers know under another id.

    A list of all topics proves nothing: it leaves out what the principal may not see. So the topics are asked for by name,
    and every broker that answers has to say the same: one may be behind with the metadata. LinkerError if none answers.
    """
    said: dict[str, list[SourceTopicId | None]] = {topic: [] for topic in topics}
    unsure: set[str] = set()
    trouble: LinkerError | None = None
    answers = 0
    for node in sorted(source.nodes):
        try:
            answer = await source.call(
                "metadata",
                {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False},
                node_id=node,
                timeout=_TIMEOUT,
            )
        except LinkerError as error:
            trouble = error  # a broker that is down says nothing; the others do
            continue
        answers += 1
        for topic in answer.topics:
            code, name = int(topic.error_code), str(topic.name)
            if code == UNKNOWN_TOPIC_OR_PARTITION:
                said[name].append(None)
            elif code:
                unsure.add(name)  # no right to see it, say
            else:
                said[name].append(SourceTopicId(_id(topic), len(topic.partitions)))
    if not answers:
        raise trouble or LinkerError(f"{source.name}: no broker is known")
    return {
        name: told[0]
        for name, told in said.items()
        if name not in unsure and len(told) == answers and all(_same(one, told[0]) for one in told)
    }


def _same(one: SourceTopicId | None, other: SourceTopicId | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.topic_id == other.topic_id


def _id(topic: object) -> bytes | None:
    found = getattr(topic, "topic_id", None)
    known = None if found is None else bytes(found.bytes)
    return None if known == ZERO_TOPIC_ID else known
