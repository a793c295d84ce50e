"""The place of a state store, from the configuration or in short form on the command line.

`sqlite:/path/linker.db`, `zookeeper:host:2181,host:2181/path`, `topic:host:9092,host:9092/name`, or the path of a
sidecar's configuration, which is the only form with credentials.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from controller.errors import InvalidName
from controller.keys import check_topic_name
from fleet.stores.base import FleetStore, StoreError, StoreMissing
from linker.config.file import load_config
from linker.config.model import Config
from linker.config.store_section import STATE_TOPIC, StoreConfig
from wire.client.properties import PropertyError, parse_bootstrap_servers
from wire.client.secrets import hiding_values, resolve_properties
from wire.client.security import ClientSecurity

CONNECT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Location:
    """One store. `str` of it is the short form, which holds no secrets."""

    store: StoreConfig
    path: Path = Path()  # of sqlite
    #: Of topic: client properties, secrets by reference.
    target: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, config: Config) -> Location:
        properties = config.target.client_references() if config.store.type == "topic" else {}
        return cls(config.store, config.store_path, properties)

    @classmethod
    def parse(cls, text: str) -> Location:
        """StoreError if the text has none of the forms, ConfigError if the file is no configuration."""
        kind, colon, rest = text.partition(":")
        try:
            if colon and kind == "sqlite" and rest:
                return cls(StoreConfig(type="sqlite"), Path(rest).absolute())
            if colon and kind == "zookeeper":
                return cls(StoreConfig(type="zookeeper", connect=rest))
            if colon and kind == "topic":
                servers, _, name = rest.partition("/")
                parse_bootstrap_servers(servers, key="topic")
                topic = check_topic_name(name or STATE_TOPIC)
                return cls(StoreConfig(type="topic", topic=topic), target={"bootstrap.servers": servers})
        except (PropertyError, InvalidName, ValueError) as error:
            raise StoreError(f"{text}: {_reason(error)}") from error
        path = Path(text)
        if not path.exists():
            raise StoreError(
                f"{text} is neither a configuration file nor sqlite:PATH, zookeeper:HOST:PORT/PATH or "
                "topic:HOST:PORT/NAME"
            )
        return cls.of(load_config(path))

    def __str__(self) -> str:
        if self.store.type == "zookeeper":
            return f"zookeeper:{self.store.connect}"
        if self.store.type == "topic":
            return f"topic:{self.target.get('bootstrap.servers', '')}/{self.store.topic}"
        return f"sqlite:{self.path}"

    def same_place(self, other: Location) -> bool:
        if self.store.type != other.store.type:
            return False
        if self.store.type == "sqlite":
            return self.path.resolve() == other.path.resolve()
        return str(self) == str(other)

    async def open(
        self,
        *,
        client_id: str = "kafka-linker",
        link_brokers: Collection[int] = (),
        create: bool = True,
    ) -> FleetStore:
        """The store as a FleetStore of any kind; the caller closes it. A kind's libraries are loaded only when it is
        opened. `link_brokers`: broker ids that must not get a replica of a state topic that is made."""
        if self.store.type == "zookeeper":
            return await self._open_zookeeper()
        if self.store.type == "topic":
            return await self._open_topic(client_id, link_brokers, create)
        from fleet.stores.sole import SoleSeat
        from fleet.stores.sqlite import SqliteStore

        if not create and not self.path.exists():
            raise StoreMissing(f"there is no state store {self.path}")
        return SoleSeat(await SqliteStore.open(self.path))

    async def _open_zookeeper(self) -> FleetStore:
        from fleet.stores.zookeeper.store import ZooKeeperStore

        tls = self.store.tls_properties()
        auth = None
        if self.store.username is not None and self.store.password is not None:
            auth = (self.store.username, self.store.password.get_secret_value())
        return await ZooKeeperStore.open(
            self.store.connect or "",
            session_timeout=self.store.session_timeout_ms / 1000,
            connect_timeout=CONNECT_TIMEOUT,
            auth=auth,
            tls=None if tls is None else ClientSecurity.from_properties(tls).ssl_context(),
        )

    async def _open_topic(self, client_id: str, link_brokers: Collection[int], create: bool) -> FleetStore:
        from fleet.stores.topic.store import TopicStore

        resolved = resolve_properties(self.target)
        with hiding_values(self.target):
            security = ClientSecurity.from_properties(resolved)
        return await TopicStore.open(
            parse_bootstrap_servers(resolved["bootstrap.servers"]),
            security,
            topic=self.store.topic,
            client_id=client_id,
            link_brokers=link_brokers,
            seat_timeout=self.store.seat_timeout_ms / 1000,
            create=create,
        )


def _reason(error: Exception) -> str:
    text = str(error)
    if "Value error, " in text:  # pydantic's, which is several lines
        text = text.split("Value error, ", 1)[1].splitlines()[0]
    return text
