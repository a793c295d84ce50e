"""Checks this machine before the target hears of the sidecar.

A broker that has registered and then ends leaves its id taken at the target, fenced, and names a listener that is
somebody else's. So ports, certificates and directories are tried first. A port is let go again at once: connections to
it would wait for a process that does not serve yet. If somebody takes it before the process serves, the later bind
reports that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from linker.config.listeners import ListenerSection
from linker.config.model import Config
from linker.process.early_bind import EarlySockets
from wire.client.security import ListenerSecurity
from wire.errors import InvalidSecurityConfig, LinkerError
from wire.frames.types import format_address


class CannotListen(LinkerError):
    """An address cannot be bound."""


class CannotWrite(LinkerError):
    """A directory of the sidecar's cannot be written to."""


def check_local(config: Config, early_sockets: EarlySockets) -> None:
    """Raise the first that fails, with the key of the configuration that it is about."""
    for key, directory in _directories(config):
        _check_writable(key, directory)
    if config.store.type == "sqlite":
        config.store_path.parent.mkdir(parents=True, exist_ok=True)
    settings = config.sidecar
    check_certificates("", settings)
    if (tls := settings.control_tls()) is not None:
        _check_security("control.listener", tls)
    with contextlib.ExitStack() as held:  # until all are tried: one address may be given twice
        for key, host, port in _addresses(config):
            if port and not early_sockets.holds(host, port):
                held.enter_context(_bound(key, host, port))


def check_source(link: str, section: ListenerSection, early_sockets: EarlySockets) -> None:
    """As check_local, before the sidecar joins a link's source."""
    key = f"sources.{link}: "
    check_certificates(key, section)
    with contextlib.ExitStack() as held:
        for one in section.client_listeners():
            if one.port and not early_sockets.holds(one.bind_host, one.port):
                held.enter_context(_bound(f"{key}listener {one.name}", one.bind_host, one.port))


def check_certificates(key: str, section: ListenerSection) -> None:
    for one in section.client_listeners():
        properties = {**section.listener_properties(one.name), "security.protocol": one.security_protocol}
        _check_security(f"{key}listener {one.name}", properties)


def _directories(config: Config) -> list[tuple[str, Path]]:
    found = [
        ("sidecar.state.dir", config.sidecar.state_dir),
        ("validation.evidence.dir", config.evidence_dir),
    ]
    if config.store.type == "sqlite":
        found.append(("store.path", config.store_path.parent))
    return found


def _addresses(config: Config) -> Iterator[tuple[str, str, int]]:
    for one in config.sidecar.client_listeners():
        yield f"listener {one.name}", one.bind_host, one.port
    if (control := config.sidecar.control_address()) is not None:
        yield "control.listener", *control
    yield "admin.listen", *config.sidecar.admin_address()


def _check_writable(key: str, directory: Path) -> None:
    try:
        # It is made by who needs it; what matters is that it can be.
        while not directory.exists() and directory != directory.parent:
            directory = directory.parent
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"\0" * 4096)  # a full disk has room for the name alone
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise CannotWrite(f"{key}: cannot write to {directory}: {error.strerror or error}") from error


def _check_security(key: str, properties: dict[str, str]) -> None:
    try:
        ListenerSecurity.from_properties(properties).ssl_context()
    except InvalidSecurityConfig as error:
        raise InvalidSecurityConfig(f"{key}: {error}") from error


@contextlib.contextmanager
def _bound(key: str, host: str, port: int) -> Iterator[None]:
    """Of the host's addresses those that will be bound: of a listener all, but those of a family that this machine has not;
    of the admin API IPv4's alone, unless it is told an IPv6 address; of the control listener the first."""
    sockets: list[socket.socket] = []
    family = socket.AF_INET if key == "admin.listen" and ":" not in host else socket.AF_UNSPEC
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in (
            found[:1] if key == "control.listener" else dict.fromkeys(found)
        ):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    continue
                raise
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
        yield
    except OSError as error:
        raise CannotListen(
            f"{key}: cannot bind to {format_address(host, port)}: {error.strerror or error}"
        ) from error
    finally:
        for one in sockets:
            one.close()
