"""Requests of a link broker to the controller: reassignments, ISRs, brokers, elections, producer ids.

Each operation raises an error that says what to do, or answers per item. The link controller decides when to call one.
topic_operations.py has the requests about topics and their configs.

Outcomes: every operation but `alter_partition` may be repeated safely, and settles an unknown outcome by itself, from the
metadata log or by asking again. `alter_partition` raises ConnectionLost(sent=True), and its caller settles the outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from controller.alter_partition import (
    AlterPartitionItem,
    IsrMember,
    alter_partition_item,
    alter_partition_request,
    stale,
)
from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import check_error, raise_refused
from linker.membership.producer_id_blocks import BlockAllocation
from linker.membership.topic_operations import DEFAULT_TIMEOUT, TopicOperations
from linker.membership.watched_image import WatchedImage
from wire.errors import BrokerError, ConnectionLost, LinkerError, error_name
from wire.frames.error_codes import (
    BROKER_ID_NOT_REGISTERED,
    CLUSTER_AUTHORIZATION_FAILED,
    ELECTION_NOT_NEEDED,
    NO_REASSIGNMENT_IN_PROGRESS,
    STALE_BROKER_EPOCH,
)
from wire.frames.types import TopicId, TopicPartition, per_topic

log = logging.getLogger(__name__)

_MAX_ALTER_PARTITION_VERSION = 3
_MAX_HEARTBEAT_VERSION = 2
# The controller answers these before it makes any record (`ReplicationControlManager.alterPartition`, `ControllerApis`).
_ALTER_PARTITION_REFUSALS = (CLUSTER_AUTHORIZATION_FAILED, STALE_BROKER_EPOCH)
_ELECT_PREFERRED, _ELECT_UNCLEAN = 0, 1


class TargetOperations(TopicOperations):
    """Operations of one registered link broker."""

    def __init__(
        self,
        channel: ControllerChannel,
        metadata: WatchedImage,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        super().__init__(channel, metadata)
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch

    async def reassign(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        """Start reassignments (None cancels one); OperationFailed names the partitions that were refused.

        Repeating is harmless: the same target again changes nothing, and "none in progress" counts as a cancel that is
        done.
        """
        response = await self._channel.call(
            "alter_partition_reassignments",
            {
                "timeout_ms": int(timeout * 1000),
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": tp.partition,
                                "replicas": None if (to := targets[tp]) is None else list(to),
                            }
                            for tp in partitions
                        ],
                    }
                    for topic, partitions in per_topic(sorted(targets)).items()
                ],
            },
            timeout=timeout,
            idempotent=True,
        )
        name = self._channel.cluster_name
        check_error(int(response.error_code), "alter_partition_reassignments", name, response.error_message)
        failed: dict[str, tuple[int, str | None]] = {}
        for topic in response.responses:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                code = int(partition.error_code)
                if code == 0 or (code == NO_REASSIGNMENT_IN_PROGRESS and targets.get(tp) is None):
                    continue
                failed[str(tp)] = (code, partition.error_message)
        if failed:
            raise_refused(
                "alter_partition_reassignments", self._channel.cluster_name, "reassigning partitions", failed
            )

    async def alter_partition(
        self, items: Iterable[AlterPartitionItem], *, timeout: float = DEFAULT_TIMEOUT
    ) -> dict[TopicPartition, int]:
        """One AlterPartition per leader; the code per partition (0 done, 108 done and another one leads).

        An item is sent in the name of its leader: the controller checks the broker epoch in the request, not the sender
        (`ClusterControlManager.checkBrokerEpoch`). Items whose epochs differ from the image when the request is sent are
        answered here (`stale`).

        The metadata log decides, not the answer. ConnectionLost(sent=True) means that the outcome is unknown; the request
        is never sent again from here, because the first one may have moved leadership already. If only some of several
        requests are answered, the outcome is unknown for the partitions without a code.
        """
        by_leader: dict[IsrMember, list[AlterPartitionItem]] = {}
        for item in items:
            by_leader.setdefault(item.leader, []).append(item)
        if len(by_leader) <= 1:
            for leader, group in by_leader.items():
                return await self._alter_partition_of(leader, group, timeout)
            return {}
        answers = await asyncio.gather(
            *(self._alter_partition_of(leader, group, timeout) for leader, group in by_leader.items()),
            return_exceptions=True,
        )
        results: dict[TopicPartition, int] = {}
        lost: list[LinkerError] = []
        for answer, group in zip(answers, by_leader.values(), strict=True):
            if isinstance(answer, BrokerError):
                results |= dict.fromkeys((item.tp for item in group), answer.code)
            elif isinstance(answer, LinkerError):
                log.warning(
                    "AlterPartition of %d partitions got no answer: %s; the metadata log shows whether it was carried out",
                    len(group),
                    answer,
                )
                lost.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                results |= answer
        if lost and not results:
            # No outcome is known. The worst error is raised, since it says whether a request was sent.
            raise next((e for e in lost if not isinstance(e, ConnectionLost) or e.sent), lost[0])
        return results

    async def _alter_partition_of(
        self, leader: IsrMember, items: Sequence[AlterPartitionItem], timeout: float
    ) -> dict[TopicPartition, int]:
        """One request, on behalf of the leader of all these partitions."""
        results: dict[TopicPartition, int] = {}
        sent: dict[tuple[TopicId, int], AlterPartitionItem] = {}

        def request() -> Mapping[str, object]:
            results.clear()
            sent.clear()
            for item in items:
                if code := stale(self._metadata.image, item, self._epoch_of(leader.broker_id)):
                    results[item.tp] = code
                else:
                    sent[item.topic_id, item.tp.partition] = item
            return self._alter_partition_request(leader, sent.values())

        # A request without partitions is not sent.
        request()
        if not sent:
            return results
        response = await self._channel.call(
            "alter_partition", request, timeout=timeout, max_version=_MAX_ALTER_PARTITION_VERSION
        )
        code = int(response.error_code)
        if code not in (0, *_ALTER_PARTITION_REFUSALS):
            # The controller gave up between the request and the commit of its records.
            raise ConnectionLost(
                f"the controller answered {error_name(code)}", sent=True, api="alter_partition"
            )
        check_error(code, "alter_partition", self._channel.cluster_name)
        for topic in response.topics:
            for partition in topic.partitions:
                item = sent.pop((self._altered_topic(topic), partition.partition_index), None)
                if item is not None:
                    results[item.tp] = int(partition.error_code)
        if sent:
            raise ConnectionLost(
                f"the answer leaves out {len(sent)} partitions, {next(iter(sent.values())).tp} first",
                sent=True,
                api="alter_partition",
            )
        return results

    def _alter_partition_request(
        self, leader: IsrMember, items: Iterable[AlterPartitionItem]
    ) -> Mapping[str, object]:
        return alter_partition_request(leader, items)

    def _altered_topic(self, topic: Any) -> TopicId:
        """The id of a topic in an answer."""
        return topic.topic_id.bytes if topic.topic_id is not None else bytes(16)

    async def alter_isr(
        self, wished: Mapping[TopicPartition, Sequence[int]], *, timeout: float = DEFAULT_TIMEOUT
    ) -> dict[TopicPartition, int]:
        """`alter_partition` with new ISRs, in the name of the leader that each partition has in the image."""
        items: list[AlterPartitionItem] = []
        refused: dict[TopicPartition, int] = {}
        for tp, new_isr in wished.items():
            try:
                items.append(alter_partition_item(self._metadata.image, tp, new_isr))
            except BrokerError as error:
                refused[tp] = error.code
        return refused | await self.alter_partition(items, timeout=timeout)

    async def fence_broker(
        self, broker_id: int, broker_epoch: int, *, timeout: float = DEFAULT_TIMEOUT
    ) -> bool:
        """Fence a link broker whose sidecar is dead, by a heartbeat in its name that asks for it. Its partitions then get
        another leader at once, and not when its session ends (`BrokerHeartbeatManager`).

        The heartbeat repeats the broker's cordoned directories, or they would count as open again. False if the broker is
        not registered under that epoch any more: another incarnation has its id now. A sidecar that lives after all
        unfences itself with its next heartbeat.
        """

        def request() -> Mapping[str, object]:
            broker = self._metadata.image.brokers.get(broker_id)
            cordoned = None if broker is None else broker.cordoned_log_dirs
            return {
                "broker_id": broker_id,
                "broker_epoch": broker_epoch,
                "current_metadata_offset": self._metadata.offset,
                "want_fence": True,
                "want_shut_down": False,
                "offline_log_dirs": [],
                "cordoned_log_dirs": None if cordoned is None else list(cordoned),
            }

        response = await self._channel.call(
            "broker_heartbeat",
            request,
            timeout=timeout,
            purpose="fencing",  # a connection of its own, or our own heartbeats would wait behind it
            idempotent=True,
            max_version=_MAX_HEARTBEAT_VERSION,
        )
        code = int(response.error_code)
        if code in (STALE_BROKER_EPOCH, BROKER_ID_NOT_REGISTERED):
            return False
        check_error(code, "broker_heartbeat", self._channel.cluster_name)
        return True

    async def unregister_broker(self, broker_id: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Remove a link broker that is gone. No partition may need it any more; the controller does not check that
        (KIP-631). Returns once the image does not have it."""
        deadline = time.monotonic() + timeout
        response = await self._channel.call(
            "unregister_broker", {"broker_id": broker_id}, timeout=timeout, idempotent=True
        )
        code = int(response.error_code)
        if code != BROKER_ID_NOT_REGISTERED:
            check_error(code, "unregister_broker", self._channel.cluster_name, response.error_message)
        await self._metadata.wait_for(
            lambda image: True if broker_id not in image.brokers else None,
            max(0.001, deadline - time.monotonic()),
        )

    async def elect_preferred(
        self, partitions: Iterable[TopicPartition], *, timeout: float = DEFAULT_TIMEOUT
    ) -> dict[TopicPartition, int]:
        """ElectLeaders PREFERRED; the error code per partition, "not needed" (84) counts as done (0)."""
        return await self._elect(_ELECT_PREFERRED, partitions, timeout)

    async def elect_first_replica(
        self, partitions: Iterable[TopicPartition], *, timeout: float = DEFAULT_TIMEOUT
    ) -> dict[TopicPartition, int]:
        """ElectLeaders UNCLEAN: a partition without a leader gets the first replica that is alive, whatever that has
        (`PartitionChangeBuilder.electAnyLeader`). Returns the same as `elect_preferred`."""
        return await self._elect(_ELECT_UNCLEAN, partitions, timeout)

    async def _elect(
        self, election_type: int, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, int]:
        response = await self._channel.call(
            "elect_leaders",
            {
                "election_type": election_type,
                "topic_partitions": [
                    {"topic": topic, "partitions": [tp.partition for tp in tps]}
                    for topic, tps in per_topic(sorted(partitions)).items()
                ],
                "timeout_ms": int(timeout * 1000),
            },
            timeout=timeout,
            idempotent=True,
        )
        check_error(int(response.error_code), "elect_leaders", self._channel.cluster_name)
        return {
            TopicPartition(topic.topic, result.partition_id): (
                0 if int(result.error_code) == ELECTION_NOT_NEEDED else int(result.error_code)
            )
            for topic in response.replica_election_results
            for result in topic.partition_result
        }

    async def allocate_producer_ids(
        self,
        count: int,
        *,
        connections: int = 8,
        timeout: float = 60.0,
        until: int | None = None,
        took: Callable[[int, int], None] = lambda _first, _length: None,
    ) -> tuple[int, int]:
        """Take `count` blocks of producer ids and throw them away; see producer_id_blocks.py."""
        allocation = BlockAllocation(
            self._channel,
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch,
            count=count,
            until=until,
            took=took,
        )
        return await allocation.run(connections=connections, timeout=timeout)

    def _epoch_of(self, broker_id: int) -> int:
        if broker_id == self._broker_id:
            return self._broker_epoch()
        broker = self._metadata.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch
