"""Follows partitions of a source that has come back after a failover, and exports records that only the source has to files.

The exporter takes the place of the in-sync follower of a switch (`fetcher.in_sync`). It begins at the offset where the logs
of source and target part, and tells the source's leader an offset only when all records before it are on the disk. So it
enters the ISR at the log's end, and a link broker can be elected. After that it reads the brokers' own logs, because they
may have taken records for acks=1 at the last moment. By then they are followers, and truncate nothing before the take-over
is written down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from controller.state import Exported
from fetcher.followed import SourceLeader
from linker.switch.export_file import ExportFile
from linker.switch.log_tail import VERSION, Batches, Diverging, LogPlace, LogTails, batches_of
from linker.switch.sync_replicas import OwnerMember
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.error_codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
)
from wire.frames.fetch import FetchPartition, FetchRequest
from wire.frames.leader_epochs import LeaderEpochs
from wire.frames.types import TopicId, TopicPartition
from wire.metadata.image import PartitionImage
from wire.together import together

log = logging.getLogger(__name__)

_CALL: Final = 10.0
_WAIT_MS: Final = 100
_PAUSE: Final = 0.1
_BYTES: Final = 8 << 20
_PARTITION_BYTES: Final = 1 << 20
#: A broker hears of the new leader a moment after us.
_NOT_YET: Final = frozenset({NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH})


class OwnPlace(Protocol):
    """This sidecar as a broker of the source (linker.links.source_sync.SourceSync)."""

    def leader_of(self, tp: TopicPartition) -> SourceLeader | None: ...

    def identity(self) -> tuple[int, int] | None: ...


class ToExport(NamedTuple):
    """A partition of the source. `history`: its leader epochs up to the failover. `exported`: the export that the
    state has."""

    topic_id: TopicId
    history: LeaderEpochs
    exported: Exported | None


class _Part:
    """One partition. `place` is the next place to read, None until it is known where the logs part. `done` is set when
    all is exported."""

    def __init__(self, tp: TopicPartition, wanted: ToExport) -> None:
        self.tp = tp
        self.topic_id = wanted.topic_id
        self.history = wanted.history
        self.place: LogPlace | None = None
        self.file: ExportFile | None = None
        self.epochs: list[tuple[int, int]] = []  # of the batches in the file
        self.done = wanted.exported
        self.reason = "it is not among the replicas at the source yet"
        self.lock = asyncio.Lock()  # guards place and file

    def exported(self) -> LeaderEpochs:
        """The leader epochs of the source's log up to the end of the file."""
        end = self.history.end if self.place is None else self.place.offset
        start = end if self.file is None else self.file.start
        before = [one for one in self.history.before if one[1] < start]
        return LeaderEpochs.of(self.history.own, end, [*before, *self.epochs])


class Exporter:
    """linker.switch.owner.SyncFollower for the topics of one link that are being restored."""

    def __init__(self, source: Cluster, member: OwnerMember, own: OwnPlace, directory: Path) -> None:
        self._source = source
        self._member = member
        self._own = own
        self._directory = directory
        self._tails = LogTails(source, "restore")
        self._parts: dict[TopicPartition, _Part] = {}
        #: Topics that are given back to their brokers, which keep all records that they have.
        self.given_back: Collection[str] = ()

    def follow(self, wanted: Mapping[TopicPartition, ToExport]) -> None:
        """Follow these partitions and no others. A partition whose export is not in the state is exported anew."""
        for tp in self._parts.keys() - wanted.keys():
            del self._parts[tp]
        for tp, one in wanted.items():
            part = self._parts.get(tp)
            if part is None or part.done != one.exported:
                self._parts[tp] = _Part(tp, one)

    def reason(self, tp: TopicPartition) -> str:
        return self._parts[tp].reason if tp in self._parts else ""

    def exported(self, tp: TopicPartition) -> Exported | None:
        """The export of a partition that was stopped."""
        return self._parts[tp].done if tp in self._parts else None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            led: dict[int, list[tuple[_Part, SourceLeader]]] = {}
            for part in self._parts.values():
                leader = None if part.done is not None else self._own.leader_of(part.tp)
                if leader is not None:
                    led.setdefault(leader.node.id, []).append((part, leader))
            well = await together(self._round(node, parts) for node, parts in led.items())
            if not well or not all(well):
                await asyncio.sleep(_PAUSE)

    async def _round(self, node: int, parts: Collection[tuple[_Part, SourceLeader]]) -> bool:
        """One Fetch of all partitions that this broker leads. False: pause before the next one."""
        try:
            for part, leader in parts:
                async with part.lock:
                    if part.place is None and part.done is None:
                        await self._begin(part, node, leader.leader_epoch)
            return await self._fetch(node, parts)
        except (LinkerError, TimeoutError) as error:
            for part, _ in parts:
                part.reason = str(error) or "the source does not answer in time"
            return False

    async def _begin(self, part: _Part, broker: int, leader_epoch: int) -> LogPlace:
        """Find the offset from which on this log differs from the target's."""
        tp = part.tp
        agreed = await self._tails.agreed(
            broker, tp, part.topic_id, part.history, leader_epoch=leader_epoch, timeout=_CALL
        )
        start = max(agreed, (await self._tails.span(broker, tp, timeout=_CALL)).start)
        place = part.place = LogPlace(start, part.history.epoch_below(agreed) if start == agreed else -1)
        part.file, part.epochs = ExportFile(self._directory, tp, start), []
        log.info("%s: the source's records from offset %d on are exported to %s", tp, start, part.file.path)
        return place

    async def _fetch(self, node: int, parts: Collection[tuple[_Part, SourceLeader]]) -> bool:
        identity = self._own.identity()
        asked = {(p.topic_id, p.tp.partition): (p, p.place, at) for p, at in parts if p.place is not None}
        if identity is None or not asked:
            return False
        topics: dict[TopicId | str, list[FetchPartition]] = {}
        for (topic_id, index), (_, place, leader) in asked.items():
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    *(index, leader.leader_epoch, place.offset, place.epoch, place.offset, _PARTITION_BYTES)
                )
            )
        request = FetchRequest(
            VERSION,
            replica_id=identity[0],
            replica_epoch=identity[1],
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=_BYTES,
            session_epoch=-1,
            topics=list(topics.items()),
        )
        frame, answer = await self._source.fetch(node, request, timeout=_CALL, purpose="restore follower")
        if answer.error:
            raise BrokerError(answer.error, api="fetch", version=VERSION, peer=str(node))
        well = True
        for found in answer.partitions:
            part, place, _ = asked[found.key, found.index]  # type: ignore[index]
            async with part.lock:
                if part.place != place or part.done is not None:
                    continue  # stopped meanwhile
                if (
                    found.diverging is not None and found.diverging[1] >= 0
                ) or found.error == OFFSET_OUT_OF_RANGE:
                    part.place = None  # another leader, or retention: find the place again
                elif found.error:
                    part.reason = str(BrokerError(found.error, api="fetch", topic_partition=part.tp))
                    well = False
                else:
                    batches = batches_of(frame, found.records_start, found.records_end, place, part.tp)
                    await self._write(part, batches)
                    part.reason = ""
        return well

    @staticmethod
    async def _write(part: _Part, batches: Batches) -> None:
        if len(batches.data) and part.file is not None:
            await asyncio.to_thread(part.file.append, batches.data)
            part.place = batches.after
            part.epochs += batches.epochs

    # --- linker.switch.owner.SyncFollower

    async def stop(self, tps: Collection[TopicPartition], *, timeout: float) -> Mapping[TopicPartition, int]:
        """Export the rest, once a link broker leads. Returns the offsets at which the failover took over. LinkerError if the
        export is not complete: then no log may be truncated."""
        async with asyncio.timeout(timeout):
            await together(self._finish(self._parts[tp]) for tp in tps)
        return {tp: self._parts[tp].history.end for tp in tps}

    def go_on(self, tps: Iterable[TopicPartition]) -> None:
        """Does nothing: a topic that is given back is not followed any more."""

    async def _finish(self, part: _Part) -> None:
        async with part.lock:
            if part.done is not None:
                return
            link = self._member.link_brokers()
            partition = self._partition(part)
            if partition.leader not in link:
                raise LinkerError(
                    f"{part.tp} cannot be exported to its end yet: its own broker {partition.leader} leads it"
                )
            real = [broker for broker in partition.replicas if broker not in link]
            if part.tp.topic in self.given_back and set(real) & set(partition.isr):
                raise LinkerError(
                    f"{part.tp} is exported no more: it is given back to its brokers with all records that they have"
                )
            for broker in real:
                found = self._member.membership.image.brokers.get(broker)
                if found is None or found.fenced:
                    raise LinkerError(
                        f"{part.tp}: broker {broker} is down and may have records that no other broker has: start it"
                    )
                await self._read_rest(part, broker, partition.leader_epoch)
            if part.place is None or part.file is None:
                raise LinkerError(f"{part.tp}: none of its own brokers is alive: start one")
            file = part.file
            part.done = Exported(file.start, part.place.offset, file.records, file.name)
            log.info("%s: %d records exported, offsets %d to %d", part.tp, file.records, *part.done[:2])

    async def _read_rest(self, part: _Part, broker: int, leader_epoch: int) -> None:
        """Export all that this broker has from the place on, now that it takes no writes."""
        tp = part.tp
        while True:
            try:
                place = part.place or await self._begin(part, broker, leader_epoch)
                found = await self._tails.read(
                    broker, tp, part.topic_id, place, leader_epoch=leader_epoch, timeout=_CALL
                )
            except BrokerError as error:
                if error.code in _NOT_YET:
                    await asyncio.sleep(_PAUSE / 4)
                    continue
                if error.code != OFFSET_OUT_OF_RANGE or part.place is None:
                    raise
                found = Diverging(place.epoch, (await self._tails.span(broker, tp, timeout=_CALL)).end)
            if isinstance(found, Diverging):
                shared = min(part.exported().agreed(*found), place.offset)
                end = (await self._tails.span(broker, tp, timeout=_CALL)).end
                if end > shared:
                    raise LinkerError(
                        f"{tp}: broker {broker} has records of its own, from offset {shared} up to {end}"
                    )
                return  # all that it has was exported already
            if not len(found.data):
                return
            await self._write(part, found)

    def _partition(self, part: _Part) -> PartitionImage:
        partition = self._member.membership.image.partition(part.topic_id, part.tp.partition)
        if partition is None:
            raise LinkerError(f"{part.tp} is gone")
        return partition
