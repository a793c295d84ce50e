"""Sockets are tried under asyncio's own event loop and under the one that a sidecar runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop


def under_both_loops(*files: str) -> Callable[..., Mapping[str, Callable[[], Any]]]:
    """What a conftest.py calls `pytest_asyncio_loop_factories`: tests of these files of its run twice."""

    @pytest.hookimpl(optionalhook=True)
    def factories(config: Any, item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
        if item.path.name not in files:
            return {"asyncio": asyncio.new_event_loop}
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

    return factories
