"""Mirror partitions without a leader: which are led again unasked, and in which steps."""

from __future__ import annotations

from typing import Any

import pytest

from controller.phases import Phase
from controller.state import MirrorPartition
from linker.links.leaderless import CannotLead, Stranded, lead_again, stranded
from wire.frames.types import TopicPartition
from wire.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

T0 = TopicPartition("t", 0)
LINKS = frozenset({900, 901})


def partition(**fields: Any) -> PartitionImage:
    usual = {
        "index": 0,
        "replicas": (1, 2, 900),
        "isr": (),
        "adding": (1, 2),
        "removing": (900,),
        "leader": -1,
        "leader_epoch": 6,
        "partition_epoch": 9,
    }
    return PartitionImage(**{**usual, **fields})


def state(**fields: Any) -> MirrorPartition:
    usual = {"leader": 900, "leader_epoch": 5, "session_epoch": 3, "phase": Phase.ACTIVE}
    return MirrorPartition(link="l", topic="t", partition=0, **{**usual, **fields})


@pytest.mark.parametrize(
    ("now", "known", "between"),
    [
        (partition(), state(), False),
        (partition(), state(leader=-1, leader_epoch=6), False),
        (partition(leader_epoch=7), state(), True),  # somebody led in between
        (partition(leader_epoch=8), state(leader=-1, leader_epoch=6), True),
        (partition(elr=(1,)), state(), True),  # a real broker was in the ISR
        (partition(isr=(2,)), state(), True),
        (partition(), state(leader=1), True),
    ],
)
def test_somebody_may_have_led_in_between(now: PartitionImage, known: MirrorPartition, between: bool) -> None:
    [found] = stranded([known], TopicImage(bytes(16), "t", {0: now}), LINKS)
    assert found.led_between is between


@pytest.mark.parametrize(
    ("now", "known"),
    [
        (partition(leader=900, isr=(900,)), state()),
        (partition(leader=1, isr=(1,)), state()),  # a fork, which is not for us to take back
        (partition(elr=(900,)), state()),  # KRaft elects it when it is back
        (partition(isr=(901,)), state()),
        (partition(), state(phase=Phase.PROMOTED)),
    ],
)
def test_who_is_led_or_will_be_is_left_alone(now: PartitionImage, known: MirrorPartition) -> None:
    assert stranded([known], TopicImage(bytes(16), "t", {0: now}), LINKS) == []
    assert stranded([known], TopicImage(bytes(16), "t", {}), LINKS) == []


class Target:
    """A controller that does as it is asked."""

    def __init__(self, elected: int = 900, code: int = 0) -> None:
        self.image = ClusterImage()
        topic = TopicImage(bytes(16), "t", {0: partition()})
        self.image.topics_by_name["t"] = topic
        for broker, fenced in ((1, False), (900, False), (901, True)):
            self.image.brokers[broker] = BrokerImage(broker, 1, bytes(16), None, {}, fenced, False, ())
        self.asked: list[Any] = []
        self.elected, self.code = elected, code
        self.operations = self.metadata = self

    async def reassign(self, wanted: Any, *, timeout: float) -> None:
        self.asked.append(dict(wanted))
        self._set(partition(replicas=tuple(wanted[T0]), partition_epoch=10))

    async def elect_first_replica(self, tps: Any, *, timeout: float) -> dict[TopicPartition, int]:
        self.asked.append(list(tps))
        if not self.code:
            self._set(partition(leader=self.elected, isr=(self.elected,), leader_epoch=7))
        return {T0: self.code}

    async def wait_for(self, predicate: Any, timeout: float) -> Any:
        found = predicate(self.image)
        assert found is not None
        return found

    def _set(self, one: PartitionImage) -> None:
        self.image.topics_by_name["t"].partitions[0] = one


async def test_the_link_broker_that_is_there_is_put_first_and_then_elected() -> None:
    target: Any = Target()
    await lead_again(target, [Stranded(T0, (1, 2, 901, 900), False)], LINKS)
    assert target.asked == [{T0: [900, 1, 2, 901]}, [T0]]
    again: Any = Target()
    await lead_again(again, [Stranded(T0, (900, 1, 2), False)], LINKS)
    assert again.asked == [[T0]], "the order was right"


async def test_nothing_is_elected_without_a_link_broker_that_is_there() -> None:
    target: Any = Target()
    with pytest.raises(CannotLead, match="no link broker that is there"):
        await lead_again(target, [Stranded(T0, (1, 2, 901), False)], LINKS)
    assert target.asked == []


async def test_one_that_cannot_be_led_keeps_no_other_from_it() -> None:
    target: Any = Target()
    with pytest.raises(CannotLead, match="t-1 has no leader"):
        await lead_again(
            target,
            [Stranded(TopicPartition("t", 1), (1, 2), False), Stranded(T0, (1, 2, 900), False)],
            LINKS,
        )
    assert target.asked == [{T0: [900, 1, 2]}, [T0]]


async def test_a_refusal_and_a_wrong_election_are_said() -> None:
    refusing: Any = Target(code=80)
    with pytest.raises(CannotLead, match="t-0"):
        await lead_again(refusing, [Stranded(T0, (900, 1, 2), False)], LINKS)
    other: Any = Target(elected=1)
    with pytest.raises(CannotLead, match="broker 1 was elected"):
        await lead_again(other, [Stranded(T0, (900, 1, 2), False)], LINKS)
