"""Whether a batch of a client is forwarded at all, and if not, the error code it gets. Pure but for the ports.

Only what stays so is refused here: no right, no such partition, another leader, a batch that is none, a mirror that has
failed. A state that may be over in a moment is no reason. Forwarding is off while a broker of the target has just come back,
while the source is reached after a start, while a new mirror is bound, while this sidecar's lease is renewed; the
source's leader is unknown while it elects one. Such a batch waits in its lane (`routes.py`), in its turn and for as long
as its request's time allows: clients whose tries are counted, not timed, would be at their end otherwise. For the same
reason a batch of a transaction, which is never forwarded, waits for the promote (`transactions.py`).
"""

from __future__ import annotations

from typing import Final

from router.authorize import Authorizer
from router.fence import FenceState
from router.ports import Mirror
from router.produce.forwarding import ForwardingHub
from wire.frames.batch import BATCH_OVERHEAD
from wire.frames.batch_fields import MAGIC, MAGIC_AT, TRANSACTIONAL, read_producing
from wire.frames.error_codes import (
    INVALID_RECORD,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from wire.frames.produce import ProduceRequest, TopicKey
from wire.frames.types import AclRight, TopicPartition

#: No code of Kafka's: the batch is of a transaction, and its partition still has to be promoted.
WAITS_FOR_PROMOTE: Final = -1000


def named_twice(request: ProduceRequest) -> bool:
    """Whether a partition is in the request more than once. A broker writes only the last of such batches, and says
    nothing of the others (KafkaApis.handleProduceRequest puts them into a map); no client library sends it. Forwarded,
    each of them would be a request of its own.
    """
    named = [(key, index) for key, partitions in request.topics for index, _ in partitions]
    return len(set(named)) < len(named)


def not_mirrored(hub: ForwardingHub, authorizer: Authorizer, key: TopicKey, operation: AclRight) -> int:
    """The error code for a topic that is no mirror: somebody else's, or nobody's. As at a broker, who may not do that with a
    topic of the name does not learn which (ids cannot be guessed).
    """
    image = hub.ports.image()
    if isinstance(key, bytes):
        return NOT_LEADER_OR_FOLLOWER if key in image.topics_by_id else UNKNOWN_TOPIC_ID
    allowed = authorizer.may_hear_of(key, operation)
    if allowed is False:
        return TOPIC_AUTHORIZATION_FAILED
    if allowed is None or key in image.topics_by_name:
        return NOT_LEADER_OR_FOLLOWER
    return UNKNOWN_TOPIC_OR_PARTITION


def refusal(
    hub: ForwardingHub,
    authorizer: Authorizer,
    mirror: Mirror,
    tp: TopicPartition,
    records: memoryview,
) -> int:
    """Why the batch is not forwarded, as an error code or WAITS_FOR_PROMOTE; NONE if it is, now or as soon as may be."""
    if not authorizer.allowed(mirror.topic, AclRight.WRITE):
        return TOPIC_AUTHORIZATION_FAILED
    partition = mirror.partition(tp.partition)
    if partition is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    state = hub.fences.state(tp)
    carried = state is FenceState.CARRIED
    # Between the hand-over and the new leader's knowing of it a fence holds on: who is told now asks too early.
    fenced = state is FenceState.FENCED and hub.carrying.handed_over(tp)
    if state is FenceState.HANDED_OVER or not (partition.leading or carried or fenced):
        return NOT_LEADER_OR_FOLLOWER
    if len(records) < BATCH_OVERHEAD or records[MAGIC_AT] != MAGIC:
        return INVALID_RECORD
    transactional = bool(read_producing(records)[0] & TRANSACTIONAL)
    # No lease is needed where real brokers decide.
    if not (carried or fenced):
        if partition.read_only is not None:
            return POLICY_VIOLATION
        if partition.refusing is not None:
            return NOT_ENOUGH_REPLICAS
    return WAITS_FOR_PROMOTE if transactional else NONE


def message_for(mirror: Mirror, index: int, code: int) -> str | None:
    """The words that go with a refusal of ours, for whoever reads the client's log."""
    partition = mirror.partition(index)
    if code == POLICY_VIOLATION:
        return None if partition is None else partition.read_only
    if code != NOT_ENOUGH_REPLICAS:
        return None
    reason = None if partition is None else partition.refusing
    return reason or f"topic {mirror.topic} is a mirror: transactions can write to it once it is promoted"
