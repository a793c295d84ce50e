"""Errors carry their context and say it."""

from __future__ import annotations

from wire.errors import BrokerError, ConnectionLost, MalformedFrame, error_is_retriable, error_name
from wire.frames import error_codes
from wire.frames.types import TopicPartition


def test_context_is_rendered() -> None:
    error = MalformedFrame(
        "half a batch", api="fetch", version=12, topic_partition=TopicPartition("t", 3), offset=7, peer="h:1"
    )
    assert str(error) == "half a batch (fetch v12, partition t-3, offset 7, peer h:1)"
    assert str(MalformedFrame("half a batch")) == "half a batch"


def test_broker_error_knows_name_and_retriability() -> None:
    error = BrokerError(6, api="produce", version=9)
    assert error.retriable
    assert str(error) == "NOT_LEADER_OR_FOLLOWER (produce v9)"
    assert BrokerError(29, message="ask for WRITE").message == "TOPIC_AUTHORIZATION_FAILED: ask for WRITE"


def test_a_code_newer_than_our_table_is_no_crash() -> None:
    assert error_name(9999) == "UNKNOWN_ERROR_9999"
    assert not error_is_retriable(9999)
    assert not BrokerError(9999).retriable


def test_connection_lost_says_whether_it_was_sent() -> None:
    assert ConnectionLost("gone", sent=True).sent
    assert not ConnectionLost("gone", sent=False).sent


def test_the_table_of_error_codes_has_kafkas_names_for_kafkas_numbers() -> None:
    codes = {name: value for name, value in vars(error_codes).items() if name.isupper()}
    assert len(codes) > 10
    assert {name: error_name(value) for name, value in codes.items()} == {name: name for name in codes}
