"""Limits on the secrets that the properties of a link may refer to.

A request brings the properties, and the sidecar sends the secrets to an address of the same request. References therefore
reach only one directory and the variables of one prefix, which an operator has filled for links, and only in properties
whose value is a secret or a certificate. Files that a property names by path lie in that directory too. The sidecar's own
configuration belongs to its operator and has no such limits (wire/client/secrets.py).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wire.client.secrets import MAX_SECRET_BYTES, REFERENCE, SecretError, resolve, warn_of_mode
from wire.client.security import parse_jaas

PREFIX = "LINKER_LINK_"
"""Of the environment variables that a link may have."""

#: Secrets, and PEM texts: what is no certificate is refused before anything is sent.
_RESOLVED = frozenset(
    {
        "sasl.password",
        "sasl.jaas.config",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
    }
)
_PATHS = ("ssl.truststore.location", "ssl.keystore.location")
_VARIABLE = re.compile(rf"{PREFIX}[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class LinkSecrets:
    """`directory`: the one below which a link's files lie (configuration: sidecar.links.dir)."""

    directory: Path

    def check(self, properties: Mapping[str, str]) -> None:
        """SecretError unless each reference may be in its property and leads to where it may; no file is looked at."""
        for key, value in properties.items():
            if key in _PATHS:
                self._may_name(key, value)
                continue
            found = list(REFERENCE.finditer(value))
            if not found:
                continue
            if key not in _RESOLVED:
                raise SecretError(
                    f"{key} is no secret, so no reference is resolved in it: it is told to whoever answers at "
                    "bootstrap.servers; give its value as it is"
                )
            if key == "sasl.jaas.config" and len(
                REFERENCE.findall(parse_jaas(value).get("password", ""))
            ) < len(found):
                raise SecretError(
                    f"{key}: a reference may stand for its password alone; give the rest as it is"
                )
            for match in found:
                kind, name = match.groups()
                if kind == "file":
                    self._may_name(key, name)
                elif kind == "env":
                    _may_have(key, name)

    def resolve(
        self, properties: Mapping[str, str], environ: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """With each reference replaced; SecretError as from `check`, or because there is nothing to be had."""
        self.check(properties)
        for key in _PATHS:
            if key in properties:
                self._beyond_links(key, properties[key])
        return {
            key: resolve(value, key=key, environ=environ, read=self._read)
            for key, value in properties.items()
        }

    def _may_name(self, key: str, name: str) -> None:
        # By its text: whether there is such a file elsewhere is nobody's to learn.
        if "\0" in name:
            raise SecretError(f"{key}: no file has a name with a null character in it")
        path = Path(name)
        below = any(path.is_relative_to(one) for one in (self.directory, self.directory.resolve()))
        if not path.is_absolute() or ".." in path.parts or not below:
            raise SecretError(
                f"{key}: {name} is not below {self.directory}, and a link may use files there only: put the file there "
                "(in a fleet on every machine) and name it so, or let the operator set sidecar.links.dir"
            )

    def _beyond_links(self, key: str, name: str) -> Path:
        """Where the file really is, symbolic links followed; SecretError if that is outside."""
        try:
            root = self.directory.resolve(strict=True)
            path = Path(name).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its symbolic links go in a circle"
            raise SecretError(f"{key}: cannot read {name}: {reason}") from error
        if not path.is_relative_to(root):
            raise SecretError(
                f"{key}: {name} leads by a symbolic link out of {self.directory}, and a link may use files there only"
            )
        return path

    def _read(self, name: str, key: str) -> str:
        path = self._beyond_links(key, name)
        try:
            # Neither a link that was put there meanwhile is followed, nor a pipe waited for.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                kind = os.fstat(file.fileno())
                if not stat.S_ISREG(kind.st_mode) or kind.st_size > MAX_SECRET_BYTES:
                    raise SecretError(f"{key}: {name} is no regular file of at most {MAX_SECRET_BYTES} bytes")
                warn_of_mode(key, name, kind.st_mode)
                raw = file.read(MAX_SECRET_BYTES)
        except OSError as error:
            raise SecretError(f"{key}: cannot read {name}: {error.strerror or error}") from error
        try:
            return raw.decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise SecretError(f"{key}: {name} is not UTF-8 text") from error


def _may_have(key: str, name: str) -> None:
    if _VARIABLE.fullmatch(name) is None:
        raise SecretError(
            f"{key}: a link may use environment variables whose names begin with {PREFIX} only, and {name} does not: "
            f"give the sidecar its value as {PREFIX}{re.sub('[^A-Za-z0-9_]', '_', name) or 'NAME'}, or use ${{file:/path}}"
        )
