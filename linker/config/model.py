"""The sidecar's configuration: one YAML file, checked whole before anything is started.

Keys are flat and dotted inside the sections (`sidecar`, `target`, `store`, `fleet`, `validation`, `log`), as Kafka's own
properties are. Links are not configured here: they are created through the admin API and kept in the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import (
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from linker.config.check import ValidationConfig
from linker.config.link_secrets import LinkSecrets
from linker.config.store_section import FleetConfig, Section, StoreConfig
from wire.client.properties import (
    SECURITY_PROTOCOLS,
    ListenerUrl,
    PropertyError,
    parse_address,
    parse_bootstrap_servers,
    parse_listener,
)
from wire.client.secrets import hiding_values, redact_properties, resolve_properties
from wire.errors import LinkerError
from wire.frames.types import format_address

MIN_MEMORY_BYTES = 16 << 20
WILDCARD_HOSTS = ("", "0.0.0.0", "::")


class ConfigError(LinkerError):
    """The configuration cannot be used; the message names file and key."""


class ClientListener(NamedTuple):
    """A client listener of the sidecar: where it binds, what it advertises, how it is secured."""

    name: str
    host: str
    port: int
    advertised_host: str
    advertised_port: int
    security_protocol: str

    @property
    def bind_host(self) -> str:
        """An empty host is every address, as Kafka reads it in listeners."""
        return self.host or "0.0.0.0"


def _strings(value: object) -> object:
    """A comma separated string is as good as a list, as in Kafka's own files."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class SidecarConfig(Section):
    broker_id: int = Field(
        alias="broker.id", ge=0, le=2**31 - 1, description="Broker id in the target; must be free."
    )
    listeners: list[str] = Field(
        min_length=1, description="NAME://host:port of each client listener, to bind to."
    )
    advertised_listeners: list[str] = Field(
        default=[],
        alias="advertised.listeners",
        description="The addresses that clients and brokers are told; default: listeners.",
    )
    protocol_map: dict[str, str] = Field(
        default={}, alias="listener.security.protocol.map", description="Listener name to security protocol."
    )
    rack: str | None = Field(
        default=None, description="Rack of the sidecar; a source replica there is read first."
    )
    state_dir: Path = Field(
        default=Path("state"), alias="state.dir", description="Directory of identity and store."
    )
    links_dir: Path = Field(
        default=Path("links"),
        alias="links.dir",
        description="Directory of the files that a link's properties may name, by ${file:/path} or as ssl.*.location; "
        "nothing outside of it is read for a link.",
    )
    admin_listen: str = Field(
        default="127.0.0.1:8080", alias="admin.listen", description="host:port of the admin API."
    )
    admin_token: SecretStr | None = Field(
        default=None,
        alias="admin.token",
        description="Bearer token that the admin API asks for; default, on loopback: one that is made at the first "
        "start, in admin-token in sidecar.state.dir, where a command of the same user finds it.",
    )
    admin_token_required: bool = Field(
        default=True,
        alias="admin.token.required",
        description="false: everybody on this machine may use the admin API, without a token. On loopback only.",
    )
    admin_advertised: str | None = Field(
        default=None,
        alias="admin.advertised",
        description="host:port at which the other sidecars of a fleet reach the admin API, to pass requests on to the "
        "link controller; default: admin.listen.",
    )
    memory_bytes: int = Field(
        default=128 << 20,
        alias="memory.bytes",
        ge=MIN_MEMORY_BYTES,
        description="Budget of all read-ahead windows.",
    )
    control_listener: str | None = Field(
        default=None,
        alias="control.listener",
        description="host:port where the other sidecars of a fleet connect while this one is the link controller; "
        "required unless store.type is sqlite.",
    )
    control_advertised: str | None = Field(
        default=None,
        alias="control.advertised",
        description="host:port that the other sidecars are told; default: control.listener.",
    )
    control_secret: SecretStr | None = Field(
        default=None,
        alias="control.secret",
        description="Shared by all sidecars of a fleet; required unless control.listener is a loopback address.",
    )
    control_security_protocol: Literal["PLAINTEXT", "SSL"] = Field(
        default="PLAINTEXT",
        alias="control.security.protocol",
        description="SSL: sidecars talk to each other over TLS, with ssl.* or listener.name.control.ssl.* on both ends.",
    )
    #: `ssl.*` and `listener.name.<name>.ssl.*`, resolved; use listener_properties().
    listener_ssl: dict[str, str] = Field(default={}, exclude=True, repr=False)

    _split = field_validator("listeners", "advertised_listeners", mode="before")(_strings)

    @field_validator("protocol_map", mode="before")
    @classmethod
    def _split_map(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition(":") for part in value.split(",") if part.strip()]
        return {name.strip().upper(): protocol.strip() for name, _, protocol in pairs}

    @model_validator(mode="after")
    def _consistent(self) -> SidecarConfig:
        for listener in self.client_listeners():
            if listener.advertised_host in WILDCARD_HOSTS:
                raise ValueError(
                    f"advertised.listeners: listener {listener.name} binds to every address; name one"
                )
        host, _ = self.admin_address()
        if self.admin_token is None and not _loopback(host):
            raise ValueError(f"admin.listen: {host} is not a loopback address, so admin.token must be set")
        if self.admin_token is not None and len(self.admin_token.get_secret_value()) < 8:
            raise ValueError("admin.token is shorter than 8 characters")
        if self.admin_token is not None and not self.admin_token_required:
            raise ValueError("admin.token.required is false, but there is an admin.token: give one of them")
        self._check_control()
        return self

    def _check_control(self) -> None:
        bound = self.control_address()
        if bound is None:
            for key, value in (
                ("control.advertised", self.control_advertised),
                ("admin.advertised", self.admin_advertised),
                ("control.secret", self.control_secret),
                (
                    "control.security.protocol",
                    self.control_security_protocol if self.control_security_protocol == "SSL" else None,
                ),
            ):
                if value is not None:
                    raise ValueError(f"{key} is of no use without control.listener")
            return
        advertised = self.control_advertised_address()
        if advertised is None and bound[0] in WILDCARD_HOSTS:
            raise ValueError("control.listener binds to every address: give control.advertised too")
        if advertised is not None and (advertised[0] in WILDCARD_HOSTS or advertised[1] == 0):
            raise ValueError(
                "control.advertised must name a host and a port that other sidecars can connect to"
            )
        if self.control_secret is None:
            if not _loopback(bound[0]):
                raise ValueError(
                    f"control.listener: {bound[0]} is not a loopback address, so control.secret must be set"
                )
        elif len(self.control_secret.get_secret_value()) < 16:
            raise ValueError("control.secret is shorter than 16 characters")
        self._check_admin_in_fleet(advertised or bound)

    def _check_admin_in_fleet(self, control: tuple[str, int]) -> None:
        """Any sidecar passes requests on to the link controller's admin API, so the others have to reach it."""
        key = "admin.listen" if self.admin_advertised is None else "admin.advertised"
        host, port = self.admin_advertised_address()
        if host in WILDCARD_HOSTS or port == 0:
            raise ValueError(
                f"{key}: other sidecars cannot connect to {format_address(host, port)}: give admin.advertised"
            )
        if _loopback(host) and not _loopback(control[0]):
            raise ValueError(
                f"{key}: {host} is a loopback address, but the other sidecars (control.listener is {control[0]}) pass "
                "requests on to it: give admin.listen, or admin.advertised, an address that they reach"
            )

    def admin_address(self) -> tuple[str, int]:
        return parse_address(self.admin_listen, key="admin.listen")

    def admin_advertised_address(self) -> tuple[str, int]:
        """The address that the other sidecars are told."""
        if self.admin_advertised is None:
            return self.admin_address()
        return parse_address(self.admin_advertised, key="admin.advertised")

    def control_address(self) -> tuple[str, int] | None:
        """Where to listen for the fleet; port 0 means any. None without a fleet."""
        return (
            None
            if self.control_listener is None
            else parse_address(self.control_listener, key="control.listener")
        )

    def control_tls(self) -> dict[str, str] | None:
        """Properties of both ends of a connection between two sidecars, secrets resolved; None without TLS."""
        if self.control_security_protocol != "SSL":
            return None
        return {**self.listener_properties("control"), "security.protocol": "SSL"}

    def control_advertised_address(self) -> tuple[str, int] | None:
        """The address that the others are told; None: where it listens."""
        if self.control_advertised is None:
            return None
        return parse_address(self.control_advertised, key="control.advertised")

    def client_listeners(self) -> list[ClientListener]:
        bound = _by_name(self.listeners, "listeners")
        advertised = _by_name(self.advertised_listeners, "advertised.listeners") or bound
        if advertised.keys() != bound.keys():
            raise PropertyError(
                f"advertised.listeners names {', '.join(advertised)}, but listeners names {', '.join(bound)}"
            )
        return [
            ClientListener(
                name, url.host, url.port, advertised[name].host, advertised[name].port, self._protocol(name)
            )
            for name, url in bound.items()
        ]

    def _protocol(self, name: str) -> str:
        protocols = {key.upper(): value.upper() for key, value in self.protocol_map.items()}
        protocol = protocols.get(name, name)
        if protocol not in SECURITY_PROTOCOLS:
            raise PropertyError(
                f"listener.security.protocol.map: listener {name} has "
                + (f"unknown protocol {protocol}" if name in protocols else "no protocol")
                + f"; give one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        return protocol

    def listener_properties(self, name: str) -> dict[str, str]:
        """The ssl.* properties of one listener: its own over the common ones. Holds resolved secrets."""
        prefix = f"listener.name.{name.lower()}."
        common = {key: value for key, value in self.listener_ssl.items() if key.startswith("ssl.")}
        own = {
            key[len(prefix) :]: value
            for key, value in self.listener_ssl.items()
            if key.lower().startswith(prefix)
        }
        return common | own


class TargetConfig(Section):
    """Client properties of the target cluster; `controller.*` overrides them towards the controllers."""

    properties: dict[str, str]
    controller_quorum_bootstrap_servers: str | None = None

    def bootstrap_servers(self) -> list[tuple[str, int]]:
        return parse_bootstrap_servers(self.properties["bootstrap.servers"], key="target.bootstrap.servers")

    def controller_bootstrap_servers(self) -> list[tuple[str, int]] | None:
        """None: ask a broker by DescribeQuorum."""
        text = self.controller_quorum_bootstrap_servers
        key = "target.controller.quorum.bootstrap.servers"
        return None if text is None else parse_bootstrap_servers(text, key=key)

    def client_properties(self) -> dict[str, str]:
        """With secrets resolved."""
        return resolve_properties(self.client_references())

    def client_references(self) -> dict[str, str]:
        """The same as they are written, with secrets by reference."""
        return {key: value for key, value in self.properties.items() if not key.startswith("controller.")}

    def controller_properties(self) -> dict[str, str]:
        """As client_properties, with the controller.* overrides on top."""
        return self.client_properties() | resolve_properties(self._controller_overrides())

    def _controller_overrides(self) -> dict[str, str]:
        return {
            key.removeprefix("controller."): value
            for key, value in self.properties.items()
            if key.startswith("controller.")
        }

    @contextmanager
    def hiding_values(self) -> Iterator[None]:
        """Around whatever is made of the properties above: no error quotes what a reference stands for."""
        with hiding_values(self.properties), hiding_values(self._controller_overrides()):
            yield

    def __repr__(self) -> str:
        return f"TargetConfig({redact_properties(self.properties)})"

    __str__ = __repr__


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level logged."
    )
    format: Literal["console", "json"] = Field(
        default="console", description="Lines for people or for machines."
    )


class Config(Section):
    sidecar: SidecarConfig
    target: TargetConfig
    store: StoreConfig = StoreConfig()
    fleet: FleetConfig = FleetConfig()
    validation: ValidationConfig = ValidationConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        alone = self.store.type == "sqlite"
        if alone and self.sidecar.control_listener is not None:
            raise ValueError(
                "sidecar.control.listener is for a fleet, and a fleet needs a store that its sidecars share: "
                "store.type is sqlite"
            )
        if not alone and self.sidecar.control_listener is None:
            raise ValueError(
                f"sidecar.control.listener is missing: with store.type {self.store.type} other sidecars connect to it"
            )
        known = self.sidecar.admin_token is not None or self.sidecar.control_secret is not None
        if not alone and not known and self.sidecar.admin_token_required:
            raise ValueError(
                "sidecar.admin.token is missing: the sidecars of a fleet pass requests on to each other, so all need the "
                "same; give it, or control.secret, from which it is made then"
            )
        return self

    @property
    def store_path(self) -> Path:
        return self.store.path or self.sidecar.state_dir / "linker.db"

    @property
    def link_secrets(self) -> LinkSecrets:
        """The files and variables that the properties of links may refer to."""
        return LinkSecrets(Path(os.path.abspath(self.sidecar.links_dir)))

    @property
    def validator_dir(self) -> Path:
        """Where the validator process works and logs."""
        return self.sidecar.state_dir / "validator"

    @property
    def evidence_dir(self) -> Path:
        return self.validation.evidence_dir or self.sidecar.state_dir / "evidence"


def _by_name(urls: list[str], key: str) -> dict[str, ListenerUrl]:
    parsed = [parse_listener(url, key=key) for url in urls]
    by_name = {url.name: url for url in parsed}
    if len(by_name) != len(parsed):
        raise PropertyError(f"{key}: a listener name is given twice")
    return by_name


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
