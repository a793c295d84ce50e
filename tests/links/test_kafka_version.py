"""Kafka's release out of what a cluster says of its features."""

from __future__ import annotations

import pytest

from linker.links.kafka_version import release_of, version_text


@pytest.mark.parametrize(
    ("level", "release"),
    [
        (1, "3.0"),
        (7, "3.3"),
        (19, "3.7"),
        (21, "3.9"),
        (25, "4.0"),
        (27, "4.1"),
        (29, "4.2"),
        (30, "4.3"),
        (31, "metadata.version 31"),
        (0, "metadata.version 0"),
    ],
)
def test_levels(level: int, release: str) -> None:
    assert release_of(level) == release


def test_what_is_finalized_may_be_older() -> None:
    assert version_text(30, 30) == "4.3"
    assert version_text(30, 25) == "4.3, metadata.version at 4.0"
    assert version_text(30, None) == "4.3"
    assert version_text(None, None) is None
