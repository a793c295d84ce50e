"""Requests to a partition's leader that a mirror cannot serve: ended at once, with an error that no client tries again.

NOT_LEADER_OR_FOLLOWER, which a real broker would say of a mirror, sends clients back here until their patience ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from router import apis
from router.authorize import Authorizer
from router.fence import LED_ELSEWHERE
from router.passthrough import Upstream
from router.produce.forwarding import ForwardingHub
from router.split import Fields, answer, by_topic, decoded, merged, pass_rest
from wire.frames.error_codes import (
    NOT_LEADER_OR_FOLLOWER,
    POLICY_VIOLATION,
    SHARE_SESSION_NOT_FOUND,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
)
from wire.frames.types import AclRight, TopicPartition
from wire.server.listener import Exchange, ServerConnection

log = logging.getLogger(__name__)

_CLOSE_SESSION: Final = -1
_MOST_TOLD: Final = 100
_NO_DELETIONS: Final = (
    "DeleteRecords is refused: another cluster owns this topic; delete there, and the logs here follow"
)
NO_SHARE_GROUPS: Final = (
    "another cluster owns this topic, and share groups read at its owner alone: use a consumer group here"
)


class MirrorRequests:
    """A request of one client connection. told: what was logged already, shared by all of them."""

    def __init__(
        self,
        hub: ForwardingHub,
        connection: ServerConnection,
        upstream: Upstream,
        authorizer: Authorizer,
        told: set[tuple[str, str]],
    ) -> None:
        self._hub = hub
        self._connection = connection
        self._upstream = upstream
        self._authorizer = authorizer
        self._told = told

    def handle(self, exchange: Exchange) -> None:
        match exchange.header.api_key:
            case apis.DELETE_RECORDS:
                self._delete_records(exchange)
            case apis.DESCRIBE_PRODUCERS:
                self._describe_producers(exchange)
            case _:
                self._share(exchange)

    def _delete_records(self, exchange: Exchange) -> None:
        """Refused: the owner decides about deletions (the source, or the target once it was switched), and the other
        cluster's logs follow its log start."""
        request = decoded(exchange)
        asked = [
            (topic.name, part.partition_index, part) for topic in request.topics for part in topic.partitions
        ]
        mine = self._mine((name, index) for name, index, _ in asked)
        again = partial(self._delete_records, exchange)
        if not self._known(mine, AclRight.DELETE, again):
            return
        answers: dict[TopicPartition, Fields] = {}
        for tp in mine:
            error = POLICY_VIOLATION
            if not self._authorizer.allowed(tp.topic, AclRight.DELETE):
                error = TOPIC_AUTHORIZATION_FAILED
            elif self._switching(tp):
                error = NOT_LEADER_OR_FOLLOWER  # for a moment
            else:
                self._tell("records deleted", tp.topic, _NO_DELETIONS)
            answers[tp] = {"low_watermark": -1, "error_code": error}
        rest = [
            {"name": topic.name, "partitions": parts}
            for topic in request.topics
            if (
                parts := [
                    p
                    for p in topic.partitions
                    if TopicPartition(topic.name, p.partition_index) not in answers
                ]
            )
        ]
        self._with_rest(exchange, answers, rest, {"timeout": request.timeout})

    def _describe_producers(self, exchange: Exchange) -> None:
        """The target has no producers of a mirror: they are at the source, as is what they have open. If this sidecar
        listed them, tools would look for their transactions at the target, find none, and offer to abort them."""
        request = decoded(exchange)
        asked = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
        mine = self._mine(asked)
        if not self._known(mine, AclRight.READ, partial(self._describe_producers, exchange)):
            return
        answers: dict[TopicPartition, Fields] = {}
        for tp in mine:
            allowed = self._authorizer.allowed(tp.topic, AclRight.READ)
            # While it is switched its producers are not known: no answer would be the right one.
            error = NOT_LEADER_OR_FOLLOWER if self._switching(tp) else 0
            answers[tp] = {
                "error_code": error if allowed else TOPIC_AUTHORIZATION_FAILED,
                "error_message": None,
                "active_producers": [],
            }
        rest = [
            {"name": topic.name, "partition_indexes": indexes}
            for topic in request.topics
            if (
                indexes := [
                    i for i in topic.partition_indexes if TopicPartition(topic.name, i) not in answers
                ]
            )
        ]
        self._with_rest(exchange, answers, rest, {})

    # --- share groups ------------------------------------------------------------------------------------------------

    def _share(self, exchange: Exchange) -> None:
        """Share groups have their state at the target's coordinators, and their records from leaders of stock Kafka. Kafka's
        client shows its application the error of a partition; that of a whole request it only logs, and tries again.
        """
        request = decoded(exchange)
        if request.share_session_epoch == _CLOSE_SESSION:
            answer(exchange, {"error_code": 0, "responses": []})
            return
        if not request.topics:
            # No session is kept here: the client begins one anew, and names its partitions.
            answer(exchange, {"error_code": SHARE_SESSION_NOT_FOUND, "responses": []})
            return
        mirrors = {}
        for topic in request.topics:
            mirror = self._hub.ports.mirrors.by_id(topic.topic_id.bytes) if topic.topic_id else None
            if mirror is not None:
                mirrors[topic.topic_id] = mirror.topic
        if not self._authorizer.all_known(mirrors.values(), AclRight.READ, partial(self._share, exchange)):
            return
        responses = []
        for topic in request.topics:
            name = mirrors.get(topic.topic_id)
            parts = [self._not_shared(name, part.partition_index) for part in topic.partitions]
            responses.append({"topic_id": topic.topic_id, "partitions": parts})
        answer(exchange, {"error_code": 0, "responses": responses})

    def _not_shared(self, topic: str | None, index: int) -> Fields:
        error, message = POLICY_VIOLATION, NO_SHARE_GROUPS
        if topic is None:
            error, message = UNKNOWN_TOPIC_ID, "no mirror of this broker"
        elif not self._authorizer.allowed(topic, AclRight.READ):
            error, message = TOPIC_AUTHORIZATION_FAILED, ""
        elif not self._leads(TopicPartition(topic, index)):
            error, message = NOT_LEADER_OR_FOLLOWER, ""
        else:
            self._tell("share", topic, NO_SHARE_GROUPS)
        current = {"leader_id": -1, "leader_epoch": -1}
        return {
            "partition_index": index,
            "error_code": error,
            "error_message": message or None,
            "current_leader": current,
        }

    # --- common ------------------------------------------------------------------------------------------------------

    def _mine(self, asked: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """The partitions of mirrors that this sidecar leads. For all others a real broker knows the answer, or names
        the leader."""
        return [tp for name, index in asked if self._leads(tp := TopicPartition(name, index))]

    def _leads(self, tp: TopicPartition) -> bool:
        mirror = self._hub.ports.mirrors.by_name(tp.topic)
        partition = mirror.partition(tp.partition) if mirror is not None else None
        return partition is not None and partition.leading and self._hub.fences.state(tp) not in LED_ELSEWHERE

    def _switching(self, tp: TopicPartition) -> bool:
        mirror = self._hub.ports.mirrors.by_name(tp.topic)
        partition = mirror.partition(tp.partition) if mirror is not None else None
        return partition is not None and partition.switching

    def _known(self, tps: Iterable[TopicPartition], operation: AclRight, again: Callable[[], None]) -> bool:
        return self._authorizer.all_known([tp.topic for tp in tps], operation, again)

    def _with_rest(
        self,
        exchange: Exchange,
        answers: dict[TopicPartition, Fields],
        rest: list[Fields],
        others: Fields,
    ) -> None:
        if not answers:
            self._upstream.forward(exchange)
        elif not rest:
            answer(exchange, {"topics": by_topic(answers)})
        else:

            def replied(reply: Any) -> None:
                topics = merged(by_topic(answers), reply.topics)
                answer(exchange, {"throttle_time": reply.throttle_time, "topics": topics})

            pass_rest(self._upstream, exchange, {"topics": rest, **others}, replied)

    def _tell(self, kind: str, topic: str, why: str) -> None:
        """Once for each topic: such clients come again every second."""
        if (kind, topic) in self._told or len(self._told) >= _MOST_TOLD:
            return
        self._told.add((kind, topic))
        log.warning("client %s, mirror %s: %s", self._connection.peer, topic, why)
