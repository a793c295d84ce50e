"""One topic on link brokers, as a bring-up asks for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from linker.membership.topic_operations import NewTopic, TopicOperations
from wire.frames.types import TopicId


async def create_mirror_topic(
    operations: TopicOperations,
    name: str,
    assignments: Mapping[int, Sequence[int]],
    configs: Mapping[str, str],
    *,
    validate_only: bool = False,
) -> TopicId:
    """Its id; raises if it is refused."""
    made, refused = await operations.create_mirror_topics(
        {name: NewTopic(assignments, configs)}, validate_only=validate_only
    )
    for error in refused.values():
        raise error
    return bytes(16) if validate_only else made[name]
