"""The fields that are read for each forwarded batch are those of its header."""

from __future__ import annotations

import pytest

from tests.fakes.batches import build_batch
from wire.frames.batch import BATCH_OVERHEAD, read_batch_header
from wire.frames.batch_fields import MAGIC, MAGIC_AT, TRANSACTIONAL, read_last_offset_delta, read_producing


@pytest.mark.parametrize("transactional", [False, True])
def test_they_are_those_of_the_header(transactional: bool) -> None:
    batch = build_batch(
        7, producer_id=1 << 40, producer_epoch=300, base_sequence=1 << 20, transactional=transactional
    )
    header = read_batch_header(batch, 0)
    assert read_producing(batch[:BATCH_OVERHEAD]) == (
        header.attributes,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
    assert bool(header.attributes & TRANSACTIONAL) == header.is_transactional == transactional
    assert read_last_offset_delta(batch) == (header.last_offset_delta,) == (6,)
    assert batch[MAGIC_AT] == header.magic == MAGIC
