"""Sockets are tried under asyncio's own loop and under the one that a sidecar runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config: Any, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    if item.path.name != "test_low_water.py":
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
