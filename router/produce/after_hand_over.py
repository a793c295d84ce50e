"""Clients whose writes go on to the target's new leaders until every broker names these leaders.

Not here: when that begins and ends (`forwarding.py`, and what tells it), the lanes' part (`fence.py`), connections
(`routes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

from router.clients_seen import Seen
from router.leadership import current_leader
from router.ports import RouterPorts
from wire.frames.types import Node, TopicPartition

log = logging.getLogger(__name__)


class CarriedClient(Seen, Protocol):
    """A client's forwarding (``session.ProduceSession``)."""

    def expect_leaders(self, leaders: Mapping[TopicPartition, Node]) -> None:
        """These real brokers of the target are likely to lead soon."""


class AfterHandOver:
    """The state that all clients share."""

    def __init__(self, ports: RouterPorts, most: int) -> None:
        """most: clients at a time. Each costs connections to the new leaders, and it is faster for many of them to
        find those themselves.
        """
        self._ports = ports
        self._most = most
        self._chosen: set[CarriedClient] = set()
        self.clients: dict[CarriedClient, None] = {}  # in the order they came
        self.refused: str | None = None  # why the target does not take the sidecar's writes

    def joined(self, client: CarriedClient) -> None:
        self.clients[client] = None

    def left(self, client: CarriedClient) -> None:
        self.clients.pop(client, None)
        self._chosen.discard(client)

    def chosen(self, client: CarriedClient) -> bool:
        """Whether this client is carried; it is from now on, if there is room."""
        if client not in self._chosen and len(self._chosen) < self._most:
            self._chosen.add(client)
        return client in self._chosen

    def expect(self, tps: Iterable[TopicPartition], *, anew: bool) -> None:
        """A hand-over of these may follow: connections to those who will lead then are opened while clients wait anyway.

        anew: nothing is carried just now, so clients are chosen again, and a target that refused is asked again.
        """
        if anew:
            self._chosen.clear()
            self.refused = None
        if self.refused is None:
            leaders = {tp: node for tp in tps if (node := self._next_leader(tp)) is not None}
            for client in sorted(self.clients, key=lambda one: -one.last_request):  # those at work come first
                client.expect_leaders(leaders)

    def refuse(self, reason: str) -> None:
        if self.refused is None:
            log.warning(
                "after a promote producers are sent to the new leaders at once, and their writes are not carried there: %s",
                reason,
            )
        self.refused = reason

    def handed_over(self, tp: TopicPartition) -> bool:
        """Whether a real broker leads it, as our copy of the metadata log has it."""
        mirror = self._ports.mirrors.by_name(tp.topic)
        partition = None if mirror is None else mirror.partition(tp.partition)
        if partition is not None and partition.taking:
            return False  # it leads it still
        leader = current_leader(self._ports.image(), tp)
        return leader is not None and leader[0] >= 0 and leader[0] not in self._ports.link_brokers()

    def leader(self, tp: TopicPartition) -> Node | None:
        """The real broker that leads it by the metadata log; None while there is none, or none that is known."""
        leader = current_leader(self._ports.image(), tp)
        if leader is None or leader[0] in self._ports.link_brokers():
            return None
        return self._ports.target().nodes.get(leader[0])

    def _next_leader(self, tp: TopicPartition) -> Node | None:
        """The first real broker among the replicas (controller.judge.hand_over)."""
        topic = self._ports.image().topics_by_name.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        if partition is None:
            return None
        links = self._ports.link_brokers()
        first = next((broker for broker in partition.replicas if broker not in links), -1)
        return self._ports.target().nodes.get(first)
