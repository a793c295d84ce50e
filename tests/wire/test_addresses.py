"""Addresses and lists of them, as Kafka's clients take them."""

from __future__ import annotations

import pytest

from wire.client.properties import PropertyError, parse_address, parse_bootstrap_servers


def test_addresses() -> None:
    assert parse_address("broker-1:9092") == ("broker-1", 9092)
    assert parse_address("[::1]:9092") == ("::1", 9092)
    assert parse_bootstrap_servers("a:1, b:2,") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    "text", ["broker", "broker:", ":9092", "broker:0", "broker:65536", "broker:x", "::1:9092"]
)
def test_bad_address_is_named(text: str) -> None:
    with pytest.raises(PropertyError) as caught:
        parse_bootstrap_servers(text)
    assert text in str(caught.value)


def test_empty_bootstrap() -> None:
    with pytest.raises(PropertyError, match="empty"):
        parse_bootstrap_servers(" , ")
