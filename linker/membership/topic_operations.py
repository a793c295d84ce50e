"""Requests of a link broker to the controller about topics and their configs.

Each of them may be repeated safely, and settles an unknown outcome by itself, from the metadata log or by asking again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import OperationFailed, raise_refused, refusal
from linker.membership.watched_image import WatchedImage
from wire.errors import ConnectionLost, LinkerError
from wire.frames.error_codes import (
    INVALID_PARTITIONS,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TOPIC_RESOURCE, TopicId
from wire.metadata.image import ClusterImage, TopicImage

DEFAULT_TIMEOUT = 15.0
_OP_SET, _OP_DELETE = 0, 1
_RACE_PAUSE = 0.1
#: From version 5 on the answer has all configs of each topic, some forty entries that are not used here.
_MAX_CREATE_VERSION = 4


class NewTopic(NamedTuple):
    """A topic to create, with its assignment: partition -> link brokers."""

    assignments: Mapping[int, Sequence[int]]
    configs: Mapping[str, str]


class TopicOperations:
    """Requests to the controller about topics."""

    #: Whether topics have ids that requests may name them by.
    _ids = True

    def __init__(self, channel: ControllerChannel, metadata: WatchedImage) -> None:
        self._channel = channel
        self._metadata = metadata

    async def create_mirror_topics(
        self,
        topics: Mapping[str, NewTopic],
        *,
        validate_only: bool = False,
    ) -> tuple[dict[str, TopicId], dict[str, LinkerError]]:
        """Create topics in one request. Returns the ids of those that were created, and the reasons why others were refused.

        Returns once they are in the image, which also settles an answer that got lost: a topic counts as ours if it has
        exactly these partitions on exactly these replicas. The controller takes some 10,000 records in one request; each
        topic, each partition and each config is one.
        """
        deadline = time.monotonic() + DEFAULT_TIMEOUT
        maybe_ours = False
        while True:
            remaining = max(0.001, deadline - time.monotonic())
            try:
                response = await self._channel.call(
                    "create_topics",
                    {
                        "topics": [_creation(name, topic) for name, topic in topics.items()],
                        "timeout_ms": int(remaining * 1000),
                        "validate_only": validate_only,
                    },
                    timeout=remaining,
                    max_version=_MAX_CREATE_VERSION,
                )
            except ConnectionLost as error:
                maybe_ours = maybe_ours or (error.sent and not validate_only)
                if time.monotonic() + _RACE_PAUSE >= deadline:
                    raise
                await asyncio.sleep(_RACE_PAUSE)
                continue
            break
        results = {str(result.name): result for result in response.topics}
        if results.keys() != topics.keys():
            raise OperationFailed(
                f"creating {len(topics)} topics",
                -1,
                dict.fromkeys(topics, "the controller answered for other topics"),
            )
        if maybe_ours and any(int(one.error_code) == TOPIC_ALREADY_EXISTS for one in results.values()):
            await self._metadata.caught_up(max(0.001, deadline - time.monotonic()))
        refused: dict[str, LinkerError] = {}
        for name, result in results.items():
            code = int(result.error_code)
            there = self._metadata.image.topics_by_name.get(name)
            ours = maybe_ours and there is not None and _has_assignments(there, topics[name].assignments)
            if code and not (code == TOPIC_ALREADY_EXISTS and ours):
                refused[name] = refusal(
                    "create_topics",
                    self._channel.cluster_name,
                    f"creating topic {name}",
                    {name: (code, result.error_message)},
                )
        if validate_only:
            return {}, refused
        wanted = {name: len(topic.assignments) for name, topic in topics.items() if name not in refused}
        made = await self._metadata.wait_for(
            lambda image: _topic_ids(image, wanted), max(0.001, deadline - time.monotonic())
        )
        return made, refused

    async def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]],
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Add partitions up to `count`, by manual assignment; returns once they are in the image.

        Partitions that are there already are no error: an answer may have got lost, or another request added them, and the
        caller looks at their replicas anyway. Each partition needs as many replicas as the topic's first one has, or the
        controller refuses it.
        """
        deadline = time.monotonic() + timeout
        response = await self._channel.call(
            "create_partitions",
            {
                "topics": [
                    {
                        "name": name,
                        "count": count,
                        "assignments": [{"broker_ids": list(replicas)} for replicas in assignments],
                    }
                ],
                "timeout_ms": int(timeout * 1000),
                "validate_only": False,
            },
            timeout=timeout,
            idempotent=True,
        )
        for result in response.results:
            code = int(result.error_code)
            if code not in (0, INVALID_PARTITIONS):
                raise_refused(
                    "create_partitions",
                    self._channel.cluster_name,
                    f"adding partitions to {name}",
                    {name: (code, result.error_message)},
                )
            if code:
                await self._metadata.caught_up(max(0.001, deadline - time.monotonic()))
        await self._metadata.wait_for(
            lambda image: _topic_id_with(image, name, count), max(0.001, deadline - time.monotonic())
        )

    async def delete_topic(
        self, name: str, topic_id: TopicId | None = None, *, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """Delete a topic and wait until the image does not have it. A topic that does not exist counts as deleted.

        It is named by its id (KIP-516): a request that comes late, or again, deletes no other topic that somebody has made
        under that name since. `topic_id`: as the caller knows it; None: as the image has it.
        """
        deadline = time.monotonic() + timeout
        there = _topic_id(self._metadata.image, name)
        if not self._ids and topic_id not in (None, there):
            return
        topic_id = topic_id or there
        by_id = self._ids and topic_id is not None
        response = await self._channel.call(
            "delete_topics",
            {
                "topics": [{"name": None if by_id else name, "topic_id": topic_id if by_id else None}],
                "topic_names": [name],
                "timeout_ms": int(timeout * 1000),
            },
            timeout=timeout,
            idempotent=True,
        )
        for result in response.responses:
            code = int(result.error_code)
            if code not in (0, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID):
                message = getattr(result, "error_message", None)
                raise_refused(
                    "delete_topics",
                    self._channel.cluster_name,
                    f"deleting topic {name}",
                    {name: (code, message)},
                )
        await self._metadata.wait_for(
            lambda image: True if _topic_id(image, name) != topic_id or topic_id is None else None,
            max(0.001, deadline - time.monotonic()),
        )

    async def set_configs_of_topics(
        self,
        configs: Mapping[str, Mapping[str, str | None]],
        *,
        timeout: float = DEFAULT_TIMEOUT,
        validate_only: bool = False,
    ) -> None:
        """IncrementalAlterConfigs (KIP-339) of topics, in one request; None deletes an override. Returns when the image has
        the new values, or, with `validate_only`, when the controller would take them."""
        deadline = time.monotonic() + timeout
        changed = {name: changes for name, changes in configs.items() if changes}
        if not changed:
            return
        response = await self._channel.call(
            "incremental_alter_configs",
            {
                "resources": [
                    {
                        "resource_type": TOPIC_RESOURCE,
                        "resource_name": name,
                        "configs": [
                            {
                                "name": key,
                                "config_operation": _OP_DELETE if value is None else _OP_SET,
                                "value": value,
                            }
                            for key, value in changes.items()
                        ],
                    }
                    for name, changes in changed.items()
                ],
                "validate_only": validate_only,
            },
            timeout=timeout,
            idempotent=True,
        )
        refused = {
            str(result.resource_name): (int(result.error_code), result.error_message)
            for result in response.responses
            if int(result.error_code)
        }
        if refused:
            raise_refused(
                "incremental_alter_configs",
                self._channel.cluster_name,
                f"changing configs of {', '.join(sorted(refused))}",
                refused,
            )

        if validate_only:
            return
        self._metadata.look_at(changed)

        def applied(image: ClusterImage) -> bool | None:
            for name, changes in changed.items():
                have = image.configs.get((TOPIC_RESOURCE, name), {})
                if any(have.get(key) != value for key, value in changes.items()):
                    return None
            return True

        await self._metadata.wait_for(applied, max(0.001, deadline - time.monotonic()))


def _creation(name: str, topic: NewTopic) -> dict[str, object]:
    return {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [
            {"partition_index": index, "broker_ids": list(replicas)}
            for index, replicas in sorted(topic.assignments.items())
        ],
        "configs": [{"name": key, "value": value} for key, value in sorted(topic.configs.items())],
    }


def _topic_ids(image: ClusterImage, wanted: Mapping[str, int]) -> dict[str, TopicId] | None:
    ids: dict[str, TopicId] = {}
    for name, partitions in wanted.items():
        topic_id = _topic_id_with(image, name, partitions)
        if topic_id is None:
            return None
        ids[name] = topic_id
    return ids


def _topic_id(image: ClusterImage, name: str) -> TopicId | None:
    topic = image.topics_by_name.get(name)
    return topic.id if topic is not None else None


def _topic_id_with(image: ClusterImage, name: str, partitions: int) -> TopicId | None:
    """The topic's id once all its partitions are replayed: their records follow the topic's one by one."""
    topic = image.topics_by_name.get(name)
    return topic.id if topic is not None and len(topic.partitions) >= partitions else None


def _has_assignments(topic: TopicImage, assignments: Mapping[int, Sequence[int]]) -> bool:
    return {index: list(p.replicas) for index, p in topic.partitions.items()} == {
        index: list(replicas) for index, replicas in assignments.items()
    }
