"""Requests of a link broker to the controller about topics and their configs.

Everything here may be repeated safely and settles an unknown outcome by itself, from the metadata log or by asking again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import OperationFailed, raise_refused
from linker.membership.metadata_log import MetadataLog
from wire.errors import ConnectionLost
from wire.frames.error_codes import TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC_OR_PARTITION
from wire.frames.types import TopicId
from wire.metadata.image import ClusterImage, TopicImage

DEFAULT_TIMEOUT = 15.0
TOPIC_RESOURCE = 2
"""ConfigResource.Type of a topic: the first part of a key of the image's configs."""
_OP_SET, _OP_DELETE = 0, 1
_RACE_PAUSE = 0.1


class TopicOperations:
    """What is asked of the controller about topics."""

    def __init__(self, channel: ControllerChannel, metadata: MetadataLog) -> None:
        self._channel = channel
        self._metadata = metadata

    async def create_mirror_topic(
        self,
        name: str,
        assignments: Mapping[int, Sequence[int]],
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> TopicId:
        """Create a topic by manual assignment (partition -> link brokers) and return its id.

        Returns once the topic is in the image. An answer that got lost is settled there: a topic of ours has
        exactly these partitions on exactly these replicas.
        """
        deadline = time.monotonic() + timeout
        maybe_ours = False
        while True:
            remaining = max(0.001, deadline - time.monotonic())
            try:
                response = await self._channel.call(
                    "create_topics",
                    {
                        "topics": [
                            {
                                "name": name,
                                "num_partitions": -1,
                                "replication_factor": -1,
                                "assignments": [
                                    {"partition_index": index, "broker_ids": list(replicas)}
                                    for index, replicas in sorted(assignments.items())
                                ],
                                "configs": [
                                    {"name": key, "value": value} for key, value in sorted(configs.items())
                                ],
                            }
                        ],
                        "timeout_ms": int(remaining * 1000),
                        "validate_only": validate_only,
                    },
                    timeout=remaining,
                )
            except ConnectionLost as error:
                maybe_ours = maybe_ours or (error.sent and not validate_only)
                if time.monotonic() + _RACE_PAUSE >= deadline:
                    raise
                await asyncio.sleep(_RACE_PAUSE)
                continue
            break
        if len(response.topics) != 1:
            raise OperationFailed(
                f"creating topic {name}", -1, {name: "the controller answered for other topics"}
            )
        result = response.topics[0]
        code = int(result.error_code)
        if code == TOPIC_ALREADY_EXISTS and maybe_ours:
            await self._metadata.caught_up(max(0.001, deadline - time.monotonic()))
            topic = self._metadata.image.topics_by_name.get(name)
            if topic is None or not _has_assignments(topic, assignments):
                raise_refused(
                    "create_topics",
                    self._channel.cluster_name,
                    f"creating topic {name}",
                    {name: (code, result.error_message)},
                )
        elif code != 0:
            raise_refused(
                "create_topics",
                self._channel.cluster_name,
                f"creating topic {name}",
                {name: (code, result.error_message)},
            )
        if validate_only:
            return bytes(16)
        return await self._metadata.wait_for(
            lambda image: _topic_id_with(image, name, len(assignments)),
            max(0.001, deadline - time.monotonic()),
        )

    async def delete_topic(self, name: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Delete a topic and wait until the image does not have it; one that is not there is deleted."""
        deadline = time.monotonic() + timeout
        topic_id = _topic_id(self._metadata.image, name)
        response = await self._channel.call(
            "delete_topics",
            {
                "topics": [{"name": name, "topic_id": None}],
                "topic_names": [name],
                "timeout_ms": int(timeout * 1000),
            },
            timeout=timeout,
            idempotent=True,
        )
        for result in response.responses:
            code = int(result.error_code)
            if code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
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

    async def set_topic_configs(
        self,
        name: str,
        set: Mapping[str, str],  # noqa: A002  # Kafka's own word for the operation
        delete: Iterable[str] = (),
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """IncrementalAlterConfigs (KIP-339) of one topic; returns when the image has the new values."""
        deadline = time.monotonic() + timeout
        wanted = dict(set)
        removed = list(delete)
        if not wanted and not removed:
            return
        changes = [
            {"name": key, "config_operation": _OP_SET, "value": value} for key, value in wanted.items()
        ]
        changes += [{"name": key, "config_operation": _OP_DELETE, "value": None} for key in removed]
        response = await self._channel.call(
            "incremental_alter_configs",
            {
                "resources": [{"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": changes}],
                "validate_only": False,
            },
            timeout=timeout,
            idempotent=True,
        )
        for result in response.responses:
            code = int(result.error_code)
            if code != 0:
                raise_refused(
                    "incremental_alter_configs",
                    self._channel.cluster_name,
                    f"changing configs of {name}",
                    {name: (code, result.error_message)},
                )

        def applied(image: ClusterImage) -> bool | None:
            have = image.configs.get((TOPIC_RESOURCE, name), {})
            done = all(have.get(key) == value for key, value in wanted.items())
            return True if done and not any(key in have for key in removed) else None

        await self._metadata.wait_for(applied, max(0.001, deadline - time.monotonic()))


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
