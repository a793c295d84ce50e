"""Consumers of a gated group, in process: they do what a client library does, and note what they would read."""

from __future__ import annotations

import asyncio
import itertools
import struct

from tests.fakes.groups.classic import Joined
from tests.fakes.groups.coordinator import CONSUMER_SESSION, FakeGroups

_numbers = itertools.count(1)


class _Client:
    def __init__(
        self, groups: FakeGroups, group: str, topics: tuple[str, ...], *, stable: bool = True
    ) -> None:
        self.groups = groups
        self.group = group
        self.topics = topics
        self.stable = stable  # it asks for stable offsets
        self.owned: set[tuple[str, int]] = set()
        #: Where it began to read, by partition; -1: where nothing was committed.
        self.reads: dict[tuple[str, int], int] = {}

    def _read(self) -> None:
        for place in self.owned - self.reads.keys():
            if self.stable and self.groups.offsets.unstable(self.group, place):
                continue
            found = self.groups.offsets.get(self.group, place)
            self.reads[place] = -1 if found is None else found.offset
        for place in self.reads.keys() - self.owned:
            del self.reads[place]


class ConsumerClient(_Client):
    """Of the consumer protocol. `step` is a heartbeat and what follows from it."""

    def __init__(
        self, groups: FakeGroups, group: str, topics: tuple[str, ...], *, stable: bool = True
    ) -> None:
        super().__init__(groups, group, topics, stable=stable)
        self.member_id = f"client-{next(_numbers)}"
        self.epoch = 0

    def step(self) -> None:
        code, member, _ = self.groups.consumer_group(self.group).heartbeat(
            self.member_id,
            self.epoch,
            self.groups.now,
            CONSUMER_SESSION,
            client_id="app",
            topics=self.topics,
            owned=set() if self.epoch == 0 else self.owned,
        )
        if code or member is None:
            self.epoch, self.owned = 0, set()
            return
        self.epoch = member.epoch
        self.owned = set(member.assigned)  # a revocation is done by the next heartbeat
        self._read()

    def leave(self) -> None:
        self.groups.consumer_group(self.group).leave(self.member_id)
        self.epoch, self.owned = 0, set()
        self.reads.clear()


class ClassicClient(_Client):
    """Of the classic protocol. `step` goes on as far as answers are there."""

    def __init__(
        self, groups: FakeGroups, group: str, topics: tuple[str, ...], *, stable: bool = True
    ) -> None:
        super().__init__(groups, group, topics, stable=stable)
        self.member_id = ""
        self.generation = -1
        self._joining: asyncio.Future[Joined] | None = None
        self._syncing: asyncio.Future[tuple[int, bytes]] | None = None

    def step(self) -> None:
        group = self.groups.classic_group(self.group)
        for _ in range(3):
            if self._joining is None and self._syncing is None:
                if self.generation >= 0 and not group.heartbeat(
                    self.member_id, self.generation, self.groups.now
                ):
                    self._read()
                    return
                self.generation, self.owned = -1, set()
                self._joining = group.join(
                    self.member_id, "app", ["range"], CONSUMER_SESSION, self.groups.now, True
                )
            if self._joining is not None and self._joining.done():
                self._take_joined()
            if self._syncing is not None and self._syncing.done():
                self._take_synced()
        self._read()

    def _take_joined(self) -> None:
        joining, self._joining = self._joining, None
        if joining is None or joining.cancelled():
            self.member_id = ""
            return
        answer = joining.result()
        self.member_id = answer.member_id
        if answer.error:
            return
        group = self.groups.classic_group(self.group)
        given = {}
        for place, member in enumerate(answer.members):
            mine = [
                (topic, [i for i in self.groups.partitions(topic) if i % len(answer.members) == place])
                for topic in self.topics
            ]
            given[member] = encode_assignment(mine)
        self.generation = answer.generation
        self._syncing = group.sync(self.member_id, answer.generation, given, self.groups.now)

    def _take_synced(self) -> None:
        syncing, self._syncing = self._syncing, None
        if syncing is None or syncing.cancelled():
            self.member_id, self.generation = "", -1
            return
        code, assignment = syncing.result()
        if code:
            self.generation = -1
            return
        from groups.gates.requests import assigned_partitions

        self.owned = {(tp.topic, tp.partition) for tp in assigned_partitions(assignment)}


def encode_assignment(topics: list[tuple[str, list[int]]]) -> bytes:
    """ConsumerProtocolAssignment version 0."""
    parts = [struct.pack(">hi", 0, len(topics))]
    for topic, indexes in topics:
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
        parts.append(struct.pack(f">i{len(indexes)}i", len(indexes), *indexes))
    parts.append(struct.pack(">i", -1))
    return b"".join(parts)
