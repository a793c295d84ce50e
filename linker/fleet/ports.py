"""Adapters: the router's lease, fences from the state, and the member's commands.

Fences follow the state. A partition whose phase says that a promote holds it is fenced here, whatever the source of
the state: a delta, a whole image after a new connection, or the store itself. Commands add the one fact that a phase
cannot express: everything in flight has been drained.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from controller.image import ControllerImage
from controller.judge.hand_over import find
from controller.phases import HELD, LED_ELSEWHERE, Phase
from controller.state import MirrorPartition, Record, RemoveLink, RemoveMirror
from fleet.lease import Lease
from fleet.progress import CopyReport, FollowerReport
from linker.fleet.clock import lease_clock
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage
from wire.together import together

if TYPE_CHECKING:
    from fetcher.partition_copy import PartitionCopy
    from linker.fleet.hand_overs import HandOvers
    from linker.links.source_sync import SourceSync
    from linker.membership import TargetCluster
    from router.dispatch import Router

_LEADER_KNOWN = 0.5


class RouterLease:
    """router.ports.LeasePort over the member's lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @property
    def term(self) -> int:
        return self._lease.term

    def valid(self) -> bool:
        return self._lease.valid(lease_clock())

    def covers(self, term: int) -> bool:
        return self._lease.covers(term, lease_clock())

    def proven_since(self, moment: float) -> bool:
        return self._lease.proven_since(moment)

    def now(self) -> float:
        return lease_clock()


class StateFences:
    """Keeps the router's fences as the partitions' phases say. A listener of the controller."""

    def __init__(
        self,
        router: Router,
        state: Callable[[], ControllerImage],
        fenced: Callable[[Iterable[TopicPartition]], None],
        at: str = "",
    ) -> None:
        """fenced: told what was fenced just now; the metadata log may have its hand-over already (HandOvers.look). at: the
        router's cluster, as `Link.at`."""
        self._at = at
        self._router = router
        self._state = state
        self._fenced = fenced
        self._known: dict[TopicPartition, Phase] = {}

    def on_records(self, records: Sequence[Record]) -> None:
        """Apply committed records; the whole image if there are none."""
        if not records or any(isinstance(record, RemoveMirror | RemoveLink) for record in records):
            self.rebuild()
        else:
            self._follow(record for record in records if isinstance(record, MirrorPartition))

    def rebuild(self) -> None:
        """Apply the whole image; before any client is served, and after every change of role or connection."""
        state = self._state()
        gone = self._known.keys() - {tp for link, tp in state.partitions if state.at(link) == self._at}
        for tp in gone:
            del self._known[tp]
        self._router.unfence(gone)
        self._follow(state.partitions.values(), again=True)

    def _follow(self, states: Iterable[MirrorPartition], *, again: bool = False) -> None:
        fenced: list[TopicPartition] = []
        over: list[TopicPartition] = []
        opened: list[TopicPartition] = []
        image = self._state()
        for state in states:
            if image.at(state.link) != self._at:
                continue
            if not again and self._known.get(state.tp) is state.phase:
                continue  # only a change of phase: a command may have gone ahead of the state
            self._known[state.tp] = state.phase
            (over if state.phase in LED_ELSEWHERE else fenced if state.phase in HELD else opened).append(
                state.tp
            )
        if fenced:
            self._router.hold(fenced)
            self._fenced(fenced)
        if over:
            self._router.led_elsewhere(over)
        if opened:
            self._router.unfence(opened)


class LinkCopies(Protocol):
    """The part of a LinkRuntime that is needed here."""

    @property
    def sync(self) -> SourceSync: ...
    def served(self) -> Mapping[TopicPartition, PartitionCopy]: ...


class ClusterPorts:
    """The effects in one cluster. Made before the router: writes that were never forwarded need not be drained."""

    def __init__(self, broker_id: int, state: Callable[[], ControllerImage]) -> None:
        self._broker_id = broker_id
        self.state = state
        self.router: Router | None = None
        self.links: Mapping[str, LinkCopies] = {}
        self.target: TargetCluster | None = None
        self.hand_overs: HandOvers | None = None
        self.link_brokers: Callable[[], Collection[int]] = frozenset

    async def fence(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        if self.router is None:
            return
        partitions = self.state().partitions
        given_up = {
            tp for tp in tps if (s := partitions.get((link, tp))) is not None and s.failover is not None
        }
        if given_up:
            # The state came ahead of the command: there is no answer of that source to wait for.
            self.router.cut(given_up)
        rest = [tp for tp in tps if tp not in given_up]
        # Not before a planned move of leadership, which fences too.
        self.router.expect_hand_over(
            tp for tp in tps if (s := partitions.get((link, tp))) is not None and s.phase in HELD
        )
        if rest:
            await self.router.fence(rest, timeout=timeout)
        if self.hand_overs is not None:
            self.hand_overs.look(tps)

    async def unfence(self, link: str, tps: Collection[TopicPartition]) -> None:
        if self.router is not None:
            self.router.unfence(tps)

    async def release(self, link: str, tps: Collection[TopicPartition]) -> None:
        if self.router is not None:
            partitions = self.state().partitions
            phases = {tp: s.phase for tp in tps if (s := partitions.get((link, tp))) is not None}
            self.router.unfence(tp for tp in tps if phases.get(tp) not in HELD | LED_ELSEWHERE)

    async def handed_over(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        """Clients learn the new leader from our own copy of the metadata: allow a moment for it to arrive."""
        if self.target is None or self.hand_overs is None:
            return
        links = self.link_brokers()
        # Otherwise the clients look for it themselves, which takes them a little longer.
        with contextlib.suppress(LinkerError):
            await self.target.metadata.wait_for(
                lambda image: True if all(_led_elsewhere(image, tp, links) for tp in tps) else None,
                min(timeout, _LEADER_KNOWN),
            )
        await self.hand_overs.released(tps, timeout=timeout)

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        if self.router is not None:
            await self.router.answered(tps, timeout=timeout)

    async def stop_following(
        self, link: str, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        if link not in self.links:
            raise LinkerError(f"link {link} does not run here")
        return await self.links[link].sync.stop(tps, timeout=timeout)

    def follow_again(self, link: str, tps: Collection[TopicPartition]) -> None:
        if link in self.links:
            self.links[link].sync.begin(tps)

    def marks(self) -> dict[str, dict[TopicPartition, int]]:
        """The marks of all copies. Asked for again and again, so only attributes and look-ups are used; and plain
        numbers, since the garbage collector's pass over thousands of tuples costs more than making them."""
        found: dict[str, dict[TopicPartition, int]] = {}
        topics = {} if self.target is None else self.target.image.topics_by_id
        written = None if self.router is None else self.router.forwarded
        for name, runtime in self.links.items():
            marks = found[name] = {}
            for tp, copy in runtime.served().items():
                topic = topics.get(copy.spec.topic_id)
                partition = None if topic is None else topic.partitions.get(tp.partition)
                forwarded = None if written is None else written.get(tp)
                mark = (
                    None if partition is None else (partition.leader, partition.leader_epoch),
                    copy.loaded,
                    copy.end_known,
                    copy.heard,
                    copy.high_watermark,
                    copy.log_start_offset,
                    copy.failed,
                    copy.trouble,
                    copy.bytes_fetched,
                    copy.bytes_served,
                    0 if forwarded is None else forwarded.end,
                    *[(one.fetch_offset, one.broker_epoch) for one in copy.followers.values()],
                )
                marks[tp] = hash(mark)
        return found

    def copies(self, link: str | None, tps: Collection[TopicPartition]) -> list[CopyReport]:
        now = time.monotonic()
        found: list[CopyReport] = []
        for name, runtime in self.links.items():
            if link is not None and name != link:
                continue
            served = runtime.served()
            chosen = served.items() if link is None else ((tp, served[tp]) for tp in tps if tp in served)
            for tp, copy in chosen:
                report = self._report(name, tp, copy, now)
                if report is not None:
                    found.append(report)
            if link is not None:
                found += self._given_up(name, [tp for tp in tps if tp not in served])
        return found

    def _given_up(self, link: str, tps: Iterable[TopicPartition]) -> Iterable[CopyReport]:
        """A partition that is failed over has no copy for a while, but its acknowledged offsets are known."""
        for tp in tps:
            state = self.state().partitions.get((link, tp))
            partition = None if self.target is None else find(self.target.image, tp)
            forwarded = None if self.router is None else self.router.forwarded.get(tp)
            if (
                state is not None
                and state.failover is not None
                and forwarded is not None
                and partition is not None
                and partition.leader == self._broker_id
            ):
                yield CopyReport(
                    link=link,
                    topic=tp.topic,
                    partition=tp.partition,
                    leader_epoch=partition.leader_epoch,
                    loaded=False,
                    high_watermark=-1,
                    log_start_offset=-1,
                    forwarded=forwarded.offsets,
                    acked_end=forwarded.end,
                )

    def _report(self, link: str, tp: TopicPartition, copy: PartitionCopy, now: float) -> CopyReport | None:
        partition = (
            None if self.target is None else self.target.image.partition(copy.spec.topic_id, tp.partition)
        )
        if partition is None or partition.leader != self._broker_id:
            return None
        forwarded = None if self.router is None else self.router.forwarded.get(tp)
        return CopyReport(
            link=link,
            topic=tp.topic,
            partition=tp.partition,
            leader_epoch=partition.leader_epoch,
            loaded=copy.loaded,
            end_known=copy.end_known,
            heard=copy.heard,
            high_watermark=copy.high_watermark,
            log_start_offset=copy.log_start_offset,
            followers={
                broker: FollowerReport(
                    fetch_offset=follower.fetch_offset,
                    broker_epoch=follower.broker_epoch,
                    silent=_ago(follower.last_fetch_monotonic, now),
                    behind=_ago(follower.caught_up_monotonic, now),
                    restarts=tuple((offset, max(0.0, now - at)) for offset, at in follower.restarts),
                )
                for broker, follower in copy.followers.items()
            },
            failed=copy.failed,
            trouble=copy.trouble,
            bytes_fetched=copy.bytes_fetched,
            bytes_served=copy.bytes_served,
            forwarded=0 if forwarded is None else forwarded.offsets,
            acked_end=0 if forwarded is None else forwarded.end,
        )

    def lease_renewed(self) -> None:
        if self.router is not None:
            self.router.lease_renewed()


class SidecarPorts:
    """fleet.member.MemberPorts: of each cluster that the sidecar is a broker of, by `Link.at`."""

    def __init__(self, state: Callable[[], ControllerImage], target: ClusterPorts) -> None:
        self._state = state
        self.clusters: dict[str, ClusterPorts] = {"": target}

    def _of(self, link: str) -> ClusterPorts | None:
        """None: the sidecar has not joined that cluster, and holds nothing of it."""
        return self.clusters.get(self._state().at(link))

    async def fence(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        if (cluster := self._of(link)) is not None:
            await cluster.fence(link, tps, timeout=timeout)

    async def unfence(self, link: str, tps: Collection[TopicPartition]) -> None:
        if (cluster := self._of(link)) is not None:
            await cluster.unfence(link, tps)

    async def release(self, link: str, tps: Collection[TopicPartition]) -> None:
        if (cluster := self._of(link)) is not None:
            await cluster.release(link, tps)

    async def handed_over(self, link: str, tps: Collection[TopicPartition], *, timeout: float) -> None:
        if (cluster := self._of(link)) is not None:
            await cluster.handed_over(link, tps, timeout=timeout)

    async def answered(self, tps: Collection[TopicPartition], *, timeout: float) -> None:
        await together(cluster.answered(tps, timeout=timeout) for cluster in self.clusters.values())

    async def stop_following(
        self, link: str, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        if (cluster := self._of(link)) is None:
            raise LinkerError(f"the cluster of link {link}'s mirrors has not been joined")
        return await cluster.stop_following(link, tps, timeout=timeout)

    def follow_again(self, link: str, tps: Collection[TopicPartition]) -> None:
        if (cluster := self._of(link)) is not None:
            cluster.follow_again(link, tps)

    def marks(self) -> dict[str, dict[TopicPartition, int]]:
        return {link: marks for cluster in self.clusters.values() for link, marks in cluster.marks().items()}

    def copies(self, link: str | None, tps: Collection[TopicPartition]) -> list[CopyReport]:
        if link is None:
            return [one for cluster in self.clusters.values() for one in cluster.copies(None, tps)]
        cluster = self._of(link)
        return [] if cluster is None else cluster.copies(link, tps)

    def lease_renewed(self) -> None:
        for cluster in self.clusters.values():
            cluster.lease_renewed()


def _led_elsewhere(image: ClusterImage, tp: TopicPartition, link_brokers: Collection[int]) -> bool:
    partition = find(image, tp)
    return partition is None or partition.leader not in link_brokers


def _ago(moment: float, now: float) -> float | None:
    return max(0.0, now - moment) if moment > 0 else None
