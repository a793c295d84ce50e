"""The copies of a link: those of this sidecar's fetcher, and those that other sidecars report.

They serve status and metrics only. A promote asks again before it decides (fleet.progress).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.judge.hand_over import find
from fetcher.partition_copy import PartitionCopy
from fleet.fleet_controller import FleetController
from fleet.progress import CopiedPartition, FollowerOffset, ReceivedReport
from linker.fleet.clock import lease_clock
from linker.links.link_part import LinkContext, LinkPart
from wire.frames.types import TopicPartition

#: Seconds. Reports come every second; one that is older says nothing about now.
_STALE = 3.0


class FollowerView(FollowerOffset, Protocol):
    @property
    def broker_epoch(self) -> int: ...
    @property
    def last_fetch_monotonic(self) -> float: ...
    @property
    def caught_up_monotonic(self) -> float: ...
    @property
    def refused(self) -> int:
        """How often in a row it asked again for what it had been answered; 0 if that is not known here."""
        ...

    @property
    def restarts(self) -> tuple[tuple[int, float], ...]:
        """Where it was first seen, and each time it asked for less than before: offset, monotonic."""
        ...


class CopyView(CopiedPartition, Protocol):
    """The common part of PartitionCopy and RemoteCopy."""

    @property
    def followers(self) -> Mapping[int, FollowerView]: ...
    @property
    def failed(self) -> str | None: ...
    @property
    def trouble(self) -> str | None: ...
    @property
    def loaded_since(self) -> float | None:
        """Monotonic: since when followers are served; None if that is not known here."""
        ...

    @property
    def bytes_fetched(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFollower:
    fetch_offset: int
    broker_epoch: int
    last_fetch_monotonic: float
    caught_up_monotonic: float
    restarts: tuple[tuple[int, float], ...]
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCopy:
    loaded: bool
    high_watermark: int
    log_start_offset: int
    end_known: bool
    followers: Mapping[int, RemoteFollower]
    failed: str | None
    trouble: str | None
    bytes_fetched: int
    loaded_since: float | None = None


class Copies(LinkPart):
    """The copies of one link."""

    def __init__(
        self,
        context: LinkContext,
        local: Mapping[TopicPartition, PartitionCopy],
        sidecar_of: Callable[[int], int] = lambda broker: broker,
    ) -> None:
        """`sidecar_of`: the sidecar that is this broker of the mirrors' cluster."""
        super().__init__(context)
        self._sidecar_of = sidecar_of
        self._local = local

    def get(self, tp: TopicPartition) -> CopyView | None:
        """None where nobody serves it, or nobody has told us."""
        partition = find(self._target.image, tp)
        leader = None if partition is None else partition.leader
        local = self._local.get(tp)
        fleet_controller = self._fleet_controller()
        if fleet_controller is None or leader == self._target.broker_id or leader is None or leader < 0:
            return local
        noted = self._noted(fleet_controller, tp, leader)
        if noted is None or lease_clock() - noted.at > _STALE:
            return None  # what was true then is no lag of now
        return _remote(noted)

    def _noted(
        self, fleet_controller: FleetController, tp: TopicPartition, leader: int
    ) -> ReceivedReport | None:
        noted = fleet_controller.book.get(self._link, tp)
        return None if noted is None or noted.by != self._sidecar_of(leader) else noted

    def silent(self, tp: TopicPartition) -> str | None:
        """Why nothing is known of a partition that another sidecar leads, or nobody; None if that is not it."""
        partition = find(self._target.image, tp)
        fleet_controller = self._fleet_controller()
        if partition is None or fleet_controller is None or partition.leader == self._target.broker_id:
            return None
        if partition.leader < 0:
            isr = ", ".join(map(str, sorted(partition.isr)))
            return f"nobody leads it: of its ISR ({isr}) no sidecar is there"
        sidecar = self._sidecar_of(partition.leader)
        if sidecar not in fleet_controller.controller.image.identities:
            return None
        noted = self._noted(fleet_controller, tp, partition.leader)
        heard = fleet_controller.heard_ago(sidecar)
        told = "" if noted is None else f"; its last report is {lease_clock() - noted.at:.1f} s old"
        if heard is None or sidecar not in fleet_controller.members:
            since = "" if heard is None else f" for {heard:.1f} s"
            return f"sidecar {sidecar}, which leads it, is away{since}{told}"
        return f"sidecar {sidecar}, which leads it, has not reported on it{told or ' yet'}"


def _remote(noted: ReceivedReport) -> RemoteCopy:
    copy = noted.copy
    made = time.monotonic() - (lease_clock() - noted.at)

    def moment(ago: float | None) -> float:
        return 0.0 if ago is None else made - ago

    return RemoteCopy(
        loaded=copy.loaded,
        end_known=copy.end_known,
        high_watermark=copy.high_watermark,
        log_start_offset=copy.log_start_offset,
        followers={
            broker: RemoteFollower(
                fetch_offset=follower.fetch_offset,
                broker_epoch=follower.broker_epoch,
                last_fetch_monotonic=moment(follower.silent),
                caught_up_monotonic=moment(follower.behind),
                restarts=tuple((offset, made - ago) for offset, ago in follower.restarts),
            )
            for broker, follower in copy.followers.items()
        },
        failed=copy.failed,
        trouble=copy.trouble,
        bytes_fetched=copy.bytes_fetched,
    )
