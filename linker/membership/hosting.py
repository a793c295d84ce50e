"""How a broker leaves the target: the partitions that keep it there, and its unregistration."""

from __future__ import annotations

import logging
import time

from linker.membership.controller_channel import ControllerChannel
from linker.membership.errors import check_error
from linker.membership.metadata_log import MetadataLog
from wire.errors import ConnectionLost, RequestTimedOut
from wire.frames.error_codes import BROKER_ID_NOT_REGISTERED
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage

log = logging.getLogger(__name__)


def hosted_partitions(
    image: ClusterImage, broker_id: int
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions that need the broker: (led by it, only hosted). A partition that is removing it and has it no longer in
    the ISR does not need it: the change that completes the reassignment takes it out."""
    leads, hosts = [], []
    for topic in image.topics_by_id.values():
        for partition in topic.partitions.values():
            if partition.leader == broker_id:
                leads.append(TopicPartition(topic.name, partition.index))
            elif (
                broker_id in partition.isr
                or broker_id in partition.adding
                or (broker_id in partition.replicas and broker_id not in partition.removing)
            ):
                hosts.append(TopicPartition(topic.name, partition.index))
    return leads, hosts


async def unregister(
    channel: ControllerChannel, metadata: MetadataLog, broker_id: int, deadline: float
) -> None:
    """Unregister this broker; returns once the image does not have it."""
    name = channel.cluster_name
    while broker_id in metadata.image.brokers:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise RequestTimedOut("not unregistered in time", sent=True, api="unregister_broker", peer=name)
        try:
            response = await channel.call(
                "unregister_broker", {"broker_id": broker_id}, timeout=remaining, idempotent=True
            )
        except ConnectionLost as error:
            log.warning("unregister: %s", error)
        else:
            code = int(response.error_code)
            if code != BROKER_ID_NOT_REGISTERED:
                check_error(code, "unregister_broker", name, response.error_message)
        await metadata.wait_for(
            lambda image: True if broker_id not in image.brokers else None,
            max(0.001, deadline - time.monotonic()),
        )
