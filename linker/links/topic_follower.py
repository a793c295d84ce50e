"""TopicFollower makes mirrors of the source's topics that a link's patterns take, and ends those whose topic was deleted.

Only the link controller does this. A topic that cannot be mirrored is shown with the reason and holds up no other. An
absence is believed only if every broker of the source that answers says so, in two looks that lie an interval apart:
a broker that is behind, or a principal that lost a right, must not delete anything.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from controller.decide.mirrors import note_upstream
from controller.portions import portions
from controller.state import Link, Record
from linker.checks.topic_names import is_internal, is_mirrormakers, mirrormaker_prefixes
from linker.links.bring_up import BringUp
from linker.links.link_part import LinkContext, LinkPart
from linker.links.new_mirrors import NewMirrors, Planned, Wanted
from linker.links.source_topics import SourceTopicId, all_topics, gone
from linker.links.topic_options import TopicPatterns, TopicSettings, topic_settings
from linker.links.topic_shape import of_its_own
from wire.errors import LinkerError
from wire.periodic_task import PeriodicTask

log = logging.getLogger(__name__)

_AT_ONCE = 500  # topics that are examined, written down and brought up before the next ones
_DELETED_AFTER = 10.0
_INTERVAL = 15.0  # by default; a link has its own


class TopicFollower(LinkPart):
    """That of one link."""

    def __init__(
        self,
        context: LinkContext,
        new_mirrors: NewMirrors,
        bring_up: BringUp,
        fail_deleted_after: Callable[[float], None],
        ours: Collection[str] = (),
    ) -> None:
        """`fail_deleted_after`: tells the fetchers when a topic that the source does not know has failed; `ours`: topics
        that sidecars keep for themselves."""
        super().__init__(context)
        self._new = new_mirrors
        self._bring_up = bring_up
        self._fail_deleted_after = fail_deleted_after
        self._ours = ours
        # Since when a topic is absent, and what is there in its place.
        self._absent: dict[str, tuple[float, SourceTopicId | None]] = {}
        #: Why topics that the patterns take are not mirrored, by topic.
        self.not_mirrored: dict[str, str] = {}
        #: Why the source's topics cannot be followed at all.
        self.trouble: str | None = None
        self.task = PeriodicTask(
            "topics by pattern",
            self._once,
            _INTERVAL,
            failed=self._failed,
            pause=lambda _task: self.settings.interval,
        )

    @property
    def settings(self) -> TopicSettings:
        link = self._controller.image.links.get(self._link)
        return topic_settings({} if link is None else link.options)

    def on_records(self, records: Sequence[Record]) -> None:
        """A listener of the controller: options are followed as soon as they are written."""
        if not records or any(isinstance(one, Link) and one.name == self._link for one in records):
            keeps = self.settings.deleted == "keep"
            self._fail_deleted_after(math.inf if keeps else _DELETED_AFTER)
            self.task.wake()

    async def run(self) -> None:
        """Until cancelled."""
        await self.task.run()

    async def _once(self) -> None:
        await self.look()
        self.trouble = None

    def _failed(self, error: Exception) -> None:
        if self.trouble != str(error):
            log.warning("link %s: the source's topics cannot be followed: %s", self._link, error)
        self.trouble = str(error)

    async def look(self) -> None:
        """Once. LinkerError if the source does not answer, or nothing can be written down."""
        settings = self.settings
        await self._learn_upstream()
        if not settings.rules.include:
            self.not_mirrored = {}
            if settings.deleted != "delete":
                self._absent.clear()
                return
        there = await all_topics(self._source)
        if settings.deleted == "delete":
            await self._end_deleted(there, settings.interval)
        else:
            self._absent.clear()
        if settings.rules.include:
            await self._make_new(there, settings.rules)

    async def _learn_upstream(self) -> None:
        """Of mirrors that an older version made, and of those whose source's own mirror may have been promoted."""
        image, source = self._controller.image, self._source.cluster_id or ""
        unsure = [one.topic for one in image.open_mirrors(self._link) if one.upstream != (source,)]
        if not unsure:
            return
        origins = await self._new.sidecars.origins(unsure)
        told = {
            topic: (*origin, source)
            for topic, origin in origins.items()
            if not isinstance(origin, LinkerError)
        }
        # Each of these is right by itself, and all of them may be more than a store takes in one commit.
        for portion in portions(note_upstream(self._controller.image, self._link, told)):
            await self._controller.note_upstream(
                self._link, {mirror.topic: told[mirror.topic] for mirror in portion}
            )

    # --- new topics --------------------------------------------------------------------------------------------------

    async def _make_new(self, there: Collection[str], rules: TopicPatterns) -> None:
        topics, refused = self._candidates(there, rules)
        made = 0
        for first in range(0, len(topics), _AT_ONCE):
            planned = await self._new.plan(topics[first : first + _AT_ONCE], Wanted(), each=True)
            refused |= planned.refused
            await self._new.write_down(planned.mirrors)
            made += len(planned.mirrors)
        if made:
            log.info(
                "link %s: %d topics that topics_include takes are mirrored from now on", self._link, made
            )
        for topic, why in refused.items():
            if self.not_mirrored.get(topic) != why:
                log.warning("link %s: topic %s is not mirrored: %s", self._link, topic, why)
        self.not_mirrored = refused

    def _candidates(self, there: Collection[str], rules: TopicPatterns) -> tuple[list[str], dict[str, str]]:
        """Topics that the rules take, by their names at the source, and that are no mirrors of the link; and why others
        cannot be."""
        mirrors, names = self._controller.image.mirrors, self._source.topic_names
        matching = [
            topic
            for topic in sorted(there)
            if (self._link, topic) not in mirrors
            and rules.takes(names.there(topic))
            and not is_internal(names.there(topic), self._ours)
        ]
        prefixes = mirrormaker_prefixes(map(names.there, there))
        refused = {
            topic: why
            for topic in matching
            if (why := self._new.name_taken(topic) or _of_mirrormaker(names.there(topic), rules, prefixes))
            is not None
        }
        topics = [topic for topic in matching if topic not in refused]
        for pair in self._new.collisions(topics):
            for topic in set(pair) & set(topics):
                refused[topic] = (
                    f"topics {pair[0]} and {pair[1]} differ in '.' and '_' only, and a cluster of today's Kafka takes one "
                    "of them: name one in topics_exclude"
                )
        return [topic for topic in topics if topic not in refused], refused

    async def unmirrored(self) -> list[str]:
        """Topics that the patterns take and that are no mirrors, now; those that cannot be, too."""
        rules = self.settings.rules
        if not rules.include:
            return []
        topics, refused = self._candidates(await all_topics(self._source), rules)
        return sorted({*topics, *refused})

    async def examine(self, rules: TopicPatterns, wanted: Wanted) -> Planned:
        """Mirrors of all topics that are there now and that the rules take, planned and not made; in `refused` those that
        cannot be mirrored."""
        topics, refused = self._candidates(await all_topics(self._source), rules)
        planned = await self._new.plan(topics, wanted, each=True) if topics else Planned()
        planned.refused |= refused
        return planned

    # --- deleted topics ----------------------------------------------------------------------------------------------

    async def _end_deleted(self, there: Mapping[str, SourceTopicId], interval: float) -> None:
        image = self._controller.image
        open_mirrors = image.open_mirrors(self._link)
        suspects = {
            mirror.topic: mirror.source_topic_id
            for mirror in open_mirrors
            if not _as_mirrored(there.get(mirror.topic), mirror.source_topic_id)
        }
        if not suspects:
            self._absent.clear()
            return
        if len(suspects) == len(open_mirrors) > 1:
            self._absent.clear()
            raise LinkerError(
                f"all {len(suspects)} mirrored topics are gone from the source at once: that is not taken for a deletion, "
                "delete the mirrors that are not needed"
            )
        now = time.monotonic()
        told = await gone(self._source, list(suspects))
        absent = {
            topic: now_there
            for topic, now_there in told.items()
            if not _as_mirrored(now_there, suspects[topic])
        }
        self._absent = {
            topic: self._absent.get(topic, (now, now_there)) for topic, now_there in absent.items()
        }
        sure = [topic for topic, (since, _) in self._absent.items() if now - since >= interval]
        for topic in sure:
            log.warning(
                "link %s: topic %s was deleted at the source: its mirror and the topic at the target are deleted",
                self._link,
                topic,
            )
            try:
                await self._delete(topic)
            except LinkerError as error:
                log.error("link %s: mirror %s is not deleted: %s", self._link, topic, error)  # noqa: TRY400
                self.not_mirrored[topic] = (
                    f"its topic was deleted at the source, and the mirror is not: {error}"
                )
            else:
                del self._absent[topic]

    async def _delete(self, topic: str) -> None:
        """Refused while a promote has the mirror, and where somebody may have written what the source never had."""
        await self._controller.delete_mirror(self._link, topic, dry_run=True)
        mirror = self._controller.image.mirrors[self._link, topic]
        found = self._target.image.topics_by_id.get(mirror.topic_id)
        own = None if found is None else of_its_own(mirror, found, self._link_brokers())
        if own is not None:
            raise LinkerError(
                f"{own[0]} is led by broker {own[1]} of the target, and may have records of its own: "
                "linker mirror delete --dry-run shows them"
            )
        await self._bring_up.delete(topic, topic_too=found is not None)


def _as_mirrored(now: SourceTopicId | None, mirrored: bytes | None) -> bool:
    """Whether this is the topic that is mirrored; where one of the ids is not known, the name counts."""
    if now is None:
        return False
    return mirrored is None or now.topic_id is None or now.topic_id == mirrored


def _of_mirrormaker(topic: str, rules: TopicPatterns, prefixes: Collection[str]) -> str | None:
    """Why a pattern that does not name the topic leaves it out."""
    if rules.names(topic):
        return None
    if is_mirrormakers(topic):
        return "MirrorMaker 2 keeps it for itself: to mirror it all the same, write its name into topics_include as it is"
    copied = (prefix for prefix in sorted(prefixes) if topic.startswith(prefix))
    prefix = next((one for one in copied if not rules.names_prefix(topic, one)), None)
    if prefix is None:
        return None
    alias, dot = prefix[:-1], prefix[-1]
    return (
        f"MirrorMaker 2 copied it from the cluster that it calls {alias}, which may be this target or one on the way: a "
        f"mirror might lead its records round in a ring. If not, add {alias}\\{dot}.* to topics_include"
    )
