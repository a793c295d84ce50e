"""ConfigKeeper keeps the configs of a mirrored topic at the target as its source has them.

Two events lead to a change. First, the source's configs are read at intervals and before a promote, and the mirror's
plan follows. Second, the target's metadata log shows every change of a topic's configs, and the plan's values are
restored at once, because some of them decide whether records survive. With `unclean.leader.election.enable` an
unfinished copy is elected when the sidecar dies; with retention the target deletes records that the source still has.

Only the link controller does this. The plan is made in controller.plan.topic_configs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from controller.decide.reverse import reverse_of
from controller.phases import LED_ELSEWHERE
from controller.plan.config_drifts import Drift, drifts
from controller.plan.source_configs import widest
from controller.plan.taken_configs import configs_at_promote
from controller.plan.topic_configs import (
    COPIED,
    TIMESTAMP_DIFFERENCE,
    UNCLEAN,
    keep_differing,
    keep_own,
    keep_segments,
    plan_configs,
    without_defaults,
)
from controller.state import UNBOUND, MirrorTopic
from linker.links.config_options import ALWAYS_KEPT, ConfigOptions, config_options, from_target
from linker.links.configs import topic_configs_each, topic_defaults
from linker.links.link_part import LinkContext, LinkPart
from wire.backoff import Backoff
from wire.errors import LinkerError
from wire.frames.types import TOPIC_RESOURCE
from wire.metadata.image import ClusterImage
from wire.periodic_task import PeriodicTask
from wire.task_group import TaskGroup

log = logging.getLogger(__name__)

_INTERVAL = 15.0
_TOPICS_A_SECOND = 20  # a round over many topics takes its time, so that the event loop has some for others
_AT_ONCE = 25
_CALL_TIMEOUT = 10.0
_KEYS = COPIED | {UNCLEAN, TIMESTAMP_DIFFERENCE}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0


class ConfigKeeper(LinkPart):
    """The keeper of one link."""

    def __init__(self, context: LinkContext) -> None:
        super().__init__(context)
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        # Topics whose plan has changed: the target's configs differ from it, and nobody else has done anything.
        self._planned: set[str] = set()
        # Topics whose configs are being set, until it is known that no promote ended in between.
        self._in_doubt: set[str] = set()
        #: By topic, which configs somebody changed at the target, and how often they were put back.
        self.put_back: dict[str, Counter[str]] = {}
        #: By topic, why its configs cannot be kept, or followed.
        self.trouble: dict[str, str] = {}
        self.behind: dict[str, str] = {}
        #: By topic, changes at the source that are not followed, as the link's options say.
        self.reported: dict[str, str] = {}
        self._defaults: dict[str, str] = {}
        self._defaults_until = 0.0
        self._source_said: dict[str, str] = {}
        self._source_defaults_until = 0.0
        self.task = PeriodicTask("configs at the source", self._watch, _INTERVAL, pause=self._rest)

    # --- the target ----------------------------------------------------------------------------------------------------

    def on_target_change(self, image: ClusterImage, topics: frozenset[bytes]) -> None:
        """From the metadata log's subscription; takes note and returns."""
        for topic_id in topics:
            topic = image.topics_by_id.get(topic_id)
            if topic is not None and self.drift(topic.name):
                self._ask(topic.name)

    async def run(self) -> None:
        """Both ways, until cancelled."""
        async with TaskGroup() as group:
            group.create_task(self._keep(), name=f"{self._link}: configs at the target")
            group.create_task(self.task.run(), name=f"{self._link}: configs at the source")

    async def _keep(self) -> None:
        for mirror in self._controller.image.link_mirrors(self._link):
            self._ask(mirror.topic)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked, self._dirty = sorted(self._dirty), set()
            failed = False
            for topic in asked:
                failed |= not await self._try(topic)
            if failed:
                self._dirty.update(topic for topic in asked if topic in self.trouble)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await self._wake.wait()
                self._wake.set()
            else:
                backoff.reset()

    def _ask(self, topic: str) -> None:
        self._dirty.add(topic)
        self._wake.set()

    async def _try(self, topic: str) -> bool:
        try:
            await self.put_right(topic)
        except LinkerError as error:
            reason = f"its configs at the target cannot be put back: {error}"
            if self.trouble.get(topic) != reason:
                log.error("mirror %s of link %s: %s", topic, self._link, reason)  # noqa: TRY400
            self.trouble[topic] = reason
            return False
        self.trouble.pop(topic, None)
        return True

    async def put_right(self, topic: str) -> None:
        """Set what differs."""
        async with self._turn:
            found = self.drift(topic)
            ours = topic in self._planned
            if not found:
                self._planned.discard(topic)
                await self._let_go(topic)
                return
            if not ours:
                log.warning(
                    "mirror %s of link %s: %s: put back",
                    topic,
                    self._link,
                    "; ".join(one.said for one in found),
                )
            self._in_doubt.add(topic)
            await self._target.operations.set_configs_of_topics(
                {topic: {one.config: one.wanted for one in found}}, timeout=_CALL_TIMEOUT
            )
            self._planned.discard(topic)
            if not ours:
                self.put_back.setdefault(topic, Counter()).update(one.config for one in found)
            await self._let_go(topic)

    async def _let_go(self, topic: str) -> None:
        """Set the promote's configs again if the last partition was promoted while configs were set here: either may have
        arrived last."""
        if topic not in self._in_doubt:
            return
        mirror = self._controller.image.mirrors.get((self._link, topic))
        if mirror is not None and self._ended(mirror):
            last = configs_at_promote(self._controller.image, mirror)
            await self._target.operations.set_configs_of_topics({topic: last}, timeout=_CALL_TIMEOUT)
        self._in_doubt.discard(topic)

    def drift(self, topic: str) -> list[Drift]:
        """Configs that are not as they should be at this moment."""
        mirror = self._controller.image.mirrors.get((self._link, topic))
        found = self._target.image.topics_by_name.get(topic)
        if mirror is None or mirror.topic_id == UNBOUND or found is None or found.id != mirror.topic_id:
            return []
        if self._ended(mirror) or not mirror.copied_configs:
            return []
        overrides = self._target.image.configs.get((TOPIC_RESOURCE, topic), {})
        found_drifts = drifts(mirror.copied_configs, overrides, from_target(self._controller.image, mirror))
        if self._options.sync == "follow":
            return found_drifts
        return [one for one in found_drifts if one.config in ALWAYS_KEPT]

    @property
    def _options(self) -> ConfigOptions:
        link = self._controller.image.links.get(self._link)
        return ConfigOptions() if link is None else config_options(link.options)

    @property
    def _is_reverse(self) -> bool:
        link = self._controller.image.links.get(self._link)
        return link is not None and link.reverse_of is not None

    def _ended(self, mirror: MirrorTopic) -> bool:
        """Whether real brokers lead all of it, by a promote or failover: from then on the topic is its owner's. While it is
        switched nothing is followed either: its source has the configs of a topic that is taken over."""
        image = self._controller.image
        reverse = reverse_of(image, self._link)
        if reverse is not None and (reverse.name, mirror.topic) in image.mirrors:
            return True
        states = image.topic_partitions(self._link, mirror.topic)
        return bool(states) and all(state.phase in LED_ELSEWHERE for state in states)

    # --- the source ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> str | None:
        """A round over all mirrors; why one of them could not be followed."""
        topics = self._open_topics()
        self._forget_all_but(topics)
        if self._options.sync == "off":
            self.reported.clear()
            self.behind.clear()
            return None
        failed = None
        for first in range(0, len(topics), _AT_ONCE):
            part = topics[first : first + _AT_ONCE]
            try:
                await self.follow(part)
            except LinkerError as error:
                # It is in `behind`, or will be in `trouble`. Fetchers show a source that is away.
                failed = str(error)
            await asyncio.sleep(len(part) / _TOPICS_A_SECOND)
        return failed

    def _rest(self, task: PeriodicTask) -> float:
        return max(1.0, _INTERVAL - len(self._open_topics()) / _TOPICS_A_SECOND)

    def _forget_all_but(self, topics: Collection[str]) -> None:
        for told in (self.put_back, self.trouble, self.behind, self.reported):
            for topic in told.keys() - set(topics):
                del told[topic]

    def _open_topics(self) -> list[str]:
        mirrors = self._controller.image.link_mirrors(self._link)
        return sorted(one.topic for one in mirrors if not self._ended(one))

    async def follow(self, topics: Collection[str]) -> None:
        """Read the source's configs of these mirrors and have plan and target follow; LinkerError if they are not told."""
        sync = self._options.sync
        if not topics or sync == "off":
            return
        try:
            found, refused = await topic_configs_each(self._source, topics, timeout=_CALL_TIMEOUT, keys=_KEYS)
            defaults = await self._target_defaults()
            source_defaults = await self._source_defaults()
        except LinkerError as error:
            self._note(topics, f"its configs at source and target are not known: {error}")
            raise
        self._note(found, None)
        for topic, why in refused.items():
            self._note([topic], f"the source's configs are not known: {why}")
        for topic, configs in found.items():
            mirror = self._controller.image.mirrors.get((self._link, topic))
            if mirror is None or self._ended(mirror):
                continue
            own = from_target(self._controller.image, mirror)
            effective = widest(configs.effective, configs.overrides, source_defaults)
            plan = plan_configs(configs.overrides, effective, defaults, own)
            plan = keep_differing(plan, mirror.copied_configs, mirror.restore_configs, effective, own)
            if self._is_reverse:
                plan = without_defaults(plan, mirror.copied_configs, mirror.restore_configs, defaults)
            states = self._controller.image.topic_partitions(self._link, topic)
            if any(state.taken is not None for state in states):
                plan = keep_own(plan, mirror.restore_configs, own)
            create, restore = keep_segments(plan, mirror.copied_configs, defaults)
            if create == dict(mirror.copied_configs) and restore == dict(mirror.restore_configs):
                self.reported.pop(topic, None)
                # Changed while the link's options said that it stays; or whoever made the plan died before he had set it.
                if self.drift(topic):
                    await self._put_right_or_ask(topic)
                continue
            if sync == "report":
                self.reported[topic] = ", ".join(_changes(mirror, create, restore))
                continue
            self.reported.pop(topic, None)
            if changes := _changes(mirror, create, restore):
                log.info(
                    "mirror %s of link %s: its configs follow the source's: %s",
                    topic,
                    self._link,
                    ", ".join(changes),
                )
            await self._controller.plan_mirror_configs(self._link, topic, create, restore)
            self._planned.add(topic)
            await self._put_right_or_ask(topic)
        for refusal in refused.values():
            raise refusal  # the others are followed

    async def _put_right_or_ask(self, topic: str) -> None:
        try:
            await self.put_right(topic)
        except LinkerError:
            self._ask(topic)
            raise

    async def _target_defaults(self) -> dict[str, str]:
        """Read once for all topics of a round."""
        now = asyncio.get_running_loop().time()
        if now >= self._defaults_until:
            brokers = [broker.id for broker in self._target.image.live_brokers(self._link_brokers())]
            if not brokers:
                raise LinkerError("no broker of the target is there to tell its defaults")
            self._defaults = await topic_defaults(self._target.cluster, brokers, timeout=_CALL_TIMEOUT)
            self._defaults_until = now + _INTERVAL
        return self._defaults

    async def _source_defaults(self) -> dict[str, str]:
        """Read once for all topics of a round. None where the source does not tell them, for want of a right say: a topic's
        configs, which one broker tells, count then as they are."""
        now = asyncio.get_running_loop().time()
        if now >= self._source_defaults_until:
            try:
                self._source_said = await topic_defaults(
                    self._source, sorted(self._source.nodes), timeout=_CALL_TIMEOUT
                )
            except LinkerError:
                self._source_said = {}
            self._source_defaults_until = now + _INTERVAL
        return self._source_said

    def _note(self, topics: Iterable[str], reason: str | None) -> None:
        for topic in topics:
            if reason is None:
                self.behind.pop(topic, None)
            else:
                self.behind[topic] = reason


def _changes(mirror: MirrorTopic, create: dict[str, str], restore: dict[str, str | None]) -> Sequence[str]:
    now: dict[str, str | None] = {**create, **restore}
    before: dict[str, str | None] = {**mirror.copied_configs, **mirror.restore_configs}
    return [
        f"{name} {before.get(name) or 'not set'} -> {now.get(name) or 'not set'}"
        for name in sorted(now.keys() | before.keys())
        if now.get(name) != before.get(name)
    ]
