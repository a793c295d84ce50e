"""Kafka's error codes under Kafka's names, as plain numbers: those that this code answers with or looks for.

Plain, because on the way of every request a member of an enumeration costs a call to be compared. The name of any code,
and whether a client may retry: errors.py.
"""

from __future__ import annotations

from typing import Final

OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REPLICA_NOT_AVAILABLE: Final = 9
NETWORK_EXCEPTION: Final = 13
TOPIC_AUTHORIZATION_FAILED: Final = 29
UNSUPPORTED_SASL_MECHANISM: Final = 33
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
KAFKA_STORAGE_ERROR: Final = 56
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78
UNKNOWN_TOPIC_ID: Final = 100
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106
