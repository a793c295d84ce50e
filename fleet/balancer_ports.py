"""Protocols of the balancer's inputs and actions; `linker` implements them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.cluster_view import ImageView
from controller.plan.elections import SidecarBroker
from wire.frames.types import TopicPartition

Tps = Collection[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A mirrored partition whose link brokers this controller manages."""

    targets: Sequence[int]  # the real brokers in their order
    rack: str | None = None  # of the source's replica
    movable: bool = True  # False while a promote owns it, or before its start offset and E0 are durable


class BalancerPorts(Protocol):
    """The balancer's inputs and actions. Calls may raise any LinkerError or TimeoutError and are repeated."""

    def image(self) -> ImageView: ...

    def partitions(self) -> Mapping[TopicPartition, Mirrored]:
        """All that are mirrored and not handed over."""
        ...

    def sidecars(self) -> Sequence[SidecarBroker]:
        """`alive`: the member was heard of lately. Whether its broker is unfenced is read from the image."""
        ...

    def link_brokers(self) -> Collection[int]:
        """The broker ids of all sidecars, also of gone ones that may still be listed."""
        ...

    async def wait_changed(self, *, timeout: float) -> None:
        """Return when image, partitions or sidecars changed since the last call, or the time is over."""
        ...

    async def wait_until(self, predicate: Callable[[ImageView], bool], *, timeout: float) -> bool:
        """Evaluate the predicate now and after each replayed record batch; False when the time is over."""
        ...

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, timeout: float
    ) -> None: ...

    async def alter_isr(
        self, wanted: Mapping[TopicPartition, Sequence[int]], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        """On behalf of the leader; error code per partition."""
        ...

    async def elect_preferred(self, tps: Tps, *, timeout: float) -> Mapping[TopicPartition, int]: ...

    async def fence_broker(self, broker_id: int, broker_epoch: int, *, timeout: float) -> bool: ...

    async def move_fence(self, tps: Tps, origin: int, *, timeout: float) -> None:
        """Hold and drain the producers at the old leader."""
        ...

    async def move_done(self, tps: Tps, origin: int, *, timeout: float) -> None:
        """Answer what is held there: with the new leader, or by forwarding if there is none."""
        ...

    async def adopt(self, tps: Tps) -> None:
        """Record the leader that KRaft has elected. No change: no write."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings:
    """Seconds, and how many at a time."""

    link_brokers: int = 3
    most_moves: int = 10  # changes of leader in one round
    most_steps: int = 100  # other steps in one request
    call_timeout: float = 5.0
    hold_timeout: float = 2.0  # draining before a planned move; then it is moved undrained
    look_again: float = 5.0  # between rounds without a change
    rest: float = 0.05  # after a round without a step
    retry_first: float = 0.2
    retry_max: float = 5.0
