"""The generator of the record tables: what it understands, what it refuses, what --check notices."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from wire.metadata.fields import NEWEST, Field, RecordSchema

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_metadata_schemas.py"
SCHEMA: dict[str, Any] = {
    "apiKey": 3,
    "type": "metadata",
    "name": "ThingRecord",
    "validVersions": "0-2",
    "flexibleVersions": "0+",
    "fields": [
        {"name": "ThingId", "type": "int32", "versions": "0+", "default": "-1", "about": "x"},
        {"name": "LastKnownElr", "type": "[]int32", "versions": "1+",
         "nullableVersions": "1+", "taggedVersions": "1+", "tag": 2, "default": "null"},
        {"name": "EndPoints", "type": "[]EndPoint", "versions": "0-1", "fields": [
            {"name": "Name", "type": "string", "versions": "0", "mapKey": True}]},
        {"name": "On", "type": "bool", "versions": "0+", "default": "true"},
        {"name": "Mask", "type": "int64", "versions": "0+", "default": "0x7f"},
        {"name": "Id", "type": "uuid", "versions": "0+"},
        {"name": "Rate", "type": "float64", "versions": "0+"},
        {"name": "Raw", "type": "bytes", "versions": "0+"},
    ],
}  # fmt: skip
EVER = (0, NEWEST)
EXPECTED = RecordSchema(
    "ThingRecord",
    2,
    (
        Field("thing_id", "int32", EVER, -1),
        Field(
            "last_known_elr", "[]int32", (1, NEWEST), None, nullable=(1, NEWEST), tag=2, tagged=(1, NEWEST)
        ),
        Field("end_points", "[]struct", (0, 1), (), fields=(Field("name", "string", (0, 0), ""),)),
        Field("on", "bool", EVER, True),
        Field("mask", "int64", EVER, 127),
        Field("id", "uuid", EVER, bytes(16)),
        Field("rate", "float64", EVER, 0.0),
        Field("raw", "bytes", EVER, b""),
    ),
)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_metadata_schemas", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "TARGET", tmp_path / "schemas.py")
    return module


def make_jar(tmp_path: Path, *schemas: dict[str, Any], name: str = "kafka-metadata-9.9.9.jar") -> Path:
    jar = tmp_path / name
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "")
        for schema in schemas:
            text = "// Licensed\n" + json.dumps(schema, indent=1).replace("{", "{\n // a comment\n", 1)
            archive.writestr(f"common/metadata/{schema['name']}.json", text)
    return jar


def run(generator: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["generate", *map(str, arguments)])
    return int(generator.main())


def test_a_schema_becomes_a_table(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = {**SCHEMA, "apiKey": 1, "name": "EmptyRecord", "fields": [], "validVersions": "0"}
    jar = make_jar(tmp_path, SCHEMA, empty)
    assert run(generator, monkeypatch, jar) == 0
    names: dict[str, Any] = {}
    exec(compile(generator.TARGET.read_text(), "schemas.py", "exec"), names)
    assert names["SCHEMAS"] == {1: RecordSchema("EmptyRecord", 0, ()), 3: EXPECTED}
    assert names["KAFKA_VERSION"] == "9.9.9"
    assert run(generator, monkeypatch, jar, "--check") == 0


def test_check_shows_what_differs_and_writes_nothing(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jar = make_jar(tmp_path, SCHEMA)
    assert run(generator, monkeypatch, jar, "--check") == 1
    assert not generator.TARGET.exists()
    run(generator, monkeypatch, jar)
    generator.TARGET.write_text(generator.TARGET.read_text().replace("thing_id", "thong_id"))
    capsys.readouterr()
    assert run(generator, monkeypatch, jar, "--check") == 1
    shown = capsys.readouterr()
    assert '-        Field("thong_id"' in shown.out
    assert "run generate_metadata_schemas.py again" in shown.err


@pytest.mark.parametrize(
    "change",
    [
        {"flexibleVersions": "1+"},
        {"validVersions": "0+"},
        {"type": "request"},
        {"commonStructs": [{"name": "X"}]},
        {"fields": [{"name": "A", "type": "int32", "versions": "0+", "invented": 1}]},
        {"fields": [{"name": "A", "type": "Unknown", "versions": "0+"}]},
        {"fields": [{"name": "A", "type": "int32", "versions": "0-"}]},
    ],
)
def test_what_it_does_not_understand_it_refuses(
    generator: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
) -> None:
    assert run(generator, monkeypatch, make_jar(tmp_path, {**SCHEMA, **change})) == 1
    assert not generator.TARGET.exists()
    assert "UnknownSchemaError" in capsys.readouterr().err


def test_a_file_that_is_no_such_jar_is_one_clear_line(
    generator: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "kafka-metadata-1.0.jar"
    text.write_text("no zip")
    for bad in (
        tmp_path / "absent.jar",
        text,
        make_jar(tmp_path),
        make_jar(tmp_path, SCHEMA, name="other.jar"),
    ):
        assert run(generator, monkeypatch, bad) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("PartitionId", "partition_id"),
        ("IsMigratingZkBroker", "is_migrating_zk_broker"),
        ("LastKnownElr", "last_known_elr"),
        ("EndPoints", "end_points"),
        ("ISRState", "isr_state"),
    ],
)
def test_names(generator: ModuleType, name: str, expected: str) -> None:
    assert generator.snake_case(name) == expected
