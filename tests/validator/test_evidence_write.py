"""The three files: what is in them, read back by others, and that none is ever half there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.validator.evidence_examples import DIGEST, OTHER, evidence, finding, partition, replica
from tests.validator.test_evidence_page import HOSTILE, everything
from validator.evidence import write as module
from validator.evidence.model import Evidence, Sample, TopicEvidence
from validator.evidence.parquet import METADATA_KEY
from validator.evidence.write import as_json, write_evidence


@pytest.fixture
def whole() -> Evidence:
    samples = (Sample(at_ms=5, source_end=3, lag=1, bytes_per_second=2.5, validated={1: 2, 2: 3}),)
    return evidence(
        partition(
            replica(1), replica(2, digest=OTHER, findings=(finding(),), findings_count=9), samples=samples
        ),
        partition(replica(1, through=None, digest=None, lawful={"compacted": 4}), index=1, handed_over_ms=77),
        topics=(TopicEvidence(topic="orders", source_topic_id="aa", compacted=True),),
    )


def test_json_has_the_verdict_in_front_and_reads_back(whole: Evidence) -> None:
    text = as_json(whole)
    loaded = json.loads(text)
    assert list(loaded)[:2] == ["verdict", "verdict_reason"]
    assert loaded["verdict"] == "DIFFERENT"
    assert read_back(text) == whole
    assert read_back(as_json(everything(HOSTILE))) == everything(HOSTILE)


def read_back(text: str) -> Evidence:
    """As `as_json` says that it can be."""
    loaded = json.loads(text)
    return Evidence.model_validate({key: loaded[key] for key in list(loaded)[2:]})


def test_parquet_has_one_row_per_replica(whole: Evidence, tmp_path: Path) -> None:
    written = write_evidence(whole, tmp_path / "new" / "place")
    table = pq.read_table(written.parquet)
    rows = table.to_pylist()
    assert [(row["partition"], row["broker_id"], row["verdict"]) for row in rows] == [
        (0, 1, "EQUAL"),
        (0, 2, "DIFFERENT"),
        (1, 1, "NOT_PROVED"),
    ]
    assert (rows[1]["source_digest"], rows[1]["digest"]) == (DIGEST, OTHER)
    assert rows[1]["findings"][0]["kind"] == "missing"
    assert rows[1]["findings"][0]["source"] is None
    assert rows[1]["samples"] == [
        {"at_ms": 5, "source_end": 3, "lag": 1, "bytes_per_second": 2.5, "validated": 3}
    ]
    assert (rows[2]["through"], rows[2]["digest"], rows[2]["lawful"]) == (None, None, [("compacted", 4)])
    assert rows[2]["handed_over"].timestamp() == 0.077
    assert {row["compacted"] for row in rows} == {True}
    more = json.loads(table.schema.metadata[METADATA_KEY])
    assert (more["link"], more["verdict"], "partitions" in more) == ("east", "DIFFERENT", False)


def test_parquet_of_nothing_and_of_everything(tmp_path: Path) -> None:
    assert pq.read_table(write_evidence(evidence(), tmp_path / "a").parquet).num_rows == 0
    [row] = pq.read_table(write_evidence(everything(HOSTILE), tmp_path / "b").parquet).to_pylist()
    assert row["topic"] == HOSTILE
    assert row["findings"][0]["replica"]["crc_computed"] == 2


def test_written_again_is_replaced_and_nothing_half_is_left(
    whole: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_evidence(whole, tmp_path)
    first = written.html.read_text()
    write_evidence(evidence(partition(replica())), tmp_path)
    assert written.html.read_text() != first

    def broken(_: Evidence) -> str:
        raise OSError("no space left on device")

    before = written.json_path.read_bytes()
    monkeypatch.setattr(module, "as_json", broken)
    with pytest.raises(OSError, match="no space"):
        write_evidence(whole, tmp_path)
    assert written.json_path.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "evidence.html",
        "evidence.json",
        "evidence.parquet",
    ]
