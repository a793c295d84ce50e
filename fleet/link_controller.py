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
from controller.decide import acls, failovers, groups, growth, links, mirrors, promotes, reverse, validations
from controller.errors import NotFound, Refused
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
from wire.errors import LinkerError
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
    async def prove_newest(self) -> None:
        """Returns if no other link controller had claimed the state at a moment of this call; else raises. For requests
        that carry no epoch: a process that stood still must not send what it was about to send."""

    @abstractmethod
    async def decide(
        self, decide: Callable[[ControllerImage], tuple[Sequence[Record], T]], dry_run: bool = False
    ) -> T:
        """Run one decision; its records are committed and replayed, or an error says why not."""

    async def _commit(
        self, decide: Callable[[ControllerImage], Sequence[Record]], dry_run: bool = False
    ) -> None:
        """One decision that has no answer but its records."""
        await self.decide(lambda image: (decide(image), None), dry_run)

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
        await self._commit(lambda image: links.create_link(image, link), dry_run)
        return link

    async def ensure_reverse(self, name: str, target_cluster_id: str) -> Link:
        """The link that runs against this one, written down if it was not."""
        now = self._now()

        await self._commit(
            lambda image: reverse.create_reverse(image, links.link_of(image, name), target_cluster_id, now)
        )
        return self.image.links[reverse.reverse_name(name)]

    async def update_link(
        self,
        name: str,
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        *,
        dry_run: bool = False,
    ) -> None:
        await self._commit(lambda image: links.update_link(image, name, properties, options), dry_run)

    async def delete_link(self, name: str, *, force: bool = False, dry_run: bool = False) -> None:
        """SourceClosed, unless forced, if the source still refuses writes because of an abandoned promote."""

        def decide(image: ControllerImage) -> list[Record]:
            records = links.delete_link(image, name, force)
            groups.refuse_while_moving(image, name)
            return records

        await self._commit(decide, dry_run)

    # Mirrors.

    async def create_mirror(
        self, mirror: MirrorTopic, states: Sequence[MirrorPartition] | None = None, *, dry_run: bool = False
    ) -> None:
        """Without states every partition starts LINKING."""
        chosen = self._linking(mirror) if states is None else states
        await self._commit(lambda image: mirrors.create_mirror(image, mirror, chosen), dry_run)

    async def create_mirrors(self, wanted: Sequence[MirrorTopic]) -> None:
        """All of them in one commit, every partition LINKING."""
        chosen = [(mirror, self._linking(mirror)) for mirror in wanted]
        await self._commit(lambda image: mirrors.create_mirrors(image, chosen))

    async def grow_mirror(
        self, link: str, topic: str, partitions: int, replicas: Sequence[Sequence[int]]
    ) -> None:
        """The source has added partitions: they are LINKING, and part of a promote that is under way."""
        now = self._now()
        await self._commit(
            lambda image: growth.grow_mirror(
                image, link, topic, partitions, replicas, now, self.controller_epoch
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

    async def bind_mirrors(self, link: str, ids: Mapping[str, TopicId]) -> None:
        await self._commit(lambda image: mirrors.bind_mirrors(image, link, ids))

    async def note_upstream(self, link: str, found: Mapping[str, tuple[str, ...]]) -> None:
        await self._commit(lambda image: mirrors.note_upstream(image, link, found))

    async def plan_mirror_configs(
        self, link: str, topic: str, create: Mapping[str, str], restore: Mapping[str, str | None]
    ) -> None:
        await self._commit(lambda image: mirrors.plan_mirror_configs(image, link, topic, create, restore))

    async def note_acls(self, link: str, *, add: Iterable[Acl] = (), remove: Iterable[Acl] = ()) -> None:
        """Before they are made at the target, and after they are removed there."""
        await self._commit(lambda image: acls.note_acls(image, link, add=add, remove=remove))

    async def delete_mirror(
        self, link: str, topic: str, *, force: bool = False, dry_run: bool = False
    ) -> None:
        """SourceClosed, unless forced, as for `delete_link`."""
        await self._commit(lambda image: mirrors.delete_mirror(image, link, topic, force), dry_run)

    async def establish_all(self, link: str, ready: Mapping[TopicPartition, mirrors.Establishment]) -> None:
        """LINKING -> ACTIVE for all of them that are LINKING still, in one commit."""
        now = self._now()
        await self._commit(lambda image: mirrors.establish_all(image, link, ready, now))

    async def adopt_leadership(self, link: str, changes: Mapping[TopicPartition, mirrors.Leadership]) -> None:
        await self._commit(
            lambda image: mirrors.adopt_leadership(image, link, changes, self.controller_epoch)
        )

    async def follow_replicas(self, link: str, moved: Mapping[TopicPartition, Sequence[int]]) -> None:
        await self._commit(lambda image: mirrors.follow_replicas(image, link, moved))

    async def note_copies(
        self, link: str, notes: Mapping[TopicPartition, mirrors.CopyNote]
    ) -> dict[TopicPartition, LinkerError]:
        """Write these down in one commit. Returns the partitions that are left out, with the reason."""
        refused: dict[TopicPartition, LinkerError] = {}

        def decide(image: ControllerImage) -> list[Record]:
            refused.clear()
            records: list[Record] = []
            for tp, note in notes.items():
                try:
                    records += mirrors.note_copy(image, link, tp, note)
                except (NotFound, Refused) as error:
                    refused[tp] = error
            return records

        await self._commit(decide)
        return refused

    async def pause(self, link: str, topic: str, *, dry_run: bool = False) -> None:
        now = self._now()
        await self._commit(lambda image: mirrors.set_paused(image, link, topic, True, now), dry_run)

    async def resume(self, link: str, topic: str, *, dry_run: bool = False) -> None:
        now = self._now()
        await self._commit(lambda image: mirrors.set_paused(image, link, topic, False, now), dry_run)

    async def fail_partition(self, link: str, tp: TopicPartition, reason: str) -> None:
        now = self._now()
        await self._commit(lambda image: mirrors.fail_partition(image, link, tp, reason, now))

    async def restart_partition(self, link: str, tp: TopicPartition) -> None:
        now = self._now()
        await self._commit(lambda image: mirrors.restart_partition(image, link, tp, now))

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
        switch: bool = False,
        dry_run: bool = False,
    ) -> PromoteJob:
        now = self._now()
        return await self.decide(
            lambda image: promotes.begin_promote(
                image, link, topics, now, validation, accept_missing, requested_by, warnings, switch
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
        await self._commit(lambda image: failovers.give_up(image, link, ends, now))

    async def choose_ends(self, link: str, chosen: Mapping[TopicPartition, failovers.Chosen]) -> None:
        await self._commit(lambda image: failovers.choose(image, link, chosen))

    async def note_aborted(
        self, link: str, aborted: Mapping[TopicPartition, Sequence[AbortedTransaction]]
    ) -> None:
        await self._commit(lambda image: failovers.note_aborted(image, link, aborted))

    async def end_promote(
        self,
        job: PromoteJob,
        status: JobStatus,
        reason: str | None,
        phases_ms: Mapping[str, float],
        warnings: Sequence[str] = (),
    ) -> None:
        now = self._now()
        await self._commit(
            lambda image: promotes.end_promote(
                image, job.link, job.id, status, reason, phases_ms, now, warnings
            )
        )

    async def note_source_fence(
        self, link: str, job_id: int, *, closed: Collection[str] = (), opened: Collection[str] = ()
    ) -> None:
        """Topics whose source a job is about to close, or has certainly opened again."""
        await self._commit(lambda image: promotes.note_source_fence(image, link, job_id, closed, opened))

    async def close_evidence(self, link: str, job_id: int, evidence: PromoteEvidence) -> None:
        """Record the result of the last run after a hand-over, or why there was none."""
        closed = replace(evidence, ended_at=self._now())
        await self._commit(lambda image: validations.close_evidence(image, link, job_id, closed))

    # Validation. Only the validation runner calls these; a restart of the mirror forgets by itself.

    async def advance_validation(self, link: str, advances: Sequence[validations.Advance]) -> None:
        now = self._now()
        await self._commit(lambda image: validations.advance(image, link, advances, now))

    async def forget_validation(
        self, link: str, tps: Iterable[TopicPartition], brokers: Collection[int] | None = None
    ) -> None:
        """Forget the validation of all replicas, or of these brokers: the copies that were compared are no longer
        theirs."""
        chosen = list(tps)
        await self._commit(lambda image: validations.forget(image, link, chosen, brokers))

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
        await self._commit(
            lambda image: promotes.advance(
                image,
                link,
                chosen,
                phase,
                now,
                reasons=reasons,
                aligned_ends=aligned_ends,
                attempts=attempts,
            )
        )

    async def note_attempts(
        self,
        link: str,
        attempts: Mapping[TopicPartition, Attempt],
        aligned_ends: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        await self._commit(lambda image: promotes.note_attempts(image, link, attempts, aligned_ends))

    # The rest.

    async def save_identity(self, identity: SidecarIdentity) -> None:
        await self._commit(
            lambda image: [] if image.identities.get(identity.broker_id) == identity else [identity]
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

        def decide(image: ControllerImage) -> list[Record]:
            known = image.identities.get(broker_id)
            if known is None:
                raise NotFound(f"sidecar {broker_id} does not exist")
            wanted = replace(
                known,
                draining=known.draining if draining is None else draining,
                leaving=known.leaving if leaving is None else leaving,
            )
            return [] if wanted == known else [wanted]

        await self._commit(decide, dry_run)

    async def remove_sidecar(self, broker_id: int) -> None:
        """It has left for good: no fence waits for it any more."""
        await self._commit(lambda image: [RemoveSidecar(broker_id)] if broker_id in image.identities else [])

    async def set_producer_id_floor(self, floor: ProducerIdFloor) -> None:
        await self._commit(lambda image: links.set_producer_id_floor(image, floor))
