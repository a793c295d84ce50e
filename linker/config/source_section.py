"""The section `sources` of the configuration: the sidecar as a broker of a link's source, beside the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from linker.config.link_secrets import LinkSecrets
from linker.config.listeners import ListenerSection
from wire.client.properties import SECURITY_PROPERTIES, parse_bootstrap_servers
from wire.client.secrets import hiding_values, resolve_properties

#: Security properties towards the source's controllers alone.
CONTROLLER_OVERRIDES = frozenset(f"controller.{key}" for key in SECURITY_PROPERTIES)


class ZooKeeperAccess(NamedTuple):
    """How the ensemble of a source before KRaft is reached."""

    connect: str
    #: Seconds.
    session_timeout: float


class SourceConfig(ListenerSection):
    broker_id: int = Field(
        alias="broker.id",
        ge=0,
        le=2**31 - 1,
        description="Broker id in the source; must be free there, and another one in each sidecar of a fleet.",
    )
    rack: str | None = Field(
        default=None,
        description="Rack of the sidecar in the source; default: the rack with the most brokers.",
    )
    controller_quorum_bootstrap_servers: str | None = Field(
        default=None,
        alias="controller.quorum.bootstrap.servers",
        description="host:port,... of the source's controllers; default: its brokers are asked.",
    )
    zookeeper_connect: str | None = Field(
        default=None,
        alias="zookeeper.connect",
        description="host:port,host:port/path of the source's ZooKeeper, as its brokers have it; default: the source is run "
        "by KRaft.",
    )
    zookeeper_session_timeout_ms: int = Field(
        default=6000,
        alias="zookeeper.session.timeout.ms",
        ge=2000,
        le=60_000,
        description="Silence after which the source's controller takes the sidecar for gone. Writes with acks=all to "
        "topics in sync wait for so long.",
    )
    #: `controller.*` security properties, secrets by reference.
    overrides: dict[str, str] = Field(default={}, exclude=True, repr=False)

    def controller_bootstrap_servers(self) -> list[tuple[str, int]] | None:
        text = self.controller_quorum_bootstrap_servers
        key = "controller.quorum.bootstrap.servers"
        return None if text is None else parse_bootstrap_servers(text, key=key)

    def zookeeper_access(self) -> ZooKeeperAccess | None:
        if self.zookeeper_connect is None:
            return None
        return ZooKeeperAccess(self.zookeeper_connect, self.zookeeper_session_timeout_ms / 1000)


@dataclass(frozen=True, slots=True)
class SourceClient:
    """The way to a link's source (linker.link_broker.ClusterClient): the link's own client properties, whose references lead
    where a link's may; towards the controllers with what the section says instead."""

    properties: Mapping[str, str]
    secrets: LinkSecrets
    section: SourceConfig | None

    def bootstrap_servers(self) -> list[tuple[str, int]]:
        return parse_bootstrap_servers(self.client_properties()["bootstrap.servers"])

    def controller_bootstrap_servers(self) -> list[tuple[str, int]] | None:
        return None if self.section is None else self.section.controller_bootstrap_servers()

    def client_properties(self) -> dict[str, str]:
        return self.secrets.resolve(self.properties)

    def controller_properties(self) -> dict[str, str]:
        return self.client_properties() | resolve_properties(self._overrides())

    def _overrides(self) -> dict[str, str]:
        found = {} if self.section is None else self.section.overrides
        return {key.removeprefix("controller."): one for key, one in found.items()}

    @contextmanager
    def hiding_values(self) -> Iterator[None]:
        with hiding_values(self.properties), hiding_values(self._overrides()):
            yield
