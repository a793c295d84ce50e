"""BringUp creates the mirrors at the target as the controller's state says, and repairs them.

Each mirror takes the same steps, whether it is new, half made when the sidecar was killed, or was disturbed. Mirrors
take them together, a hundred at a time, so that each step is one request and one commit for all of them:

    intent durable -> topic exists, led by link brokers only -> bound to its id -> start offsets, E0 durable ->
    copies served -> reassignment to the real brokers open

A step first checks whether it is done already, so all of them run again after every change. The controller decides
how a mirror should look; a promote hands it over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence

from controller.decide.mirrors import Establishment, Leadership, refuse_to_drop
from controller.errors import ControllerError
from controller.phases import ENDED, SWITCHING, Phase
from controller.state import UNBOUND, MirrorPartition, MirrorTopic, Record, RemoveMirror
from fetcher.link_fetcher import LinkFetcher
from linker.links.added_partitions import AddedPartitions
from linker.links.copy_specs import CopySpecs, start_offsets
from linker.links.due import DueTopics
from linker.links.fork_watch import ForkWatch
from linker.links.leaderless import lead_stranded
from linker.links.link_part import LinkContext, LinkPart
from linker.links.new_topics import NewTopics
from linker.links.reassignments import Reassignments, Replicas
from linker.links.served_copies import ServedCopies
from linker.links.topic_shape import (
    grown_apart,
    leadership_of,
    on_link_brokers_alone,
)
from wire.errors import LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, TopicImage

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 15.0
#: Mirrors that take the steps together, and their partitions. More would hold up the event loop, and the controller takes
#: some 10,000 records at a time, a dozen of which a topic may need.
_AT_ONCE, _PARTITIONS = 100, 500


class BringUp(LinkPart):
    """The mirrors of one link."""

    def __init__(self, context: LinkContext, fetcher: LinkFetcher, link_replicas: int = 3) -> None:
        """`link_replicas`: how many link brokers a new mirror partition is given."""
        super().__init__(context)
        self._fetcher = fetcher
        self.specs = CopySpecs(context)
        self._due = DueTopics()
        self._at_once = _AT_ONCE
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        #: Set once every mirror that existed at the start went through the steps.
        self.settled = asyncio.Event()
        #: Obstacles to a complete mirror, by topic.
        self.trouble: dict[str, str] = {}
        self._served = ServedCopies(context, fetcher, self.specs)
        self._new = NewTopics(context, link_replicas)
        self._added = AddedPartitions(context, self._new.leaders)
        self._reassignments = Reassignments(context, fetcher)
        self._forks = ForkWatch(context, fetcher, self._fail)
        #: How often a mirror's reassignment was cancelled, by topic.
        self.cancelled = self._reassignments.cancelled

    # --- what asks for work ------------------------------------------------------------------------------------------

    def on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        """The target's metadata log moved. Positions of followers hold for one leader epoch only: a cancelled
        reassignment deletes their copies, and the same brokers begin again from nothing."""
        state = self._controller.image
        for topic_id in topics:
            mirror = state.mirror_of_topic_id(topic_id)
            topic = image.topics_by_id.get(topic_id)
            if topic is not None:
                self._served.led_under(topic)
                mirror = mirror or state.mirrors.get((self._link, topic.name))
            if mirror is not None and mirror.link == self._link:
                self.ask(mirror.topic)

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller: a switch changes the state alone, and its copies have to follow at once."""
        named = {r.topic for r in records if isinstance(r, RemoveMirror) and r.link == self._link}
        states: Iterable[Record] = records or self._controller.image.link_partitions(self._link)
        for state in states:
            if not isinstance(state, MirrorPartition) or state.link != self._link:
                continue
            if state.taken is None and state.phase not in SWITCHING:
                continue
            named.add(state.topic)
            copy = self._fetcher.partitions.get(state.tp)
            if copy is not None and copy.spec.held and state.phase not in SWITCHING:
                self._fetcher.release([state.tp])
        for topic in named:
            self.ask(topic)

    def ask(self, topic: str) -> None:
        """Have a mirror looked at."""
        self._due.ask(topic, asyncio.get_running_loop().time())
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        clock = asyncio.get_running_loop().time
        for mirror in self._controller.image.link_mirrors(self._link):
            self._due.ask(mirror.topic, clock())
        while True:
            self._wake.clear()
            topics = self._next(clock())
            if topics:
                await self._try(topics, clock)
                continue
            if not self._due.in_trouble:
                self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._due.next_at()):
                    await self._wake.wait()

    def _next(self, now: float) -> list[str]:
        """The mirrors to look at together. One in trouble may make a step fail for all, so it is kept apart from new
        ones."""
        topics: list[str] = []
        partitions = 0
        new = self._due.any_asked
        while len(topics) < self._at_once and partitions < _PARTITIONS and self._due.any_asked == new:
            topic = self._due.take(now)
            if topic is None:
                break
            topics.append(topic)
            mirror = self._controller.image.mirrors.get((self._link, topic))
            partitions += 0 if mirror is None else mirror.partitions
        return topics

    async def _try(self, topics: Sequence[str], clock: Callable[[], float]) -> None:
        try:
            refused = await self.complete_all(topics)
        except LinkerError as error:
            # Any of them may be why the step failed for all: fewer are looked at together until that is known.
            refused = dict.fromkeys(topics, error)
            self._at_once = max(1, self._at_once // 4)
        else:
            self._at_once = min(_AT_ONCE, self._at_once * 2)
        for topic in topics:
            why = refused.get(topic)
            if why is None:
                self.trouble.pop(topic, None)
                self._due.done(topic)
                continue
            if self.trouble.get(topic) != str(why):
                log.warning(
                    "mirror %s of link %s cannot be completed yet: %s; tried again", topic, self._link, why
                )
            self.trouble[topic] = str(why)
            self._due.failed(topic, clock())

    async def restart(self, topic: str) -> None:
        """Begin FAILED partitions again: their copies are dropped, start offset and E0 are taken anew.

        Brokers that are taken out of the replicas delete what they have, under a new leader epoch; so nothing of the
        old copy can be taken for a part of the new one.
        """
        async with self._turn:
            states = self._controller.image.topic_partitions(self._link, topic)
            failed = [state.tp for state in states if state.phase is Phase.FAILED]
            refuse_to_drop(self._controller.image, self._link, failed)
            self._fetcher.remove(failed)
            await self._reassignments.drop_copies(failed)
            for tp in failed:
                await self._controller.restart_partition(self._link, tp)
        self.ask(topic)

    async def move(self, wanted: Replicas, *, afresh: bool) -> None:
        """Have partitions copied to other real brokers (`Reassignments.move`)."""
        async with self._turn:
            await self._reassignments.move(wanted, afresh=afresh)
        for topic in dict.fromkeys(tp.topic for tp in wanted):
            self.ask(topic)

    async def delete(self, topic: str, *, topic_too: bool, force: bool = False) -> None:
        """End a mirror, and its topic at the target with it; `force` is the controller's.

        Nothing looks at the mirror meanwhile: a topic that vanishes on purpose is no failure.
        """
        async with self._turn:
            mirror = self._controller.image.mirrors.get((self._link, topic))
            if mirror is not None:
                self._fetcher.remove(mirror.topic_partitions())
            if topic_too:
                topic_id = None if mirror is None or mirror.topic_id == UNBOUND else mirror.topic_id
                await self._target.operations.delete_topic(topic, topic_id, timeout=_CALL_TIMEOUT)
            if mirror is not None:
                await self._controller.delete_mirror(self._link, topic, force=force)
            self.trouble.pop(topic, None)
            self.cancelled.pop(topic, None)

    # --- the steps ---------------------------------------------------------------------------------------------------

    async def complete(self, topic: str) -> None:
        """Do what is missing for one mirror; LinkerError if it cannot be done now."""
        for error in (await self.complete_all([topic])).values():
            raise error

    async def complete_all(self, topics: Collection[str]) -> dict[str, LinkerError]:
        """Do what is missing for these mirrors. By topic, why it cannot be done now; LinkerError if that is so for all."""
        await self._look_for_forks(topics)
        async with self._turn:
            mirrors = self._mirrors(topics)
            gone = set(topics) - {mirror.topic for mirror in mirrors}
            if gone:
                self._fetcher.remove([tp for tp in self._fetcher.partitions if tp.topic in gone])
            if not mirrors:
                return {}
            if not self._decides:
                return await self._served.follow(mirrors)
            switching = [mirror for mirror in mirrors if self._is_switching(mirror.topic)]
            mirrors = [mirror for mirror in mirrors if mirror not in switching]
            await self._keep_serving(switching)
            await self._reassignments.tidy(mirrors)
            found, refused = await self._topics(mirrors)
            mirrors = self._mirrors(found)
            stuck, added = await self._added.complete(mirrors, found)
            _add(refused, added)
            for mirror in mirrors:
                unled, errors = await self._lead_stranded(mirror, found[mirror.topic])
                stuck |= unled
                if errors:
                    refused.setdefault(mirror.topic, errors[0])
            await self._adopt(mirrors, found, stuck)
            _add(refused, await self._establish(mirrors, found, stuck))
            await self._reassignments.follow(mirrors, found)
            mirrors = self._mirrors(found)
            _add(refused, await self._served.follow([*mirrors, *switching]))
            _add(refused, await self._reassignments.open(mirrors, found))
            for mirror in mirrors:
                link = self._controller.image.links.get(self._link)
                reverse = link is not None and link.reverse_of is not None
                grown = grown_apart(mirror, found[mirror.topic], reverse=reverse)
                if grown is not None:
                    refused.setdefault(mirror.topic, ControllerError(grown))
            return refused

    def _is_switching(self, topic: str) -> bool:
        """The switch makes its cluster look as it should: nothing else is repaired there meanwhile."""
        states = self._controller.image.topic_partitions(self._link, topic)
        return any(state.phase in SWITCHING for state in states)

    async def _keep_serving(self, switching: Sequence[MirrorTopic]) -> None:
        """Follow the leadership of what was taken over: one link broker may take another's place."""
        images = self._target.image.topics_by_id
        found = {m.topic: topic for m in switching if (topic := images.get(m.topic_id)) is not None}
        await self._adopt([mirror for mirror in switching if mirror.topic in found], found, ())

    def _mirrors(self, topics: Iterable[str]) -> list[MirrorTopic]:
        mirrors = self._controller.image.mirrors
        return [mirror for topic in topics if (mirror := mirrors.get((self._link, topic))) is not None]

    async def _topics(
        self, mirrors: Iterable[MirrorTopic]
    ) -> tuple[dict[str, TopicImage], dict[str, LinkerError]]:
        """The mirrors' topics at the target, without those that need nothing more; and why others are not made yet."""
        found: dict[str, TopicImage] = {}
        new: list[MirrorTopic] = []
        for mirror in mirrors:
            open_states = self._open_states(mirror.topic)
            if not open_states:
                continue
            topic = self._target.image.topics_by_name.get(mirror.topic)
            if mirror.topic_id == UNBOUND and topic is None:
                new.append(mirror)
            elif topic is not None and mirror.topic_id == UNBOUND:
                if on_link_brokers_alone(topic, self._link_brokers()):
                    found[mirror.topic] = topic
                else:
                    await self._fail(
                        open_states, "a topic of this name exists at the target and is no mirror of this link"
                    )
            elif topic is None or topic.id != mirror.topic_id:
                what = "deleted" if topic is None else "deleted and created again"
                await self._fail(open_states, f"the mirror topic was {what} at the target")
            else:
                found[mirror.topic] = topic
        refused: dict[str, LinkerError] = {}
        if new:
            made, refused = await self._target.operations.create_mirror_topics(self._new.plan(new))
            for topic_id in made.values():
                topic = self._target.image.topics_by_id.get(topic_id)
                if topic is not None:  # else it was deleted meanwhile, and the next look sees that
                    found[topic.name] = topic
        await self._controller.bind_mirrors(self._link, {topic.name: topic.id for topic in found.values()})
        for topic in found.values():
            await self._forks.fail(self._copied_states(topic.name), topic)
        return found, refused

    def _open_states(self, topic: str) -> list[MirrorPartition]:
        states = self._controller.image.topic_partitions(self._link, topic)
        return [state for state in states if state.phase not in ENDED]

    def _copied_states(self, topic: str) -> list[MirrorPartition]:
        """Open states of partitions that have copied something: only these can be forked."""
        return [state for state in self._open_states(topic) if not self._added.never_copied(state)]

    async def _look_for_forks(self, topics: Iterable[str]) -> None:
        """Look for forks. It is done before the turn is taken, for which other mirrors wait."""
        images = self._target.image.topics_by_id
        if self._decides:
            await self._forks.look(
                (self._copied_states(mirror.topic), found)
                for mirror in self._mirrors(topics)
                if (found := images.get(mirror.topic_id)) is not None
            )

    async def _fail(self, states: Iterable[MirrorPartition], reason: str) -> None:
        for state in states:
            if state.phase is not Phase.FAILED:
                log.error("mirror %s of link %s failed: %s", state.tp, self._link, reason)
                await self._controller.fail_partition(self._link, state.tp, reason)
        self._fetcher.remove([state.tp for state in states])

    async def lead_again(self, topic: str, *, unsure_too: bool) -> None:
        """Repair partitions that nobody leads, because an operator asked for it. LinkerError if it cannot be done now."""
        async with self._turn:
            mirror = self._controller.image.mirrors[self._link, topic]
            found = self._target.image.topics_by_id.get(mirror.topic_id)
            if found is not None and not self._is_switching(topic):
                for error in (await self._lead_stranded(mirror, found, unsure_too=unsure_too))[1]:
                    raise error
        self.ask(topic)

    async def _lead_stranded(
        self, mirror: MirrorTopic, topic: TopicImage, *, unsure_too: bool = False
    ) -> tuple[frozenset[TopicPartition], list[LinkerError]]:
        states = self._controller.image.topic_partitions(self._link, mirror.topic)
        return await lead_stranded(self._target, states, topic, self._link_brokers(), unsure_too=unsure_too)

    async def _adopt(
        self,
        mirrors: Iterable[MirrorTopic],
        topics: Mapping[str, TopicImage],
        stuck: Container[TopicPartition],
    ) -> None:
        """Take over the leaders at the target. Of a stuck partition the last one stays, by which a real broker's
        time is seen."""
        changes: dict[TopicPartition, Leadership] = {}
        for mirror in mirrors:
            for state in self._controller.image.topic_partitions(self._link, mirror.topic):
                partition = topics[mirror.topic].partitions.get(state.partition)
                if (
                    partition is not None
                    and state.phase not in ENDED
                    and state.session_epoch >= 0
                    and state.tp not in stuck
                ):
                    changes[state.tp] = leadership_of(partition)
        await self._controller.adopt_leadership(self._link, changes)

    async def _establish(
        self,
        mirrors: Iterable[MirrorTopic],
        topics: Mapping[str, TopicImage],
        stuck: Container[TopicPartition],
    ) -> dict[str, LinkerError]:
        """Start offset and E0, once and durable, before anything can be copied. One partition of the source whose offset
        is not told holds up no other; its error is answered."""
        waiting: dict[str, list[TopicPartition]] = {}  # by where they begin
        for mirror in mirrors:
            for state in self._controller.image.topic_partitions(self._link, mirror.topic):
                if state.phase is Phase.LINKING and state.tp not in stuck:
                    waiting.setdefault(mirror.start_of(state.partition), []).append(state.tp)
        ready: dict[TopicPartition, Establishment] = {}
        told: dict[str, LinkerError] = {}
        for start, tps in waiting.items():
            offsets, refused = await start_offsets(self._source, start, tps)
            for tp, offset in offsets.items():
                partition = topics[tp.topic].partitions[tp.partition]
                ready[tp] = Establishment(leadership_of(partition), partition.leader_epoch, offset)
            _add(told, {tp.topic: error for tp, error in refused.items()})
        await self._controller.establish_all(self._link, ready)
        return told


def _add(refused: dict[str, LinkerError], more: Mapping[str, LinkerError]) -> None:
    """The first reason of a topic counts."""
    for topic, error in more.items():
        refused.setdefault(topic, error)
