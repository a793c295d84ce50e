"""BringUp creates the mirrors at the target as the controller's state says, and repairs them.

Each mirror takes the same steps, whether it is new, half made when the sidecar was killed, or was disturbed:

    intent durable -> topic exists, led by link brokers only -> bound to its id -> start offsets, E0 durable ->
    copies served -> reassignment to the real brokers open

A step first checks whether it is done already, so all of them run again after every change. The controller decides
how a mirror should look; a promote hands it over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable

from controller.decide.mirrors import Leadership
from controller.errors import ControllerError
from controller.phases import ENDED, Phase
from controller.state import UNBOUND, MirrorPartition, MirrorTopic
from fetcher.link_fetcher import LinkFetcher
from fleet.fleet_controller import FleetController
from fleet.link_controller import LinkController
from linker.links import forks
from linker.links.copy_specs import CopySpecs, start_offsets
from linker.links.due import DueTopics
from linker.links.leaderless import lead_again, stranded
from linker.links.reassignments import Reassignments
from linker.links.served_copies import ServedCopies
from linker.links.topic_shape import (
    first_leaders,
    grown_at_target,
    leadership_of,
    led_by_others,
    on_link_brokers_alone,
    undone_late,
)
from linker.membership import TargetCluster
from wire.client.cluster import Cluster
from wire.errors import BrokerError, LinkerError
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage, TopicImage

log = logging.getLogger(__name__)

_CALL_TIMEOUT = 15.0


class BringUp:
    """The mirrors of one link."""

    def __init__(
        self,
        link: str,
        source: Cluster,
        target: TargetCluster,
        controller: LinkController,
        fetcher: LinkFetcher,
        link_brokers: Callable[[], frozenset[int]] | None = None,
        *,
        head: Callable[[], FleetController | None] | None = None,
        link_replicas: int = 3,
    ) -> None:
        """`link_brokers`: ids of all sidecars; `head`: of this process, while it is the link controller. Without them this
        is the only sidecar. `link_replicas`: how many link brokers a new mirror partition is given."""
        self._link_brokers = link_brokers or (lambda: frozenset({target.broker_id}))
        self._head = head
        self._link_replicas = link_replicas
        self._link = link
        self._source = source
        self._target = target
        self._controller = controller
        self._fetcher = fetcher
        self.specs = CopySpecs(link, target, controller)
        self._due = DueTopics()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        # By partition that a real broker leads: records that it has taken by itself, until the mirror is failed for it.
        self._forked: dict[TopicPartition, int | None] = {}
        #: Set once every mirror that existed at the start went through the steps.
        self.settled = asyncio.Event()
        #: What keeps a mirror from being complete, by topic.
        self.trouble: dict[str, str] = {}
        self._served = ServedCopies(
            link, target, controller, fetcher, self.specs, lambda: self._link_brokers()
        )
        self._reassignments = Reassignments(link, target, controller, fetcher, lambda: self._link_brokers())
        #: How often a mirror's reassignment was cancelled, by topic.
        self.cancelled = self._reassignments.cancelled

    # --- what asks for work ------------------------------------------------------------------------------------------

    def on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        """The target's metadata log moved. Positions of followers hold for one leader epoch only: a cancelled
        reassignment deletes their copies, and the same brokers begin again from nothing."""
        state = self._controller.image
        for topic_id in topics:
            topic = image.topics_by_id.get(topic_id)
            if topic is not None:
                self._served.forget_stale_positions(topic)
        for mirror in state.link_mirrors(self._link):
            topic = image.topics_by_name.get(mirror.topic)
            if mirror.topic_id in topics or (topic is not None and topic.id in topics):
                self.ask(mirror.topic)

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
            topic = self._due.take(clock())
            if topic is not None:
                await self._try(topic, clock)
                continue
            if not self._due.in_trouble:
                self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._due.next_at()):
                    await self._wake.wait()

    async def _try(self, topic: str, clock: Callable[[], float]) -> None:
        try:
            await self.complete(topic)
        except LinkerError as error:
            if self.trouble.get(topic) != str(error):
                log.warning("mirror %s of link %s is not complete: %s", topic, self._link, error)
            self.trouble[topic] = str(error)
            self._due.failed(topic, clock())
        else:
            self.trouble.pop(topic, None)
            self._due.done(topic)

    async def restart(self, topic: str) -> None:
        """Begin FAILED partitions again: their copies are dropped, start offset and E0 are taken anew.

        Brokers that are taken out of the replicas delete what they have, under a new leader epoch; so nothing of the
        old copy can be taken for a part of the new one.
        """
        async with self._turn:
            states = self._controller.image.topic_partitions(self._link, topic)
            failed = [state.tp for state in states if state.phase is Phase.FAILED]
            self._fetcher.remove(failed)
            await self._reassignments.drop_copies(failed)
            for tp in failed:
                await self._controller.restart_partition(self._link, tp)
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
                await self._target.operations.delete_topic(topic, timeout=_CALL_TIMEOUT)
            if mirror is not None:
                await self._controller.delete_mirror(self._link, topic, force=force)
            self.trouble.pop(topic, None)
            self.cancelled.pop(topic, None)

    # --- the steps ---------------------------------------------------------------------------------------------------

    async def complete(self, topic: str) -> None:
        """Do what is missing for one mirror; LinkerError if it cannot be done now."""
        await self._look_for_forks(topic)
        async with self._turn:
            mirror = self._controller.image.mirrors.get((self._link, topic))
            if mirror is None:
                self._fetcher.remove([tp for tp in self._fetcher.partitions if tp.topic == topic])
                return
            if not self._decides:
                await self._served.follow(mirror)
                return
            await self._tidy(mirror)
            found = await self._topic(mirror)
            if found is None:
                return
            mirror = self._controller.image.mirrors[self._link, topic]
            stuck, refused = await self._lead_stranded(mirror, found)
            await self._adopt(mirror, found, stuck)
            refused += await self._establish(mirror, found, stuck)
            await self._served.follow(mirror)
            await self._reassignments.open(mirror, found)
            for error in refused:
                raise error  # the others are copied meanwhile
            grown = grown_at_target(mirror, found)
            if grown is not None:
                raise ControllerError(grown)

    @property
    def _decides(self) -> bool:
        """Whether this sidecar makes the target look as it should; the others only serve what they lead."""
        return self._head is None or self._head() is not None

    async def _tidy(self, mirror: MirrorTopic) -> None:
        """After a promote: a request that was to make the hand-over stale may have come later than everybody thought."""
        found = self._target.image.topics_by_id.get(mirror.topic_id)
        if found is None:
            return
        states = self._controller.image.topic_partitions(self._link, mirror.topic)
        late = undone_late(states, found, self._link_brokers())
        if late:
            log.warning(
                "the link broker is taken out of the replicas of %s again", ", ".join(map(str, late[:5]))
            )
            await self._target.operations.reassign(dict.fromkeys(late), timeout=_CALL_TIMEOUT)

    async def _topic(self, mirror: MirrorTopic) -> TopicImage | None:
        """The mirror's topic at the target; None if there is nothing more to do for the mirror."""
        states = self._controller.image.topic_partitions(self._link, mirror.topic)
        open_states = [state for state in states if state.phase not in ENDED]
        if not open_states:
            return None
        found = self._target.image.topics_by_name.get(mirror.topic)
        if mirror.topic_id == UNBOUND:
            if found is None:
                await self._target.operations.create_mirror_topic(
                    mirror.topic, self._first_leaders(mirror.partitions), mirror.copied_configs
                )
                found = self._target.image.topics_by_name[mirror.topic]
            elif not on_link_brokers_alone(found, self._link_brokers()):
                await self._fail(
                    open_states, "a topic of this name exists at the target and is no mirror of this link"
                )
                return None
            await self._controller.bind_mirror(self._link, mirror.topic, found.id)
        elif found is None or found.id != mirror.topic_id:
            what = "deleted" if found is None else "deleted and created again"
            await self._fail(open_states, f"the mirror topic was {what} at the target")
            return None
        await self._fail_led_by_others(open_states, found)
        return found

    def _first_leaders(self, partitions: int) -> dict[int, list[int]]:
        """A sidecar that drains is not among them."""
        image, own = self._target.image, self._target.broker_id
        head = None if self._head is None else self._head()
        alive = {own} if head is None else head.alive() - head.draining()
        ready = sorted(b for b in alive if b in image.brokers and not image.brokers[b].fenced)
        states = self._controller.image.partitions.values()
        led = Counter(state.leader for state in states if state.phase not in ENDED)
        return first_leaders(partitions, ready or [own], led, self._link_replicas)

    async def _look_for_forks(self, topic: str) -> None:
        """Before the turn, which other mirrors wait for: the brokers asked may be slow, or away."""
        mirror = self._controller.image.mirrors.get((self._link, topic))
        found = None if mirror is None else self._target.image.topics_by_id.get(mirror.topic_id)
        if found is None or not self._decides:
            return
        states = [
            state
            for state in self._controller.image.topic_partitions(self._link, topic)
            if state.phase not in ENDED | {Phase.FAILED}
        ]
        led = [state for state, _ in led_by_others(states, found, self._link_brokers())]
        if led:
            self._fetcher.remove([state.tp for state in led])
            told = await forks.look(self._target.cluster, self._target.image, led)
            self._forked.update({fork.tp: fork.records for fork in told})

    async def _fail_led_by_others(self, states: Iterable[MirrorPartition], topic: TopicImage) -> None:
        """An unclean election that somebody forced made a real broker leader: what is written there is not at the
        source, and nothing that is copied from there on would be the same log.
        """
        led = list(led_by_others(states, topic, self._link_brokers()))
        self._fetcher.remove([state.tp for state, _ in led])
        for state, leader in led:
            if state.phase is Phase.FAILED:
                continue
            records = self._forked.pop(state.tp, None)
            so_far = "" if records is None else f" ({records} records so far)"
            await self._fail(
                [state],
                f"broker {leader} of the target was elected its leader, without a promote; it takes writes that the source "
                f"does not have{so_far}: see linker mirror repair {state.topic} --link {self._link} --dry-run",
            )

    async def _fail(self, states: Iterable[MirrorPartition], reason: str) -> None:
        for state in states:
            if state.phase is not Phase.FAILED:
                log.error("mirror %s of link %s failed: %s", state.tp, self._link, reason)
                await self._controller.fail_partition(self._link, state.tp, reason)
        self._fetcher.remove([state.tp for state in states])

    async def lead_again(self, topic: str, *, unsure_too: bool) -> None:
        """An operator's repair of what nobody leads; LinkerError if it cannot be done now."""
        async with self._turn:
            mirror = self._controller.image.mirrors[self._link, topic]
            found = self._target.image.topics_by_id.get(mirror.topic_id)
            if found is not None:
                for error in (await self._lead_stranded(mirror, found, unsure_too=unsure_too))[1]:
                    raise error
        self.ask(topic)

    async def _lead_stranded(
        self, mirror: MirrorTopic, topic: TopicImage, *, unsure_too: bool = False
    ) -> tuple[frozenset[TopicPartition], list[LinkerError]]:
        """Partitions that nobody leads still, and why not: they hold up no other one of the topic."""
        states = self._controller.image.topic_partitions(self._link, mirror.topic)
        found = stranded(states, topic, self._link_brokers())
        sure = [one for one in found if unsure_too or not one.led_between]
        refused: list[LinkerError] = []
        if sure:
            try:
                await lead_again(self._target, sure, self._link_brokers())
            except LinkerError as error:
                refused.append(error)
        unsure = [str(one.tp) for one in found if one not in sure]
        if unsure:
            refused.append(
                ControllerError(
                    f"nobody leads {', '.join(unsure[:5])} at the target, its ISR and ELR are empty, and a real broker may "
                    f"have led it meanwhile: see linker mirror repair {mirror.topic} --link {self._link} --dry-run"
                )
            )
        return frozenset(one.tp for one in found if topic.partitions[one.tp.partition].leader < 0), refused

    async def _adopt(self, mirror: MirrorTopic, topic: TopicImage, stuck: frozenset[TopicPartition]) -> None:
        """Who leads at the target. Of a stuck partition the last one stays, by which a real broker's time is seen."""
        changes: dict[TopicPartition, Leadership] = {}
        for state in self._controller.image.topic_partitions(self._link, mirror.topic):
            partition = topic.partitions.get(state.partition)
            if (
                partition is not None
                and state.phase not in ENDED
                and state.session_epoch >= 0
                and state.tp not in stuck
            ):
                changes[state.tp] = leadership_of(partition)
        await self._controller.adopt_leadership(self._link, changes)

    async def _establish(
        self, mirror: MirrorTopic, topic: TopicImage, stuck: frozenset[TopicPartition]
    ) -> list[BrokerError]:
        """Start offset and E0, once and durable, before anything can be copied. One partition of the source whose offset
        is not told holds up no other; its error is answered."""
        waiting = [
            state
            for state in self._controller.image.topic_partitions(self._link, mirror.topic)
            if state.phase is Phase.LINKING and state.tp not in stuck
        ]
        if not waiting:
            return []
        offsets, refused = await start_offsets(self._source, mirror, [state.tp for state in waiting])
        for state in waiting:
            if state.tp not in offsets:
                continue
            partition = topic.partitions[state.partition]
            await self._controller.establish(
                self._link,
                state.tp,
                leadership=leadership_of(partition),
                session_epoch=partition.leader_epoch,
                start_offset=offsets[state.tp],
            )
        return list(refused.values())
