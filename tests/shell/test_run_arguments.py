"""`linker run` without typer: the same arguments read the same, and nothing is loaded that a sidecar has no use for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from linker.cli import run_command
from linker.cli.run import CONFIG_VARIABLE, Arguments, plain_arguments
from tests.shell.conftest import Cli

UNUSED = [
    "cramjam",
    "httpx",
    "hypothesis",
    "fastapi",
    "kazoo",
    "opentelemetry",
    "pygments",
    "pyspark",
    "rich",
    "typer",
]
NEEDED_TO_ASK_OTHERS = ["httpx"]


@pytest.mark.parametrize(
    ("given", "variable", "expected"),
    [
        ([], None, Arguments(Path("linker.yaml"), False)),
        ([], "", Arguments(Path("linker.yaml"), False)),
        ([], "e.yaml", Arguments(Path("e.yaml"), False)),
        (["--check"], "e.yaml", Arguments(Path("e.yaml"), True)),
        (["-c", "a.yaml"], "e.yaml", Arguments(Path("a.yaml"), False)),
        (["--check", "--config=a=b.yaml"], None, Arguments(Path("a=b.yaml"), True)),
        (["--config", "a.yaml", "--config", "b.yaml"], None, Arguments(Path("b.yaml"), False)),
        (["--config", "--check"], None, Arguments(Path("--check"), False)),
        (["--help"], None, None),
        (["--config"], None, None),
        (["--check=yes"], None, None),
        (["-ca.yaml"], None, None),
        (["a.yaml"], None, None),
        (["--", "a.yaml"], None, None),
    ],
)
def test_the_usual_arguments_are_read_as_typer_reads_them(
    given: list[str], variable: str | None, expected: Arguments | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None: that is left to typer."""
    assert plain_arguments(given, {} if variable is None else {CONFIG_VARIABLE: variable}) == expected
    if expected is None:
        return
    seen: list[Arguments] = []
    monkeypatch.setattr(run_command, "start", seen.append)
    outcome = CliRunner().invoke(run_command.only_run(), given, env={CONFIG_VARIABLE: variable})
    assert (outcome.exit_code, seen) == (0, [expected])


def test_what_is_not_understood_is_explained_by_typer(cli: Cli) -> None:
    wrong = cli("run", "--cofnig", "x")
    assert wrong.code == 2
    assert "--cofnig" in wrong.err
    assert "--check" in cli("run", "--help").out


@pytest.mark.parametrize("alone", [True, False])
def test_a_sidecar_loads_only_what_it_has_a_use_for(alone: bool, tmp_path: Path) -> None:
    """With its admin API. Sidecars of a fleet pass requests on: they have an HTTP client, without its command line."""
    config = tmp_path / "linker.yaml"
    config.write_text(
        "sidecar: {broker.id: 1, listeners: 'PLAINTEXT://h:1'}\ntarget: {bootstrap.servers: 'h:2'}\n"
    )
    program = (
        "import sys; from pathlib import Path; from linker.cli.run import Arguments, run\n"
        f"run(Arguments(Path({str(config)!r}), check=True))\n"
        "from linker.cli.run import load_sidecar; load_sidecar()\n"
        f"from admin.loading import load_admin; load_admin(alone={alone})\n"
        f"print([name for name in {UNUSED!r} if sys.modules.get(name)], 'starlette' in sys.modules)"
    )
    done = python(program)
    loaded = [] if alone else NEEDED_TO_ASK_OTHERS
    assert done.stdout.splitlines()[1:] == [f"{loaded} True"], done


def test_nothing_is_made_for_the_openapi_document_before_it_is_asked_for() -> None:
    """Validators of all requests and answers are memory and time of every start."""
    program = (
        "import sys; from admin.loading import load_admin; load_admin(alone=True)\n"
        "from admin.routes import ROUTES\n"
        "print('admin.openapi' in sys.modules, [one for one in ROUTES if 'segments' in vars(one)])"
    )
    done = python(program)
    assert done.stdout == "False []\n", done


def python(program: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment
    )
