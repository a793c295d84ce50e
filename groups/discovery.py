"""One look at the source's groups, their members and topics, and the changes that follow for the link."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controller.decide import groups
from controller.decide.groups import Discovery
from controller.image import ControllerImage
from controller.judge.group_gates import CONSUMER_GROUPS, FoundGroup
from controller.judge.group_offsets import Committed
from controller.mirror_group import GroupProtocol
from controller.portions import portions
from groups import other_kinds
from groups.gates import topology
from groups.group_book import GroupBook
from groups.group_ids import left_out_ids
from groups.group_reader import GroupReader
from groups.group_run import GroupRun
from groups.settings import GroupSettings
from groups.views import CONSUMERS, GroupView, ListedGroup, Listing
from wire.frames.types import TopicPartition

_TIMEOUT = 10.0


class Look:
    """The result of one look."""

    def __init__(self) -> None:
        self.found: dict[str, FoundGroup] = {}
        self.views: dict[str, GroupView] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {}
        #: Known groups that the source certainly does not have any more.
        self.gone: set[str] = set()
        #: Why some groups are not known: broker or group -> reason.
        self.trouble: dict[str, str] = {}
        #: Groups whose ids cannot be kept, and why not.
        self.left_out: dict[str, str] = {}
        #: Every group that the source's brokers listed; None where it was not asked.
        self.listing: Listing | None = None


async def look(
    source: GroupReader, book: GroupBook, settings: GroupSettings, runs: Mapping[str, GroupRun]
) -> Look:
    """Ask the source. Raises LinkerError if it cannot be asked at all."""
    listing = await source.list_groups(timeout=_TIMEOUT)
    seen = Look()
    seen.listing = listing
    seen.trouble.update((f"broker {node}", why) for node, why in listing.silent.items())
    wanted = {
        name: one
        for name, one in listing.groups.items()
        if one.protocol in CONSUMER_GROUPS and one.protocol_type in CONSUMERS and settings.rules.takes(name)
    }
    others = {
        name: one
        for name, one in listing.groups.items()
        if one.protocol is not None and one.protocol not in CONSUMER_GROUPS and settings.rules.takes(name)
    }
    seen.left_out = left_out_ids(listing.groups, settings.rules)
    ours = {group.group for group in book.all()}
    seen.gone = await _gone(source, ours - listing.groups.keys())
    views, failed = await source.describe(
        [name for name, one in wanted.items() if _may_have_members(one)], timeout=_TIMEOUT
    )
    seen.trouble.update(failed)
    unread = [name for name in wanted if (runs.get(name) is None or runs[name].source is None)]
    offsets = await source.offsets(unread, timeout=_TIMEOUT)
    seen.trouble.update(offsets.failed)
    seen.offsets = offsets.found
    for name, one in wanted.items():
        if name in failed or name in offsets.failed:
            continue
        view = views.get(name) or GroupView(name, one.state or "Empty", one.protocol or GroupProtocol.CLASSIC)
        run = runs.get(name)
        known_offsets = None if run is None else run.source
        committed = offsets.found.get(name) or known_offsets or {}
        topics = view.topics | {tp.topic for tp in committed}
        seen.views[name] = view
        seen.found[name] = FoundGroup(name, view.protocol, frozenset(topics), view.assignors, view.malformed)
    if others:
        await _add_others(seen, source, others, runs)
    _as_before(seen, book)
    return seen


async def _add_others(
    seen: Look, source: GroupReader, others: Mapping[str, ListedGroup], runs: Mapping[str, GroupRun]
) -> None:
    """A group that was deleted, or made again as another kind, since it was listed is left to the next look."""
    answer = await other_kinds.read_by(source, others, timeout=_TIMEOUT)
    for name, one in others.items():
        view, topics = answer.views.get(name), answer.topics(name)
        if name in answer.failed:
            seen.trouble[name] = answer.failed[name]
        elif view is None or view.protocol is not one.protocol:
            continue
        else:
            seen.views[name] = view
            seen.offsets[name] = answer.offsets.get(name, {})
        if one.protocol is not None and (topics or name in seen.views):
            changed = view is not None and _changed(view, runs.get(name))
            seen.found[name] = FoundGroup(name, one.protocol, topics, changed=changed)


def _changed(view: GroupView, run: GroupRun | None) -> bool:
    """Whether the gate of a streams group joined with another topology than the group has now."""
    member = None if run is None or run.gate is None else run.gate.record.consumer
    if member is None or member.topology is None or not view.topology:
        return False
    return topology.parsed(member.topology).described != view.topology


def known(book: GroupBook) -> Look:
    """The look without the source: every group stays as it was, but changed options and mirrors count."""
    seen = Look()
    _as_before(seen, book)
    return seen


def _as_before(seen: Look, book: GroupBook) -> None:
    """Groups that could not be read this time stay as they were."""
    for group in book.all():
        if group.group not in seen.found and group.group not in seen.gone:
            topics = frozenset({*group.topics, *group.unmirrored})
            seen.found[group.group] = FoundGroup(group.group, group.protocol, topics)


async def _gone(source: GroupReader, unlisted: Collection[str]) -> set[str]:
    """Groups that their coordinator does not know. A missing entry in the list proves nothing: a broker that is away,
    or still loads its part of __consumer_offsets, lists fewer."""
    if not unlisted:
        return set()
    views, _ = await source.describe(unlisted, timeout=_TIMEOUT)
    offsets = await source.offsets(unlisted, timeout=_TIMEOUT)
    return {
        name
        for name in unlisted
        if (view := views.get(name)) is not None and view.empty and offsets.found.get(name) == {}
    }


def _may_have_members(listed: ListedGroup) -> bool:
    return listed.state not in ("Empty", "Dead")


async def discover(
    book: GroupBook, seen: Look, settings: GroupSettings, *, consumer_protocol: bool
) -> Discovery:
    """Make the changes that follow from a look durable, in portions: thousands of new groups are more than a store takes in
    one commit, and each of them is right by itself."""
    now = book.now()

    def decide(image: ControllerImage, found: Mapping[str, FoundGroup]) -> Discovery:
        return groups.discover(
            image, book.link, found, settings.rules, consumer_protocol=consumer_protocol, now=now
        )

    result = await book.controller.decide(lambda image: ((), decide(image, seen.found)))
    for portion in portions(result.records):
        # Decided again, each once: a group may have gone on while those before it were written.
        some = {one.group: seen.found[one.group] for one in portion}
        await book.commit(lambda image, some=some: decide(image, some).records)  # type: ignore[misc]
    return result
