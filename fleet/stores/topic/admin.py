"""Creates the state topic if it is missing, refuses one whose settings would lose state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from itertools import zip_longest

from fleet.stores.base import StoreError, StoreMissing
from fleet.stores.topic.brokers import PASSING, PAUSE, StateTopic, StateTopicBrokers
from fleet.stores.topic.tail import START_AGAIN_AFTER
from wire.backoff import Backoff
from wire.errors import BrokerError, ClusterUnreachable, WireError, error_is_retriable
from wire.frames.error_codes import INVALID_REPLICATION_FACTOR, TOPIC_ALREADY_EXISTS
from wire.frames.types import TOPIC_RESOURCE

log = logging.getLogger(__name__)

REPLICAS = 3
#: Small segments, so that little has to be read at a start: a beat a second is about 20 MB a day before the
#: cleaner comes. Tombstones stay far longer than a reader waits before it begins anew (topic_tail).
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 << 20),
    "segment.ms": str(6 * 3600 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": str(24 * 3600 * 1000),
    "max.message.bytes": str(8 << 20),
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "LogAppendTime",  # the brokers' clock; the writers' say none
}
_CHECKED = ("cleanup.policy", "delete.retention.ms", "min.insync.replicas", "unclean.leader.election.enable")
#: Of tombstones: a reader that was not at the end for half as long begins anew, and may take a while for it.
_LEAST_RETENTION_MS = 2000 * int(START_AGAIN_AFTER)


async def prepare_topic(
    brokers: StateTopicBrokers, link_brokers: Collection[int], deadline: float, *, create: bool
) -> StateTopic:
    """The topic with a leader; created if missing and wanted. StoreError says what to do."""
    backoff = Backoff(PAUSE, PAUSE)
    while True:
        try:
            found = await brokers.metadata(deadline)
            if found is None and not create:
                raise StoreMissing(f"there is no topic {brokers.topic}")
            if found is None:
                await _create(brokers, link_brokers, deadline)
            elif found.partitions != 1:
                raise StoreError(
                    f"topic {brokers.topic} has {found.partitions} partitions, the state needs exactly one: "
                    "give store.topic another name"
                )
            elif found.leader is not None:
                await _check(brokers, found, deadline)
                return found
            trouble: WireError | None = None
        except PASSING as error:
            trouble = error
        except WireError as error:  # credentials, versions
            raise StoreError(f"the state topic {brokers.topic}: {error}") from error
        if backoff.over(time.monotonic(), deadline):
            why = f": {trouble}" if trouble is not None else "; it has no leader"
            raise StoreError(f"the state topic {brokers.topic} cannot be used{why}") from trouble
        await asyncio.sleep(backoff.next())


async def _create(brokers: StateTopicBrokers, link_brokers: Collection[int], deadline: float) -> None:
    """Create the topic. Kafka places it, unless brokers that must not get a replica may still seem alive; then we
    place it, over the racks."""
    racks = await _racks(brokers, deadline)
    chosen = spread({broker: rack for broker, rack in racks.items() if broker not in link_brokers})[:REPLICAS]
    if not chosen:
        raise ClusterUnreachable("no broker is registered yet")
    count = len(chosen)
    assignments = [{"partition_index": 0, "broker_ids": chosen}] if link_brokers else []
    configs = {**CONFIGS, "min.insync.replicas": str(max(1, count - 1))}
    left = max(0.001, deadline - time.monotonic())
    answer = await brokers.ask_any(
        "create_topics",
        {
            "topics": [
                {
                    "name": brokers.topic,
                    "num_partitions": -1 if assignments else 1,
                    "replication_factor": -1 if assignments else count,
                    "assignments": assignments,
                    "configs": [{"name": key, "value": value} for key, value in configs.items()],
                }
            ],
            "timeout_ms": int(min(left, 5.0) * 1000),
            "validate_only": False,
        },
        deadline,
    )
    (result,) = answer.topics
    code = int(result.error_code)
    if code == 0:
        log.info("created the state topic %s with %d replicas", brokers.topic, count)
    elif error_is_retriable(code) or code == INVALID_REPLICATION_FACTOR:
        # The latter while brokers are still starting; if it stays, the deadline's message names it.
        raise BrokerError(code, api="create_topics", message=result.error_message)
    elif code != TOPIC_ALREADY_EXISTS:
        raise brokers.refused(code, "create_topics", result.error_message)


def spread(racks: Mapping[int, str | None]) -> list[int]:
    """Brokers by id, with the rack of each: those that begin a list take as many racks as there are."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*by_rack.values())
    return [broker for one in rounds for broker in one if broker is not None]


async def _racks(brokers: StateTopicBrokers, deadline: float) -> dict[int, str | None]:
    answer = await brokers.ask_any(
        "metadata", {"topics": [], "allow_auto_topic_creation": False}, deadline, max_version=12
    )
    return {int(one.node_id): one.rack for one in answer.brokers}


async def _check(brokers: StateTopicBrokers, topic: StateTopic, deadline: float) -> None:
    """A topic that deletes by age would lose the state in silence; one that forgets tombstones early would keep for some
    readers what was deleted."""
    answer = await brokers.ask_any(
        "describe_configs",
        {
            "resources": [
                {
                    "resource_type": TOPIC_RESOURCE,
                    "resource_name": brokers.topic,
                    "configuration_keys": list(_CHECKED),
                }
            ],
            "include_synonyms": False,
            "include_documentation": False,
        },
        deadline,
    )
    (result,) = answer.results
    code = int(result.error_code)
    if code and error_is_retriable(code):
        raise BrokerError(code, api="describe_configs", message=result.error_message)
    if code:
        log.warning(
            "the settings of the state topic %s cannot be checked (%s): it must have cleanup.policy=compact",
            brokers.topic,
            BrokerError(code, message=result.error_message),
        )
        return
    configs = {config.name: config.value for config in result.configs}
    if configs.get("cleanup.policy") != "compact":
        raise StoreError(
            f"topic {brokers.topic} has cleanup.policy={configs.get('cleanup.policy')} and would lose state: "
            "set it to compact, or give store.topic another name"
        )
    retention = configs.get("delete.retention.ms")
    if retention is not None and int(retention) < _LEAST_RETENTION_MS:
        raise StoreError(
            f"topic {brokers.topic} has delete.retention.ms={retention}: a sidecar that could not read it for that long "
            f"would keep what was deleted meanwhile; set it to {CONFIGS['delete.retention.ms']} "
            f"({_LEAST_RETENTION_MS} at least), or give store.topic another name"
        )
    # Of two replicas one may be away: a topic that is made here has 1 then, too.
    if configs.get("min.insync.replicas") == "1" and topic.replicas > 2:
        log.warning(
            "the state topic %s has %d replicas and min.insync.replicas=1: a commit that one broker alone has may be lost "
            "with it; set it to %d",
            brokers.topic,
            topic.replicas,
            topic.replicas - 1,
        )
    if configs.get("unclean.leader.election.enable") == "true":
        log.warning(
            "the state topic %s has unclean.leader.election.enable=true: a commit may be lost; set it to false",
            brokers.topic,
        )
