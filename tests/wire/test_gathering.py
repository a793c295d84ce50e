"""What one read causes leaves together, in order, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import cast

import pytest

from wire.transport.gathering import GATHER_MAX, Writer, gathered_writes


class Taken:
    """A transport that notes each call."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.calls.append(bytes(data))

    def writelines(self, buffers: list[bytes]) -> None:
        self.calls.append(b"".join(buffers))

    def is_closing(self) -> bool:
        return self.closing


def writer(taken: Taken) -> Writer:
    return Writer(cast(asyncio.WriteTransport, taken))


def test_without_gathering_each_write_leaves_at_once() -> None:
    taken = Taken()
    one = writer(taken)
    one.write([b"a"])
    one.write([b"b", b"c"])
    assert taken.calls == [b"a", b"bc"]


def test_gathered_writes_leave_at_the_end_in_order_per_connection() -> None:
    left, right = Taken(), Taken()
    one, two = writer(left), writer(right)
    with gathered_writes():
        one.write([b"a"])
        two.write([b"1", b"2"])
        with gathered_writes():
            one.write([b"b", b"c"])
        assert (left.calls, right.calls) == ([], [])
    assert (left.calls, right.calls) == ([b"abc"], [b"12"])
    one.write([b"d"])
    assert left.calls == [b"abc", b"d"]


def test_an_error_keeps_nothing_back() -> None:
    taken = Taken()
    one = writer(taken)
    with pytest.raises(ValueError, match="broken"), gathered_writes():
        one.write([b"a"])
        raise ValueError("broken")
    assert taken.calls == [b"a"]
    one.write([b"b"])
    assert taken.calls == [b"a", b"b"]


def test_a_write_that_the_end_brings_comes_behind_those_that_are_gathered() -> None:
    """The end serves one connection after the other, and one that has sent all may bring about answers of another."""
    first = Taken()
    one = writer(first)

    class Brings(Taken):
        def write(self, data: bytes) -> None:
            super().write(data)
            one.write([b"late"])

    two = writer(Brings())
    with gathered_writes():
        one.write([b"early"])
        two.write([b"1"])
    assert first.calls == [b"early", b"late"]


def test_much_leaves_before_the_end() -> None:
    taken = Taken()
    one = writer(taken)
    with gathered_writes():
        one.write([bytes(GATHER_MAX)])
        assert [len(call) for call in taken.calls] == [GATHER_MAX]
        one.write([b"rest"])
    assert taken.calls[1:] == [b"rest"]


def test_flush_goes_before_what_follows() -> None:
    taken = Taken()
    one = writer(taken)
    with gathered_writes():
        one.write([b"a"])
        one.flush()
        assert taken.calls == [b"a"]
        one.write([b"b"])
    assert taken.calls == [b"a", b"b"]


def test_what_a_write_causes_is_not_forgotten() -> None:
    """A transport may call back into us (pause_writing) while the gathered buffers leave."""
    left, right = Taken(), Taken()
    one, two = writer(left), writer(right)

    class Nosy(Taken):
        def write(self, data: bytes) -> None:
            super().write(data)
            with gathered_writes():
                two.write([b"caused"])

    nosy = Nosy()
    with gathered_writes():
        writer(nosy).write([b"x"])
        one.write([b"y"])
    assert (nosy.calls, left.calls, right.calls) == ([b"x"], [b"y"], [b"caused"])


def test_a_connection_that_cannot_be_written_to_keeps_no_other_back() -> None:
    class Closed(Taken):
        def write(self, data: bytes) -> None:
            raise RuntimeError("closed")

    before, after = Taken(), Taken()
    with pytest.raises(RuntimeError, match="closed"), gathered_writes():
        writer(before).write([b"a"])
        writer(Closed()).write([b"x"])
        writer(after).write([b"b"])
    assert (before.calls, after.calls) == ([b"a"], [b"b"])


def test_threads_do_not_gather_for_each_other() -> None:
    taken = Taken()
    one = writer(taken)
    with gathered_writes():
        other = threading.Thread(target=one.write, args=([b"a"],))
        other.start()
        other.join()
        assert taken.calls == [b"a"]
