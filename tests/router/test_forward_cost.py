"""Requests that come together go on together, and so do their answers."""

from __future__ import annotations

from tests.router.forward_cost import measure


async def test_what_is_read_at_once_is_written_at_once() -> None:
    cost = await measure(8, rounds=1)
    # An eighth, but for a request that the end of the receive buffer cuts now and then.
    assert 0.125 <= cost.writes_to_source < 0.15
    assert 0.125 <= cost.writes_to_client < 0.15
