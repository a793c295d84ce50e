"""Decisions and judgements of a take-over: what is refused, and the next request that an image asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from controller.alter_partition import alter_partition_item
from controller.cluster_view import ImageView
from controller.decide import give_backs, growth, promotes, reversals, take_overs
from controller.decide.mirrors import Leadership, delete_mirror
from controller.decide.reverse import reverse_name, set_sync
from controller.decide.take_overs import OwnerTopic, Shrink
from controller.errors import Refused
from controller.image import ControllerImage
from controller.judge.alignment import ReplicaPosition
from controller.judge.take_over import (
    NotNow,
    Reached,
    Shrinkable,
    back_step,
    held_by_link,
    obstacle,
    take_step,
)
from controller.phases import Phase
from controller.plan.in_sync import InSync, SyncStep, sync_step
from controller.plan.replicas import AlterIsr, CancelReassignment, ElectPreferred, Reassign
from controller.plan.taken_configs import LATE, TAKEN_CONFIGS, before_take_over, changes
from controller.plan.topic_configs import FORCED
from controller.state import (
    Attempt,
    ConfigsPutBack,
    JobStatus,
    Link,
    MirrorPartition,
    MirrorTopic,
    PromoteJob,
    RemoveMirror,
    SwitchEnd,
    Taken,
)
from tests.controller.kraft_model import Broker, Image, Kraft, Partition, Topic
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)
BACK = reverse_name("l")
ID = b"\x09" * 16
OURS = (800, 801)
OWNED = OwnerTopic(ID, ((1, 2),), {"min.insync.replicas": "2"}, (Leadership(1, 3, (1, 2, 800)),))
ATTEMPT = Attempt(leader_epoch=4, partition_epoch=9)


def image_of(*, switch: bool = True) -> ControllerImage:
    """A link, the one against it, and a running promote of its one mirror."""
    image = ControllerImage()
    link = Link(name="l", source_cluster_id="s", properties={})
    image.replay([link, replace(link, name=BACK, source_cluster_id="t", reverse_of="l")])
    mirror = MirrorTopic(link="l", topic="t", topic_id=b"\x07" * 16, source_topic_id=None, partitions=1)
    state = MirrorPartition(
        link="l",
        topic="t",
        partition=0,
        phase=Phase.ALIGNED,
        session_epoch=5,
        start_offset=0,
        source_epochs=((2, 0), (3, 70), (4, 130)),
        aligned_end=100,
    )
    image.replay([mirror, state, PromoteJob(id=1, link="l", partitions=(TP,), switch=switch)])
    return image


def taking(image: ControllerImage) -> ControllerImage:
    image.replay(take_overs.begin(image, "l", {"t": OWNED}, 0))
    return image


def taken(image: ControllerImage) -> ControllerImage:
    led = Leadership(800, 4, (800, 1, 2))
    image.replay(take_overs.note_shrinks(image, BACK, {TP: Shrink(100, ATTEMPT, led)}))
    image.replay(take_overs.take(image, BACK, {TP: Leadership(800, 4, (800,))}, 0))
    return image


def validate(image: ControllerImage) -> None:
    image.replay(promotes.advance(image, "l", [TP], Phase.VALIDATED, 0, attempts={TP: ATTEMPT}))


def test_what_was_there_is_remembered() -> None:
    image = taken(taking(image_of()))
    mirror, state = image.mirrors[BACK, "t"], image.partitions[BACK, TP]
    assert mirror.restore_configs == {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": None,
        "retention.ms": None,
        "retention.bytes": None,
    }
    assert mirror.target_replicas == ((1, 2),)
    assert state.phase is Phase.TAKEN and state.taken is not None
    # The epoch that begins behind the end is none of the log's.
    assert (state.taken.end, state.taken.epochs) == (100, ((2, 0), (3, 70)))
    assert (state.session_epoch, state.isr, state.source_epochs) == (4, (800,), ((5, 0),))


def test_a_log_that_was_taken_over_once_has_the_epochs_of_its_brokers_below() -> None:
    """It is the source of the way back: its batches do not all have the session epoch."""
    image = image_of()
    forward = image.partitions["l", TP]
    image.replay([replace(forward, taken=Taken(end=60, epochs=((1, 0), (2, 20))))])
    state = taking(image).partitions[BACK, TP]
    assert state.source_epochs == ((1, 0), (2, 20), (5, 60))


def test_a_switch_hands_over_only_what_is_taken() -> None:
    image = image_of()
    with pytest.raises(Refused, match="not taken over"):
        validate(image)
    with pytest.raises(Refused, match="not taken over"):
        validate(taking(image))
    validate(taken(image))
    promotes.note_attempts(image, "l", {TP: ATTEMPT})
    image.replay(give_backs.give_back(image, BACK, ["t"], 0))
    with pytest.raises(Refused, match="not taken over"):
        promotes.note_attempts(image, "l", {TP: ATTEMPT})
    validate(image_of(switch=False))


def test_nothing_leads_forward_from_giving_back() -> None:
    image = taken(taking(image_of()))
    image.replay(give_backs.give_back(image, BACK, ["t"], 0))
    assert image.partitions[BACK, TP].phase is Phase.TAKING
    for again in (
        lambda: take_overs.take(image, BACK, {TP: Leadership(800, 4, (800,))}, 0),
        lambda: take_overs.note_shrinks(image, BACK, {TP: Shrink(100, ATTEMPT, Leadership(800, 4, ()))}),
        lambda: take_overs.begin(image, "l", {"t": OWNED}, 0),
    ):
        with pytest.raises(Refused, match="given back"):
            again()
    image.replay(give_backs.given_back(image, BACK, ["t"], {TP: image.partitions[BACK, TP].attempt}, 0))
    assert (BACK, "t") not in image.mirrors
    taken(taking(image))  # another time


def test_giving_back_does_nothing_to_the_next_take_over() -> None:
    """Several may give a topic back at once, and one of them has ended it."""
    image = taken(taking(image_of()))
    image.replay(give_backs.give_back(image, BACK, ["t"], 0))
    image.replay(give_backs.note_widening(image, BACK, {TP: ATTEMPT}))
    with pytest.raises(Refused, match="another AlterPartition was sent"):
        give_backs.given_back(image, BACK, ["t"], {TP: None}, 0)
    image.replay(give_backs.given_back(image, BACK, ["t"], {TP: ATTEMPT}, 0))
    assert give_backs.given_back(image, BACK, ["t"], {TP: ATTEMPT}, 0) == []
    image = taking(image)
    for late in (
        lambda: give_backs.note_widening(image, BACK, {TP: ATTEMPT}),
        lambda: take_overs.note_ends(image, BACK, {TP: (100, Leadership(800, 4, (800,)))}),
        lambda: give_backs.forget_ends(image, BACK, [TP]),
        lambda: give_backs.given_back(image, BACK, ["t"], {TP: None}, 0),
    ):
        with pytest.raises(Refused, match="not being given back"):
            late()


def test_a_topic_of_a_wave_that_is_over_goes_back_when_the_switch_has_ended() -> None:
    image = taken(taking(image_of()))
    gone = [
        replace(image.partitions[link, TP], phase=phase)
        for link, phase in (("l", Phase.PROMOTED), (BACK, Phase.ACTIVE))
    ]
    image.replay(gone)
    with pytest.raises(Refused, match=r"t: still part of switch l-1.* --attach l-1"):
        promotes.begin_promote(image, BACK, ["t"], 0)
    image.replay([replace(image.jobs["l", 1], status=JobStatus.DONE)])
    assert promotes.begin_promote(image, BACK, ["t"], 0)[1].partitions == (TP,)


def test_a_finish_waits_for_what_may_come_of_a_switch_back_that_was_given_up() -> None:
    image = taken(taking(image_of()))
    noted = ConfigsPutBack(at=5_000, configs={"retention.ms": None}, given_up=True)
    image.replay([replace(image.partitions[BACK, TP], phase=Phase.ACTIVE)])
    image.replay([replace(image.mirrors[BACK, "t"], put_back=noted)])
    with pytest.raises(Refused, match=r"given up a moment ago.* finish in 66 s"):
        give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 60_000)
    assert give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 125_001)
    # One that was done has heard of all its requests: there, back, there and the end, without a wait.
    image.replay([replace(image.mirrors[BACK, "t"], put_back=replace(noted, given_up=False))])
    assert give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 60_000)


def test_a_switch_that_is_to_be_final_goes_nowhere_else() -> None:
    image = taken(taking(image_of()))
    with pytest.raises(Refused, match="only a topic that was switched"):
        give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 0)
    image.replay([replace(image.partitions[BACK, TP], phase=Phase.ACTIVE)])
    image.replay(give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 0))
    assert give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 0) == []
    with pytest.raises(Refused, match="cannot be switched back"):
        promotes.begin_promote(image, BACK, ["t"], 0)
    with pytest.raises(Refused, match="cannot be switched back"):
        set_sync(image, BACK, ["t"], True)
    image.replay(give_backs.finish(image, BACK, ["t"], 0))
    assert image.mirrors[BACK, "t"].finished
    with pytest.raises(Refused, match="only a topic that was switched"):
        give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.DELETED, 0)


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.FAILED])
def test_a_switch_is_finished_with_what_the_owner_added_and_what_failed(phase: Phase) -> None:
    """A partition that was added while the topic was reversed was never taken over."""
    image = taken(taking(image_of()))
    image.replay([replace(image.partitions[BACK, TP], phase=Phase.ACTIVE)])
    image.replay(growth.grow_mirror(image, BACK, "t", 2, [(1, 2)], 0, 1))
    image.replay([replace(image.partitions[BACK, TP], phase=phase)])
    added = image.partitions[BACK, TopicPartition("t", 1)]
    with pytest.raises(Refused, match="t-1 is LINKING"):
        give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 0)
    image.replay([replace(added, phase=Phase.ACTIVE, session_epoch=3, start_offset=0)])
    image.replay(give_backs.begin_finish(image, BACK, ["t"], SwitchEnd.CLOSED, 0))
    image.replay(give_backs.finish(image, BACK, ["t"], 0))
    assert {state.phase for state in image.topic_partitions(BACK, "t")} == {Phase.TAKING}
    image.replay([RemoveMirror("l", "t")])
    judged = {state.tp: state.attempt for state in image.topic_partitions(BACK, "t")}
    image.replay(give_backs.given_back(image, BACK, ["t"], judged, 0))
    assert (BACK, "t") not in image.mirrors


def test_configs_of_a_late_request_are_put_back() -> None:
    before: dict[str, str] = {"min.insync.replicas": "2", "retention.ms": "5", "cleanup.policy": "delete"}
    owned = OWNED._replace(overrides=before)
    image = image_of()
    image.replay(take_overs.begin(image, "l", {"t": owned}, 0))
    restored = {**dict.fromkeys(TAKEN_CONFIGS), "min.insync.replicas": "2", "retention.ms": "5"}
    assert image.mirrors[BACK, "t"].restore_configs == restored
    late = {**before, **TAKEN_CONFIGS}

    def changed(overrides: dict[str, str] | None, now: int) -> Mapping[str, Mapping[str, str | None]]:
        return changes(image, "l", BACK, lambda _, __: overrides, now)

    assert changed(before, 1) == {}, "the take-over itself sets them"
    image.replay(give_backs.give_back(image, BACK, ["t"], 0))
    image.replay(give_backs.given_back(image, BACK, ["t"], {TP: image.partitions[BACK, TP].attempt}, 7))
    assert changed(before, 8) == {}
    assert changed(None, 8) == {}, "the topic is gone"
    assert changed({**before, "min.insync.replicas": "1"}, 8) == {}, "somebody else's change"
    assert changed(late, 8) == {"t": {name: restored[name] for name in TAKEN_CONFIGS}}
    assert changed(late, 8 + LATE) == {}
    # Of the keeper of a topic that is taken: it sets no min.insync.replicas, and what somebody made of that stays.
    kept = {**before, **FORCED, "min.insync.replicas": "3"}
    assert changed(kept, 8) == {"t": {name: restored[name] for name in FORCED}}
    assert changed({**kept, "retention.bytes": "7"}, 8) == {}, "somebody else's change"
    assert changed(kept, 8 + LATE) == {}
    put_back = image.mirrors["l", "t"]
    assert before_take_over(put_back, kept, 9) == {**restored, "min.insync.replicas": "3"}
    # The next take-over finds them, and knows what was there before.
    image.replay(take_overs.begin(image, "l", {"t": owned._replace(overrides=late)}, 9))
    assert image.mirrors[BACK, "t"].restore_configs == restored
    assert changed(late, 10) == {}


def test_a_late_request_does_not_undo_what_was_followed_meanwhile() -> None:
    image = taking(image_of())
    mirror = image.mirrors[BACK, "t"]
    followed = {**FORCED, "min.insync.replicas": "3"}
    image.replay([replace(mirror, copied_configs=followed, restore_configs=dict.fromkeys(FORCED, "5"))])
    image.replay(give_backs.give_back(image, BACK, ["t"], 0))
    image.replay(give_backs.given_back(image, BACK, ["t"], {TP: image.partitions[BACK, TP].attempt}, 7))
    put_back = changes(image, "l", BACK, lambda _, __: TAKEN_CONFIGS, 8)
    assert put_back == {"t": {**dict.fromkeys(FORCED, "5"), "min.insync.replicas": "3"}}


def test_configs_of_a_topic_that_was_taken_stay_for_as_long_as_it_is() -> None:
    image = taken(taking(image_of()))

    def changed(overrides: Mapping[str, str]) -> Mapping[str, Mapping[str, str | None]]:
        return changes(image, "l", BACK, lambda _, __: overrides, 0)

    late = {"min.insync.replicas": "2", **FORCED, "retention.ms": "5"}
    for phase in (Phase.ACTIVE, Phase.CATCHING_UP, Phase.FENCED, Phase.ALIGNED, Phase.VALIDATED):
        assert changed(late) == {"t": {"retention.ms": "-1"}}
        assert changed(FORCED) == {}
        image.replay([replace(image.partitions[BACK, TP], phase=phase)])
    image.replay([replace(image.partitions[BACK, TP], phase=Phase.HANDED_OVER)])
    assert changed(late) == {}, "its own brokers lead again"


def test_it_runs_the_other_way_only_after_the_hand_over() -> None:
    image = taken(taking(image_of()))
    validate(image)
    assert reversals.reverse(image, "l", ["t"], 0) == []
    with pytest.raises(Refused, match="not reversed"):
        reversals.end_forward(image, "l", ["t"], 0)
    image.replay([replace(image.jobs["l", 1], source_fenced=("t",))])
    for phase in (Phase.HANDED_OVER, Phase.PROMOTED):
        image.replay(promotes.advance(image, "l", [TP], phase, 0))
    with pytest.raises(Refused, match="not reversed"):
        reversals.end_forward(image, "l", ["t"], 0)
    image.replay(reversals.reverse(image, "l", ["t"], 0))
    assert image.partitions[BACK, TP].phase is Phase.ACTIVE
    image.replay(reversals.end_forward(image, "l", ["t"], 0))
    assert ("l", "t") not in image.mirrors
    assert image.jobs["l", 1].source_fenced == ()


def test_it_runs_the_other_way_as_soon_as_the_metadata_log_says_who_leads() -> None:
    """Not before the hand-over can have been sent, and only what the log was asked about."""
    image = taken(taking(image_of()))
    assert reversals.reverse(image, "l", ["t"], 0, {TP}) == []
    image.replay([replace(image.partitions["l", TP], phase=Phase.ALIGNED)])
    assert reversals.reverse(image, "l", ["t"], 0, {TP}) == []
    validate(image)
    assert reversals.reverse(image, "l", ["t"], 0, {TopicPartition("t", 7)}) == []
    image.replay(reversals.reverse(image, "l", ["t"], 0, {TP}))
    assert image.partitions[BACK, TP].phase is Phase.ACTIVE
    assert image.partitions["l", TP].phase is Phase.VALIDATED
    image.replay(promotes.advance(image, "l", [TP], Phase.HANDED_OVER, 0))
    assert reversals.reverse(image, "l", ["t"], 0, {TP}) == []


def cluster(partition: Partition, *fenced: int) -> ImageView:
    brokers = {b: Broker(b, 50 + b, fenced=b in fenced) for b in (1, 2, 3, 800, 801)}
    return Image({"t": Topic(ID, "t", {0: partition})}, brokers)


def led(
    leader: int, isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 800), **more: object
) -> Partition:
    return Partition(replicas, isr, leader=leader, leader_epoch=4, partition_epoch=9, **more)  # type: ignore[arg-type]


def test_the_steps_there() -> None:
    def step(partition: Partition, *fenced: int, turn: int = 0) -> object:
        return take_step(cluster(partition, *fenced), TP, ID, OURS, turn)

    assert step(led(1, (1, 2, 800))) == Reassign((800, 1, 2))
    assert step(led(1, (1, 2, 800), (800, 1, 2))) == ElectPreferred()
    assert step(led(800, (800, 1, 2), (800, 1, 2))) == Shrinkable((800,))
    assert step(led(800, (800,), (800, 1, 2))) == Reached()
    # A broker that left the ISR below min.insync.replicas can be elected out of it.
    assert step(led(800, (800,), (800, 1, 2), elr=(1,))) == Shrinkable((800,))
    assert step(led(800, (800,), (800, 1, 2), last_known_elr=(1,))) == Shrinkable((800,))
    assert isinstance(step(led(1, (1, 2))), NotNow)
    assert isinstance(step(led(1, (1, 2, 800), adding=(2,))), NotNow)
    assert isinstance(step(led(1, (1, 2, 800)), 800), NotNow)
    both = led(1, (1, 2, 800, 801), (1, 2, 800, 801))
    assert step(both) == Reassign((800, 801, 1, 2))
    assert step(both, turn=1) == Reassign((801, 800, 1, 2))
    assert step(replace(both, leader=801)) == Shrinkable((801, 800))


def test_a_second_link_broker_comes_with_the_take_over() -> None:
    """So that one of them may die at any time. It does not follow, and is in no ISR of a real leader."""

    def step(partition: Partition, *fenced: int, most: int = 2) -> object:
        return take_step(cluster(partition, *fenced), TP, ID, OURS, most=most)

    assert step(led(1, (1, 2, 800))) == Reassign((800, 801, 1, 2))
    assert step(led(1, (1, 2, 800)), 801) == Reassign((800, 1, 2))
    assert step(led(1, (1, 2, 800), (1, 2, 800), adding=(2,))) == NotNow(
        "it is being reassigned, by another request than ours"
    )
    coming = led(1, (1, 2, 800), (800, 801, 1, 2), adding=(801,))
    assert step(coming) == ElectPreferred()
    assert step(replace(coming, leader=800)) == Shrinkable((800, 801))
    assert step(replace(coming, leader=800), 801) == Shrinkable((800,))
    assert step(led(800, (800, 801), (800, 801, 1, 2))) == Reached()
    back = back_step(
        cluster(led(800, (800, 801), (1, 2, 800, 801))),
        TP,
        ID,
        OURS,
        attempt=None,
        end=100,
        positions={1: ReplicaPosition(100, 51), 2: ReplicaPosition(100, 52)},
    )
    assert back == AlterIsr((800, 1, 2))


def test_why_not_now() -> None:
    def why(partition: Partition, follower: int | None = 800) -> NotNow | None:
        return obstacle(cluster(partition), TP, ID, OURS, follower)

    assert why(led(1, (1, 2, 800))) is None
    assert why(led(1, (1, 2, 800)), None) is None
    assert why(led(1, (1, 2, 800), (800, 801, 1, 2), adding=(801,))) is None  # it is prepared
    assert why(led(1, (1, 2, 800), adding=(2,))) is not None
    assert why(led(1, (1, 2, 800)), 801) is not None
    assert "has not joined the partition's cluster" in (why(led(1, (1, 2, 800)), -1) or NotNow("")).reason
    assert why(led(1, (1, 2, 800, 801), (1, 2, 800, 801))) is not None
    assert why(led(1, (1, 2))) is not None
    assert why(led(-1, ())) is not None
    assert why(led(1, (1, 2, 800), removing=(2,))) is not None
    gone = obstacle(cluster(led(1, (1, 2, 800))), TP, b"\x01" * 16, OURS)
    assert gone is not None and not gone.may_pass


def test_the_steps_back() -> None:
    at_end = {1: ReplicaPosition(100, 51), 2: ReplicaPosition(100, 52)}

    def step(
        partition: Partition,
        *fenced: int,
        positions: object = at_end,
        patient: bool = True,
        closed: bool = False,
    ) -> object:
        return back_step(
            cluster(partition, *fenced),
            TP,
            ID,
            OURS,
            attempt=ATTEMPT,
            end=100,
            positions=positions,  # type: ignore[arg-type]
            order=(2, 1),
            patient=patient,
            closed=closed,
        )

    alone = led(800, (800,), (800, 1, 2))
    assert step(alone) == Reassign((2, 1, 800))
    turned = replace(alone, replicas=(2, 1, 800))
    assert step(turned) == AlterIsr((800, 2, 1))
    assert step(replace(turned, isr=(800, 2, 1))) == ElectPreferred()
    # A switch that is finished: nobody writes here any more, and what they lack is at the other cluster.
    assert isinstance(step(turned, positions={}), NotNow)
    assert step(turned, positions={}, closed=True) == AlterIsr((800, 2, 1))
    # Real brokers lead: only under a later leader epoch than an AlterPartition that may be under way.
    assert isinstance(step(led(2, (2, 1, 800), (2, 1, 800))), NotNow)
    assert step(replace(led(2, (2, 1, 800)), leader_epoch=5)) == Reached()
    # A broker that is behind, ahead, or of another incarnation than the one that asked does not come in.
    for other in (ReplicaPosition(99, 52), ReplicaPosition(101, 52), ReplicaPosition(100, 2)):
        late = {1: ReplicaPosition(100, 51), 2: other}
        assert isinstance(step(turned, positions=late), NotNow)
        assert step(turned, positions=late, patient=False) == Reassign((1, 2, 800))
        assert step(alone, positions={2: other}, patient=False) == NotNow(
            f"brokers {{2: {other.offset}, 1: None}} have not followed to 100 yet"
        )
    assert step(alone, 2) == Reassign((1, 2, 800))
    assert isinstance(step(alone, 1, 2), NotNow)
    assert isinstance(step(replace(alone, leader=-1)), NotNow)


def test_a_broker_that_was_unregistered_is_named_in_no_list() -> None:
    """The controller refuses such a list: a topic that was reversed could be given back, and finished, never more."""
    brokers = Kraft(topic_ids={"t": ID})
    brokers.brokers.update({b: Broker(b, 50 + b) for b in (1, 2, 3, 800)})
    brokers.partitions[TP] = led(800, (800,), (800, 1, 2, 3))
    brokers.unregister(3)
    positions = {1: ReplicaPosition(100, 51), 2: ReplicaPosition(100, 52)}

    def image() -> ImageView:
        return Image({"t": Topic(ID, "t", {0: brokers.partitions[TP]})}, brokers.brokers)

    for closed in (False, True):
        for _ in range(10):
            step = back_step(
                image(),
                TP,
                ID,
                OURS,
                attempt=None,
                end=100,
                positions=positions,
                order=(3, 2, 1),
                closed=closed,
            )
            if isinstance(step, Reached):
                break
            assert not isinstance(step, NotNow), step
            if isinstance(step, Reassign):
                assert brokers.reassign(TP, step.replicas) == 0, step
            elif isinstance(step, AlterIsr):
                item = alter_partition_item(image(), TP, step.new_isr)
                assert brokers.alter_partition((800, 850), [item])[TP] in (0, 108)  # type: ignore[index]
            else:
                brokers.elect_preferred([TP])
        assert brokers.partitions[TP].leader == 2
        assert 3 not in brokers.partitions[TP].replicas
        brokers.partitions[TP] = led(800, (800,), (800, 1, 2, 3))
    # Nor is one taken over or followed: its owner is to say what the replicas are.
    four = led(1, (1, 2, 800), (1, 2, 3, 800))
    why = obstacle(Image({"t": Topic(ID, "t", {0: four})}, brokers.brokers), TP, ID, OURS, 800)
    assert (
        why is not None and not why.may_pass and "broker 3 among its replicas is not registered" in why.reason
    )
    three = led(1, (1, 2), (1, 2, 4))
    found = sync_step(cluster(three), three, OURS, OURS, 1, 2)
    assert (found.state, found.send) == (InSync.WAITING, None)
    assert "broker 4 among its replicas is not registered any more" in found.reason
    # A link broker that is gone is left out, as ever.
    gone = led(1, (1, 2), (1, 2, 899))
    assert sync_step(cluster(gone), gone, (*OURS, 899), OURS, 1, 2).send == Reassign((1, 2, 800))
    # Whom nobody asked to lead gives the leadership back all the same.
    unasked = led(800, (800, 1), (800, 1, 4))
    assert sync_step(cluster(unasked), unasked, OURS, OURS, 1, 2).send == Reassign((1, 800))


def test_only_link_brokers_can_lead_what_they_hold() -> None:
    assert held_by_link(led(800, (800, 801)), OURS)
    assert not held_by_link(led(800, (800, 1)), OURS)
    assert not held_by_link(led(-1, (800,)), OURS)


def test_link_brokers_follow_last() -> None:
    def step(partition: Partition, *fenced: int, count: int = 1, min_insync: int | None = 2) -> object:
        found = sync_step(
            cluster(partition, *fenced), partition, OURS, OURS if count else (), count, min_insync
        )
        return found.state, found.send or found.reason

    assert step(led(1, (1, 2), (1, 2))) == (InSync.WAITING, Reassign((1, 2, 800)))
    assert step(led(1, (1, 2), (1, 2)), count=2) == (InSync.WAITING, Reassign((1, 2, 800, 801)))
    assert step(led(1, (1, 2, 800))) == (
        InSync.IN_SYNC,
        "",
    )
    assert step(led(1, (1, 2)))[0] is InSync.FOLLOWING  # type: ignore[index]
    assert step(led(1, (1, 2, 800), (800, 1, 2))) == (InSync.IN_SYNC, Reassign((1, 2, 800)))
    # One that is down is replaced; nobody comes or goes below min.insync.replicas, nor while somebody reassigns.
    assert step(led(1, (1, 2)), 800) == (InSync.FOLLOWING, Reassign((1, 2, 801)))
    assert (
        step(led(1, (1,), (1, 2)))[1] == "only 1 of its own brokers are in the ISR, min.insync.replicas is 2"
    )  # type: ignore[index]
    assert (
        step(led(1, (1, 800)), count=0)[1]
        == "only 1 of its own brokers are in the ISR, min.insync.replicas is 2"
    )  # type: ignore[index]
    assert step(led(1, (1, 2), (1, 2)), min_insync=None)[1] == "its min.insync.replicas is not known yet"  # type: ignore[index]
    assert "reassigns" in step(led(1, (1, 2), (1, 2), adding=(2,)))[1]  # type: ignore[index,operator]
    assert step(led(1, (1, 2, 800)), count=0) == (InSync.IN_SYNC, Reassign((1, 2)))
    assert step(led(1, (1, 2), (1, 2)), count=0) == (InSync.WAITING, "")
    # A link broker that leads and was not asked to steps down.
    assert step(led(800, (800, 1, 2))) == (InSync.IN_SYNC, ElectPreferred())
    assert step(led(800, (800, 2))) == (InSync.IN_SYNC, Reassign((2, 1, 800)))
    assert "none of" in step(led(800, (800,)))[1]  # type: ignore[index,operator]
    # Also while somebody reassigns it: nobody can write until then.
    assert step(led(800, (800, 1, 2), (800, 1, 2, 3), adding=(3,))) == (
        InSync.IN_SYNC,
        Reassign((1, 2, 3, 800)),
    )


@pytest.mark.parametrize("count", [0, 1])
def test_a_reassignment_that_a_link_broker_keeps_from_its_end_is_cancelled(count: int) -> None:
    """It adds one that nobody has follow, and brokers of the cluster's own. One that follows keeps nobody waiting, and what
    is somebody else's alone is left."""

    def step(*adding: int) -> SyncStep:
        partition = led(1, (1, 2), (1, 2, *adding), adding=adding)
        return sync_step(cluster(partition), partition, OURS, (800,) if count else (), count, 2)

    found = step(3, 801)
    assert found.send == CancelReassignment()
    assert found.reason == (
        "its reassignment (adding [3, 801], removing []) waits for a link broker that does not follow: cancelled"
    )
    assert step(801) == SyncStep(InSync.FOLLOWING, "", CancelReassignment())
    assert step(3).send is None
    if count:
        assert step(3, 800).send is None
        assert "somebody reassigns" in step(3, 800).reason
    else:
        assert step(3, 800).send == CancelReassignment()
        partition = led(1, (1, 2), (1, 2, 3, 800), adding=(3, 800))
        assert "somebody reassigns" in sync_step(cluster(partition), partition, OURS, (800,), 0, 2).reason


def test_the_mirror_that_is_promoted_is_not_deleted_while_its_source_is_taken_over() -> None:
    """Nothing would tell any more that the topic is to be given back, and to brokers that have all of it alone."""
    image = taking(image_of())
    image.replay([replace(image.partitions["l", TP], phase=Phase.ACTIVE)])  # its promote was abandoned
    image.jobs.clear()
    for force in (False, True):
        with pytest.raises(Refused, match="is being switched"):
            delete_mirror(image, "l", "t", force)
