"""The coordinators' error codes that are final: whom they end, and which right a refused request lacks."""

from __future__ import annotations

from groups.gates.base import GateRefused
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNSUPPORTED_VERSION,
)
from wire.shown_id import shown_id

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
    ("streams_group_describe", GROUP_AUTHORIZATION_FAILED): _GROUP_DESCRIBE,
    ("streams_group_heartbeat", TOPIC_AUTHORIZATION_FAILED): _TOPIC_DESCRIBE,
    ("streams_group_describe", TOPIC_AUTHORIZATION_FAILED): _TOPIC_DESCRIBE,
    ("", TRANSACTIONAL_ID_AUTHORIZATION_FAILED): _TRANSACTION_WRITE,
    ("find_coordinator", TRANSACTIONAL_ID_AUTHORIZATION_FAILED): _TRANSACTION_DESCRIBE,
}


class MissingGroupRight(GateRefused):
    """The target refused because the sidecar's principal lacks a right."""

    def __init__(self, group: str, api: str, code: int, resource: str) -> None:
        operation, kind, flags = _RIGHTS.get((api, code)) or _RIGHTS["", code]
        super().__init__(
            group,
            f"the sidecar's principal lacks the right {operation} on {kind} {resource} at the target ({api} was "
            f"refused); grant it with kafka-acls.sh --add --allow-principal 'User:<sidecar>' {flags} '{resource}'",
        )


def error(
    code: int, api: str, group: str, *, resource: str | None = None, message: str | None = None
) -> LinkerError:
    """The error for a code: MissingGroupRight for an authorization failure, GateRefused for an api that is switched off.

    `resource`: the topics or transactional id that the right is on; the group's name if left out.
    """
    if ("", code) in _RIGHTS:
        return MissingGroupRight(
            group, api, code, group if code == GROUP_AUTHORIZATION_FAILED else resource or "*"
        )
    if code == UNSUPPORTED_VERSION:
        return GateRefused(group, f"the target has {api} switched off; choose another gate for this group")
    return BrokerError(
        code, message=f"group {shown_id(group)}" + (f": {message}" if message else ""), api=api
    )


def check(
    code: int, api: str, group: str, *, resource: str | None = None, message: str | None = None
) -> None:
    """Raise `error` unless the code is NONE."""
    if code:
        raise error(code, api, group, resource=resource, message=message)
