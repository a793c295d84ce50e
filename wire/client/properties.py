"""The Kafka client properties that a cluster section or a link accepts, and the form of their values.

Only names and addresses are checked here, so that a misspelt key is an error with a hint and not a silent default.
wire.client.security interprets the security properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wire.errors import LinkerError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

SECURITY_PROPERTIES = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
#: Properties of the target as a client sees it. The rack towards it is the sidecar's own (sidecar.rack).
TARGET_PROPERTIES = SECURITY_PROPERTIES | {"bootstrap.servers", "client.id"}
#: Properties of the source of a link.
CLIENT_PROPERTIES = TARGET_PROPERTIES | {"client.rack"}
#: Properties of a listener of ours, without their `listener.name.<name>.` prefix.
#: A server has no name to check, so without ssl.endpoint.identification.algorithm.
LISTENER_PROPERTIES = frozenset(
    key for key in SECURITY_PROPERTIES if key.startswith("ssl.") and "identification" not in key
) | {"ssl.client.auth"}

_ADDRESS = re.compile(r"^(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:\[\]/,]+)):(\d{1,5})$")
_LISTENER = re.compile(r"^([A-Za-z0-9_-]+)://(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:\[\]/,]*)):(\d{1,5})$")


class PropertyError(LinkerError):
    """A property that is unknown, missing or malformed."""


class ListenerUrl(NamedTuple):
    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def nearest(key: str, known: Iterable[str]) -> str:
    """`; did you mean x?` or nothing: the tail of an error line about an unknown key."""
    import difflib  # needed for mistakes only

    found = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def check_client_properties(properties: Mapping[str, str]) -> None:
    """Raise PropertyError at the first thing that is wrong with the client properties of a cluster."""
    for key in properties:
        if key not in CLIENT_PROPERTIES:
            raise PropertyError(f"unknown property {key}{nearest(key, CLIENT_PROPERTIES)}")
    if not properties.get("bootstrap.servers", "").strip():
        raise PropertyError("bootstrap.servers is missing")
    parse_bootstrap_servers(properties["bootstrap.servers"])
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in SECURITY_PROTOCOLS:
        raise PropertyError(f"security.protocol is {protocol}; give one of {', '.join(SECURITY_PROTOCOLS)}")


def parse_address(text: str, *, key: str | None = None) -> tuple[str, int]:
    """`key`: the property whose value it is, for the error."""
    match = _ADDRESS.match(text)
    if match is None or not int(match[3]) < 65536:
        raise PropertyError(f"{'' if key is None else f'{key}: '}{text!r} is not host:port")
    return match[1] or match[2], int(match[3])


def parse_bootstrap_servers(text: str, *, key: str = "bootstrap.servers") -> list[tuple[str, int]]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise PropertyError(f"{key} is empty")
    addresses = [parse_address(part, key=key) for part in parts]
    for part, (_, port) in zip(parts, addresses, strict=True):
        if port == 0:
            raise PropertyError(f"{key}: {part!r} has port 0")
    return addresses


def parse_listener(text: str, *, key: str) -> ListenerUrl:
    match = _LISTENER.match(text.strip())
    if match is None or not int(match[4]) < 65536:
        raise PropertyError(
            f"{key}: {text!r} is not a listener; write NAME://host:port, e.g. PLAINTEXT://0.0.0.0:19092"
        )
    return ListenerUrl(match[1].upper(), match[2] or match[3], int(match[4]))
