"""The sidecar's configuration: one YAML file, checked whole before anything is started.

Keys are flat and dotted inside the sections (`sidecar`, `target`, `sources`, `store`, `fleet`, `validation`, `log`), as
Kafka's own properties are. Links are not configured here: they are created through the admin API and kept in the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from linker.config.check import ValidationConfig
from linker.config.link_secrets import LinkSecrets
from linker.config.listeners import WILDCARD_HOSTS, ListenerSection
from linker.config.source_section import SourceConfig
from linker.config.store_section import FleetConfig, Section, StoreConfig
from wire.client.properties import parse_address, parse_bootstrap_servers
from wire.client.secrets import hiding_values, redact_properties, resolve_properties
from wire.errors import LinkerError
from wire.frames.types import format_address

MIN_MEMORY_BYTES = 16 << 20


class ConfigError(LinkerError):
    """The configuration cannot be used; the message names file and key."""


class SidecarConfig(ListenerSection):
    broker_id: int = Field(
        alias="broker.id", ge=0, le=2**31 - 1, description="Broker id in the target; must be free."
    )
    rack: str | None = Field(
        default=None, description="Rack of the sidecar; a source replica there is read first."
    )
    state_dir: Path = Field(
        default=Path("state"), alias="state.dir", description="Directory of identity and store."
    )
    exports_dir: Path | None = Field(
        default=None,
        alias="exports.dir",
        description="Where linker mirror restore writes what it takes out of a source; default: exports in state.dir.",
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

    @model_validator(mode="after")
    def _consistent(self) -> SidecarConfig:
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
    #: By link: the sidecar as a broker of the link's source, which it is while the link's option join_source is set.
    sources: dict[str, SourceConfig] = Field(default={})
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
        self._check_addresses()
        return self

    def _check_addresses(self) -> None:
        """Each address once, over all sections."""
        taken: list[tuple[str, str, int]] = []
        for key, host, port in self.addresses():
            for other, at, number in taken:
                if port and port == number and (host == at or host in WILDCARD_HOSTS or at in WILDCARD_HOSTS):
                    raise ValueError(
                        f"{key} and {other} are one address, {format_address(host, port)}: give each its own"
                    )
            taken.append((key, host, port))

    def addresses(self) -> Iterator[tuple[str, str, int]]:
        """Where the process listens, with the key of each: also as a broker of sources."""
        sections = {
            "sidecar.": self.sidecar,
            **{f"sources.{name}.": one for name, one in self.sources.items()},
        }
        for section, found in sections.items():
            for one in found.client_listeners():
                yield f"{section}listeners: {one.name}", one.bind_host, one.port
        if (control := self.sidecar.control_address()) is not None:
            yield "sidecar.control.listener", *control
        yield "sidecar.admin.listen", *self.sidecar.admin_address()

    @property
    def store_path(self) -> Path:
        return self.store.path or self.sidecar.state_dir / "linker.db"

    @property
    def exports_dir(self) -> Path:
        """Records of sources that were restored after a failover, by link and partition."""
        return self.sidecar.exports_dir or self.sidecar.state_dir / "exports"

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


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
