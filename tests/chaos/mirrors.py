"""The link of a run and the mirrors of its topics: made before the clients start, removed after the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka.admin import AdminClient as KafkaAdmin

from lab.workload.live_producers import CLIENT_LOG
from lab.workload.source_data import SourceFiller, SourceTopic
from tests.chaos.fleet import Fleet
from tests.chaos.result import Stuck
from tests.chaos.stage import Stage
from wire.frames.types import parse_topic_id

ACTIVE_TIMEOUT = 90.0
HISTORY_SCALE = 0.05


class Mirrors:
    def __init__(self, stage: Stage, fleet: Fleet, link: str, topics: Sequence[SourceTopic]) -> None:
        self.stage, self.fleet, self.link, self.topics = stage, fleet, link, topics

    async def make(self, copies: int, options: Mapping[str, Any]) -> dict[bytes, str]:
        """Fill the topics at the source, mirror them, and wait until they are ACTIVE. Returns names by target topic id."""
        filler = SourceFiller(self.stage.source.bootstrap, scale=HISTORY_SCALE)
        await asyncio.to_thread(filler.create, self.topics, 2)
        await asyncio.to_thread(filler.fill, self.topics)
        properties = {"bootstrap.servers": self.stage.source_link}
        link = {"name": self.link, "properties": properties, "options": dict(options)}
        await self.fleet.call("POST", "/v1/links", link, once_is_enough=True)
        await self.fleet.call(
            "POST",
            f"/v1/links/{self.link}/mirrors",
            {"topics": [topic.name for topic in self.topics], "replication_factor": copies},
            once_is_enough=True,
        )
        await self._active()
        ids = {}
        for topic in self.topics:
            found = await self.fleet.call("GET", f"/v1/links/{self.link}/mirrors/{topic.name}")
            ids[parse_topic_id(found["topic_id"])] = topic.name
        return ids

    async def _active(self) -> None:
        deadline = time.monotonic() + ACTIVE_TIMEOUT
        while True:
            link = await self.fleet.call("GET", f"/v1/links/{self.link}")
            mirrors = await self.fleet.call("GET", f"/v1/links/{self.link}/mirrors")
            states = {one["topic"]: one["state"] for one in mirrors}
            if link["forwarding"]["enabled"] and set(states.values()) == {"ACTIVE"}:
                return
            if "FAILED" in states.values() or time.monotonic() > deadline:
                reasons = [one.get("reason") for one in (*mirrors, link["forwarding"])]
                raise Stuck(f"not mirrored: {states}, {reasons}")
            await asyncio.sleep(0.1)

    async def remove(self) -> None:
        """Take the run's link out of the fleet; topics are deleted in the background of the next run. Raises if the
        fleet cannot be used any more."""
        for topic in self.topics:
            await self.fleet.call(
                "DELETE",
                f"/v1/links/{self.link}/mirrors/{topic.name}",
                query={"keep_data": "true"},
                once_is_enough=True,
            )
        await self.fleet.call("DELETE", f"/v1/links/{self.link}", once_is_enough=True)

    def delete_topics(self) -> None:
        """Blocking. What cannot be deleted is in nobody's way."""
        for cluster in (self.stage.source, self.stage.target):
            admin = KafkaAdmin({"bootstrap.servers": cluster.bootstrap}, logger=CLIENT_LOG)
            for future in admin.delete_topics([topic.name for topic in self.topics]).values():
                try:
                    future.result(20)
                except Exception as error:
                    CLIENT_LOG.info("a topic of %s stays: %s", self.link, error)


def link_name(number: int) -> str:
    return f"chaos-{number}"
