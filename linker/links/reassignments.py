"""Opens the reassignments to the real brokers, follows those of others, and drops the copies of failed mirrors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from controller.cluster_view import PartitionView
from controller.decide.mirrors import refuse_to_drop
from controller.judge.hand_over import find
from controller.plan.reassign import MOVABLE, move_step, moved_to, unsettled
from controller.plan.replicas import CancelReassignment, LiveBrokers, Reassign, is_open, led_by_link
from controller.state import MirrorTopic
from fetcher.link_fetcher import LinkFetcher
from linker.links.link_part import LinkContext, LinkPart
from linker.links.topic_shape import cancelled, plain_copies, reduced, undone_late
from linker.membership.errors import OperationFailed
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, PartitionImage, TopicImage
from wire.shown_id import listed

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 15.0
_COMMITTED = 200  # partitions, each of which may be of another mirror
_MOST_STEPS = 5  # a cancel of what others have begun, one link broker there and back, and the new replicas

Replicas = Mapping[TopicPartition, tuple[int, ...]]
"""The real brokers of partitions, the one that is to lead first."""


class Reassignments(LinkPart):
    """The reassignments of one link's mirrors, made by the link controller alone."""

    def __init__(self, context: LinkContext, fetcher: LinkFetcher) -> None:
        super().__init__(context)
        self._fetcher = fetcher
        #: How often a mirror's reassignment was cancelled, by topic.
        self.cancelled: dict[str, int] = {}

    async def tidy(self, mirrors: Iterable[MirrorTopic]) -> None:
        """After a promote: a request that was to make the hand-over stale may have come later than everybody thought."""
        late: list[TopicPartition] = []
        for mirror in mirrors:
            found = self._target.image.topics_by_id.get(mirror.topic_id)
            if found is not None:
                states = self._controller.image.topic_partitions(self._link, mirror.topic)
                late += undone_late(states, found, self._link_brokers())
        if late:
            log.warning("the link broker is taken out of the replicas of %s again", listed(map(str, late)))
            await self._target.operations.reassign(dict.fromkeys(late), timeout=_CALL_TIMEOUT)

    async def follow(self, mirrors: Iterable[MirrorTopic], topics: Mapping[str, TopicImage]) -> None:
        """Write into the state what the metadata log says, where somebody reassigned a mirror to other real brokers and
        the link broker goes on leading it."""
        moved = {
            tp: found
            for mirror in mirrors
            for tp, replicas in self._movable(mirror)
            if (partition := topics[mirror.topic].partitions.get(tp.partition)) is not None
            and (found := moved_to(partition, replicas, self.brokers)) is not None
        }
        if moved:
            log.warning(
                "link %s: somebody reassigned %s at the target: the mirror follows",
                self._link,
                _listed(moved),
            )
            await self._controller.forget_validation(self._link, moved)
            await self._controller.follow_replicas(self._link, moved)

    async def open(
        self, mirrors: Sequence[MirrorTopic], topics: Mapping[str, TopicImage]
    ) -> dict[str, LinkerError]:
        """Open the reassignments to the real brokers; again, if somebody cancelled one, or changed it so that no promote
        could complete it. All in one request for each step. By topic, why it is not open."""
        wanted: dict[TopicPartition, tuple[int, ...]] = {}
        for mirror in mirrors:
            of_mirror = self._wanted(mirror, topics[mirror.topic])
            opened = [
                tp
                for tp in of_mirror
                if self._was_cancelled(topics[mirror.topic].partitions[tp.partition], tp)
            ]
            if opened:
                self.cancelled[mirror.topic] = self.cancelled.get(mirror.topic, 0) + 1
                log.warning(
                    "somebody cancelled the reassignment of %s (link %s): asked for again, the copies start from nothing",
                    listed(map(str, opened)),
                    self._link,
                )
            wanted |= of_mirror
        if not wanted:
            return {}
        # Proofs of earlier copies do not count: these begin from nothing.
        await self._controller.forget_validation(self._link, wanted)
        refused = await self._take_steps(wanted, unsettled)
        for tp, replicas in wanted.items():
            if tp.topic not in refused and self._is(tp, replicas, unsettled):
                refused[tp.topic] = LinkerError(
                    f"{tp}: its reassignment to brokers {_ids(replicas)} is not open"
                )
        return refused

    async def move(self, wanted: Replicas, *, afresh: bool = False) -> None:
        """Have partitions copied to these real brokers; LinkerError if the target refuses that of one. The state follows.
        `afresh`: drop all their copies first, so that those that are left are gone at once. That is done too where no
        hand-over could complete it otherwise."""
        self._keep_what_was_told(wanted)
        if afresh:
            refuse_to_drop(self._controller.image, self._link, wanted)
        for some in _portions(wanted):
            await self._controller.forget_validation(self._link, some)
        refused = {} if afresh else await self._take_steps(wanted, _not_open)
        stuck = [
            tp
            for tp, replicas in wanted.items()
            if tp.topic not in refused
            and self._may_move(tp)
            and (afresh or self._is(tp, replicas, unsettled))
        ]
        if stuck:
            log.warning("link %s: the copies of %s begin from nothing", self._link, _listed(stuck))
            await self.drop_copies(stuck)
            refused |= await self._take_steps({tp: wanted[tp] for tp in stuck}, _not_open)
        done = {tp: replicas for tp, replicas in wanted.items() if tp.topic not in refused}
        for some in _portions(done):
            await self._controller.follow_replicas(self._link, some)
        for error in refused.values():
            raise error

    def _keep_what_was_told(self, tps: Iterable[TopicPartition]) -> None:
        """Copies that begin from nothing tell no more where the log ends that link brokers lead at the source: its own
        brokers would truncate what they have to that."""
        if alone := [tp for tp in tps if self._without_owner(tp)]:
            raise LinkerError(
                f"{_listed(alone)}: none of the source's own brokers leads it, so its copies at the target alone tell how "
                "far the source's log was acknowledged; move them when the source's brokers are back"
            )

    async def _take_steps(
        self, wanted: Replicas, needed: Callable[[PartitionView, Sequence[int], LiveBrokers], bool]
    ) -> dict[str, LinkerError]:
        """Steps towards copies on these brokers, as long as they are `needed` and there are any; by topic, what was
        refused."""
        refused: dict[str, LinkerError] = {}
        for _ in range(_MOST_STEPS):
            steps: dict[TopicPartition, list[int] | None] = {}
            epochs: dict[TopicPartition, int] = {}
            for tp, replicas in wanted.items():
                partition = find(self._target.image, tp)
                if tp.topic in refused or partition is None or not self._may_move(tp):
                    continue
                if not needed(partition, replicas, self.brokers):
                    continue
                step = move_step(partition, replicas, self.brokers)
                if isinstance(step, Reassign | CancelReassignment):
                    steps[tp] = list(step.replicas) if isinstance(step, Reassign) else None
                    epochs[tp] = partition.partition_epoch
            if not steps:
                break
            try:
                await self._target.operations.reassign(steps, timeout=_CALL_TIMEOUT)
            except OperationFailed as error:
                failed = {tp.topic: error for tp in steps if str(tp) in error.failed}
                if not failed:
                    raise
                refused |= failed
            sent = {tp: epoch for tp, epoch in epochs.items() if tp.topic not in refused}
            await self._target.metadata.wait_for(partial(_changed, epochs=sent), _CALL_TIMEOUT)
        return refused

    @property
    def brokers(self) -> LiveBrokers:
        """The target's, as the plans of replicas see them."""
        image, link = self._target.image, self._link_brokers()
        alive = {b for b in link if b in image.brokers and not image.brokers[b].fenced}
        return LiveBrokers(link=link, alive=alive, registered=image.brokers.keys())

    def _is(
        self,
        tp: TopicPartition,
        replicas: Sequence[int],
        shape: Callable[[PartitionView, Sequence[int], LiveBrokers], bool],
    ) -> bool:
        partition = find(self._target.image, tp)
        return (
            partition is not None
            and led_by_link(partition, self._link_brokers())
            and shape(partition, replicas, self.brokers)
        )

    def _may_move(self, tp: TopicPartition) -> bool:
        """Whether the partition may move still: a promote may have begun to hold its writes meanwhile."""
        state = self._controller.image.partitions.get((self._link, tp))
        return state is not None and state.phase in MOVABLE

    def _movable(self, mirror: MirrorTopic) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
        """The partitions of a mirror whose replicas may change, with the ones they are to have."""
        for state in self._controller.image.topic_partitions(self._link, mirror.topic):
            replicas = mirror.replicas_of(state.partition)
            if state.phase in MOVABLE and state.session_epoch >= 0 and replicas:
                yield state.tp, replicas

    def _wanted(self, mirror: MirrorTopic, topic: TopicImage) -> dict[TopicPartition, tuple[int, ...]]:
        """The partitions of a mirror whose reassignment is not open, with the replicas to ask for."""
        brokers = self.brokers
        return {
            tp: replicas
            for tp, replicas in self._movable(mirror)
            if (partition := topic.partitions.get(tp.partition)) is not None
            and led_by_link(partition, brokers.link)
            and unsettled(partition, replicas, brokers)
        }

    def _was_cancelled(self, partition: PartitionImage, tp: TopicPartition) -> bool:
        copy = self._fetcher.partitions.get(tp)
        asked = set(partition.replicas) - self._link_brokers()
        return not asked and copy is not None and copy.bytes_served > 0

    async def drop_copies(self, tps: list[TopicPartition]) -> None:
        """Drop all copies. Cancelling a reassignment takes out the brokers that it adds. Copies that became plain
        replicas, because link brokers joined or left, are in no reassignment; a new one to the link brokers alone takes
        them out."""
        refuse_to_drop(self._controller.image, self._link, tps)
        await self._target.operations.reassign(dict.fromkeys(tps), timeout=_CALL_TIMEOUT)
        await self._target.metadata.wait_for(lambda image: cancelled(image, tps), _CALL_TIMEOUT)
        ours = self._link_brokers()
        plain = plain_copies(self._target.image, tps, ours)
        if plain:
            await self._target.operations.reassign(plain, timeout=_CALL_TIMEOUT)
            await self._target.metadata.wait_for(lambda image: reduced(image, plain), _CALL_TIMEOUT)


def _not_open(partition: PartitionView, replicas: Sequence[int], brokers: LiveBrokers) -> bool:
    return not is_open(partition, replicas, brokers.link)


def _changed(image: ClusterImage, epochs: Mapping[TopicPartition, int]) -> bool | None:
    """None: a partition is as it was."""
    for tp, epoch in epochs.items():
        partition = find(image, tp)
        if partition is not None and partition.partition_epoch == epoch:
            return None
    return True


def _ids(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _listed(tps: Collection[TopicPartition], most: int = 5) -> str:
    return listed(sorted(map(str, tps)), most)


def _portions(wanted: Replicas) -> Iterator[Replicas]:
    """Each change is right by itself, and all of them are more than a store may take in one commit."""
    items = list(wanted.items())
    for first in range(0, len(items), _COMMITTED):
        yield dict(items[first : first + _COMMITTED])
