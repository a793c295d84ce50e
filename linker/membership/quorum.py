"""The quorum as the controllers' answers show it: its epoch, its leader, its cluster.

The epoch never goes back: an answer with an older one is ignored, as `KafkaRaftClient` does.
"""

from __future__ import annotations

import enum
from typing import Any

from linker.membership.controller_channel import ControllerChannel
from linker.membership.discovery import ActiveController
from linker.membership.errors import ClusterIdChanged, check_error
from wire.frames.error_codes import (
    FENCED_LEADER_EPOCH,
    INCONSISTENT_CLUSTER_ID,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_LEADER_EPOCH,
)

_EPOCH_ERRORS = frozenset({FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER})


class QuorumVerdict(enum.Enum):
    """The action that an answer's error code asks for."""

    TAKE = "the answer holds what was asked for"
    ASK_AGAIN = "same leader, newer epoch: ask again at once"
    PAUSE = "the leader is another one, or unknown"


class Quorum:
    """The quorum, as far as it is known."""

    def __init__(self, channel: ControllerChannel) -> None:
        self._channel = channel
        #: Named in every request, so that a controller of another cluster refuses it; None: not known yet.
        self.cluster_id: str | None = None
        self.epoch = 0

    def heard(self, epoch: int) -> bool:
        """Note an epoch that an answer names. True if it is newer than the known one."""
        newer = epoch > self.epoch
        if newer:
            self.epoch = epoch
        return newer

    def check_top_level(self, code: int, api: str, active: ActiveController) -> None:
        """Raise for an error that is about the whole answer. If it says that the controller leads no more, note that."""
        if code == INCONSISTENT_CLUSTER_ID:
            raise ClusterIdChanged(
                f"{self._channel.cluster_name}: the controller at {active.address} belongs to another "
                f"cluster than {self.cluster_id}"
            )
        if code in _EPOCH_ERRORS:
            self._channel.moved(active)
        check_error(code, api, self._channel.cluster_name)

    def check_partition(self, partition: Any, api: str, active: ActiveController) -> QuorumVerdict:
        """Take leader and epoch from the answer. Returns whether it also holds records, or what to do otherwise."""
        code = int(partition.error_code)
        leader = partition.current_leader
        newer = self.heard(leader.leader_epoch)
        if code in _EPOCH_ERRORS:
            if leader.leader_id == active.id and newer:
                return QuorumVerdict.ASK_AGAIN
            self._channel.moved(active, leader_id=leader.leader_id, epoch=leader.leader_epoch)
            return QuorumVerdict.PAUSE
        check_error(code, api, self._channel.cluster_name)
        return QuorumVerdict.TAKE
