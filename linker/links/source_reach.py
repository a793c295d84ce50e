"""The way to a link's source until it answers as the cluster that the link was made for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from controller.state import Link
from linker.config.cluster_addresses import not_found
from linker.config.link_secrets import LinkSecrets
from linker.links.source import source_cluster
from wire.backoff import Backoff
from wire.client.cluster import Cluster
from wire.errors import ClusterUnreachable, LinkerError

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
_UNUSABLE_FOR = 5.0  # until it is tried again whether the source can be asked
_LOOK_AGAIN: Final = 1.0
_NOT_YET: Final = "the source was not reached yet"


class SourceReach:
    """Of one link at work. `verified` is set while the source was reached."""

    def __init__(
        self, link: Link, source: Cluster, unusable: LinkerError | None, secrets: LinkSecrets
    ) -> None:
        """unusable: why the source cannot even be asked."""
        self._link = link
        self._source = source
        self._secrets = secrets
        #: Why the link as a whole does not work; None when it does.
        self.trouble: str | None = _NOT_YET if unusable is None else str(unusable)
        self.verified = asyncio.Event()
        #: Monotonic, while the source was not reached.
        self.away_since = time.monotonic()

    async def connect(self) -> None:
        """Try again and again until it answers."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                await self._source.connect()
                break
            except LinkerError as error:
                self._note(error)
            await asyncio.sleep(backoff.next())
        self.trouble = None
        self.verified.set()
        log.info("link %s: connected to source cluster %s", self._link.name, self._source.cluster_id)

    async def until_usable(self, holds_groups: Callable[[], bool]) -> None:
        """A moment, in which a failover may be asked for. Longer while the link holds groups: ended with the link their
        gates would open by themselves."""
        until = time.monotonic() + _UNUSABLE_FOR
        while holds_groups() or time.monotonic() < until:
            await asyncio.sleep(min(_LOOK_AGAIN, _UNUSABLE_FOR))
            with contextlib.suppress(LinkerError):
                source_cluster(self._link.name, dict(self._link.properties), self._secrets)
                return

    def lost(self) -> None:
        """The link ends: another one begins from nothing."""
        self.verified.clear()
        self.away_since = time.monotonic()

    def why_unknown(self) -> str | None:
        """Why groups must not be looked for at the source: it was not reached yet, or another cluster answers there."""
        return None if self.verified.is_set() else self.trouble or _NOT_YET

    def _note(self, error: LinkerError) -> None:
        trouble = str(error)
        # A reverse link has no properties that could be changed.
        if isinstance(error, ClusterUnreachable) and self._link.reverse_of is None:
            trouble = not_found(error, self._link.name, self._link.source_cluster_id)
        if self.trouble != trouble:
            log.warning("link %s: %s", self._link.name, trouble)
        self.trouble = trouble
