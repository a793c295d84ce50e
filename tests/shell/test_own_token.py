"""The token that a sidecar on loopback makes for itself: who finds it, and who does not."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import admin.client as client_module
from admin.client import AdminClient, AdminError
from admin.own_token import FILE, HEADER, found_token, keep_token
from linker.config.model import SidecarConfig
from linker.start_admin import _token
from tests.shell.conftest import Cli, Running, serve
from tests.shell.memory_service import MemoryService

TABLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def settings(directory: Path, **more: Any) -> SidecarConfig:
    given = {"broker.id": 900, "listeners": ["PLAINTEXT://127.0.0.1:1"], "state.dir": directory, **more}
    return SidecarConfig.model_validate(given)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    """A sidecar without a token of its operator's."""
    token, file = _token(settings(tmp_path))
    running = serve(MemoryService(), token=token, token_file=file)
    yield running
    running.stop()


def test_nobody_without_the_token_gets_in(own: Running, tmp_path: Path) -> None:
    file = tmp_path / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with httpx.Client(base_url=own.url, trust_env=False) as http:
        for method, path in (
            ("GET", "/v1/status"),
            ("GET", "/openapi.json"),
            ("POST", "/v1/links?dry_run=true"),
            ("POST", "/v1/sidecars/901:leave"),
            ("DELETE", "/v1/links/a"),
            ("GET", "//metrics"),
            ("GET", "/metrics/../v1/status"),
            ("POST", "/v1/links/a/mirrors/metrics:pause"),
        ):
            answer = http.request(method, path)
            assert answer.status_code == 401, path
            assert answer.headers[HEADER] == str(file)
            assert file.read_text().strip() not in answer.text
        assert http.get("/v1/status", headers={"authorization": "Bearer " + "x" * 50}).status_code == 401
        for path in ("/healthz", "/readyz", "/metrics"):
            assert http.get(path).status_code in (200, 503), path
        assert http.get("/metrics", headers={"host": "evil.example"}).status_code == 421
        given = {"authorization": f"Bearer {file.read_text().strip()}"}
        assert http.get("/v1/status", headers=given).status_code == 200
        page = {**given, "origin": "http://localhost:3000"}
        assert http.get("/v1/status", headers=page).status_code == 403
    assert not own.service.calls or own.service.calls == ["status"]


def test_a_command_of_the_same_user_needs_no_flag(cli: Cli, own: Running, tmp_path: Path) -> None:
    assert cli("link", "create", "a", "-b", "one:9092", url=own.url).code == 0
    assert cli("status", url=own.url.replace("127.0.0.1", "localhost")).code == 0
    # Nor does it search if it was given one.
    wrong = tmp_path / "wrong"
    wrong.write_text("a-long-token")
    assert "asks for its token" in cli("status", "--token-file", str(wrong), url=own.url).err
    # As another user: it can be read no more, and the way out is told.
    (tmp_path / FILE).chmod(0o644)
    told = cli("status", url=own.url)
    assert told.code == 1
    assert str(tmp_path / FILE) in told.err


def test_it_stays_over_restarts_and_is_made_anew_if_others_could_have_read_it(tmp_path: Path) -> None:
    first, file = keep_token(tmp_path)
    assert keep_token(tmp_path) == (first, file)
    file.chmod(0o640)
    second, _ = keep_token(tmp_path)
    assert second != first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text("not a token")
    third, _ = keep_token(tmp_path)
    assert third not in (first, second)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept\n")
    file.unlink()
    file.symlink_to(elsewhere)
    keep_token(tmp_path)
    assert elsewhere.read_text() == "kept\n"
    assert not file.is_symlink()
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(FILE)] == [FILE]


def test_sidecars_of_a_fleet_have_the_same(tmp_path: Path) -> None:
    tokens = []
    for name in "abc":
        (tmp_path / name).mkdir()
        keep_token(tmp_path / name)  # of the time when it was alone
        secret = "0123456789abcdef" if name != "c" else "another secret of sixteen"
        tokens.append(keep_token(tmp_path / name, secret)[0])
    assert tokens[0] == tokens[1] != tokens[2]


def test_it_is_switched_off_by_name_only(tmp_path: Path) -> None:
    assert _token(settings(tmp_path, **{"admin.token.required": False})) == (None, None)
    assert _token(settings(tmp_path, **{"admin.token": "a-long-token"})) == ("a-long-token", None)
    assert not (tmp_path / FILE).exists()
    assert _token(settings(tmp_path))[1] == tmp_path / FILE


def test_who_holds_the_port_does_not_get_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: somebody listens at 8080 while the sidecar is down, and asks the next command for a file."""
    token, file = keep_token(tmp_path)
    key = tmp_path / "id_rsa"
    key.write_text("hunter2")
    key.chmod(0o600)
    named_so = tmp_path / "other" / FILE
    named_so.parent.mkdir()
    named_so.write_text("hunter2")
    named_so.chmod(0o600)
    mine = os.getuid()

    def table(*uids: int, port: int = 8080) -> list[Path]:
        path = tmp_path / "tcp"
        rows = [
            f"   {i}: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid:5d} 0 1 1\n"
            for i, uid in enumerate(uids)
        ]
        path.write_text(TABLE + "".join(rows))
        return [path, tmp_path / "tcp6"]

    assert found_token(str(file), "127.0.0.1", 8080, table(mine)) == token
    for told in (
        str(key),
        str(named_so),
        "admin-token",
        f"{tmp_path}/../{FILE}",
        "/nonexistent/admin-token",
        "",
    ):
        assert found_token(told, "127.0.0.1", 8080, table(mine)) is None
    assert found_token(str(file), "127.0.0.1", 8080, table(mine + 1)) is None
    assert found_token(str(file), "127.0.0.1", 8080, table(mine, mine + 1)) is None
    assert found_token(str(file), "127.0.0.1", 8080, table()) is None
    assert found_token(str(file), "source.example.org", 8080, table(mine)) is None
    # And over the wire, with the system's own table: the thief is of the same user here, so the file tells.
    sent: list[bytes] = []
    thief = socket.create_server(("127.0.0.1", 0))

    def steal() -> None:
        for _ in range(2):
            peer, _ = thief.accept()
            with peer:
                sent.append(peer.recv(65536))
                peer.sendall(
                    b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n"
                    + f"{HEADER}: {key}\r\n\r\n".encode()
                )

    thread = threading.Thread(target=steal, daemon=True)
    thread.start()
    with thief, AdminClient(f"http://127.0.0.1:{thief.getsockname()[1]}", timeout=5) as client:
        with pytest.raises(AdminError, match="401"):
            client.status()
        monkeypatch.setattr(client_module, "found_token", lambda *told: None)
        with pytest.raises(AdminError, match="401"):
            client.status()
    assert not any(b"hunter2" in one or b"uthorization" in one for one in sent)
