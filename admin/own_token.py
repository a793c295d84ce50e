"""The token that a sidecar makes at its first start if none is configured, in a file that only its owner may read.

A refusal names the file (`HEADER`), and a client of the same user reads it: on one machine no token has to be configured.
Any process may hold the port, so the client does not trust that name: the file must be called and look like such a token,
and belong to the user whose process listens there.

Imports here must be fast, because every command of the CLI pays for them.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

FILE = "admin-token"
HEADER = "x-linker-token-file"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_FORM = re.compile(r"linker-[A-Za-z0-9_-]{43}")
_MAX_BYTES = 200
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = "0A"


def keep_token(directory: Path, fleet_secret: str | None = None) -> tuple[str, Path]:
    """The token and its file. Made anew if there is none, or if others could have read it. OSError if it cannot be kept.

    `fleet_secret`: the secret that the sidecars of a fleet share. It makes their tokens equal, so that each accepts the
    requests that another one passes on.
    """
    path = directory / FILE
    derived = None if fleet_secret is None else _derived(fleet_secret)
    kept = _read(path)
    if kept is not None and derived in (None, kept[0]):
        return kept[0], path
    token = derived or f"linker-{secrets.token_urlsafe(32)}"
    fresh = directory / f"{FILE}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(token + "\n")
    fresh.replace(path)
    return token, path


def found_token(told: str, host: str, port: int, tables: Iterable[Path] = _TABLES) -> str | None:
    """The token in the file that the listener at this address has named. None if the listener cannot be trusted, or if the
    file is not ours to read."""
    path = Path(told)
    if host not in LOOPBACK or path.name != FILE or not path.is_absolute():
        return None
    read = _read(path)
    if read is None:
        return None
    token, owner = read
    listening = _listening(port, tables)
    # While the sidecar is down, a process of another user may hold the port: it is not given the token.
    return token if listening is None or listening == {owner} else None


def _derived(secret: str) -> str:
    import base64

    digest = hmac.digest(secret.encode(), b"kafka-linker admin token", "sha256")
    return "linker-" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _read(path: Path) -> tuple[str, int] | None:
    """The token and its owner; None unless nobody else may read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            kind = os.fstat(file.fileno())
            if not stat.S_ISREG(kind.st_mode) or kind.st_mode & 0o077:
                return None
            text = file.read(_MAX_BYTES).decode("latin-1").strip()
    except OSError:
        return None
    return (text, kind.st_uid) if _FORM.fullmatch(text) else None


def _listening(port: int, tables: Iterable[Path]) -> set[int] | None:
    """User ids of the processes that listen at a port of this machine; None where the system does not tell (no /proc)."""
    found: set[int] = set()
    told = False
    for table in tables:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        told = True
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(int(fields[7]))
    return found if told else None
