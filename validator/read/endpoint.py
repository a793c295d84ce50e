"""One side of a comparison: how its cluster is reached, and errors that say which side and which address failed.

Runs in the driver and in every executor, so it imports nothing but `wire`. The properties are secret: they travel
inside pickled tasks only and never show in a repr.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from wire.client.cluster import Cluster
from wire.client.properties import parse_bootstrap_servers
from wire.client.security import ClientSecurity
from wire.errors import LinkerError, WireError

SideName = Literal["source", "target"]
CLIENT_ID = "kafka-linker-validator"
CONNECT_TIMEOUT = 10.0

_MARK = re.compile(r"\[\[side-failed (\{[^\n]*?\})\]\]")


@dataclass(frozen=True)
class ClusterEndpoint:
    """A cluster: `bootstrap` are host:port, `properties` Kafka's client properties with their secrets resolved."""

    side: SideName
    name: str
    bootstrap: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster_id: str | None = None  # that every address has to answer for; None: the first one's
    topic_prefix: str = ""  # of our names for its topics

    @asynccontextmanager
    async def cluster(self, *, timeout: float = 30.0) -> AsyncIterator[Cluster]:
        """A connected cluster, closed at the end. Raises SideFailed."""
        try:
            security = ClientSecurity.from_properties(self.properties)
            addresses = parse_bootstrap_servers(",".join(self.bootstrap))
        except (LinkerError, ValueError) as error:
            raise SideFailed(self.side, None, f"its client properties cannot be used: {error}") from error
        cluster = Cluster(
            self.name,
            addresses,
            security,
            CLIENT_ID,
            connect_timeout=CONNECT_TIMEOUT,
            topic_prefix=self.topic_prefix,
        )
        cluster.expect(self.cluster_id)
        try:
            try:
                await cluster.connect(timeout=timeout)
            except WireError as error:
                raise self.failed(error) from error
            yield cluster
        finally:
            await cluster.close()

    def failed(self, error: WireError, address: str | None = None) -> SideFailed:
        """The error with this side's name and the address that did not do."""
        return SideFailed(self.side, error.peer or address or ",".join(self.bootstrap), str(error))


class SideFailed(LinkerError):
    """One of the clusters could not be read. Its text survives the way from an executor to the driver: see `parse`."""

    def __init__(self, side: SideName, address: str | None, reason: str) -> None:
        self.side = side
        self.address = address
        self.reason = reason
        mark = json.dumps({"side": side, "address": address, "reason": reason})
        super().__init__(f"[[side-failed {mark}]]")

    def __reduce__(self) -> tuple[type[SideFailed], tuple[SideName, str | None, str]]:
        return SideFailed, (self.side, self.address, self.reason)

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def sentence(self) -> str:
        """For a person."""
        where = f" at {self.address}" if self.address else ""
        return f"the {self.side} cluster{where}: {self.reason}"

    @staticmethod
    def parse(text: str) -> SideFailed | None:
        """The error inside a longer text, such as a Spark job's failure; None if there is none."""
        found = _MARK.search(text)
        if found is None:
            return None
        try:
            fields = json.loads(found.group(1))
            return SideFailed(fields["side"], fields["address"], fields["reason"])
        except (ValueError, KeyError):
            return None
