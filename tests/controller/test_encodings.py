"""The state as an older version wrote it: read, and written again byte for byte; damaged, it is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import codec
from controller.errors import CorruptState
from controller.state import (
    MirrorTopic,
    PartitionValidation,
    PromoteEvidence,
    PromoteJob,
)

# One entity a line, [path, value], written by the codec that was spelt out field by field.
LINES = Path(__file__).with_name("encodings.jsonl").read_text().splitlines()
FREE = {"options"}  # any JSON is right here


def test_old_bytes_come_back() -> None:
    for line in LINES:
        path, value = json.loads(line)
        entity = codec.decode(path, value)
        assert entity is not None
        assert codec.path_of(entity) == path
        assert json.dumps([path, codec.encode(entity)], sort_keys=True, separators=(",", ":")) == line


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [
        way for key, one in inside if key not in FREE for way in [(*above, key), *places(one, (*above, key))]
    ]


@given(line=st.sampled_from(LINES), data=st.data())
def test_a_value_of_another_type_is_refused_anywhere(line: str, data: st.DataObject) -> None:
    path, value = json.loads(line)
    *above, last = data.draw(st.sampled_from(places(value)))
    damaged = copy.deepcopy(value)
    around = damaged
    for key in above:
        around = around[key]
    around[last] = data.draw(
        st.sampled_from(({"x": [None]}, [{"x": None}], "no such thing", 2.5, True)).filter(
            lambda one: type(one) is not type(around[last]) and around[last] is not None
        )
    )
    if last in ("lease", *value.get("phases_ms", {})) or "phases_ms" in above:
        around[last] = "no number"
    with pytest.raises(CorruptState, match=path.replace(".", r"\.")):
        codec.decode(path, damaged)


def test_a_field_that_older_versions_lack_has_its_default() -> None:
    for path, value in map(json.loads, LINES):
        for field in ("configs_from_target", "closed_for_good", "accept_missing", "requested_by"):
            value.pop(field, None)
        for inner in (value.get("evidence"), *value.get("replicas", ())):
            for field in ("missing_records", "missing"):
                (inner or {}).pop(field, None)
        match codec.decode(path, value):
            case MirrorTopic() as mirror:
                assert mirror.configs_from_target == ()
            case PromoteJob() as job:
                assert (job.closed_for_good, job.accept_missing, job.requested_by) == ((), 0, None)
                assert (job.evidence or PromoteEvidence()).missing_records == 0
            case PartitionValidation() as validation:
                assert all(replica.missing is None for replica in validation.replicas)
