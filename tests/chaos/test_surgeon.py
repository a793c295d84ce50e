"""Cuts where they were asked for, to the byte, whatever pieces the bytes come in."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.chaos.surgeon import Cut, Side, Surgeon


def request(key: int, correlation: int, body: bytes = b"x" * 40) -> bytes:
    inner = struct.pack(">hhi", key, 9, correlation) + body
    return struct.pack(">i", len(inner)) + inner


def answer(correlation: int, body: bytes = b"y" * 30) -> bytes:
    inner = struct.pack(">i", correlation) + body
    return struct.pack(">i", len(inner)) + inner


def feed(
    surgeon: Surgeon, side: Side, data: bytes, piece: int, connection: int = 1
) -> tuple[bytes, Cut | None]:
    passed = b""
    for at in range(0, len(data), piece):
        more, cut = surgeon.feed(connection, side, data[at : at + piece])
        passed += more
        if cut is not None:
            return passed, cut
    return passed, None


async def armed(cut: Cut) -> tuple[Surgeon, asyncio.Task[None]]:
    surgeon = Surgeon()
    striking = asyncio.create_task(surgeon.strike(cut, 1.0))
    await asyncio.sleep(0)
    return surgeon, striking


@pytest.mark.parametrize("piece", [1, 3, 11, 12, 13, 50, 1000])
@pytest.mark.parametrize("where", [0, 1, 4, 11, 12, 13, 40, 51, 52])
async def test_a_request_is_let_through_up_to_the_byte(piece: int, where: int) -> None:
    surgeon, striking = await armed(Cut(Side.REQUEST, lambda size: where))
    other, produce = request(3, 1), request(0, 2)
    assert len(produce) == 52
    passed, cut = feed(surgeon, Side.REQUEST, other + produce + request(0, 3), piece)
    assert cut is not None
    assert passed == other + produce[:where]
    await striking


@pytest.mark.parametrize("piece", [1, 7, 8, 9, 1000])
@pytest.mark.parametrize("where", [0, 3, 8, 20, 37, 38])
async def test_an_answer_is_that_of_a_produce(piece: int, where: int) -> None:
    surgeon, striking = await armed(Cut(Side.ANSWER, lambda size: where))
    assert feed(surgeon, Side.REQUEST, request(0, 2) + request(3, 5), 1000) == (
        request(0, 2) + request(3, 5),
        None,
    )
    first, second = answer(5), answer(2)
    passed, cut = feed(surgeon, Side.ANSWER, first + second, piece)
    assert cut is not None
    assert passed == first + second[:where]
    await striking


async def test_one_cut_and_no_more() -> None:
    surgeon, striking = await armed(Cut(Side.REQUEST, lambda size: size // 2))
    _, cut = surgeon.feed(1, Side.REQUEST, request(0, 1))
    assert cut is not None
    await striking
    whole = request(0, 7) + request(0, 8)
    assert feed(surgeon, Side.REQUEST, whole, 5, connection=2) == (whole, None)


async def test_without_a_produce_nothing_is_cut_and_that_is_said() -> None:
    surgeon = Surgeon()
    with pytest.raises(TimeoutError):
        await surgeon.strike(Cut(Side.REQUEST, lambda size: 0), 0.01)
    whole = request(0, 1)
    assert feed(surgeon, Side.REQUEST, whole, 5) == (whole, None)
