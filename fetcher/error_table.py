"""The meaning of each error of a source fetch for its partition, as a table. Not here: errors about the fetch
session (fetch_session.py).

RETRY       same node again after a pause: the condition passes by itself
REFRESH     the node is wrong or the topic changed: read the source's metadata, place the partition anew
RERESOLVE   the fetch offset is wrong: ask the source where its log begins and ends, then decide
AS_CONSUMER a replica is refused what a consumer gets: read as a consumer does
FAIL        no retry helps: the mirror stops with the reason

A code that is not listed is retried: a mirror must not die of an error that a newer broker invented.
"""

from __future__ import annotations

from enum import Enum

from kio.schema.errors import ErrorCode

from wire.errors import error_name


class ErrorAction(Enum):
    RETRY = "retry"
    REFRESH = "refresh"
    RERESOLVE = "re-resolve"
    AS_CONSUMER = "as a consumer"
    FAIL = "fail"


_TABLE: dict[ErrorCode, tuple[ErrorAction, str]] = {
    ErrorCode.unknown_server_error: (ErrorAction.RETRY, "the source broker had an internal error"),
    ErrorCode.offset_out_of_range: (ErrorAction.RERESOLVE, "the source has no such offset"),
    ErrorCode.corrupt_message: (ErrorAction.RETRY, "the source cannot read its own log"),
    ErrorCode.unknown_topic_or_partition: (
        ErrorAction.REFRESH,
        "the source broker does not host the partition",
    ),
    ErrorCode.leader_not_available: (ErrorAction.REFRESH, "the source partition has no leader"),
    ErrorCode.not_leader_or_follower: (ErrorAction.REFRESH, "the source broker is no replica any more"),
    ErrorCode.request_timed_out: (ErrorAction.RETRY, "the source broker timed out"),
    ErrorCode.broker_not_available: (ErrorAction.REFRESH, "the source broker is not available"),
    ErrorCode.replica_not_available: (ErrorAction.REFRESH, "the source replica is not available"),
    ErrorCode.topic_authorization_failed: (
        ErrorAction.RETRY,
        "not allowed to read the source topic: grant READ on the topic to the link's principal",
    ),
    ErrorCode.cluster_authorization_failed: (ErrorAction.RETRY, "the source refuses the link's principal"),
    ErrorCode.unsupported_version: (
        ErrorAction.FAIL,
        "the source does not speak the fetch version it announced",
    ),
    ErrorCode.invalid_request: (ErrorAction.RETRY, "the source found the fetch request invalid"),
    ErrorCode.kafka_storage_error: (ErrorAction.REFRESH, "a log directory of the source broker is offline"),
    ErrorCode.fenced_leader_epoch: (ErrorAction.REFRESH, "the source has a newer leader epoch"),
    ErrorCode.unknown_leader_epoch: (
        ErrorAction.RETRY,
        "the source broker has not heard of the leader epoch yet",
    ),
    ErrorCode.unsupported_compression_type: (
        ErrorAction.FAIL,
        "the fetch version is too old for the topic's compression",
    ),
    ErrorCode.offset_not_available: (ErrorAction.RETRY, "the new source leader has no high watermark yet"),
    ErrorCode.offset_moved_to_tiered_storage: (
        ErrorAction.AS_CONSUMER,
        "the source has these records in remote storage, from where only consumers get them",
    ),
    ErrorCode.unknown_topic_id: (ErrorAction.REFRESH, "the source does not know the topic id"),
    ErrorCode.inconsistent_topic_id: (ErrorAction.REFRESH, "the source has another topic id"),
}

_BY_CODE: dict[int, tuple[ErrorAction, str]] = {int(code): entry for code, entry in _TABLE.items()}


def classify(code: int) -> tuple[ErrorAction, str]:
    """The action for a Kafka error code and what to tell a person."""
    entry = _BY_CODE.get(code)
    if entry is None:
        return ErrorAction.RETRY, f"the source answered {error_name(code)}"
    return entry[0], f"{entry[1]} ({error_name(code)})"
