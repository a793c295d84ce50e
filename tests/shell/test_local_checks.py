"""Ports, certificates and directories fail before the target hears of the sidecar."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from linker.checks.this_machine import CannotListen, CannotWrite, check_local
from linker.config.file import parse_config
from linker.config.model import Config
from linker.process.early_bind import EarlySockets
from linker.sidecar import Sidecar
from tests.fakes.cluster import FakeCluster
from wire.errors import InvalidSecurityConfig


@contextmanager
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def config(directory: Path, bootstrap: str = "127.0.0.1:1", **sidecar: Any) -> Config:
    settings = {
        "broker.id": 900,
        "listeners": ["PLAINTEXT://127.0.0.1:0"],
        "admin.listen": "127.0.0.1:0",
        "state.dir": str(directory / "state"),
        **sidecar,
    }
    text = json.dumps({"sidecar": settings, "target": {"bootstrap.servers": bootstrap}})
    return parse_config(text, base=directory)


def test_all_is_well(tmp_path: Path) -> None:
    check_local(config(tmp_path), EarlySockets())
    assert [path.name for path in tmp_path.rglob("*")] == ["state"], "nothing is left behind"


@pytest.mark.parametrize(
    ("key", "named"),
    [("listeners", "listener PLAINTEXT"), ("admin.listen", r"admin\.listen")],
)
def test_a_port_that_is_taken(tmp_path: Path, key: str, named: str) -> None:
    with taken() as port:
        url = f"127.0.0.1:{port}"
        value: Any = [f"PLAINTEXT://{url}"] if key == "listeners" else url
        with pytest.raises(CannotListen, match=rf"{named}: cannot bind to 127\.0\.0\.1:{port}: .*in use"):
            check_local(config(tmp_path, **{key: value}), EarlySockets())


def test_a_port_that_is_held_for_the_listener_already(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    early_sockets = EarlySockets([("127.0.0.1", port)])
    try:
        check_local(config(tmp_path, listeners=[f"PLAINTEXT://127.0.0.1:{port}"]), early_sockets)
    finally:
        early_sockets.close()


def test_a_name_with_an_address_that_the_admin_api_does_not_bind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of localhost in a container: ::1 is in its hosts file, and IPv6 is switched off."""
    known: list[Any] = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]

    def look_up(host: str, port: int, family: int = 0, *_: Any, **__: Any) -> list[Any]:
        return [one for one in known if family in (socket.AF_UNSPEC, one[0])]

    with taken() as port:
        monkeypatch.setattr("linker.checks.this_machine.socket.getaddrinfo", look_up)
        check_local(
            config(tmp_path, listeners=["PLAINTEXT://127.0.0.1:0"], **{"admin.listen": "localhost:1"}),
            EarlySockets(),
        )
        known[1] = (*known[1][:4], ("127.0.0.1", port))
        with pytest.raises(CannotListen, match=r"admin\.listen: cannot bind to localhost:1: .*in use"):
            check_local(config(tmp_path, **{"admin.listen": "localhost:1"}), EarlySockets())


def test_a_family_that_this_machine_has_not_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = socket.socket

    def without_ipv6(family: int, *more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return made(family, *more)

    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr("linker.checks.this_machine.socket.getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr("linker.checks.this_machine.socket.socket", without_ipv6)
    check_local(config(tmp_path, listeners=["PLAINTEXT://localhost:1"]), EarlySockets())
    del found[1]
    with pytest.raises(CannotListen, match="Address family not supported"):
        check_local(config(tmp_path, listeners=["PLAINTEXT://localhost:1"]), EarlySockets())


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match=r"listener PLAINTEXT: cannot bind to 192\.0\.2\.1:19092"):
        check_local(
            config(
                tmp_path,
                listeners=["PLAINTEXT://192.0.2.1:19092"],
            ),
            EarlySockets(),
        )


def test_a_state_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"sidecar\.state\.dir: cannot write to .*file"):
        check_local(config(tmp_path / "file"), EarlySockets())


def test_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSecurityConfig, match=r"listener SSL: .*no-such"):
        check_local(
            config(
                tmp_path,
                **{
                    "listeners": ["SSL://127.0.0.1:0"],
                    "listener.name.ssl.ssl.keystore.type": "PEM",
                    "listener.name.ssl.ssl.keystore.location": str(tmp_path / "no-such.pem"),
                },
            ),
            EarlySockets(),
        )


async def test_the_target_has_heard_of_nothing(tmp_path: Path) -> None:
    """The sidecar registered, and ended for its port afterwards: a fenced broker 900 was left in the target."""
    async with FakeCluster(1) as target:
        with taken() as port:
            sidecar = Sidecar(
                config(tmp_path, target.bootstrap_servers, listeners=[f"PLAINTEXT://127.0.0.1:{port}"])
            )
            with pytest.raises(CannotListen):
                await asyncio.wait_for(sidecar.run(), 30)
        assert not target.requests
