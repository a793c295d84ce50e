"""The sections of the configuration that a fleet needs: where the link state is, and how sidecars watch each other."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from controller.errors import InvalidName
from controller.keys import check_topic_name, split
from wire.client.properties import SECURITY_PROPERTIES, parse_bootstrap_servers

STORE_SSL_PROPERTIES = frozenset(key for key in SECURITY_PROPERTIES if key.startswith("ssl."))
#: How the target's state topic is called when nobody says otherwise; also fleet.stores.topic.store's default.
STATE_TOPIC = "__kafka_linker_state"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False, hide_input_in_errors=True)


#: The type of store that an option of the section belongs to.
_STORE_OPTIONS = {
    "path": "sqlite",
    "connect": "zookeeper",
    "session_timeout_ms": "zookeeper",
    "username": "zookeeper",
    "password": "zookeeper",
    "security_protocol": "zookeeper",
    "topic": "topic",
    "seat_timeout_ms": "topic",
}


class StoreConfig(Section):
    type: Literal["sqlite", "zookeeper", "topic"] = Field(
        default="sqlite",
        description="Where the link state is kept: sqlite, a file for one sidecar; zookeeper, or topic, a compacted "
        "topic of the target cluster, for a fleet.",
    )
    path: Path | None = Field(
        default=None, description="sqlite: database file; default: linker.db in sidecar.state.dir."
    )
    connect: str | None = Field(
        default=None, description="zookeeper: host:port,host:port/path; required. The path is created."
    )
    session_timeout_ms: int = Field(
        default=6000,
        alias="session.timeout.ms",
        ge=1000,
        le=600_000,
        description="zookeeper: silence after which the link controller loses its seat. "
        "The server grants 2 to 20 of its ticks; if that is less, it counts.",
    )
    username: str | None = Field(
        default=None, min_length=1, description="zookeeper: user (scheme digest) that owns the nodes."
    )
    password: SecretStr | None = Field(default=None, description="zookeeper: password of the user.")
    security_protocol: Literal["PLAINTEXT", "SSL"] = Field(
        default="PLAINTEXT", alias="security.protocol", description="zookeeper: SSL for TLS, see ssl.* below."
    )
    topic: str = Field(
        default=STATE_TOPIC,
        description="topic: its name. It is created if it is missing, and belongs to one fleet.",
    )
    seat_timeout_ms: int = Field(
        default=6000,
        alias="seat.timeout.ms",
        ge=2000,
        le=600_000,
        description="topic: silence after which the link controller loses its seat.",
    )
    #: `ssl.*` towards ZooKeeper, resolved; use tls_properties().
    ssl: dict[str, str] = Field(default={}, exclude=True, repr=False)

    @model_validator(mode="after")
    def _consistent(self) -> StoreConfig:
        for name, owner in _STORE_OPTIONS.items():
            if name in self.model_fields_set and owner != self.type:
                key = type(self).model_fields[name].alias or name
                raise ValueError(f"{key} is an option of type {owner}, and type is {self.type}")
        if self.type == "zookeeper":
            if self.connect is None:
                raise ValueError("connect is missing: type zookeeper needs host:port,host:port/path")
            _check_zookeeper_connect(self.connect)
            if (self.username is None) != (self.password is None):
                raise ValueError("username and password belong together")
        elif self.type == "topic":
            try:
                check_topic_name(self.topic)
            except InvalidName as error:
                raise ValueError(f"topic: {error}") from error
        return self

    def tls_properties(self) -> dict[str, str] | None:
        """Client properties of the TLS connection to ZooKeeper, secrets resolved; None without TLS."""
        if self.security_protocol != "SSL":
            return None
        return {**self.ssl, "security.protocol": "SSL"}


def _check_zookeeper_connect(text: str) -> None:
    servers, slash, path = text.partition("/")
    parse_bootstrap_servers(servers, key="connect")
    if slash:
        try:
            split("/" + path)
        except InvalidName as error:
            raise ValueError(f"connect: {error}") from error


class FleetConfig(Section):
    """How several sidecars with one store watch each other. The same in all of them."""

    lease_ms: int = Field(
        default=10_000,
        alias="lease.ms",
        ge=1000,
        le=600_000,
        description="How long a sidecar may acknowledge without a renewal by the link controller; "
        "a new link controller waits as long for those it cannot reach.",
    )
    renew_interval_ms: int = Field(
        default=500, alias="renew.interval.ms", ge=50, description="How often a sidecar renews its lease."
    )
    failure_timeout_ms: int = Field(
        default=2000,
        alias="failure.timeout.ms",
        ge=100,
        description="Silence after which the link controller gives a sidecar's partitions to another.",
    )
    link_brokers: int = Field(
        default=3,
        alias="link.brokers",
        ge=1,
        le=16,
        description="How many link brokers each mirror partition has, if there are as many sidecars.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> FleetConfig:
        if self.failure_timeout_ms <= self.renew_interval_ms:
            raise ValueError("failure.timeout.ms must be above renew.interval.ms")
        if self.lease_ms < 2 * self.failure_timeout_ms:
            raise ValueError("lease.ms must be at least twice failure.timeout.ms")
        return self
