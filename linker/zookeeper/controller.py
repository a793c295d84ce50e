"""The active controller of a ZooKeeper cluster: one of its brokers, as each of them tells."""

from __future__ import annotations

from linker.membership.discovery import ActiveController, remaining
from wire.client.cluster import Cluster
from wire.errors import LinkerError

_ASK = 5.0


class BrokerController:
    """A ControllerFinder: nobody but the brokers is asked, and answers of a moment ago are put right by NOT_CONTROLLER."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.bootstrap: list[tuple[str, int]] = []
        self.known: dict[int, tuple[str, int]] = {}
        self.refused: LinkerError | None = None  # nobody's word counts here

    async def ask_controllers(
        self, tried: dict[str, str], deadline: float, highest_epoch: int
    ) -> ActiveController | None:
        """The brokers' answer has no epoch: the newest one that is known is named."""
        try:
            await self._cluster.refresh((), timeout=remaining(deadline, _ASK))
        except LinkerError as error:
            tried["the brokers"] = str(error)
            return None
        found = self._cluster.nodes.get(self._cluster.controller_id)
        if found is None:
            tried["the brokers"] = "they name no controller"
            return None
        return ActiveController(found.id, found.host, found.port, max(highest_epoch, 0))

    async def ask_brokers(self, tried: dict[str, str], deadline: float) -> ActiveController | None:
        del tried, deadline  # they were asked
        return None
