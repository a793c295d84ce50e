"""What the charts of the evidence are drawn from."""

from __future__ import annotations

from linker.validation.samples import SampleBook
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 0)


def look(book: SampleBook, at_ms: int, mirrored: int | None) -> None:
    book.note(TP, at_ms, source_end=10, lag=0, mirrored_bytes=mirrored, validated={1: 10})


def test_the_results_of_a_partitions_replicas_are_one_look() -> None:
    """They come within a moment of each other: the rate is that since the look before, not that between them."""
    book = SampleBook()
    for at_ms, mirrored in ((0, 1000), (1, 1000), (2, 1000)):
        look(book, at_ms, mirrored)
    for at_ms, mirrored in ((10_000, 6000), (10_000, 6000), (10_003, 6100)):
        look(book, at_ms, mirrored)
    samples = book.of(TP, 1)
    assert [one.at_ms for one in samples] == [2, 10_003]
    assert [one.bytes_per_second for one in samples] == [None, 500.0]


def test_without_a_copy_there_is_no_rate() -> None:
    book = SampleBook()
    look(book, 0, 1000)
    look(book, 5_000, None)
    assert [one.bytes_per_second for one in book.of(TP, 1)] == [None, None]


def test_a_copy_that_began_anew_gives_none_for_once() -> None:
    book = SampleBook()
    for at_ms, mirrored in ((0, 1000), (1000, 10), (3000, 210)):
        look(book, at_ms, mirrored)
    assert [one.bytes_per_second for one in book.of(TP, 1)] == [None, None, 100.0]
