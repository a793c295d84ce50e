"""Restoring a source after a failover: what the state refuses, and what it says of the two logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.decide import restores, reversals, take_overs
from controller.decide.mirrors import Leadership
from controller.decide.reverse import reverse_name
from controller.decide.take_overs import OwnerTopic, Shrink
from controller.errors import Refused
from controller.image import ControllerImage
from controller.phases import Phase
from controller.state import Attempt, Exported, Failover, Link, MirrorPartition, MirrorTopic
from wire.frames.types import TopicPartition

TP = TopicPartition("t", 0)
BACK = reverse_name("l")
ID = b"\x09" * 16
OWNED = OwnerTopic(ID, ((1, 2),), {"min.insync.replicas": "2"}, (Leadership(1, 6, (1, 2, 800)),))
ATTEMPT = Attempt(leader_epoch=7, partition_epoch=9)
LED = Leadership(800, 7, (800, 1, 2))
EXPORTED = Exported(100, 140, 38, "/exports/l/t-0/100.log")


def failed_over(**changes: object) -> ControllerImage:
    """Copied up to 100 under the target's epoch 5, of which the source had written from 70 on under 3."""
    image = ControllerImage()
    link = Link(name="l", source_cluster_id="s", properties={})
    image.replay([link, replace(link, name=BACK, source_cluster_id="t", reverse_of="l")])
    mirror = MirrorTopic(link="l", topic="t", topic_id=b"\x07" * 16, source_topic_id=ID, partitions=1)
    state = MirrorPartition(
        link="l",
        topic="t",
        partition=0,
        phase=Phase.FAILED_OVER,
        session_epoch=5,
        start_offset=0,
        source_epochs=((2, 0), (3, 70)),
        failover=Failover(before=Phase.ACTIVE, end=100, source_end=120),
    )
    image.replay([mirror, replace(state, **changes)])  # type: ignore[arg-type]
    return image


def promoted(**changes: object) -> ControllerImage:
    """The same log, by a promote."""
    return failed_over(phase=Phase.PROMOTED, failover=None, aligned_end=100, **changes)


def test_what_was_promoted_is_restored_from_the_end_of_its_hand_over() -> None:
    image = begun(promoted())
    assert restores.end_of(image.partitions["l", TP]) == 100
    assert restores.to_do(image, "l", "t")
    image.replay(take_overs.note_shrinks(image, BACK, {TP: Shrink(100, ATTEMPT, LED, EXPORTED)}))
    image.replay(take_overs.take(image, BACK, {TP: replace_isr()}, 0))
    image.replay(reversals.reverse(image, "l", ["t"], 0))
    assert not restores.to_do(image, "l", "t")
    image.replay(reversals.end_forward(image, "l", ["t"], 0))
    assert image.partitions[BACK, TP].phase is Phase.ACTIVE
    assert ("l", "t") not in image.mirrors


def test_the_end_of_a_switch_is_no_restore() -> None:
    """Its mirror is promoted, too, and its source taken over: nobody gives that back."""
    image = promoted()
    image.replay(take_overs.begin(image, "l", {"t": OWNED}, 0))
    assert not restores.to_do(image, "l", "t")
    image = begun(promoted())
    image.replay(restores.end(image, "l", ["t"], "a broker is down"))
    assert restores.to_do(image, "l", "t"), "a restore that was given up is given back"
    assert image.partitions["l", TP].reason == "the source is not restored: a broker is down"


def begun(image: ControllerImage | None = None) -> ControllerImage:
    image = image or failed_over()
    image.replay(restores.begin(image, "l", ["t"]))
    image.replay(take_overs.begin(image, "l", {"t": OWNED}, 0))
    return image


def noted() -> ControllerImage:
    image = begun()
    image.replay(take_overs.note_shrinks(image, BACK, {TP: Shrink(100, ATTEMPT, LED, EXPORTED)}))
    return image


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"phase": Phase.ACTIVE, "failover": None}, "failed over as a whole"),
        ({"failover": Failover(before=Phase.ACTIVE)}, "not written down"),
        ({"phase": Phase.PROMOTED, "failover": None}, "not written down"),
        ({"phase": Phase.HANDED_OVER, "failover": None, "aligned_end": 100}, "promoted or failed over"),
    ],
)
def test_only_what_was_failed_over_is_restored(changes: dict[str, object], why: str) -> None:
    image = failed_over(**changes)
    with pytest.raises(Refused, match=why):
        restores.begin(image, "l", ["t"])


def test_a_mirror_that_is_gone_or_begins_later_is_not_restored() -> None:
    image = failed_over()
    assert "is no mirror" in str(restores.obstacle(image, "l", "other"))
    image.replay([replace(image.mirrors["l", "t"], start="latest")])
    assert "first record" in str(restores.obstacle(image, "l", "t"))


def test_to_the_end_the_failover_counts_as_the_end_and_the_forward_mirror_goes() -> None:
    image = noted()
    assert restores.exported(image, "l", TP) == EXPORTED
    image.replay(take_overs.take(image, BACK, {TP: replace_isr()}, 0))
    taken = image.partitions[BACK, TP].taken
    assert taken is not None
    assert (taken.end, taken.epochs) == (100, ((2, 0), (3, 70)))
    image.replay(reversals.reverse(image, "l", ["t"], 0))
    image.replay(reversals.end_forward(image, "l", ["t"], 0))
    assert image.partitions[BACK, TP].phase is Phase.ACTIVE
    assert ("l", "t") not in image.mirrors


def replace_isr() -> Leadership:
    return LED._replace(isr=(800,))


def test_given_up_before_anything_was_written_down_it_is_given_back() -> None:
    image = begun()
    image.replay(restores.end(image, "l", ["t"], "a broker is down"))
    assert not image.mirrors["l", "t"].restoring
    assert restores.under_way(image, "l", "t")
    assert "a broker is down" in str(image.partitions["l", TP].reason)


def test_once_brokers_may_have_truncated_it_is_not_given_up() -> None:
    image = noted()
    with pytest.raises(Refused, match="restored to the end"):
        restores.end(image, "l", ["t"], "why not")


def test_a_broker_of_the_source_that_leads_again_is_exported_anew() -> None:
    """What it takes is nowhere else: its followers must not be told to truncate by what was written down before."""
    image = noted()
    image.replay(restores.led_again(image, "l", [TP]))
    assert restores.exported(image, "l", TP) is None
    state = image.partitions[BACK, TP]
    assert (state.phase, state.taken, state.session_epoch) == (Phase.TAKING, None, -1)


def test_the_histories_of_both_logs_end_at_the_failover() -> None:
    image = failed_over()
    source = restores.source_history(image.partitions["l", TP])
    assert [source.epoch_below(offset) for offset in (0, 1, 70, 71, 100)] == [-1, 2, 2, 3, 3]
    target = restores.target_history(image.partitions["l", TP])
    assert (target.end, target.epoch_below(100)) == (100, 5)


@pytest.mark.parametrize(
    ("told", "agreed"),
    [
        ((3, 90), 90),  # it has less under the same epoch
        ((3, 400), 100),
        ((2, 60), 60),  # its epoch 2 ended earlier: it has lost records
        ((2, 85), 70),  # it went on under epoch 2 where we have 3
        ((1, 10), 0),  # an epoch that we never saw, before all others
    ],
)
def test_where_two_logs_may_agree(told: tuple[int, int], agreed: int) -> None:
    """As a follower of Kafka's would truncate (getOffsetTruncationState)."""
    assert restores.source_history(failed_over().partitions["l", TP]).agreed(*told) == agreed
