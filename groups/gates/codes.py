"""The coordinators' error codes: which may be retried, and which right a refused request lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from groups.gates.base import GateRefused
from wire.errors import BrokerError
from wire.frames.error_codes import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNSUPPORTED_VERSION,
)

# Another look for the coordinator may help.
MOVED = frozenset({COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})
# Waiting helps.
BUSY = frozenset({COORDINATOR_LOAD_IN_PROGRESS, CONCURRENT_TRANSACTIONS})
# Somebody ended our transaction, or began another one under our transactional id.
TRANSACTION_GONE = frozenset(
    {
        INVALID_PRODUCER_EPOCH,
        INVALID_TXN_STATE,
        INVALID_PRODUCER_ID_MAPPING,
        PRODUCER_FENCED,
        TRANSACTION_ABORTABLE,
    }
)
# We are no member any more.
MEMBER_GONE = frozenset({UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND})


def _top(answer: Any) -> Iterable[int]:
    return (int(answer.error_code),)


def _offset_commit(answer: Any) -> Iterable[int]:
    return (int(p.error_code) for topic in answer.topics for p in topic.partitions)


def _groups(answer: Any) -> Iterable[int]:
    return (int(group.error_code) for group in answer.groups)


def _offset_fetch(answer: Any) -> Iterable[int]:
    return (int(group.error_code) for group in answer.groups)


# Where an answer has the codes that say whether the coordinator was the right one.
CODES: dict[str, Callable[[Any], Iterable[int]]] = {
    "add_offsets_to_txn": _top,
    "consumer_group_describe": _groups,
    "consumer_group_heartbeat": _top,
    "describe_groups": _groups,
    "end_txn": _top,
    "heartbeat": _top,
    "init_producer_id": _top,
    "join_group": _top,
    "leave_group": _top,
    "offset_commit": _offset_commit,
    "offset_fetch": _offset_fetch,
    "sync_group": _top,
    "txn_offset_commit": _offset_commit,
}

_GROUP_READ = ("READ", "Group", "--operation Read --group")
_GROUP_DESCRIBE = ("DESCRIBE", "Group", "--operation Describe --group")
_TOPIC_READ = ("READ", "Topic", "--operation Read --topic")
_TOPIC_DESCRIBE = ("DESCRIBE", "Topic", "--operation Describe --topic")
_TRANSACTION_WRITE = ("WRITE", "TransactionalId", "--operation Write --transactional-id")
_TRANSACTION_DESCRIBE = ("DESCRIBE", "TransactionalId", "--operation Describe --transactional-id")
# KafkaApis.scala, the handler of each api; (api, code), or the code alone for every other api.
_RIGHTS: dict[tuple[str, int], tuple[str, str, str]] = {
    ("", GROUP_AUTHORIZATION_FAILED): _GROUP_READ,
    ("describe_groups", GROUP_AUTHORIZATION_FAILED): _GROUP_DESCRIBE,
    ("consumer_group_describe", GROUP_AUTHORIZATION_FAILED): _GROUP_DESCRIBE,
    ("find_coordinator", GROUP_AUTHORIZATION_FAILED): _GROUP_DESCRIBE,
    ("offset_fetch", GROUP_AUTHORIZATION_FAILED): _GROUP_DESCRIBE,
    ("", TOPIC_AUTHORIZATION_FAILED): _TOPIC_READ,
    ("consumer_group_heartbeat", TOPIC_AUTHORIZATION_FAILED): _TOPIC_DESCRIBE,
    ("consumer_group_describe", TOPIC_AUTHORIZATION_FAILED): _TOPIC_DESCRIBE,
    ("", TRANSACTIONAL_ID_AUTHORIZATION_FAILED): _TRANSACTION_WRITE,
    ("find_coordinator", TRANSACTIONAL_ID_AUTHORIZATION_FAILED): _TRANSACTION_DESCRIBE,
}


class MissingGroupRight(GateRefused):
    """The target refused because the sidecar's principal lacks a right."""

    def __init__(self, group: str, api: str, code: int, resource: str) -> None:
        operation, kind, flags = _RIGHTS.get((api, code)) or _RIGHTS["", code]
        self.api = api
        self.operation = operation
        self.resource = f"{kind} {resource}"
        super().__init__(
            group,
            f"the sidecar's principal lacks the right {operation} on {kind} {resource} at the target ({api} was "
            f"refused); grant it with kafka-acls.sh --add --allow-principal 'User:<sidecar>' {flags} '{resource}'",
        )


def check(
    code: int, api: str, group: str, *, resource: str | None = None, message: str | None = None
) -> None:
    """Raise for an error code: MissingGroupRight for an authorization failure, BrokerError otherwise.

    `resource`: the topics or transactional id that the right is on; the group's name if left out.
    """
    if code == 0:
        return
    if ("", code) in _RIGHTS:
        raise MissingGroupRight(
            group, api, code, group if code == GROUP_AUTHORIZATION_FAILED else resource or "*"
        )
    if code == UNSUPPORTED_VERSION:
        raise GateRefused(group, f"the target has {api} switched off; choose another gate for this group")
    raise BrokerError(code, message=f"group {group}" + (f": {message}" if message else ""), api=api)
