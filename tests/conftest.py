"""For all tests: hypothesis looks for new examples on a developer's machine, and repeats the same ones in CI.

Its deadline per example is off: a busy machine must not fail a property test.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings

REAL = Path(__file__).parent / "real"

settings.register_profile("ours", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "ours")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` looks for real brokers' tests in one directory only: one elsewhere would never run."""
    strays = [
        item.nodeid
        for item in items
        if item.get_closest_marker("real") is not None and REAL not in item.path.parents
    ]
    if strays:
        raise pytest.UsageError(f"marked real, but not in tests/real: {', '.join(strays)}")
