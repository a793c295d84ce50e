"""The listeners on which a cluster's brokers talk to each other. Followers are served on these only.

Each broker's own configuration names its listener, and they may differ while that is changed. So all brokers are asked,
again and again. Until one has answered, followers are served on every listener.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_INTERVAL: Final = 30.0
_FIRST: Final = 1.0
_TIMEOUT: Final = 10.0

_NAME: Final = "inter.broker.listener.name"
_PROTOCOL: Final = "security.inter.broker.protocol"
#: Of a cluster with ZooKeeper: its controller comes in there, and nowhere else (KIP-291).
_CONTROL: Final = "control.plane.listener.name"
_DEFAULT: Final = "PLAINTEXT"

Ask = Callable[[int, str, float], Awaitable[str | None]]
"""Asks a broker for one of its configs, within so many seconds. LinkerError if it does not tell."""


class InterBrokerListeners:
    def __init__(
        self,
        ask: Ask,
        brokers: Callable[[], Collection[int]],
        ours: Collection[str],
        cluster: str = "target",
        controlled: bool = False,
    ) -> None:
        """`ours`: names of the sidecar's own listeners. With a single listener nobody has to be asked. `controlled`: the
        cluster's controller sends requests to brokers, as with ZooKeeper."""
        self._controlled = controlled
        self._ask = ask
        self._cluster = cluster
        self._brokers = brokers
        self._ours = frozenset(ours)
        self._told: dict[int, str] = {}
        self._control: dict[int, str] = {}
        self._silent = False
        self.task = PeriodicTask(
            "inter-broker listeners",
            self.look,
            _INTERVAL,
            pause=lambda _task: _INTERVAL if self._told else _FIRST,
        )

    def __call__(self) -> frozenset[str]:
        """router.ports.RouterPorts.inter_broker_listeners"""
        return frozenset(self._told.values())

    def control(self) -> frozenset[str]:
        """router.ports.RouterPorts.control_listeners"""
        return frozenset(self._control.values())

    async def run(self) -> None:
        if len(self._ours) < 2:
            return
        await self.task.run()

    async def look(self) -> str | None:
        """Ask each broker once. Returns the reason if no broker told; else None. A broker that is gone or does not answer
        keeps its last answer, since it comes back with the same configuration."""
        reason = ""
        for broker in self._brokers():
            try:
                name = await self._ask(broker, _NAME, _TIMEOUT)
                if not name:
                    name = await self._ask(broker, _PROTOCOL, _TIMEOUT) or _DEFAULT
                control = await self._ask(broker, _CONTROL, _TIMEOUT) if self._controlled else None
            except LinkerError as error:
                reason = str(error)
                continue
            self._told[broker] = name
            self._control[broker] = control or name
        if not self._told and reason and not self._silent:
            self._silent = True
            log.warning(
                "no broker of the %s tells on which listener brokers talk to each other, so everybody with ClusterAction "
                "may fetch as a follower on every listener: %s",
                self._cluster,
                reason,
            )
        return reason if reason and not self._told else None
