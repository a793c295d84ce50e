"""LinkController: every decision about link state, with its arguments.

The decisions themselves are in `controller.decide`; reads use `controller.image`, free at any time between awaits.
Decisions are carried out by `stored_controller`, or by `shared_controller` for a sidecar of a fleet.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from controller.access.acls import Acl
from controller.decide import acls, failovers, groups, growth, mirrors, promotes, validations
from controller.decide.mirrors import Leadership
from controller.errors import NotFound
from controller.image import ControllerImage
from controller.phases import Phase
from controller.proof import PromoteEvidence, ValidationPolicy
from controller.state import (
    AbortedTransaction,
    Attempt,
    JobStatus,
    JsonValue,
    Link,
    MirrorPartition,
    MirrorTopic,
    ProducerIdFloor,
    PromoteJob,
    Record,
    RemoveSidecar,
    SidecarIdentity,
)
from wire.frames.types import TopicId, TopicPartition

T = TypeVar("T")


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LinkController(ABC):
    """All changes of link state."""

    def __init__(self, now: Callable[[], int] = wall_clock_ms) -> None:
        self._now = now
        #: Called with the committed records; with none after the image was read anew, when anything may differ.
        self.listeners: set[Callable[[Sequence[Record]], None]] = set()

    @property
    @abstractmethod
    def image(self) -> ControllerImage:
        """The state as of the last commit that is known here."""

    @property
    @abstractmethod
    def controller_epoch(self) -> int:
        """Of the controller whose commits these are."""

    @abstractmethod
    async def refresh(self) -> None:
        """After a commit with an unknown outcome: read the store's state."""

    @abstractmethod
    async def decide(
        self, decide: Callable[[ControllerImage], tuple[Sequence[Record], T]], dry_run: bool = False
    ) -> T:
        """Run one decision; its records are committed and replayed, or an error says why not."""

    def _tell(self, records: Sequence[Record]) -> None:
        for listener in tuple(self.listeners):
            listener(records)

    # Links.

    async def create_link(
        self,
        name: str,
        source_cluster_id: str,
        properties: Mapping[str, str],
        options: Mapping[str, JsonValue] | None = None,
        *,
        dry_run: bool = False,
    ) -> Link:
        link = Link(
            name=name,
            source_cluster_id=source_cluster_id,
            properties=dict(properties),
            options=dict(options or {}),
            created_at=self._now(),
        )
        await self.decide(lambda image: (mirrors.create_link(image, link), None), dry_run)
        return link

    async def update_link(
        self,
        name: str,
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        await self.decide(
            lambda image: (mirrors.update_link(image, name, properties, options), None), dry_run
        )

    async def delete_link(self, name: str, *, force: bool = False, dry_run: bool = False) -> None:
        """SourceClosed, unless forced, if the source still refuses writes because of an abandoned promote."""

        def decide(image: ControllerImage) -> tuple[list[Record], None]:
            records = mirrors.delete_link(image, name, force)
            groups.refuse_while_moving(image, name)
            return records, None

        await self.decide(decide, dry_run)

    # Mirrors.

    async def create_mirror(
        self, mirror: MirrorTopic, states: Sequence[MirrorPartition] | None = None, *, dry_run: bool = False
    ) -> None:
        """Without states every partition starts LINKING."""
        chosen = self._linking(mirror) if states is None else states
        await self.decide(lambda image: (mirrors.create_mirror(image, mirror, chosen), None), dry_run)

    async def create_mirrors(self, wanted: Sequence[MirrorTopic]) -> None:
        """All of them in one commit, every partition LINKING."""
        chosen = [(mirror, self._linking(mirror)) for mirror in wanted]
        await self.decide(lambda image: (mirrors.create_mirrors(image, chosen), None))

    async def grow_mirror(
        self, link: str, topic: str, partitions: int, replicas: Sequence[Sequence[int]]
    ) -> None:
        """The source has added partitions: they are LINKING, and part of a promote that is under way."""
        now = self._now()
        await self.decide(
            lambda image: (
                growth.grow_mirror(image, link, topic, partitions, replicas, now, self.controller_epoch),
                None,
            )
        )

    def _linking(self, mirror: MirrorTopic) -> list[MirrorPartition]:
        now = self._now()
        return [
            MirrorPartition(
                link=mirror.link,
                topic=tp.topic,
                partition=tp.partition,
                since=now,
                controller_epoch=self.controller_epoch,
            )
            for tp in mirror.topic_partitions()
        ]

    async def bind_mirror(self, link: str, topic: str, topic_id: TopicId) -> None:
        await self.bind_mirrors(link, {topic: topic_id})

    async def bind_mirrors(self, link: str, ids: Mapping[str, TopicId]) -> None:
        await self.decide(lambda image: (mirrors.bind_mirrors(image, link, ids), None))

    async def note_upstream(self, link: str, found: Mapping[str, tuple[str, ...]]) -> None:
        await self.decide(lambda image: (mirrors.note_upstream(image, link, found), None))

    async def plan_mirror_configs(
        self, link: str, topic: str, create: Mapping[str, str], restore: Mapping[str, str | None]
    ) -> None:
        await self.decide(
            lambda image: (mirrors.plan_mirror_configs(image, link, topic, create, restore), None)
        )

    async def note_acls(self, link: str, *, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Before they are made at the target, and after they are removed there."""
        await self.decide(lambda image: (acls.note_acls(image, link, add=add, remove=remove), None))

    async def delete_mirror(
        self, link: str, topic: str, *, force: bool = False, dry_run: bool = False
    ) -> None:
        """SourceClosed, unless forced, as for `delete_link`."""
        await self.decide(lambda image: (mirrors.delete_mirror(image, link, topic, force), None), dry_run)

    async def establish(
        self,
        link: str,
        tp: TopicPartition,
        *,
        leadership: Leadership,
        session_epoch: int,
        start_offset: int,
    ) -> None:
        """LINKING -> ACTIVE: leadership, E0 and start offset are known and kept."""
        now = self._now()
        await self.decide(
            lambda image: (
                mirrors.establish(image, link, tp, leadership, session_epoch, start_offset, now),
                None,
            )
        )

    async def establish_all(self, link: str, ready: Mapping[TopicPartition, mirrors.Establishment]) -> None:
        """LINKING -> ACTIVE for all of them that are LINKING still, in one commit."""
        now = self._now()
        await self.decide(lambda image: (mirrors.establish_all(image, link, ready, now), None))

    async def adopt_leadership(self, link: str, changes: Mapping[TopicPartition, Leadership]) -> None:
        await self.decide(
            lambda image: (mirrors.adopt_leadership(image, link, changes, self.controller_epoch), None)
        )

    async def follow_replicas(self, link: str, moved: Mapping[TopicPartition, Sequence[int]]) -> None:
        await self.decide(lambda image: (mirrors.follow_replicas(image, link, moved), None))

    async def add_source_epoch(self, link: str, tp: TopicPartition, epoch: int, start_offset: int) -> None:
        await self.decide(
            lambda image: (mirrors.add_source_epoch(image, link, tp, epoch, start_offset), None)
        )

    async def set_source_epochs(
        self, link: str, tp: TopicPartition, epochs: Sequence[tuple[int, int]]
    ) -> None:
        await self.decide(lambda image: (mirrors.set_source_epochs(image, link, tp, epochs), None))

    async def set_untruncated(
        self, link: str, tp: TopicPartition, replicas: Iterable[tuple[int, int]]
    ) -> None:
        chosen = tuple(replicas)
        await self.decide(lambda image: (mirrors.set_untruncated(image, link, tp, chosen), None))

    async def pause(self, link: str, topic: str, *, dry_run: bool = False) -> None:
        now = self._now()
        await self.decide(lambda image: (mirrors.set_paused(image, link, topic, True, now), None), dry_run)

    async def resume(self, link: str, topic: str, *, dry_run: bool = False) -> None:
        now = self._now()
        await self.decide(lambda image: (mirrors.set_paused(image, link, topic, False, now), None), dry_run)

    async def fail_partition(self, link: str, tp: TopicPartition, reason: str) -> None:
        now = self._now()
        await self.decide(lambda image: (mirrors.fail_partition(image, link, tp, reason, now), None))

    async def restart_partition(self, link: str, tp: TopicPartition) -> None:
        now = self._now()
        await self.decide(lambda image: (mirrors.restart_partition(image, link, tp, now), None))

    # Promote. Only the promote driver calls the last three.

    async def begin_promote(
        self,
        link: str,
        topics: Sequence[str] | None = None,
        *,
        validation: ValidationPolicy = ValidationPolicy.SKIP,
        accept_missing: int = 0,
        requested_by: str | None = None,
        warnings: Sequence[str] = (),
        dry_run: bool = False,
    ) -> PromoteJob:
        now = self._now()
        return await self.decide(
            lambda image: promotes.begin_promote(
                image, link, topics, now, validation, accept_missing, requested_by, warnings
            ),
            dry_run,
        )

    async def begin_failover(
        self, link: str, topics: Sequence[str] | None = None, *, dry_run: bool = False
    ) -> PromoteJob:
        """A job that takes over from a source that is given up."""
        now = self._now()
        return await self.decide(lambda image: failovers.begin(image, link, topics, now), dry_run)

    async def give_up_source(self, link: str, ends: Mapping[TopicPartition, failovers.KnownEnds]) -> None:
        """Fence for a failover, with the last known state of the source."""
        now = self._now()
        await self.decide(lambda image: (failovers.give_up(image, link, ends, now), None))

    async def choose_ends(self, link: str, chosen: Mapping[TopicPartition, failovers.Chosen]) -> None:
        await self.decide(lambda image: (failovers.choose(image, link, chosen), None))

    async def note_aborted(
        self, link: str, aborted: Mapping[TopicPartition, Sequence[AbortedTransaction]]
    ) -> None:
        await self.decide(lambda image: (failovers.note_aborted(image, link, aborted), None))

    async def end_promote(
        self,
        job: PromoteJob,
        status: JobStatus,
        reason: str | None,
        phases_ms: Mapping[str, float],
        warnings: Sequence[str] = (),
    ) -> None:
        now = self._now()
        await self.decide(
            lambda image: (
                promotes.end_promote(image, job.link, job.id, status, reason, phases_ms, now, warnings),
                None,
            )
        )

    async def note_source_fence(
        self, link: str, job_id: int, *, closed: Collection[str] = (), opened: Collection[str] = ()
    ) -> None:
        """Topics whose source a job is about to close, or has certainly opened again."""
        await self.decide(
            lambda image: (promotes.note_source_fence(image, link, job_id, closed, opened), None)
        )

    async def close_evidence(self, link: str, job_id: int, evidence: PromoteEvidence) -> None:
        """Record the result of the last run after a hand-over, or why there was none."""
        closed = replace(evidence, ended_at=self._now())
        await self.decide(lambda image: (validations.close_evidence(image, link, job_id, closed), None))

    # Validation. Only the validation runner calls these; a restart of the mirror forgets by itself.

    async def advance_validation(self, link: str, advances: Sequence[validations.Advance]) -> None:
        now = self._now()
        await self.decide(lambda image: (validations.advance(image, link, advances, now), None))

    async def forget_validation(
        self, link: str, tps: Iterable[TopicPartition], brokers: Collection[int] | None = None
    ) -> None:
        """Forget the validation of all replicas, or of these brokers: the copies that were compared are no longer
        theirs."""
        chosen = list(tps)
        await self.decide(lambda image: (validations.forget(image, link, chosen, brokers), None))

    async def advance(
        self,
        link: str,
        tps: Iterable[TopicPartition],
        phase: Phase,
        *,
        reasons: Mapping[TopicPartition, str] | None = None,
        aligned_ends: Mapping[TopicPartition, int] | None = None,
        attempts: Mapping[TopicPartition, Attempt] | None = None,
    ) -> None:
        now = self._now()
        chosen = sorted(tps)
        await self.decide(
            lambda image: (
                promotes.advance(
                    image,
                    link,
                    chosen,
                    phase,
                    now,
                    reasons=reasons,
                    aligned_ends=aligned_ends,
                    attempts=attempts,
                ),
                None,
            )
        )

    async def note_attempts(
        self,
        link: str,
        attempts: Mapping[TopicPartition, Attempt],
        aligned_ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        await self.decide(lambda image: (promotes.note_attempts(image, link, attempts, aligned_ends), None))

    # The rest.

    async def save_identity(self, identity: SidecarIdentity) -> None:
        await self.decide(
            lambda image: (
                [] if image.identities.get(identity.broker_id) == identity else [identity],
                None,
            )
        )

    async def mark_sidecar(
        self,
        broker_id: int,
        *,
        draining: bool | None = None,
        leaving: bool | None = None,
        dry_run: bool = False,
    ) -> None:
        """Set an operator's marks of a sidecar; None leaves a mark as it is. NotFound if it is not in the fleet."""

        def decide(image: ControllerImage) -> tuple[list[Record], None]:
            known = image.identities.get(broker_id)
            if known is None:
                raise NotFound(f"sidecar {broker_id} does not exist")
            wanted = replace(
                known,
                draining=known.draining if draining is None else draining,
                leaving=known.leaving if leaving is None else leaving,
            )
            return ([] if wanted == known else [wanted]), None

        await self.decide(decide, dry_run)

    async def remove_sidecar(self, broker_id: int) -> None:
        """It has left for good: no fence waits for it any more."""
        await self.decide(
            lambda image: ([RemoveSidecar(broker_id)] if broker_id in image.identities else [], None)
        )

    async def set_producer_id_floor(self, floor: ProducerIdFloor) -> None:
        def decide(image: ControllerImage) -> tuple[list[Record], None]:
            mirrors.link_of(image, floor.link)
            return [floor], None

        await self.decide(decide)
