"""Heartbeats writes a small record into a topic of the source at intervals, and has the topic mirrored.

A reader of the mirror at the target sees that the link lives, and how late it is: the source sets the timestamp. The topic
bears the source's cluster id, so that two links in opposite directions do not meet in one name, and all links from one
source share it; the key says whose record it is. Only the link controller writes. Nothing else waits for this: a failure is
told, and tried again ever more seldom.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from admin.models import LinkOptions
from controller.phases import ENDED
from controller.state import JsonValue, Link, Record
from fleet.stores.topic.records import Item, build_batch
from linker.links.link_part import LinkContext, LinkPart
from linker.links.new_mirrors import NewMirrors, Wanted
from wire.errors import BrokerError, LinkerError, error_name
from wire.frames.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    TOPIC_ALREADY_EXISTS,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.types import TopicPartition
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

#: Followed as soon as they are written.
HEARTBEAT_OPTIONS = frozenset({"heartbeat_topic", "heartbeat_interval_ms", "heartbeat_retention_ms"})
_TIMEOUT = 5.0
_LONGEST_PAUSE = 60.0
_PRODUCE_VERSION = 9  # the last one that every source has and that names topics
_NO_PRODUCER = -1
_SHORTEST_SEGMENT_MS = 60_000


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """Of one link. `topic` is without the cluster id, and empty where heartbeats are off."""

    topic: str
    interval: float
    retention_ms: int


def heartbeat_settings(options: Mapping[str, JsonValue]) -> HeartbeatSettings:
    """Of a link's stored options; what is not there has its default."""
    given = LinkOptions.model_validate(dict(options))
    return HeartbeatSettings(
        given.heartbeat_topic, given.heartbeat_interval_ms / 1000, given.heartbeat_retention_ms
    )


def heartbeat_record(link: str, source: str, target: str, now_ms: int) -> bytes:
    """A batch of one record."""
    value = {"link": link, "source_cluster_id": source, "target_cluster_id": target, "ts": now_ms}
    return build_batch(
        [Item(link.encode(), json.dumps(value, separators=(",", ":")).encode())],
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        timestamp=now_ms,
        transactional=False,
    )


class Heartbeats(LinkPart):
    """Those of one link."""

    def __init__(
        self,
        context: LinkContext,
        new_mirrors: NewMirrors,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(context)
        self._new = new_mirrors
        self._clock = clock
        self.written = 0
        #: The mirror's name; None while there are no heartbeats. Kept here, because it is asked for reads that are held.
        self.topic: str | None = None
        self.task = PeriodicTask("heartbeat topic", self._once, 5.0, failed=self._failed, pause=self._pause)

    @property
    def settings(self) -> HeartbeatSettings:
        link = self._controller.image.links.get(self._link)
        return heartbeat_settings({} if link is None else link.options)

    def _name(self) -> str | None:
        name, source = self.settings.topic, self._source.cluster_id
        return self._source.topic_names.ours(f"{name}.{source}") if name and source else None

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller."""
        if not records or any(isinstance(one, Link) and one.name == self._link for one in records):
            self.topic = self._name()
            self.task.wake()

    def _pause(self, task: PeriodicTask) -> float | None:
        settings = self.settings
        if not settings.topic:
            return None
        return task.backoff(settings.interval, _LONGEST_PAUSE) if task.failures else settings.interval

    def _failed(self, error: Exception) -> None:
        if self.task.reason != str(error):
            log.warning("link %s: no heartbeat: %s", self._link, error)

    async def _once(self) -> str | None:
        topic = self.topic = self._name()
        if topic is None:
            return None
        states = self._controller.image.topic_partitions(self._link, topic)
        if any(state.phase in ENDED for state in states):
            return None  # the target's own from here on: a record more would be at the source alone
        await self._write(topic)
        return await self._mirror(topic)

    # --- the source --------------------------------------------------------------------------------------------------

    async def _write(self, topic: str) -> None:
        leader = self._source.leader(TopicPartition(topic, 0))
        if leader is None:
            await self._source.refresh([topic], timeout=_TIMEOUT)
            found = self._source.topics.get(topic)
            if found is None or found.error == UNKNOWN_TOPIC_OR_PARTITION:
                await self._create(topic)
                await self._source.refresh([topic], timeout=_TIMEOUT)
            leader = self._source.leader(TopicPartition(topic, 0))
        there = self._source.topic_names.there(topic)
        if leader is None:
            found = self._source.topics.get(topic)
            code = UNKNOWN_TOPIC_OR_PARTITION if found is None else found.error
            raise self._refused(code, f"topic {there} has no leader at the source", "metadata")
        batch = heartbeat_record(
            self._link,
            self._source.cluster_id or "",
            self._target.cluster.cluster_id or "",
            int(self._clock() * 1000),
        )
        answer = await self._source.call(
            "produce",
            {
                "transactional_id": None,
                "acks": 1,
                "timeout_ms": int(_TIMEOUT * 1000),
                "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
            },
            node_id=leader.id,
            timeout=_TIMEOUT,
            version=_PRODUCE_VERSION,
        )
        for told in answer.responses:
            for part in told.partition_responses:
                if int(part.error_code):
                    await self._source.refresh([topic], timeout=_TIMEOUT)
                    raise self._refused(int(part.error_code), f"topic {there} takes no record", "produce")
        self.written += 1

    async def _create(self, topic: str) -> None:
        there, retention = self._source.topic_names.there(topic), self.settings.retention_ms
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(retention),
            # Only closed segments are deleted.
            "segment.ms": str(max(_SHORTEST_SEGMENT_MS, retention // 4)),
            "message.timestamp.type": "LogAppendTime",
        }
        answer = await self._source.call(
            "create_topics",
            {
                "topics": [
                    {
                        "name": topic,
                        "num_partitions": 1,
                        "replication_factor": -1,
                        "assignments": [],
                        "configs": [{"name": name, "value": value} for name, value in configs.items()],
                    }
                ],
                "timeout_ms": int(_TIMEOUT * 1000),
                "validate_only": False,
            },
            node_id=self._source.controller_id if self._source.controller_id in self._source.nodes else None,
            timeout=_TIMEOUT,
        )
        for told in answer.topics:
            code = int(told.error_code)
            if code and code != TOPIC_ALREADY_EXISTS:
                why = f": {told.error_message}" if told.error_message else ""
                raise self._refused(code, f"topic {there} cannot be made at the source{why}", "create_topics")
        log.info("link %s: made topic %s at the source for heartbeats", self._link, there)

    def _refused(self, code: int, what: str, api: str) -> LinkerError:
        if code in (TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED):
            return LinkerError(
                f"{what} ({error_name(code)}): grant the link's principal Create, Describe, Read and Write on it at the "
                "source, or make the topic there and grant all but Create; heartbeat_topic= ends heartbeats"
            )
        return BrokerError(code, message=what, api=api)

    # --- the mirror --------------------------------------------------------------------------------------------------

    async def _mirror(self, topic: str) -> str | None:
        """Why there is none."""
        if self._controller.image.mirror_of_topic(topic) is not None:
            return None  # another link from this source may have it
        taken = self._new.name_taken(topic)
        if taken is not None:
            return f"heartbeats are written, and not mirrored: {taken}"
        try:
            planned = await self._new.plan([topic], Wanted())
            await self._new.write_down(planned.mirrors)
        except LinkerError as error:
            return f"heartbeats are written, and not mirrored: {error}"
        return None
