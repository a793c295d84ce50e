"""Rules of a switch taken out of the product, for `mutations`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from controller.decide import give_backs, promotes, take_overs
from controller.decide.mirrors import partition_in
from controller.judge import take_over
from controller.judge.hand_over import Settlement
from controller.phases import Phase
from controller.plan import taken_configs
from controller.plan.taken_configs import TAKEN_CONFIGS
from controller.plan.topic_configs import UNCLEAN
from controller.state import MirrorPartition
from fetcher.in_sync import InSyncFollower
from fleet.shared_controller import SharedController
from linker.links.source_sync import SourceSync
from linker.promote import hand_over
from linker.promote.hand_over import HandOverRun
from linker.switch import take_over as switching
from linker.switch.giving_back import GivingBack
from wire.frames.types import TopicPartition

Patch = tuple[Any, str, Any]


def one_replica_is_enough() -> list[Patch]:
    """An in-sync follower tells what the first replica of the mirror has."""
    original = SourceSync.must_hold

    def must_hold(self: SourceSync, copy: Any) -> Collection[int]:
        return list(original(self, copy))[:1]

    return [(SourceSync, "must_hold", must_hold)]


def epochs_unwritten() -> list[Patch]:
    """An in-sync follower tells a position although leader epochs below it are not written down."""

    def safe(self: InSyncFollower, copy: Any, offset: int) -> bool:
        return bool(copy.held_by(self._ports.must_hold(copy), offset))

    return [(InSyncFollower, "_safe", safe)]


def leading_is_enough() -> list[Patch]:
    """A partition counts as taken over as soon as a link broker leads it."""
    return [(take_over, "held_by_link", lambda partition, link_brokers: partition.leader in link_brokers)]


def unclean_elections() -> list[Patch]:
    """A partition that is taken over may have any of its replicas elected."""
    taken = {name: value for name, value in TAKEN_CONFIGS.items() if name != UNCLEAN}
    forced = {name: value for name, value in taken_configs.FORCED.items() if name != UNCLEAN}
    return [
        (switching, "TAKEN_CONFIGS", taken),
        (take_overs, "TAKEN_CONFIGS", taken),
        (give_backs, "TAKEN_CONFIGS", taken),
        (taken_configs, "TAKEN_CONFIGS", taken),
        (taken_configs, "FORCED", forced),
    ]


def ends_forgotten_early() -> list[Patch]:
    """Giving back begins with what was written down of the ends forgotten."""
    original = give_backs.give_back

    def give_back(image: Any, link: str, topics: Collection[str], now: int) -> list[Any]:
        return [
            replace(record, taken=None, session_epoch=-1) if isinstance(record, MirrorPartition) else record
            for record in original(image, link, topics, now)
        ]

    return [(give_backs, "give_back", give_back)]


def back_by_itself() -> list[Patch]:
    """A partition goes back although the hand-over of another one of its topic may be carried out yet."""
    original = HandOverRun._retreat

    async def retreat(self: HandOverRun, open_: list[TopicPartition], reason: str) -> list[TopicPartition]:
        safe = [tp for tp in open_ if self._settle(tp) is Settlement.IMPOSSIBLE and not self._is_bound(tp)]
        if safe:
            await self._context.go_back(dict.fromkeys(safe, reason))
        left = [tp for tp in open_ if tp not in safe]
        return await original(self, left, reason) if left else []

    return [(HandOverRun, "_retreat", retreat)]


def loose_is_taken() -> list[Patch]:
    """A hand-over is sent whether or not its source is written down as taken."""
    return [
        (module, "refuse_unless_taken", lambda image, link, tps: None) for module in (promotes, hand_over)
    ]


def noted_is_taken() -> list[Patch]:
    """It is asked only where the attempt is not written down yet."""
    return [(hand_over, "refuse_unless_taken", lambda image, link, tps: None)]


def unknown_is_refused() -> list[Patch]:
    """A hand-over that was not answered counts as one that will never be carried out."""
    original = hand_over.settle

    def settle(image: Any, tp: Any, topic_id: Any, link_brokers: Any, unknown: Any) -> Any:
        return original(image, tp, topic_id, link_brokers, None)

    return [(hand_over, "settle", settle)]


def next_is_given_back() -> list[Patch]:
    """A task that gives a topic back goes on when another one has ended that, and the next switch has begun."""

    def going_back(image: Any, link: str, tp: TopicPartition) -> MirrorPartition:
        return partition_in(image, link, tp, Phase.TAKING)

    return [
        (GivingBack, "_going_back", lambda self, topic: self._records.mirror(topic) is not None),
        (give_backs, "going_back", going_back),
        (take_overs, "going_back", going_back),
    ]


def back_to_anybody() -> list[Patch]:
    """A partition is given back to any broker that is alive, whatever it lacks."""
    return [(take_over, "_stands_at", lambda image, broker, position, end: True)]


def ends_kept() -> list[Patch]:
    """Where a log ended holds on after its own brokers have led again, and link brokers follow all the same. Each of the two
    rules is enough where the sidecar that was told to stop is the one that follows."""
    return [
        (give_backs, "forget_ends", lambda image, link, tps: []),
        (SourceSync, "_ends_there", lambda self, tp: False),
    ]


def noted_is_followed() -> list[Patch]:
    """Link brokers follow beyond an end that is written down; one that was told to stop waits all the same."""
    return [(SourceSync, "_ends_there", lambda self, tp: False)]


def end_unheld() -> list[Patch]:
    """The end of a log is told although replicas of the mirror may lack what is below it."""

    async def stop(
        self: SourceSync, tps: Collection[TopicPartition], *, timeout: float
    ) -> Mapping[TopicPartition, int]:
        for tp in tps:
            if self._led_by_another(tp):
                self.follower.find_end(tp)
        return self.follower.stop(tps)

    return [(SourceSync, "stop", stop)]


def deposed_sets_configs() -> list[Patch]:
    """Configs are set without a proof that nobody else is the link controller by now."""

    async def unproved(self: SharedController) -> None:
        return

    return [(SharedController, "prove_newest", unproved)]
