"""Client listeners of a link broker as a section of the configuration gives them: addresses, protocols, certificates."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field, field_validator, model_validator

from linker.config.store_section import Section
from wire.client.properties import SECURITY_PROTOCOLS, ListenerUrl, PropertyError, parse_listener

WILDCARD_HOSTS = ("", "0.0.0.0", "::")


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


class ListenerSection(Section):
    """A broker id and its listeners."""

    broker_id: int = Field(alias="broker.id", ge=0, le=2**31 - 1)
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
    def _advertised(self) -> ListenerSection:
        for listener in self.client_listeners():
            if listener.advertised_host in WILDCARD_HOSTS:
                raise ValueError(
                    f"advertised.listeners: listener {listener.name} binds to every address; name one"
                )
        return self

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


def _by_name(urls: list[str], key: str) -> dict[str, ListenerUrl]:
    parsed = [parse_listener(url, key=key) for url in urls]
    by_name = {url.name: url for url in parsed}
    if len(by_name) != len(parsed):
        raise PropertyError(f"{key}: a listener name is given twice")
    return by_name
