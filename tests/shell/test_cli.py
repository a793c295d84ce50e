"""The console script end to end over HTTP: output formats, exit codes, one line per error."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from admin.models import CheckResult, FailoverRequest, LinkOptions, MirrorState, PromoteOptions
from linker import __version__
from linker.cli.mirror import start_of
from linker.cli.options import properties_file
from tests.shell.conftest import Cli, Running, serve
from tests.shell.memory_service import ClusterTrouble, MemoryService

COMMAND = [sys.executable, "-c", "from linker.cli import main; main()"]


def make(cli: Cli, *topics: str) -> None:
    assert cli("link", "create", "a", "-b", "one:9092").code == 0
    if topics:
        assert cli("mirror", "create", *topics, "--link", "a").code == 0


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "LINKER_ADMIN_URL": url, "TERM": "xterm", "COLUMNS": "140", "LINES": "40"}


def test_link_and_mirror_by_hand(cli: Cli) -> None:
    make(cli, "orders", "payments")
    listed = cli("link", "list")
    assert listed.out.splitlines()[0].split() == ["LINK", "STATE", "SOURCE", "BOOTSTRAP", "MIRRORS", "REASON"]
    assert listed.out.splitlines()[1].split() == ["a", "ACTIVE", "source-id", "one:9092", "2", "-"]
    assert "off: producer ids are not safe yet" in cli("link", "describe", "a").out
    assert "1 min" not in cli("mirror", "list").out
    assert "90.0 s" in cli("mirror", "list", "-l", "a").out
    assert "1@95 2@-" in cli("mirror", "describe", "orders", "-l", "a").out
    assert cli("mirror", "pause", "orders", "-l", "a").out == "pause mirror orders\n"
    assert len(cli("lag").out.splitlines()) == 1 + 15
    assert len(cli("lag", "orders", "-l", "a").out.splitlines()) == 1 + 3
    assert "900 (RUNNING, version 9.9)" in cli("status").out
    assert cli("link", "update", "a", "-c", "client.id=x", "--option", "fetchers_per_node=3").code == 0
    assert json.loads(cli("link", "describe", "a", "-o", "json").out)["options"]["fetchers_per_node"] == 3
    assert cli("mirror", "delete", "orders", "-l", "a", "--yes").out == "delete mirror orders\n"
    assert cli("sidecar", "list").out.split()[-2] == "PLAINTEXT://localhost:19092"


def test_what_the_target_lacks_is_exit_code_1_until_it_is_applied(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    lacking = cli("acl", "diff", "a")
    assert (lacking.code, lacking.out.split()[-6:]) == (
        1,
        ["User:app", "ALLOW", "WRITE", "*", "TOPIC", "orders"],
    )
    assert cli("acl", "diff", "a", "--apply", "--dry-run").out.startswith("would apply access a\n")
    assert cli("acl", "diff", "a").code == 1
    assert cli("acl", "diff", "a", "--apply").out == "apply access a\n"
    assert cli("acl", "diff", "a").code == 0


READS = [
    ("link", "list"),
    ("link", "describe", "a"),
    ("mirror", "list"),
    ("mirror", "describe", "orders", "--link", "a"),
    ("sidecar", "list"),
    ("status",),
    ("lag",),
    ("doctor",),
    ("mirror", "promote", "--link", "a", "--all", "--dry-run"),
    ("link", "delete", "a", "--dry-run"),
]


@pytest.mark.parametrize("command", READS, ids=" ".join)
def test_every_format(cli: Cli, command: tuple[str, ...]) -> None:
    make(cli, "orders")
    if command[:2] == ("link", "delete"):
        assert cli("mirror", "delete", "orders", "-l", "a", "-y").code == 0
    table, as_json, as_yaml = (cli(*command, "-o", form) for form in ("table", "json", "yaml"))
    assert [table.code, as_json.code, as_yaml.code] == [0, 0, 0]
    plain, same = json.loads(as_json.out), yaml.safe_load(as_yaml.out)
    if command != ("status",):  # which moves on between two readings
        assert plain == same
    assert "orders" in table.out or command[:2] != ("mirror", "list")
    assert as_json.err == ""


CHANGES = [
    ("link", "create", "b", "-b", "x:1"),
    ("link", "update", "a", "-c", "client.id=x"),
    ("mirror", "create", "payments", "-l", "a"),
    ("mirror", "pause", "orders", "-l", "a"),
    ("mirror", "delete", "orders", "-l", "a"),
    ("mirror", "promote", "orders", "-l", "a"),
]


@pytest.mark.parametrize("command", CHANGES, ids=" ".join)
def test_dry_run(cli: Cli, api: Running, command: tuple[str, ...]) -> None:
    make(cli, "orders")
    before = list(api.service.calls)
    result = cli(*command, "--dry-run")
    assert result.code == 0
    assert "nothing was changed (--dry-run)" in result.out
    assert api.service.calls == before


def test_promote_follows_to_the_end(cli: Cli, api: Running) -> None:
    make(cli, "orders", "payments")
    result = cli("mirror", "promote", "-l", "a", "--all", "--max-lag", "5")
    assert result.code == 0
    phases = [line.split()[2].rstrip(",") for line in result.err.splitlines()[1:]]
    assert phases == ["FENCED", "ALIGNED", "VALIDATED", "HANDED_OVER", "PROMOTED"]
    assert "PROMOTED" in result.out
    assert api.service.calls[-1] == "promote orders payments max_lag=5"


def test_an_abandoned_promote_is_a_failure(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.abandon = "the source moved on after alignment: orders-2"
    result = cli("mirror", "promote", "orders", "-l", "a", "-o", "json")
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        "linker: promote p1 was abandoned: the source moved on after alignment: orders-2"
    )
    assert json.loads(result.out)["phase"] == "ABANDONED"
    blocked = cli("mirror", "promote", "orders", "-l", "a", "--dry-run")
    assert blocked.code == 1
    assert "blocked: the source moved on" in blocked.out


def test_promote_without_waiting_and_attach(cli: Cli) -> None:
    make(cli, "orders")
    started = cli("mirror", "promote", "orders", "-l", "a", "--no-wait", "-o", "json")
    assert json.loads(started.out)["phase"] == "CATCHING_UP"
    attached = cli("mirror", "promote", "--attach", json.loads(started.out)["id"], "-o", "json")
    assert (attached.code, json.loads(attached.out)["phase"]) == (0, "PROMOTED")


def test_ctrl_c_detaches_and_says_so(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.stuck = True
    process = subprocess.Popen(
        [*COMMAND, "mirror", "promote", "orders", "-l", "a"],
        env=environment(api.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        seen = ""
        while "CATCHING_UP" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert rest.strip() == "promote p1 goes on; follow it again with: linker mirror promote --attach p1"
    assert not api.service.jobs["p1"].phase.final


def read_terminal(
    arguments: list[str], url: str, until: bytes, *, interrupt: bool = False
) -> tuple[int, bytes]:
    """Run on a pseudo terminal; optionally press Ctrl-C once `until` was seen."""
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update(environment(url))
        os.execv(sys.executable, [*COMMAND, *arguments])
    seen = b""
    pressed = False
    deadline = time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 0.2)[0]:
                continue
            try:
                chunk = os.read(master, 65536)
            except OSError:  # EIO: the other side is closed
                break
            if not chunk:
                break
            seen += chunk
            if interrupt and not pressed and until in seen:
                os.write(master, b"\x03")
                pressed = True
    finally:
        os.close(master)
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert until in seen, seen[-2000:]
    return os.waitstatus_to_exitcode(status), seen


# pty.fork() of a process with threads is deprecated; the child does nothing but exec.
pytestmark_fork = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytestmark_fork
def test_watch_on_a_terminal(cli: Cli, api: Running) -> None:
    make(cli, "orders", "payments")
    api.service.mirrors["a", "orders"] = MirrorState.SOURCE_UNAVAILABLE
    api.service.reason = "[red]not markup\x1b[2J"
    code, seen = read_terminal(
        ["status", "--watch", "--interval", "0.2"], api.url, b"2.0 KiB/s", interrupt=True
    )
    assert code == 0
    assert b"[red]not markup" in seen
    assert seen.index(b"orders") < seen.index(b"payments")  # the worst comes first


@pytestmark_fork
def test_watch_says_when_the_sidecar_has_ended() -> None:
    api = serve(MemoryService())  # one of its own, to end
    api.service.links["a"] = ({"bootstrap.servers": "x:1"}, LinkOptions())

    def stop_once_seen() -> None:
        deadline = time.monotonic() + 30
        while not api.service.served and time.monotonic() < deadline:
            time.sleep(0.05)
        api.stop()

    stopping = threading.Thread(target=stop_once_seen)
    stopping.start()
    code, seen = read_terminal(
        ["status", "--watch", "--interval", "0.2"], api.url, b"has ended", interrupt=True
    )
    stopping.join()
    assert code == 0
    assert b"no links yet" not in seen


@pytestmark_fork
def test_promote_on_a_terminal(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    code, seen = read_terminal(["mirror", "promote", "orders", "-l", "a"], api.url, b"HANDED_OVER")
    assert code == 0
    assert b"PROMOTED" in seen


WRONG_USE = [
    ("nothing",),
    ("link", "create"),
    ("link", "create", "a"),
    ("link", "create", "a b", "-b", "x:1"),
    ("link", "create", "a", "-b", "x:1", "-c", "novalue"),
    ("link", "create", "a", "-b", "x:1", "-c", "k=1", "-c", "k=2"),
    ("link", "create", "a", "-b", "x:1", "--option", "fetchers=2"),
    ("link", "update", "a"),
    ("link", "list", "-o", "xml"),
    ("mirror", "create", "--link", "a"),
    ("mirror", "create", "orders"),
    ("mirror", "create", "orders", "orders", "--link", "a"),
    ("mirror", "create", "orders", "--link", "a", "--start", "yesterday"),
    ("mirror", "create", "orders", "--link", "a", "--start", "2026-01-01T00:00:00"),
    ("mirror", "promote", "--link", "a"),
    ("mirror", "promote", "orders", "--link", "a", "--all"),
    ("mirror", "promote", "orders"),
    ("mirror", "promote", "--attach", "p1", "--all"),
    ("mirror", "failover", "orders", "--link", "a"),
    ("sidecar", "leave", "x"),
    ("status", "--watch", "-o", "json"),
]


@pytest.mark.parametrize("command", WRONG_USE, ids=" ".join)
def test_wrong_use_is_2(cli: Cli, api: Running, command: tuple[str, ...]) -> None:
    result = cli(*command)
    assert result.code == 2
    assert result.out == ""
    assert "Traceback" not in result.err
    assert api.service.calls == []


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(
            ("promote", option)
            for option in (
                ("orders",),
                ("--link", "a"),
                ("--all",),
                ("--max-lag", "0"),
                ("--catch-up-timeout-ms", "1"),
                ("--fence-timeout-ms", "1"),
                ("--batch-partitions", "1"),
                ("--validation", "skip"),
                ("--transaction-timeout-ms", "0"),
                ("--abort-open-transactions",),
                ("--fence-source",),
                ("--dry-run",),
                ("--no-wait",),
            )
        ),
        *(
            ("failover", option)
            for option in (("orders",), ("--link", "a"), ("--all",), ("--force",), ("--timeout-ms", "0"))
        ),
        ("failover", ("--dry-run",)),
        ("failover", ("--no-wait",)),
    ],
    ids=str,
)
def test_attach_ignores_nothing(cli: Cli, command: str, option: tuple[str, ...]) -> None:
    make(cli, "orders")
    started = cli("mirror", "promote", "orders", "-l", "a", "--no-wait", "-o", "json")
    result = cli("mirror", command, "--attach", json.loads(started.out)["id"], *option)
    assert (result.code, result.out) == (2, "")
    assert f"takes no {option[0].replace('orders', 'topics')}" in " ".join(result.err.split())


def test_what_the_help_says_of_defaults_is_true(cli: Cli) -> None:
    promote, failover = PromoteOptions(), FailoverRequest(all=True)
    for command, option, default in (
        ("promote", "--max-lag OFFSETS", promote.max_lag),
        ("promote", "--catch-up-timeout-ms MS", promote.catch_up_timeout_ms),
        ("promote", "--fence-timeout-ms MS", promote.fence_timeout_ms),
        ("promote", "--transaction-timeout-ms MS", promote.transaction_timeout_ms),
        ("failover", "--timeout-ms MS", failover.timeout_ms),
    ):
        told = " ".join(cli("mirror", command, "--help").out.split())
        assert re.search(rf"{option} [^;]*; default: {default}\.", told), (option, told)
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    for name, default in (
        ("max-lag", promote.max_lag),
        ("catch-up-timeout-ms", promote.catch_up_timeout_ms),
        ("fence-timeout-ms", promote.fence_timeout_ms),
        ("transaction-timeout-ms", promote.transaction_timeout_ms),
    ):
        assert f"| `--{name}` | {default} |" in page


def test_lag_of_a_topic_needs_no_link_where_there_is_one(cli: Cli, api: Running) -> None:
    make(cli, "orders", "payments")
    alone = cli("lag", "orders")
    assert alone.code == 0
    assert "orders" in alone.out
    assert "payments" not in alone.out
    assert cli("link", "create", "b", "-b", "x:1").code == 0
    several = cli("lag", "orders")
    assert several.code == 2
    assert "there are several" in several.err


def test_deleting_data_is_asked_for(cli: Cli, api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    make(cli, "orders")
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115 - closed with the test's stdin
    result = cli("mirror", "delete", "orders", "-l", "a")
    sys.stdin.close()
    assert result.code == 2
    assert "no terminal to ask at" in result.err
    assert "--yes" in result.err
    assert "Invalid value" not in result.err
    assert ("a", "orders") in api.service.mirrors
    assert cli("mirror", "delete", "orders", "-l", "a", "--keep-data").code == 0


def test_what_leaves_a_source_closed_is_deleted_by_force_only(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    api.service.closed = ["orders"]
    for command in (("mirror", "delete", "orders", "-l", "a", "-y"), ("link", "delete", "a")):
        refused = cli(*command)
        assert (refused.code, refused.err) == (1, "linker: the source still refuses writes to orders\n")
        assert cli(*command, "--force", "--dry-run").code == 0
        assert cli(*command, "--force").code == 0
    assert api.service.links == {}


def test_failures_are_one_line_and_1(cli: Cli, api: Running) -> None:
    make(cli, "orders")
    refused = [
        (cli("link", "describe", "b"), "link b does not exist"),
        (cli("link", "create", "a", "-b", "x:1"), "link a exists already"),
        (
            cli("link", "create", "b", "-b", "x:1", "-c", "sasl.password=pw"),
            "sasl.password holds a secret in clear",
        ),
        (cli("link", "create", "b", "-b", "x"), "not host:port"),
        (cli("mirror", "create", "none", "-l", "a"), "the source has no topic none"),
        (cli("mirror", "resume", "orders", "-l", "a"), "cannot resume"),
        (cli("link", "delete", "a"), "still mirrors orders"),
        (cli("sidecar", "leave", "900"), "leads 3 partitions"),
        (cli("mirror", "promote", "--attach", "p9"), "promote p9 does not exist"),
        (cli("link", "create", "b", "--config-file", "/nonexistent"), "cannot read /nonexistent"),
        (cli("status", "--token-file", "/nonexistent"), "cannot read the token file"),
        (cli("status", url="http://127.0.0.1:1"), "cannot reach the admin API at http://127.0.0.1:1"),
        (cli("status", "--watch", url="http://127.0.0.1:1"), "cannot reach the admin API"),
        (cli("status", url="localhost:8080"), "malformed"),
        (cli("status", url="http://[::1"), "malformed"),
        (cli("run", "--config", "/nonexistent.yaml"), "cannot read the config file /nonexistent.yaml"),
    ]
    for result, expected in refused:
        assert result.code == 1, result
        assert expected in result.err
        assert result.err.startswith("linker: ")
        assert result.err.count("\n") == 1
        assert result.out == ""
    api.service.raises = ClusterTrouble("cluster a cannot be reached")
    assert cli("status").err == "linker: cluster a cannot be reached\n"
    api.service.raises = None
    api.service.check = CheckResult.FAIL
    doctor = cli("doctor")
    assert (doctor.code, doctor.err) == (1, "")
    assert "FAIL" in doctor.out


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x01garbage",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 500 no\r\nContent-Length: 6\r\n\r\n<html>",
        b'HTTP/1.1 400 no\r\nContent-Length: 37\r\n\r\n{"error_code":"x","message":"\\u001b["}',
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_something_else_answers(cli: Cli, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(answer)

        worker = threading.Thread(target=once, daemon=True)
        worker.start()
        result = cli("status", url=f"http://127.0.0.1:{listening.getsockname()[1]}")
        worker.join(10)
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    assert "\x1b" not in result.err
    assert "internal error" not in result.err


def test_an_internal_error_has_no_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("what\nnow")

    monkeypatch.setattr("linker.cli.tables.status", broken)
    result = cli("status")
    assert (result.code, result.out) == (1, "")
    assert result.err == "linker: internal error: ZeroDivisionError: what now (LINKER_DEBUG=1 shows where)\n"


def test_a_closed_pipe_is_no_traceback(api: Running) -> None:
    process = subprocess.Popen(
        [*COMMAND, "status", "--watch", "--interval", "0.2"],
        env=environment(api.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    api.service.links["a"] = ({"bootstrap.servers": "x:1"}, LinkOptions())
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[1:3] == [b"a", b"ACTIVE"]
        process.stdout.close()
        assert process.wait(timeout=20) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_token_from_file_and_environment(
    cli: Cli, guarded: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("a-long-token\n")
    assert "asks for its token" in cli("link", "list", url=guarded.url).err
    assert cli("link", "list", "--token-file", str(token), url=guarded.url).code == 0
    monkeypatch.setenv("LINKER_ADMIN_TOKEN", "a-long-token")
    assert cli("link", "list", url=guarded.url).code == 0
    monkeypatch.setenv("LINKER_ADMIN_TOKEN", "näh")
    assert cli("link", "list", url=guarded.url).code == 1


def test_version_and_check_of_a_config(cli: Cli, tmp_path: Path) -> None:
    assert cli("--version").out == f"linker {__version__}\n"
    config = tmp_path / "linker.yaml"
    config.write_text(
        "sidecar: {broker.id: 1, listeners: 'PLAINTEXT://h:1'}\ntarget: {bootstrap.servers: 'h:2'}\n"
    )
    assert cli("run", "--check", "--config", str(config)).out == f"{config} is fine\n"
    config.write_text("sidecar: {broker.di: 1}\ntarget: {bootstrap.servers: 'h:2'}\n")
    assert cli("run", "--config", str(config)).err == (
        f"linker: {config}: unknown key sidecar.broker.di; did you mean broker.id?\n"
    )


def test_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text('# c\n! c\n\nbootstrap.servers = a:1,\\\n   b:2\nsasl.jaas.config=x y="${env:P}";\n')
    assert properties_file(path) == {"bootstrap.servers": "a:1,b:2", "sasl.jaas.config": 'x y="${env:P}";'}


def test_start_times() -> None:
    assert start_of("2026-01-01T00:00:00Z") == "1767225600000"
    assert start_of("2026-01-01T01:00:00+01:00") == "1767225600000"
    assert start_of("1767225600000") == "1767225600000"


def test_help_is_quick_and_light() -> None:
    script = (
        "import sys, time; t = time.process_time(); sys.argv = ['linker', '--help']\n"
        "from linker.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'starlette', 'uvicorn', 'httpx', 'pydantic', 'kio', 'prometheus_client'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy), time.process_time() - t, file=sys.stderr)"
    )
    best = 10.0
    for _ in range(3):  # CPU time, because the machine may be busy; the best, because caches may be cold
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
        )
        words = done.stderr.split()
        assert words[:2] == ["heavy", "[]"]
        best = min(best, float(words[2]))
    assert best < 0.5
    assert "mirror" in done.stdout


@pytest.mark.parametrize(
    "kept_out", ["hypothesis.strategies", "linker.cli.app", "rich", "typer", "admin.models"]
)
def test_a_sidecar_does_not_load_what_others_need(kept_out: str, tmp_path: Path) -> None:
    """Until it has read its configuration: clients wait while it starts."""
    program = (
        "import sys; from linker.cli import main\n"
        f"sys.argv = ['linker', 'run', '--config', {str(tmp_path / 'none.yaml')!r}]\n"
        "try: main()\n"
        f"finally: print(sys.modules.get({kept_out!r}) is not None, 'linker.config.model' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False True\n"), done
    assert done.stderr.startswith("linker: cannot read the config file")
