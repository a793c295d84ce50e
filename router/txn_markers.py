"""WriteTxnMarkers from the transaction coordinators of the cluster that the mirrors lie in.

No transactional batch is ever forwarded, so a mirror has nothing to mark; but a coordinator whose markers are not answered
well-formed retries for ever and its transactions hang. So the markers of mirrors are answered NONE.

A marker that is taken for written, and is in no log, leaves its transaction open for good. So the coordinator is told to
try again, and asks its leader once more, wherever a real broker has the log, or had it:

- a real broker leads by now: the coordinator's metadata is behind
- a switch has the partition, or link brokers lead it because all others of its ISR have died: once it is given back it
  takes the marker
"""

from __future__ import annotations

from router.fence import LED_ELSEWHERE
from router.produce.forwarding import ForwardingHub
from wire.frames.error_codes import NONE, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER
from wire.frames.offset_requests import answer_write_txn_markers
from wire.frames.types import TopicPartition
from wire.server.listener import Exchange


def answer_txn_markers(exchange: Exchange, hub: ForwardingHub) -> tuple[bytearray, bool]:
    """The answer, and whether it says to try again."""
    again = False

    def error_of(topic: str, index: int) -> int:
        nonlocal again
        code = _error_of(hub, TopicPartition(topic, index))
        again = again or code != NONE
        return code

    header = exchange.header
    answer = answer_write_txn_markers(
        exchange.frame, exchange.body_offset, header.api_version, header.correlation_id, error_of
    )
    return answer, again


def _error_of(hub: ForwardingHub, tp: TopicPartition) -> int:
    ports = hub.ports
    mirror = ports.mirrors.by_name(tp.topic)
    mirrored = None if mirror is None else mirror.partition(tp.partition)
    if mirrored is not None and mirrored.switching:
        return NOT_ENOUGH_REPLICAS
    topic = ports.image().topics_by_name.get(tp.topic)
    partition = None if topic is None else topic.partitions.get(tp.partition)
    if partition is None:
        return NONE
    if partition.leader != ports.broker_id or hub.fences.state(tp) in LED_ELSEWHERE:
        return NOT_LEADER_OR_FOLLOWER
    if mirrored is None and ports.followed(tp.topic):
        return NOT_ENOUGH_REPLICAS
    return NONE
