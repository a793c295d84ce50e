"""Stories of produces through sockets are told twice: with the usual writes in one piece, and with none of them."""

from __future__ import annotations

import pytest

from router.produce.fast_path import FastPath
from tests.loops import under_both_loops

pytest_asyncio_loop_factories = under_both_loops("test_bad_addresses.py", "test_login.py")

BOTH_WAYS = {"test_after_hand_over", "test_followed_back", "test_forwarding", "test_lease_gate"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.fixturenames.append("fast_path")
        metafunc.parametrize("fast_path", [True, False], ids=["fast_path", "step by step"], indirect=True)


@pytest.fixture
def fast_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether usual writes may go in one piece."""
    allowed: bool = request.param
    if not allowed:
        monkeypatch.setattr(FastPath, "send", lambda *_: False)
    return allowed
