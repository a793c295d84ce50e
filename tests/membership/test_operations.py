"""What a link broker asks of the controller, with answers that get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from controller.alter_partition import AlterPartitionItem, alter_partition_item
from linker.checks import final_configs
from linker.checks.final_configs import refused_configs
from linker.membership import MissingRight, OperationFailed, TargetCluster, TargetError
from tests.controller.kraft_model import Broker, Image, Partition, Topic
from tests.fakes.controller import DROP, SILENCE, FakeController, FakeQuorum
from tests.fakes.mirror_topic import create_mirror_topic
from tests.membership.conftest import Member, eventually
from wire.errors import BrokerError, ConnectionLost, RequestTimedOut
from wire.frames.types import TOPIC_RESOURCE, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def mirror(target: TargetCluster) -> None:
    """Topic t with two partitions on 900, being reassigned to the real brokers."""
    await create_mirror_topic(target.operations, "t", {0: [900], 1: [900]}, {})
    await target.operations.reassign({T0: [1, 2], T1: [2, 1]})
    await target.metadata.wait_for(lambda image: image.topics_by_name["t"].partitions[1].adding or None, 30)


def altered(target: TargetCluster, tp: TopicPartition, *isr: int) -> AlterPartitionItem:
    """The item as the image stands."""
    return alter_partition_item(target.image, tp, isr or (900, 1, 2))


# --- topics -------------------------------------------------------------------------------------------------


async def test_creates_a_topic_on_link_brokers_only(member: TargetCluster) -> None:
    topic_id = await create_mirror_topic(
        member.operations, "t", {0: [900], 1: [900]}, {"unclean.leader.election.enable": "false"}
    )
    topic = member.image.topics_by_name["t"]
    assert topic.id == topic_id
    assert [(p.replicas, p.leader) for p in topic.partitions.values()] == [((900,), 900)] * 2
    assert member.image.configs[TOPIC_RESOURCE, "t"] == {"unclean.leader.election.enable": "false"}


async def test_validate_only_changes_nothing(quorum: FakeQuorum, member: TargetCluster) -> None:
    await create_mirror_topic(member.operations, "t", {0: [900]}, {}, validate_only=True)
    assert not quorum.topics


async def test_a_topic_of_somebody_else_is_refused(quorum: FakeQuorum, member: TargetCluster) -> None:
    await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    with pytest.raises(OperationFailed, match="creating topic t failed: t: TOPIC_ALREADY_EXISTS") as error:
        await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    assert error.value.code == 36


@pytest.mark.parametrize("lost", [DROP, {"topics": [{"name": "t", "error_code": 41, "configs": None}]}])
async def test_a_creation_with_a_lost_answer_is_found_in_the_log(
    quorum: FakeQuorum, member: TargetCluster, lost: object
) -> None:
    node = quorum.nodes[0]

    def done_but_lost(request: object) -> object:
        if node.seen["create_topics"] > 1:
            return None
        node._tasks.add(asyncio.ensure_future(node._create_topics(request, 7)))  # type: ignore[arg-type]
        return lost

    node.hooks["create_topics"] = done_but_lost
    topic_id = await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    assert member.image.topics_by_name["t"].id == topic_id
    assert node.seen["create_topics"] == 2


async def test_missing_right_to_create(quorum: FakeQuorum, member: TargetCluster) -> None:
    quorum.nodes[0].hooks["create_topics"] = lambda request: {
        "topics": [{"name": "t", "error_code": 29, "configs": None}]
    }
    with pytest.raises(MissingRight, match="CREATE on Cluster"):
        await create_mirror_topic(member.operations, "t", {0: [900]}, {})


async def test_deleting_twice_is_deleting(member: TargetCluster) -> None:
    await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    await member.operations.delete_topic("t")
    assert "t" not in member.image.topics_by_name
    await member.operations.delete_topic("t")


async def test_another_topic_of_that_name_is_not_deleted(quorum: FakeQuorum, member: TargetCluster) -> None:
    """A request that is sent again, or by somebody who stood still, finds a topic that was made since."""
    gone = await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    await member.operations.delete_topic("t", gone)
    anew = await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    assert anew != gone
    await member.operations.delete_topic("t", gone)
    assert member.image.topics_by_name["t"].id == anew
    assert quorum.topics["t"][0] == anew


async def test_configs_are_set_and_deleted(member: TargetCluster) -> None:
    await create_mirror_topic(member.operations, "t", {0: [900]}, {"a": "1"})
    await member.operations.set_configs_of_topics({"t": {"b": "2", "a": None}})
    assert member.image.configs[TOPIC_RESOURCE, "t"] == {"b": "2"}
    await member.operations.set_configs_of_topics({"t": {}})


async def test_configs_are_tried_without_setting_them(member: TargetCluster, quorum: FakeQuorum) -> None:
    """A promote is refused before anybody waits if the cluster would not take the configs that it sets in the end."""
    await create_mirror_topic(member.operations, "t", {0: [900]}, {"a": "1"})
    await create_mirror_topic(member.operations, "u", {0: [900]}, {})
    wanted = {"t": {"retention.ms": "5", "a": None}, "u": {"retention.ms": "5"}}
    assert await refused_configs(member.operations, wanted) == []
    assert member.image.configs[TOPIC_RESOURCE, "t"] == {"a": "1"}
    quorum.refused_configs["t"] = "local.retention.ms must not be more than retention.ms"
    (finding,) = await refused_configs(member.operations, wanted)
    assert finding.fatal
    assert finding.detail == (
        "topic t: the cluster refuses what a promote sets in the end, no a, retention.ms=5: INVALID_CONFIG: "
        "local.retention.ms must not be more than retention.ms"
    )


async def test_a_controller_that_stands_still_keeps_no_promote_from_beginning(
    member: TargetCluster, quorum: FakeQuorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_configs, "_TIMEOUT", 0.2)
    await create_mirror_topic(member.operations, "t", {0: [900]}, {"a": "1"})
    quorum.refused_configs["t"] = "no"
    quorum.nodes[0].hooks["incremental_alter_configs"] = lambda request: SILENCE
    assert await refused_configs(member.operations, {"t": {"a": None}}) == []


# --- replicas -----------------------------------------------------------------------------------------------


async def test_reassigns_and_cancels(member: TargetCluster) -> None:
    await mirror(member)
    assert member.image.topics_by_name["t"].partitions[0].replicas == (1, 2, 900)
    with pytest.raises(OperationFailed, match="nope-0: UNKNOWN_TOPIC_OR_PARTITION"):
        await member.operations.reassign({TopicPartition("nope", 0): [1]})
    await create_mirror_topic(member.operations, "u", {0: [900]}, {})
    await member.operations.reassign({TopicPartition("u", 0): None})  # none in progress: what a cancel wants


async def test_missing_right_to_reassign(quorum: FakeQuorum, member: TargetCluster) -> None:
    quorum.nodes[0].hooks["alter_partition_reassignments"] = lambda request: {
        "error_code": 31,
        "responses": [],
    }
    with pytest.raises(MissingRight, match="ALTER on Cluster"):
        await member.operations.reassign({T0: [1]})


@pytest.mark.parametrize("version", [2, 3])
async def test_hand_over_of_several_partitions_in_one_request(
    quorum: FakeQuorum, make_member: Callable[..., Member], version: int
) -> None:
    quorum.nodes[0].supported["alter_partition"] = (2, version)
    target = await make_member().up()
    await mirror(target)
    assert await target.operations.alter_partition([altered(target, T0), altered(target, T1)]) == {
        T0: 108,
        T1: 108,
    }
    await target.metadata.caught_up(5)
    assert [p.leader for p in target.image.topics_by_name["t"].partitions.values()] == [1, 2]
    assert quorum.nodes[0].seen["alter_partition"] == 1


async def test_epochs_that_changed_before_the_send_are_not_sent(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    """Between the call and the send the controller moves, and a real broker restarts."""
    await mirror(member)
    node = quorum.nodes[0]
    _, connection = await member.channel.connection("admin", timeout=5)
    connection.close()
    await connection.closed_event.wait()
    release = asyncio.Event()
    opened = member.channel._open

    async def slow_open(*args: object) -> object:
        await release.wait()
        return await opened(*args)  # type: ignore[arg-type]

    member.channel._open = slow_open  # type: ignore[method-assign,assignment]
    items = [altered(member, T0), altered(member, T1, 900, 2)]
    result = asyncio.ensure_future(member.operations.alter_partition(items))
    await asyncio.sleep(0.01)
    quorum.add_broker(1, rack="a")  # a new broker epoch
    quorum.change("t", 1, isr=[900])  # a new partition epoch
    await eventually(lambda: member.image.topics_by_name["t"].partitions[1].partition_epoch == 2)
    release.set()
    assert await result == {T0: 107, T1: 95}
    assert node.seen["alter_partition"] == 1, "a request that names nothing"


async def test_the_epochs_of_a_decision_must_still_hold(quorum: FakeQuorum, member: TargetCluster) -> None:
    await mirror(member)
    item = altered(member, T0)
    leader, first, second = item.new_isr
    stale = [
        (replace(item, tp=TopicPartition("gone", 0)), 3),
        (replace(item, topic_id=bytes(15) + b"x"), 100),
        (replace(item, partition_epoch=item.partition_epoch - 1), 95),
        (replace(item, leader_epoch=item.leader_epoch + 1), 6),
        (replace(item, new_isr=(leader, first._replace(broker_epoch=7), second)), 107),
        (replace(item, new_isr=(leader, first._replace(broker_id=55), second)), 107),
    ]
    for changed, code in stale:
        assert await member.operations.alter_partition([changed]) == {changed.tp: code}
    assert quorum.nodes[0].seen["alter_partition"] == 0
    results = await member.operations.alter_partition([item, replace(altered(member, T1), leader_epoch=7)])
    assert results == {T0: 108, T1: 6}
    assert await member.operations.alter_partition([]) == {}
    assert quorum.nodes[0].seen["alter_partition"] == 1


@pytest.mark.parametrize(
    ("topics", "leader", "isr", "code"), [(0, 900, (900,), 3), (1, -1, (900, 1), 6), (1, 900, (900, 2), 107)]
)
def test_there_is_no_item_for_what_the_image_does_not_have(
    topics: int, leader: int, isr: tuple[int, ...], code: int
) -> None:
    partition = Partition((1, 900), (900,), (1,), (), leader, 5, 8)
    image = Image(
        {"t": Topic(b"\x01" * 16, "t", {0: partition})} if topics else {},
        {b: Broker(b, 10 + b) for b in (1, 900)},
    )
    with pytest.raises(BrokerError) as refused:
        alter_partition_item(image, T0, isr)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "lost",
    [
        DROP,
        SILENCE,
        b"garbage",
        {"error_code": 41, "topics": []},
        {"error_code": 7, "topics": []},
        {"error_code": -1, "topics": []},
        {"topics": []},
    ],
    ids=["drop", "silence", "garbage", "resigned", "timed out", "failed", "left out"],
)
async def test_an_unknown_outcome_is_never_sent_again(
    quorum: FakeQuorum, member: TargetCluster, lost: object
) -> None:
    await mirror(member)
    node = quorum.nodes[0]
    node.hooks["alter_partition"] = lambda request: lost
    with pytest.raises(ConnectionLost) as unknown:
        await member.operations.alter_partition([altered(member, T0)], timeout=0.5)
    assert unknown.value.sent
    assert node.seen["alter_partition"] == 1


async def test_a_request_that_was_not_sent_is_repeated(quorum: FakeQuorum, member: TargetCluster) -> None:
    await mirror(member)
    _, connection = await member.channel.connection("admin", timeout=5)
    connection.close()
    assert await member.operations.alter_partition([altered(member, T0)]) == {T0: 108}


async def test_stale_broker_epoch_is_an_error_of_the_whole(quorum: FakeQuorum, member: TargetCluster) -> None:
    await mirror(member)
    quorum.nodes[0].hooks["alter_partition"] = lambda request: {"error_code": 77, "topics": []}
    with pytest.raises(BrokerError, match="STALE_BROKER_EPOCH"):
        await member.operations.alter_partition([altered(member, T0)])


async def test_election_that_is_not_needed_is_done(member: TargetCluster) -> None:
    assert await member.operations.elect_preferred([T0, T1]) == {T0: 0, T1: 0}


# --- producer ids -------------------------------------------------------------------------------------------


async def test_allocates_over_several_connections(quorum: FakeQuorum, member: TargetCluster) -> None:
    at_once = most = 0
    node = quorum.nodes[0]
    original = node._allocate_producer_ids

    async def slow(request: object, version: int) -> dict[str, object]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        return await original(request, version)

    node._allocate_producer_ids = slow  # type: ignore[method-assign]
    assert await member.operations.allocate_producer_ids(20, connections=4) == (19_000, 1000)
    assert most == 4
    await member.metadata.wait_for(lambda image: True if image.next_producer_id == 20_000 else None, 30)


async def test_stops_when_far_enough(quorum: FakeQuorum, member: TargetCluster) -> None:
    start, length = await member.operations.allocate_producer_ids(100, connections=1, until=4500)
    assert (start, length) == (4000, 1000)
    assert quorum.next_producer_id == 5000


async def test_a_lost_block_is_one_more_block(quorum: FakeQuorum, member: TargetCluster) -> None:
    node = quorum.nodes[0]
    node.hooks["allocate_producer_ids"] = lambda request: (
        DROP if node.seen["allocate_producer_ids"] == 2 else None
    )
    assert sum(await member.operations.allocate_producer_ids(3, connections=1)) == 3000


async def test_producer_ids_follow_the_controller(
    quorum: FakeQuorum,
    make_member: Callable[..., Member],
    add_node: Callable[[int], Awaitable[FakeController]],
) -> None:
    await add_node(1)
    target = await make_member().up()
    node = quorum.nodes[0]
    node.hooks["allocate_producer_ids"] = lambda request: (
        quorum.elect(1) if node.seen["allocate_producer_ids"] >= 3 and node.leads else None
    )
    assert sum(await target.operations.allocate_producer_ids(10, connections=2)) == 10_000
    assert quorum.nodes[1].seen["allocate_producer_ids"] > 0


async def test_producer_ids_have_a_deadline(quorum: FakeQuorum, member: TargetCluster) -> None:
    quorum.nodes[0].hooks["allocate_producer_ids"] = lambda request: SILENCE
    with pytest.raises(RequestTimedOut):
        await member.operations.allocate_producer_ids(2, timeout=0.3)


@pytest.mark.parametrize(
    ("answer", "error"), [({"error_code": 31}, MissingRight), ({"error_code": 77}, BrokerError)]
)
async def test_producer_ids_refused(
    quorum: FakeQuorum, member: TargetCluster, answer: dict[str, object], error: type[Exception]
) -> None:
    quorum.nodes[0].hooks["allocate_producer_ids"] = lambda request: answer
    with pytest.raises(error):
        await member.operations.allocate_producer_ids(2)


async def test_no_blocks_is_a_mistake(member: TargetCluster) -> None:
    with pytest.raises(TargetError):
        await member.operations.allocate_producer_ids(0)


# --- on behalf of other link brokers ------------------------------------------------------------------------


async def two_leaders(quorum: FakeQuorum, target: TargetCluster) -> None:
    """t-0 is led by us, t-1 by 901."""
    quorum.add_broker(901, rack="a")
    await target.metadata.wait_for(lambda image: image.brokers.get(901), 30)
    await mirror(target)
    quorum.change("t", 1, replicas=[2, 1, 900, 901], leader=901, isr=[901, 900])
    await target.metadata.wait_for(
        lambda image: True if image.topics_by_name["t"].partitions[1].leader == 901 else None, 5
    )


async def test_a_hand_over_is_sent_in_the_name_of_each_leader(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    await two_leaders(quorum, member)
    asked: list[tuple[int, int]] = []
    quorum.nodes[0].hooks["alter_partition"] = lambda request: asked.append(
        (request.broker_id, request.broker_epoch)
    )
    items = [altered(member, T0), altered(member, T1, 901, 900, 2, 1)]
    assert await member.operations.alter_partition(items) == {T0: 108, T1: 108}
    assert asked == [(b, quorum.brokers[b].epoch) for b in (900, 901)]


async def test_a_leader_that_registered_anew_is_not_asked_for(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    await two_leaders(quorum, member)
    item = altered(member, T1, 901, 2, 1)
    old = replace(item, leader=item.leader._replace(broker_epoch=7))
    other = replace(item, leader=item.leader._replace(broker_id=902))
    assert await member.operations.alter_partition([old]) == {T1: 77}
    assert await member.operations.alter_partition([other]) == {T1: 6}
    assert quorum.nodes[0].seen["alter_partition"] == 0


async def test_one_lost_request_of_two_leaves_the_other_answer(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    await two_leaders(quorum, member)
    items = [altered(member, T0), altered(member, T1, 901, 2, 1)]

    quorum.nodes[0].hooks["alter_partition"] = lambda request: SILENCE
    with pytest.raises(ConnectionLost) as lost:
        await member.operations.alter_partition(items, timeout=0.3)
    assert lost.value.sent

    def lose(request: object) -> object:
        return SILENCE if request.broker_id == 901 else None  # type: ignore[attr-defined]

    quorum.nodes[0].hooks["alter_partition"] = lose
    assert await member.operations.alter_partition(items, timeout=0.3) == {T0: 108}


async def test_one_refused_request_of_two_is_the_answer_for_its_partitions_only(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    await two_leaders(quorum, member)
    quorum.nodes[0].hooks["alter_partition"] = lambda request: (
        {"error_code": 77} if request.broker_id == 901 else None
    )
    items = [altered(member, T0), altered(member, T1, 901, 2, 1)]
    assert await member.operations.alter_partition(items) == {T0: 108, T1: 77}


async def test_an_isr_is_changed_by_whoever_leads(quorum: FakeQuorum, member: TargetCluster) -> None:
    await two_leaders(quorum, member)
    asked: list[int] = []
    quorum.nodes[0].hooks["alter_partition"] = lambda request: asked.append(request.broker_id)
    assert await member.operations.alter_isr({T1: (901,)}) == {T1: 0}
    assert asked == [901]
    assert await member.operations.alter_isr({TopicPartition("gone", 0): (901,)}) == {
        TopicPartition("gone", 0): 3
    }


async def test_a_dead_link_broker_is_fenced_in_its_name(quorum: FakeQuorum, member: TargetCluster) -> None:
    quorum.add_broker(901, rack="a")
    await member.metadata.wait_for(lambda image: image.brokers.get(901), 30)
    epoch = member.image.brokers[901].epoch
    assert not await member.operations.fence_broker(901, epoch - 1), "that is another incarnation"
    assert not await member.operations.fence_broker(999, 1)
    assert not quorum.brokers[901].fenced
    assert await member.operations.fence_broker(901, epoch)
    assert quorum.brokers[901].fenced
    assert await member.operations.fence_broker(901, epoch), "again is no error"


async def test_a_caller_without_time_does_not_have_the_controller_looked_for_again(
    member: TargetCluster,
) -> None:
    active = member.channel.active
    assert active is not None
    with pytest.raises(ConnectionLost):
        await member.operations.elect_preferred([T0], timeout=0.0)
    assert member.channel.active is active
