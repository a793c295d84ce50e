"""What the demonstration says before it begins."""

from __future__ import annotations

import pytest

from lab.demo import demo


def test_libraries_that_are_missing_are_installed_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name the package would come from whoever has registered that."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    told = demo._missing_libraries() or ""
    assert told.startswith("no aiokafka, confluent_kafka, kafka here; in the checkout, run: pip install ")
    assert told.endswith(" -r requirements-dev.lock")
    assert "kafka-linker" not in told
