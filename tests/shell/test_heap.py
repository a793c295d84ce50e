"""Memory that the C library keeps is given back where there is much of it."""

from __future__ import annotations

import pytest

from linker.process import heap


@pytest.mark.skipif(heap._library is None, reason="another C library than glibc, or an old one")
def test_what_was_freed_is_given_back() -> None:
    # As slow readers leave it: much that is free, below something that is not. Each is too small for a mapping of its own.
    blocks = [bytearray(100 << 10) for _ in range(1500)]
    kept = blocks[::50]
    del blocks
    free = heap.free_bytes()
    assert free > 64 << 20
    assert heap.give_back(32 << 20)
    assert not heap.give_back(1 << 62)
    assert len(kept) == 30


def test_without_such_a_library_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_library", None)
    assert heap.free_bytes() == 0
    assert not heap.give_back(0)
