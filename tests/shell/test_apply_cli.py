"""`linker apply` and `linker export` end to end: idempotent, exit codes for pipelines, no secret in what is printed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from admin.models import LinkOptions, MirrorState
from linker.cli.link_file import parse_links
from tests.shell.conftest import Cli, Running
from tests.shell.memory_service import ClusterTrouble

EAST = """\
links:
- name: east
  properties:
    bootstrap.servers: one:9092
    sasl.password: ${env:LINKER_LINK_EAST}
  options:
    fetchers_per_node: 3
  mirrors:
  - orders
  - topic: payments
    start: latest
"""


def write(tmp_path: Path, text: str = EAST) -> str:
    path = tmp_path / "link.yaml"
    path.write_text(text)
    return str(path)


def test_dry_run_apply_and_again(cli: Cli, api: Running, tmp_path: Path) -> None:
    file = write(tmp_path)
    planned = cli("apply", "-f", file, "--dry-run")
    assert (planned.code, api.service.calls) == (3, [])
    assert planned.out.splitlines() == [
        "would create link east: source cluster source-id",
        "would create mirrors orders of link east (its topics are checked once the link is there)",
        "would create mirrors payments of link east (its topics are checked once the link is there)",
        "3 changes to make, 0 unchanged; nothing was changed (--dry-run)",
    ]
    done = cli("apply", "-f", file)
    assert (done.code, done.err) == (0, "")
    assert api.service.calls == ["create link east", "create mirror orders", "create mirror payments"]
    assert api.service.starts["east", "payments"] == "latest"
    for _ in range(2):
        again = cli("apply", "-f", file)
        assert (again.code, again.out.splitlines()) == (
            0,
            [
                "unchanged: link east",
                "unchanged: orders, payments of link east",
                "0 changes made, 3 unchanged",
            ],
        )
    assert cli("apply", "-f", file, "--dry-run").code == 0
    assert len(api.service.calls) == 3


def test_drift_is_shown_and_removed(cli: Cli, api: Running, tmp_path: Path) -> None:
    file = write(tmp_path)
    assert cli("apply", "-f", file).code == 0
    assert cli("link", "update", "east", "--option", "fetchers_per_node=9", "-c", "client.id=x").code == 0
    planned = cli("apply", "-f", file, "--dry-run")
    assert planned.code == 3
    assert planned.out.splitlines()[:3] == [
        "would update link east",
        "client.id: x -> none",
        "fetchers_per_node: 9 -> 3",
    ]
    assert cli("apply", "-f", file).code == 0
    properties, options = api.service.links["east"]
    assert (options.fetchers_per_node, "client.id" in properties) == (3, False)


def test_what_is_exported_is_unchanged_when_it_is_applied(cli: Cli, api: Running, tmp_path: Path) -> None:
    assert cli("apply", "-f", write(tmp_path)).code == 0
    assert cli("link", "create", "west", "-b", "two:9092", "--option", "groups_include=").code == 0
    exported = cli("export")
    assert (exported.code, exported.err) == (0, "")
    assert [one.name for one in parse_links(exported.out).links] == ["east", "west"]
    calls = list(api.service.calls)
    again = cli("apply", "-f", write(tmp_path, exported.out))
    assert (again.code, again.out.splitlines()[-1]) == (0, "0 changes made, 4 unchanged")
    assert api.service.calls == calls
    only = cli("export", "west").out
    assert only == (
        "links:\n"
        "- name: west\n"
        "  source_cluster_id: source-id\n"
        "  properties:\n"
        "    bootstrap.servers: two:9092\n"
        "  options:\n"
        "    groups_include: ''\n"
    )
    assert cli("export", "nowhere").code == 1


def test_an_export_holds_no_secret_even_if_the_link_does(cli: Cli, api: Running) -> None:
    jaas = 'org.apache.PlainLoginModule required username="u" password="hunter2";'
    stored = {
        "bootstrap.servers": "one:9092",
        "sasl.password": "hunter2",
        "sasl.jaas.config": jaas,
        "ssl.keystore.key": "hunter2",
    }
    api.service.links["east-1"] = (stored, LinkOptions())
    exported = cli("export").out
    assert "hunter2" not in exported
    properties = parse_links(exported).links[0].properties
    assert properties["sasl.password"] == "${env:LINKER_LINK_EAST_1_SASL_PASSWORD}"
    assert 'password="${env:LINKER_LINK_EAST_1_SASL_JAAS_CONFIG}"' in properties["sasl.jaas.config"]
    assert exported.count("# ") == 3


def test_nothing_is_deleted_without_being_told(cli: Cli, api: Running, tmp_path: Path) -> None:
    assert cli("apply", "-f", write(tmp_path)).code == 0
    smaller = write(tmp_path, EAST[: EAST.index("  - topic:")])
    kept = cli("apply", "-f", smaller)
    assert (kept.code, kept.out.splitlines()[2]) == (0, "not in the file: payments of link east")
    unasked = cli("apply", "-f", smaller, "--delete-missing")
    assert (unasked.code, "there is no terminal to ask at" in unasked.err) == (2, True)
    assert len(api.service.mirrors) == 2
    planned = cli("apply", "-f", smaller, "--delete-missing", "--dry-run")
    assert (planned.code, "would delete mirror payments" in planned.out) == (3, True)
    assert len(api.service.mirrors) == 2
    assert cli("apply", "-f", smaller, "--delete-missing", "--yes").code == 0
    assert list(api.service.mirrors) == [("east", "orders")]
    empty = write(tmp_path, "links: []\n")
    planned = cli("apply", "-f", empty, "--delete-missing", "--dry-run")
    assert (planned.code, planned.out.splitlines()[-2]) == (
        3,
        "would delete link east (checked once its mirrors are deleted)",
    )
    assert cli("apply", "-f", empty, "--delete-missing", "-y").code == 0
    assert api.service.links == {}


def test_a_refusal_is_exit_code_1_and_holds_up_no_other_link(cli: Cli, api: Running, tmp_path: Path) -> None:
    text = EAST.replace("orders", "nowhere") + EAST[7:].replace("east", "west").replace("payments", "empty")
    result = cli("apply", "-f", write(tmp_path, text.replace("  - orders\n", "")))
    assert result.code == 1
    assert "failed: create mirrors nowhere of link east: the source has no topic nowhere" in result.out
    assert result.err == "linker: 1 of 5 steps failed, were refused or are in conflict with the file\n"
    assert sorted(api.service.mirrors) == [("east", "payments"), ("west", "empty")]


def test_after_a_link_that_failed_its_mirrors_are_skipped(cli: Cli, api: Running, tmp_path: Path) -> None:
    assert cli("link", "create", "east", "-b", "one:9092").code == 0
    text = EAST.replace("  properties:", "  source_cluster_id: other\n  properties:")
    result = cli("apply", "-f", write(tmp_path, text), "--dry-run")
    assert result.code == 1
    assert result.out.splitlines()[:3] == [
        "conflict: link east",
        "source_cluster_id: the link is to source-id, the file names other",
        "skipped: create mirrors orders of link east: link east is not as the file has it",
    ]


def test_trouble_of_the_sidecar_is_exit_code_1(cli: Cli, api: Running, tmp_path: Path) -> None:
    file = write(tmp_path)
    api.service.raises = ClusterTrouble("no leader")
    failed = cli("apply", "-f", file)
    assert (failed.code, failed.err) == (1, "linker: no leader\n")
    nobody = cli("apply", "-f", file, url="http://127.0.0.1:1")
    assert (nobody.code, nobody.err.count("\n")) == (1, 1)


def test_a_promoted_topic_stays_what_it_is(cli: Cli, api: Running, tmp_path: Path) -> None:
    assert cli("apply", "-f", write(tmp_path)).code == 0
    api.service.mirrors["east", "payments"] = MirrorState.PROMOTED
    result = cli("apply", "-f", write(tmp_path, EAST.replace("latest", "earliest")))
    assert (result.code, result.out.splitlines()[-1]) == (0, "0 changes made, 3 unchanged")


def test_json_for_machines(cli: Cli, tmp_path: Path) -> None:
    result = cli("apply", "-f", write(tmp_path), "-o", "json")
    told = json.loads(result.out)
    assert (told["changes"], told["failed"], told["dry_run"]) == (3, 0, False)
    assert [(one["step"], one["link"], one["topics"], one["outcome"]) for one in told["steps"]] == [
        ("create link", "east", [], "done"),
        ("create mirrors", "east", ["orders"], "done"),
        ("create mirrors", "east", ["payments"], "done"),
    ]
    assert told["steps"][1]["warnings"] == ["segment.bytes is small"]


def test_standard_input_and_files_that_cannot_be_used(
    cli: Cli, api: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(raw: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))

    given(EAST.encode())
    assert cli("apply", "-f", "-").code == 0
    given(b"links: []\n")
    unasked = cli("apply", "-f", "-", "--delete-missing")
    assert (unasked.code, "give --yes" in unasked.err) == (2, True)
    for raw, line in {
        b"\xff": "standard input is not UTF-8 text",
        b"#" * (2 << 20): "standard input is larger than 1048576 bytes",
        b"links: {": "standard input: line 1: not valid YAML: expected the node content, but found '<stream end>'",
    }.items():
        given(raw)
        result = cli("apply", "-f", "-")
        assert (result.code, result.out, result.err) == (2, "", f"linker: {line}\n")
    missing = cli("apply", "-f", str(tmp_path / "none"))
    assert (missing.code, missing.err) == (
        2,
        f"linker: cannot read {tmp_path / 'none'}: No such file or directory\n",
    )
    assert cli("apply").code == 2
    assert len(api.service.links) == 1
