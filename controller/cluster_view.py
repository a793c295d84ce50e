"""The parts of the target's metadata image that this package reads. `wire.metadata.image.ClusterImage` has them.

Protocols instead of the class, because the functions here read a handful of fields, and tests give them just those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class PartitionView(Protocol):
    @property
    def replicas(self) -> Sequence[int]: ...
    @property
    def isr(self) -> Sequence[int]: ...
    @property
    def adding(self) -> Sequence[int]: ...
    @property
    def removing(self) -> Sequence[int]: ...
    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...


class TopicView(Protocol):
    @property
    def id(self) -> bytes: ...
    @property
    def partitions(self) -> Mapping[int, PartitionView]: ...


class BrokerView(Protocol):
    @property
    def epoch(self) -> int: ...
    @property
    def fenced(self) -> bool: ...
    @property
    def in_controlled_shutdown(self) -> bool: ...


class ImageView(Protocol):
    @property
    def topics_by_name(self) -> Mapping[str, TopicView]: ...
    @property
    def brokers(self) -> Mapping[int, BrokerView]: ...
