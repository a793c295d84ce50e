"""DescribeLogDirs: one directory, without a topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fakes.broker import FakeBroker, Request


async def handle(broker: FakeBroker, request: Request) -> Mapping[str, object]:
    one = {"error_code": 0, "log_dir": "/kafka", "topics": []}
    return {"error_code": request.forced_error, "results": [one]}
