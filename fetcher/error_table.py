"""What each error of a source fetch means for the partition: a table, and nothing else. Not here: errors about the fetch
session (fetch_session.py).

RETRY       same node again after a pause: the condition passes by itself
REFRESH     the node is wrong or the topic changed: read the source's metadata, place the partition anew
RERESOLVE   the fetch offset is wrong: ask the source where its log begins and ends, then decide
FAIL        no retry helps: the mirror stops with the reason

A code that is not listed is retried: a mirror must not die of an error that a newer broker invented.
"""

from __future__ import annotations

from enum import Enum

from kio.schema.errors import ErrorCode

from wire.errors import error_name


class Action(Enum):
    RETRY = "retry"
    REFRESH = "refresh"
    RERESOLVE = "re-resolve"
    FAIL = "fail"


_TABLE: dict[ErrorCode, tuple[Action, str]] = {
    ErrorCode.unknown_server_error: (Action.RETRY, "the source broker had an internal error"),
    ErrorCode.offset_out_of_range: (Action.RERESOLVE, "the source has no such offset"),
    ErrorCode.corrupt_message: (Action.RETRY, "the source cannot read its own log"),
    ErrorCode.unknown_topic_or_partition: (Action.REFRESH, "the source broker does not host the partition"),
    ErrorCode.leader_not_available: (Action.REFRESH, "the source partition has no leader"),
    ErrorCode.not_leader_or_follower: (Action.REFRESH, "the source broker is no replica any more"),
    ErrorCode.request_timed_out: (Action.RETRY, "the source broker timed out"),
    ErrorCode.broker_not_available: (Action.REFRESH, "the source broker is not available"),
    ErrorCode.replica_not_available: (Action.REFRESH, "the source replica is not available"),
    ErrorCode.topic_authorization_failed: (
        Action.RETRY,
        "not allowed to read the source topic: grant READ on the topic to the link's principal",
    ),
    ErrorCode.cluster_authorization_failed: (Action.RETRY, "the source refuses the link's principal"),
    ErrorCode.unsupported_version: (Action.FAIL, "the source does not speak the fetch version it announced"),
    ErrorCode.invalid_request: (Action.RETRY, "the source found the fetch request invalid"),
    ErrorCode.kafka_storage_error: (Action.REFRESH, "a log directory of the source broker is offline"),
    ErrorCode.fenced_leader_epoch: (Action.REFRESH, "the source has a newer leader epoch"),
    ErrorCode.unknown_leader_epoch: (Action.RETRY, "the source broker has not heard of the leader epoch yet"),
    ErrorCode.unsupported_compression_type: (
        Action.FAIL,
        "the fetch version is too old for the topic's compression",
    ),
    ErrorCode.offset_not_available: (Action.RETRY, "the new source leader has no high watermark yet"),
    ErrorCode.unknown_topic_id: (Action.REFRESH, "the source does not know the topic id"),
    ErrorCode.inconsistent_topic_id: (Action.REFRESH, "the source has another topic id"),
}

_BY_CODE: dict[int, tuple[Action, str]] = {int(code): entry for code, entry in _TABLE.items()}


def classify(code: int) -> tuple[Action, str]:
    """The action for a Kafka error code and what to tell a person."""
    entry = _BY_CODE.get(code)
    if entry is None:
        return Action.RETRY, f"the source answered {error_name(code)}"
    return entry[0], f"{entry[1]} ({error_name(code)})"
