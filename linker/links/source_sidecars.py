"""SourceSidecars asks the sidecars of a source, if it has some, where its topics come from, and of their links.

A mirror is led by a sidecar, as by a broker of the source. Asked for a config of its own by name, a sidecar tells the
clusters that the mirror came through; any other broker has no such config. A sidecar of an older version tells nothing,
and is known by the one directory that it names for its logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from controller.errors import Refused
from controller.plan.producer_ids import IdsTold
from controller.plan.producer_ids import told as told_ids
from controller.plan.upstream import UNKNOWN, told
from linker.links.configs import ConfigsNotAllowed, broker_configs, topic_config_each
from router.addressed import LOG_DIR
from router.broker_resource import PRODUCER_IDS, UPSTREAM
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError, UnsupportedApi
from wire.frames.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from wire.together import together_by_key

_TIMEOUT = 10.0
_AT_ONCE = 200  # topics in a request
_NEWS_TIMEOUT, _NEWS_PAUSE = 1.5, 0.1
_HOLDS = 60.0  # seconds for which a broker is believed to be one of Kafka's

#: The clusters that a topic came through before the source, none if it began there; or why that is not known.
Origin = tuple[str, ...] | LinkerError


class SourceSidecars:
    """Those of one source."""

    def __init__(self, source: Cluster) -> None:
        self._source = source
        # When brokers were last known to be Kafka's own.
        self._kafkas: dict[int, float] = {}

    async def origins(self, topics: Collection[str]) -> dict[str, Origin]:
        """Of the topics that are there. LinkerError if nobody tells which these are."""
        names = sorted(topics)
        found: dict[str, Origin] = {}
        for first in range(0, len(names), _AT_ONCE):
            found |= await self._some(names[first : first + _AT_ONCE])
        return found

    async def links(self) -> list[IdsTold]:
        """The links that mirror into the source. LinkerError where a sidecar of it does not tell."""
        await self._source.refresh((), timeout=_TIMEOUT)
        links: list[IdsTold] = []  # a fleet's sidecars tell the same, and there may be others in the cluster
        for node in sorted(self._source.nodes):
            try:
                found = await broker_configs(self._source, node, [PRODUCER_IDS], timeout=_TIMEOUT)
            except (ConfigsNotAllowed, BrokerError) as error:
                if isinstance(error, BrokerError) and error.retriable:
                    raise
                found = {}  # a broker of Kafka, as far as this principal may know
            if PRODUCER_IDS in found:
                links += (one for one in told_ids(found[PRODUCER_IDS]) if one not in links)
            elif await self._older_sidecar(node):
                raise LinkerError(
                    f"broker {node} of the source is a sidecar of an older version, which does not tell the producer ids of "
                    "its links: upgrade it first"
                )
        return links

    async def _some(self, topics: Collection[str]) -> dict[str, Origin]:
        await self._source.refresh(topics, timeout=_TIMEOUT)
        found: dict[str, Origin] = {}
        led: dict[int, list[str]] = {}
        for topic in topics:
            known = self._source.topics.get(topic)
            if known is None or known.error == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            leaders = {one.leader for one in known.partitions.values() if one.leader >= 0}
            found[topic] = () if leaders else LinkerError(f"topic {topic} has no leader at the source")
            for leader in leaders:
                led.setdefault(leader, []).append(topic)
        answers = await together_by_key({node: self._ask(node, names) for node, names in led.items()})
        for node in sorted(led):
            for topic, origin in answers[node].items():
                # A topic that is promoted in part has leaders of both kinds: one that tells of a mirror counts.
                if origin and (not found[topic] or isinstance(found[topic], LinkerError)):
                    found[topic] = origin
        return found

    async def _ask(self, node: int, topics: Collection[str]) -> dict[str, Origin]:
        now = asyncio.get_running_loop().time()
        if now - self._kafkas.get(node, -_HOLDS) < _HOLDS:
            return {}
        try:
            values, refused = await self._told_of(node, topics)
            if not any(values.values()) and not await self._older_sidecar(node):
                if values:
                    self._kafkas[node] = now
                return dict(refused)
        except LinkerError as error:
            return dict.fromkeys(topics, error)
        return {**refused, **{topic: _origin(value) for topic, value in values.items()}}

    async def _told_of(
        self, node: int, topics: Collection[str]
    ) -> tuple[dict[str, str | None], dict[str, LinkerError]]:
        """A leader may not know a topic yet that was made a moment ago. A broker that refuses a config that it does not know
        is no sidecar."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _NEWS_TIMEOUT
        while True:
            values, refused = await topic_config_each(
                self._source, topics, UPSTREAM, node_id=node, timeout=_TIMEOUT
            )
            passing = [one for one in refused.values() if isinstance(one, BrokerError) and one.retriable]
            if not passing or loop.time() >= deadline:
                break
            await asyncio.sleep(_NEWS_PAUSE)
        for topic, error in list(refused.items()):
            if isinstance(error, BrokerError) and not error.retriable:
                values[topic] = None
                del refused[topic]
        return values, refused

    async def _older_sidecar(self, node: int) -> bool:
        """Whether a broker is a sidecar of an older version, by the name of its log directory. Reading that takes the
        right to describe the cluster; without it nobody can tell."""
        try:
            answer = await self._source.call(
                "describe_log_dirs", {"topics": []}, node_id=node, timeout=_TIMEOUT
            )
        except UnsupportedApi:
            return False
        return any(one.log_dir == LOG_DIR for one in answer.results)


def _origin(value: str | None) -> Origin:
    if value is None:
        return (UNKNOWN,)  # led by a sidecar that has no such mirror, or does not tell
    try:
        return told(value)
    except Refused as error:
        return LinkerError(str(error))
