"""Replicas on disk: reading them, and finding every difference but those that are lawful."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.workload.log_compare import Comparison, ReplicaComparison, compare_replica
from lab.workload.replica_log import ReplicaError, cleaned_until, open_replica
from tests.fakes.batches import build_batch, control_batch
from wire.errors import MalformedFrame
from wire.frames.types import TopicPartition

TP = TopicPartition("orders", 3)


def write(log_dir: Path, *segments: tuple[int, Sequence[bytes]], start: int | None = None) -> Path:
    """A replica of (base offset, batches) per segment."""
    directory = log_dir / "orders-3"
    directory.mkdir(parents=True)
    for base, batches in segments:
        (directory / f"{base:020}.log").write_bytes(b"".join(batches))
        (directory / f"{base:020}.index").write_bytes(b"\0" * 8)
    if start is not None:
        (log_dir / "log-start-offset-checkpoint").write_text(f"0\n1\norders 3 {start}\n")
    return log_dir


def batch(base: int, count: int = 2, epoch: int = 0, value_size: int = 10) -> bytes:
    return build_batch(count, base_offset=base, leader_epoch=epoch, value_size=value_size)


def compare(source: Path, target: Path, *, compacted: bool = False) -> ReplicaComparison:
    return compare_replica(open_replica(source, TP), open_replica(target, TP), TP, 1, compacted=compacted)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "source", (0, [batch(0), batch(2)]), (4, [batch(4, epoch=1)]))


# --- byte by byte


def test_epochs_and_segment_borders_are_free(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (0, [batch(0, epoch=7)]), (2, [batch(2, epoch=7), batch(4, epoch=7)]))
    result = compare(source, target)
    assert result.identical
    assert result.offsets_identical
    assert (result.batches, result.start, result.end) == (3, 0, 6)
    assert result.compared_bytes == 3 * len(batch(0))
    assert result.comparison is Comparison.BYTES


def test_what_the_target_wrote_after_the_source_ended_is_free(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (0, [batch(0), batch(2), batch(4), batch(6, epoch=9)]))
    assert compare(source, target).identical


def test_what_both_went_on_with_lies_behind_a_given_end(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (0, [batch(0), batch(2), batch(4, value_size=11, epoch=9)]))
    logs = open_replica(source, TP), open_replica(target, TP)
    assert compare_replica(*logs, TP, 1, end=4).identical
    assert not compare_replica(*logs, TP, 1, end=5).identical


def test_a_source_that_does_not_reach_a_given_end_differs(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (0, [batch(0), batch(2), batch(4), batch(6)]))
    assert not compare_replica(open_replica(source, TP), open_replica(target, TP), TP, 1, end=8).identical


@pytest.mark.parametrize(
    ("batches", "offsets"),
    [
        ([batch(0), batch(2)], False),  # ends early
        ([batch(0), batch(4)], False),  # a hole
        ([batch(0), batch(2), batch(4, value_size=11)], True),  # other content
        ([batch(0), batch(2), batch(4, count=1), batch(5, count=1)], False),  # batched anew
        ([], False),
    ],
)
def test_differences(source: Path, tmp_path: Path, batches: list[bytes], offsets: bool) -> None:
    result = compare(source, write(tmp_path / "target", (0, batches)))
    assert not result.identical
    assert result.offsets_identical is offsets
    assert result.difference


def test_every_byte_but_the_leader_epoch_counts(tmp_path: Path) -> None:
    """A target whose CRC is right again after each change: it is the comparison that has to find it."""
    one = build_batch([(b"k", b"v")], producer_id=5, producer_epoch=1, base_sequence=3)
    source = write(tmp_path / "source", (0, [one]))
    changed = {
        "key": build_batch([(b"x", b"v")], producer_id=5, producer_epoch=1, base_sequence=3),
        "producer": build_batch([(b"k", b"v")], producer_id=6, producer_epoch=1, base_sequence=3),
        "sequence": build_batch([(b"k", b"v")], producer_id=5, producer_epoch=1, base_sequence=4),
        "timestamp": build_batch(
            [(b"k", b"v")], producer_id=5, producer_epoch=1, base_sequence=3, timestamp=1
        ),
        "attributes": build_batch(
            [(b"k", b"v")], producer_id=5, producer_epoch=1, base_sequence=3, transactional=True
        ),
    }
    for name, other in changed.items():
        assert not compare(source, write(tmp_path / name, (0, [other]))).identical, name


def test_a_wrong_crc_is_an_error_and_names_the_file(source: Path, tmp_path: Path) -> None:
    damaged = bytearray(batch(2))
    damaged[-1] ^= 1
    target = write(tmp_path / "target", (0, [batch(0), bytes(damaged)]))
    with pytest.raises(ReplicaError, match=r"target.*CRC of offset 2"):
        compare(source, target)


def test_offsets_that_run_backwards_are_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplicaError, match="offset 0 after 3"):
        compare(source, write(tmp_path / "target", (0, [batch(0), batch(2)]), (9, [batch(0)])))


def test_garbage_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(MalformedFrame):
        compare(source, write(tmp_path / "target", (0, [b"\xff" * 200])))


def test_a_batch_that_is_being_written_is_left_out(source: Path, tmp_path: Path) -> None:
    whole = [batch(0), batch(2), batch(4)]
    tail = batch(6)
    for cut in range(len(tail)):
        target = write(tmp_path / f"target{cut}", (0, [*whole, tail[:cut]]))
        assert open_replica(target, TP).end() == 6
        assert compare(source, target).identical


def test_two_empty_logs_are_identical(tmp_path: Path) -> None:
    result = compare(write(tmp_path / "source", (0, [])), write(tmp_path / "target", (0, [])))
    assert result.identical
    assert (result.batches, result.end) == (0, 0)


def test_an_empty_source_whose_target_went_on_is_identical(tmp_path: Path) -> None:
    assert compare(write(tmp_path / "source", (0, [])), write(tmp_path / "target", (0, [batch(0)]))).identical


# --- log start


def test_what_lies_below_the_source_log_start_is_free(source: Path, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", (0, [batch(0), batch(2), batch(4)]))
    trimmed = write(tmp_path / "trimmed", (0, [batch(0), batch(2), batch(4)]), start=4)
    result = compare(trimmed, whole)
    assert result.identical
    assert (result.start, result.batches) == (4, 1)


def test_a_target_that_starts_later_than_the_source_differs(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (2, [batch(2), batch(4)]))
    result = compare(source, target)
    assert not result.identical and not result.offsets_identical
    assert result.difference == "the target starts at offset 2, the source at 0: 2 records are not there"
    trimmed = write(tmp_path / "trimmed", (0, [batch(0), batch(2), batch(4)]), start=4)
    assert "4 records are not there" in (compare(source, trimmed).difference or "")


def test_a_mirror_that_began_later_is_not_expected_to_have_what_lies_before(
    source: Path, tmp_path: Path
) -> None:
    target = write(tmp_path / "target", (2, [batch(2), batch(4)]))
    assert compare_replica(open_replica(source, TP), open_replica(target, TP), TP, 1, began=2).identical


def test_a_log_start_hides_no_hole(source: Path, tmp_path: Path) -> None:
    assert not compare(source, write(tmp_path / "target", (2, [batch(4)]))).identical


def test_nothing_in_common_is_not_identical(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (5, []))
    result = compare(source, target)
    assert not result.identical
    assert result.difference == "the target starts at offset 5, the source at 0: 6 records are not there"


def test_files(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ReplicaError, match="no replica"):
        open_replica(tmp_path, TP)
    (tmp_path / "orders-3").mkdir()
    with pytest.raises(ReplicaError, match="no segment"):
        open_replica(tmp_path, TP)
    (source / "orders-3" / "00000000000000000009.log.deleted").write_bytes(b"old")
    assert open_replica(source, TP).end() == 6
    assert cleaned_until(source, TP) == 0
    (source / "cleaner-offset-checkpoint").write_text("0\n2\nother 0 7\norders 3 4\n")
    assert cleaned_until(source, TP) == 4


# --- record by record


def keyed(base: int, *pairs: tuple[bytes, bytes | None], **more: int | bool) -> bytes:
    return build_batch(list(pairs), base_offset=base, **more)  # type: ignore[arg-type]


Pairs = list[tuple[bytes, bytes | None]]
SOURCE: Pairs = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"), (b"c", None)]


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    return write(tmp_path / "source", (0, [keyed(index, pair) for index, pair in enumerate(SOURCE)]))


def cleaned(tmp_path: Path, *offsets: int, change: Callable[[Pairs], None] = lambda _pairs: None) -> Path:
    pairs = list(SOURCE)
    change(pairs)
    return write(tmp_path / "target", (0, [keyed(offset, pairs[offset]) for offset in offsets]))


@pytest.mark.parametrize("offsets", [(0, 1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 4), (1, 2)])
def test_whatever_a_cleaner_may_do(compacted: Path, tmp_path: Path, offsets: tuple[int, ...]) -> None:
    result = compare(compacted, cleaned(tmp_path, *offsets), compacted=True)
    assert result.identical, result.difference
    assert result.comparison is Comparison.RECORDS


@pytest.mark.parametrize(
    ("offsets", "what"), [((0, 1, 4), "key b'a'"), ((2, 4), "key b'b'"), ((1, 2, 3), "key b'c'"), ((), "key")]
)
def test_what_no_cleaner_may_do(compacted: Path, tmp_path: Path, offsets: tuple[int, ...], what: str) -> None:
    result = compare(compacted, cleaned(tmp_path, *offsets), compacted=True)
    assert not result.identical
    assert what in str(result.difference)


def test_a_record_that_both_hold_has_to_be_equal(compacted: Path, tmp_path: Path) -> None:
    def change(pairs: Pairs) -> None:
        pairs[0] = (b"a", b"X")

    result = compare(compacted, cleaned(tmp_path, 0, 1, 2, 3, 4, change=change), compacted=True)
    assert not result.identical
    assert "offset 0" in str(result.difference)


def test_a_last_value_at_another_offset_is_found(compacted: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "target", (0, [keyed(1, SOURCE[1]), keyed(3, (b"a", b"3"))]))
    result = compare(compacted, target, compacted=True)
    assert not (result.identical and result.offsets_identical)


def test_aborted_transactions_do_not_count_as_last_values(tmp_path: Path) -> None:
    ours = [
        keyed(0, (b"a", b"1")),
        keyed(1, (b"a", b"2"), producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        control_batch(9, 0, commit=False, base_offset=2),
    ]
    source = write(tmp_path / "source", (0, ours))
    assert compare(source, write(tmp_path / "without", (0, [ours[0]])), compacted=True).identical
    committed = [ours[0], ours[1], control_batch(9, 0, commit=True, base_offset=2)]
    both = write(tmp_path / "committed", (0, committed))
    assert not compare(both, write(tmp_path / "lost", (0, [ours[0]])), compacted=True).identical
    # the marker of a committed transaction may be cleaned away, its records stay
    assert compare(both, write(tmp_path / "no-marker", (0, committed[:2])), compacted=True).identical
