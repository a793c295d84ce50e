"""Secrets by reference: ${env:NAME} and ${file:/path} are resolved, sensitive keys recognised, shown values redacted.

Resolved values go straight into ClientSecurity and ListenerSecurity and are kept nowhere else; only references are stored
and shown. A link's references come with a request, so linker/config/link_secrets.py limits the places they may name.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wire.errors import LinkerError

HIDDEN = "[hidden]"
MAX_SECRET_BYTES = 1 << 20

log = logging.getLogger(__name__)
_WARNED: set[str] = set()

REFERENCE = re.compile(r"\$\{([a-z]*):([^}]*)\}")
_SENSITIVE = re.compile(
    r"(password|secret|token|credential|passphrase|\.key$|^key$|jaas|authorization)", re.IGNORECASE
)
_JAAS_VALUE = re.compile(
    r"""(\b(?:password|secret|clientSecret|token)\s*=\s*)("[^"]*"|'[^']*'|[^\s;"']+)""", re.IGNORECASE
)


class SecretError(LinkerError):
    """A reference that cannot be resolved, or a literal secret where a reference is wanted."""


def is_sensitive(key: str) -> bool:
    """Whether the value of this property or log field may hold a secret."""
    return _SENSITIVE.search(key) is not None


def is_reference(value: str) -> bool:
    return REFERENCE.fullmatch(value.strip()) is not None


def resolve(
    value: str,
    *,
    key: str,
    environ: Mapping[str, str] | None = None,
    read: Callable[[str, str], str] | None = None,
) -> str:
    """`value` with every reference replaced. `key` is for the error message; `read(name, key)` reads files, by default from
    any place."""
    environment = os.environ if environ is None else environ

    def one(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "env":
            if name not in environment:
                raise SecretError(f"{key}: environment variable {name} is not set")
            return environment[name]
        if kind == "file":
            return (read or _read)(name, key)
        raise SecretError(f"{key}: ${{{kind}:...}} is not known, use ${{env:NAME}} or ${{file:/path}}")

    return REFERENCE.sub(one, value)


def warn_of_mode(key: str, name: str, mode: int) -> None:
    """Warn once about each file with a secret that every user of the machine can read."""
    if mode & stat.S_IROTH and name not in _WARNED and is_sensitive(key):
        _WARNED.add(name)
        log.warning(
            "%s: every user of this machine can read %s (mode %04o): chmod o-r it",
            key,
            name,
            stat.S_IMODE(mode),
        )


def _read(name: str, key: str) -> str:
    path = Path(name)
    if not path.is_absolute():
        raise SecretError(f"{key}: ${{file:{name}}} needs an absolute path")
    try:
        if path.stat().st_size > MAX_SECRET_BYTES or not path.is_file():
            raise SecretError(f"{key}: {name} is no regular file of at most {MAX_SECRET_BYTES} bytes")
        warn_of_mode(key, name, path.stat().st_mode)
        # One newline at the end is the editor's; more are harmless in a PEM block.
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except OSError as error:
        raise SecretError(f"{key}: cannot read {name}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SecretError(f"{key}: {name} is not UTF-8 text") from error


def resolve_properties(
    properties: Mapping[str, str], *, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    return {key: resolve(value, key=key, environ=environ) for key, value in properties.items()}


@contextmanager
def hiding_values(properties: Mapping[str, str]) -> Iterator[None]:
    """Around the use of resolved properties: an error about a referenced value names its key only.

    Errors quote a value as `key=value`, `key: value` or `key is value`. A referenced value may be a secret, or any file
    that this process can read, and errors go to the log and to callers of the admin API.
    """
    try:
        yield
    except SecretError:
        raise  # about the reference itself, which holds no value
    except LinkerError as error:
        text = str(error)
        for key, value in properties.items():
            if REFERENCE.search(value) and re.search(rf"{re.escape(key)}(=|:| is )", text):
                # Without its cause: a traceback in the log would show it.
                raise SecretError(
                    f"{key}: the value that its reference stands for cannot be used; it is not shown, it may be a secret"
                ) from None
        raise


def redact(key: str, value: str) -> str:
    """`value` as it may be shown: references stay readable, literal secrets do not."""
    if not is_sensitive(key) or not value or is_reference(value):
        return value
    if "jaas" in key.lower():
        redacted, found = _JAAS_VALUE.subn(_hide_literal, value)
        return redacted if found else HIDDEN
    return HIDDEN


def _hide_literal(match: re.Match[str]) -> str:
    name, value = match.groups()
    return match.group() if is_reference(value.strip("\"'")) else f'{name}"{HIDDEN}"'


def redact_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: redact(key, value) for key, value in properties.items()}


def refuse_literal_secrets(properties: Mapping[str, str]) -> None:
    """For properties that are going to be stored: raise unless each secret in them is a reference."""
    for key, value in properties.items():
        if redact(key, value) != value:
            raise SecretError(
                f"{key} holds a secret in clear; give it by reference: ${{file:/path}} or ${{env:NAME}}"
            )
