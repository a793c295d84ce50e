"""Following the metadata log: commits, divergence, snapshots, epochs, and what is told to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from linker.membership import MetadataLogFailed, TargetCluster
from tests.fakes.controller import DROP, SILENCE, FakeController, FakeQuorum
from tests.fakes.metadata_records import encode_batch, encode_record
from tests.fakes.mirror_topic import create_mirror_topic
from tests.membership.conftest import Member, eventually
from wire.errors import RequestTimedOut
from wire.metadata.image import ClusterImage

AddNode = Callable[[int], Awaitable[FakeController]]


def feature(level: int) -> bytes:
    return encode_record("FeatureLevelRecord", {"name": "test.level", "feature_level": level})


def level(target: TargetCluster) -> int:
    return target.image.features.get("test.level", 0)


async def test_replays_what_is_committed_and_nothing_else(quorum: FakeQuorum, member: TargetCluster) -> None:
    quorum.append_values([feature(1)])
    quorum.hold = True
    quorum.append_values([feature(2)])
    await eventually(lambda: level(member) == 1)
    await asyncio.sleep(0.1)
    assert level(member) == 1
    assert member.metadata.offset == quorum.high_watermark - 1
    quorum.commit()
    await eventually(lambda: level(member) == 2)


@pytest.mark.parametrize("version", [12, 13, 15, 17, 18])
async def test_every_fetch_version(
    quorum: FakeQuorum, make_member: Callable[..., Member], version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum.nodes[0].supported["fetch"] = (4, version)
    target = await make_member().up()
    monkeypatch.setattr("linker.membership.metadata_log._MAX_WAIT_MS", 60_000)
    quorum.hold = True
    quorum.append_values([feature(1)])
    await asyncio.sleep(0.05)
    quorum.commit()
    # Neither the new field of v18 nor the shorter wait before it lets a commit wait for a whole long poll.
    await eventually(lambda: level(target) == 1)


async def test_uncommitted_records_that_diverge_are_dropped(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    quorum.append_values([feature(1)])
    end = quorum.next_offset
    quorum.hold = True
    quorum.append_values([feature(9)])
    quorum.append_values([feature(9)])
    await eventually(
        lambda: (
            quorum.nodes[0].requests[-1][2].topics[0].partitions[0].fetch_offset == end + 2
            if quorum.nodes[0].requests[-1][0] == "fetch"
            else False
        )
    )
    quorum.truncate(end)
    quorum.hold = False
    quorum.elect(0)
    quorum.append_values([feature(2)])
    await eventually(lambda: level(member) == 2)
    assert not member.metadata._tail


async def test_committed_records_that_were_lost_start_a_new_replay(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    end = quorum.next_offset
    quorum.append_values([feature(7)])
    quorum.append_values([feature(8)])
    await eventually(lambda: level(member) == 8)
    quorum.truncate(end)
    quorum.elect(0)
    await eventually(lambda: level(member) == 0 and 900 in member.image.brokers)
    quorum.append_values([feature(2)])
    await eventually(lambda: level(member) == 2)


async def test_nobody_sees_the_new_replay_before_it_is_whole(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    """A topic that is missing for a moment would be a mirror that was deleted at the target."""
    await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    await member.metadata.caught_up(5)
    seen: list[bool] = []
    member.metadata.subscribe(lambda image, touched: seen.append("t" in image.topics_by_name))
    end = quorum.next_offset
    quorum.append_values([feature(7)])
    await eventually(lambda: level(member) == 7)
    quorum.truncate(end)
    quorum.elect(0)
    await eventually(lambda: level(member) == 0)
    quorum.append_values([feature(2)])
    await eventually(lambda: level(member) == 2)
    assert len(seen) >= 3
    assert all(seen)


async def test_starts_from_a_snapshot(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    quorum.append_values([feature(3)])
    topic = bytes(15) + b"\x07"
    quorum.take_snapshot(
        [
            encode_record("FeatureLevelRecord", {"name": "metadata.version", "feature_level": 30}),
            encode_record("TopicRecord", {"name": "t", "topic_id": topic}),
            feature(3),
        ]
    )
    target = await make_member().up()
    assert target.metadata.snapshots_loaded == 1
    assert level(target) == 3
    assert target.image.topics_by_name["t"].id == topic
    assert quorum.nodes[0].seen["fetch_snapshot"] > 1  # in pieces


async def test_falls_behind_the_log_start_and_takes_the_snapshot(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    node = quorum.nodes[0]
    touched: list[frozenset[bytes]] = []
    await create_mirror_topic(member.operations, "old", {0: [1]}, {})
    old = member.image.topics_by_name["old"].id
    await member.metadata.caught_up(5)
    member.metadata.subscribe(lambda image, ids: touched.append(ids))
    image = member.image
    node.hooks["fetch"] = lambda request: {"error_code": 7, "responses": []}
    quorum.append_values([feature(5)])
    quorum.take_snapshot([feature(5)])
    del node.hooks["fetch"]
    await eventually(lambda: level(member) == 5)
    assert member.image is image
    assert not member.image.topics_by_name
    assert old in frozenset().union(*touched), "a topic that is gone with a snapshot must be told"
    quorum.append_values([feature(6)])
    await eventually(lambda: level(member) == 6)


async def test_snapshot_replaced_while_it_is_read(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    quorum.append_values([feature(1)])
    quorum.take_snapshot([feature(1)] * 20)

    def replace(request: object) -> None:
        if quorum.nodes[0].seen["fetch_snapshot"] == 3:
            quorum.append_values([feature(2)])
            quorum.take_snapshot([feature(2)])

    quorum.nodes[0].hooks["fetch_snapshot"] = replace
    target = await make_member().up()
    assert level(target) == 2


async def test_newer_epoch_of_the_same_leader(
    quorum: FakeQuorum, member: TargetCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linker.membership.metadata_log._REQUEST_TIMEOUT", 60.0)
    quorum.elect(0)
    quorum.append_values([feature(4)])
    await eventually(lambda: level(member) == 4)
    assert member.metadata.quorum.epoch == quorum.epoch


async def test_follows_the_leader_to_another_controller(
    quorum: FakeQuorum, make_member: Callable[..., Member], add_node: AddNode
) -> None:
    second = await add_node(1)
    target = await make_member().up()
    quorum.elect(1)
    quorum.append_values([feature(4)])
    await eventually(lambda: level(target) == 4)
    assert target.channel.active is not None
    assert target.channel.active.id == 1
    before = target.registration.last_heartbeat
    await eventually(lambda: target.registration.last_heartbeat > before)
    assert second.seen["broker_heartbeat"] > 0


async def test_survives_a_restart_of_the_controller(quorum: FakeQuorum, member: TargetCluster) -> None:
    node = quorum.nodes[0]
    epoch = member.identity.broker_epoch
    await node.stop()
    await asyncio.sleep(0.3)
    await node.start()
    quorum.elect(0)
    quorum.append_values([feature(4)])
    await eventually(lambda: level(member) == 4)
    before = member.registration.last_heartbeat
    await eventually(lambda: member.registration.last_heartbeat > before)
    assert quorum.brokers[900].epoch == epoch == member.identity.broker_epoch


async def test_a_controller_that_was_cut_off_cannot_pull_back(
    quorum: FakeQuorum, make_member: Callable[..., Member], add_node: AddNode
) -> None:
    """It still answers as the leader of its old epoch."""
    await add_node(1)
    target = await make_member().up()
    old = quorum.nodes[0]
    quorum.elect(1)
    await eventually(lambda: target.metadata.quorum.epoch == quorum.epoch)
    stale = {"partition_index": 0, "leader_id": 0, "leader_epoch": 1, "error_code": 0}
    old.hooks["describe_quorum"] = lambda request: {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [stale]}],
        "nodes": [],
    }
    target.channel.moved(target.channel.active)
    assert (await target.channel.discover(5)).id == 1


async def test_a_hung_controller_is_left(
    quorum: FakeQuorum, make_member: Callable[..., Member], add_node: AddNode
) -> None:
    await add_node(1)
    target = await make_member().up()
    for api in ("fetch", "broker_heartbeat", "describe_quorum", "api_versions"):
        quorum.nodes[0].hooks[api] = lambda request: SILENCE
    quorum.elect(1)
    quorum.append_values([feature(4)])
    await eventually(lambda: level(target) == 4, timeout=30)


@pytest.mark.parametrize(
    "answer", [DROP, b"", b"garbage", b"\xff" * 4000], ids=["drop", "none", "short", "long"]
)
async def test_dropped_connections_and_garbage(
    quorum: FakeQuorum, member: TargetCluster, answer: object
) -> None:
    left = 3

    def drop(request: object) -> object:
        nonlocal left
        left -= 1
        return answer if left >= 0 else None

    quorum.nodes[0].hooks["fetch"] = drop
    quorum.append_values([feature(4)])
    await eventually(lambda: level(member) == 4)


async def test_caught_up_proves_itself_with_a_fetch_sent_afterwards(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    quorum.append_values([feature(4)])
    await member.metadata.caught_up(5)
    assert level(member) == 4


async def test_waits_end_at_their_deadline(member: TargetCluster) -> None:
    with pytest.raises(RequestTimedOut, match="metadata log did not reach"):
        await member.metadata.wait_for(lambda image: None, 0.05)
    quorum_silent = member.metadata
    with pytest.raises(RequestTimedOut):
        await quorum_silent.caught_up(0)


async def test_wait_for_gives_the_first_result(quorum: FakeQuorum, member: TargetCluster) -> None:
    waiting = asyncio.ensure_future(
        member.metadata.wait_for(lambda image: image.features.get("test.level") or None, 30)
    )
    await asyncio.sleep(0)
    quorum.append_values([feature(4)])
    assert await waiting == 4


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(member: TargetCluster) -> None:
    waiting = asyncio.ensure_future(member.metadata.wait_for(lambda image: None, 5))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await eventually(lambda: not member.metadata._changed)


@pytest.mark.parametrize("stop", range(0, 400, 40))
async def test_cancelled_anywhere_while_joining(
    quorum: FakeQuorum, make_member: Callable[..., Member], stop: int
) -> None:
    """A join that is cancelled leaves a sidecar that joins under the same identity."""
    first = make_member()
    joining = asyncio.ensure_future(first.target.join(5))
    for _ in range(stop):
        await asyncio.sleep(0)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    await first.stop()
    second = make_member(first.saved[-1] if first.saved else first.target.identity)
    await second.up()
    assert not quorum.brokers[900].fenced


async def test_an_unreadable_record_ends_the_loop_and_every_wait(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    member = make_member()
    target = await member.up()
    waiting = asyncio.ensure_future(target.metadata.wait_for(lambda image: None, 5))
    await asyncio.sleep(0)
    quorum.append_values([b"\x01\xff\x7f\x00"])  # an unknown record type
    with pytest.raises(MetadataLogFailed, match="cannot be read"):
        await waiting
    with pytest.raises(MetadataLogFailed):
        async with asyncio.timeout(30):
            await member.task
    with pytest.raises(MetadataLogFailed):
        await target.metadata.caught_up(1)


async def test_a_gap_is_refused(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    member = make_member()
    await member.up()
    quorum.next_offset += 5
    quorum.append_values([feature(1)])
    with pytest.raises(MetadataLogFailed, match="a gap"):
        async with asyncio.timeout(30):
            await member.task


async def test_a_batch_with_a_wrong_crc_is_asked_for_again(quorum: FakeQuorum, member: TargetCluster) -> None:
    good = encode_batch(quorum.next_offset, quorum.epoch, [feature(3)])
    bad = bytearray(good)
    bad[-2] ^= 1
    quorum._append_raw(bytes(bad), 1)
    await asyncio.sleep(0.2)
    assert level(member) == 0
    base, after, epoch, _ = quorum.batches[-1]
    quorum.batches[-1] = (base, after, epoch, good)
    await eventually(lambda: level(member) == 3)


async def test_subscribers_are_told_what_changed(quorum: FakeQuorum, member: TargetCluster) -> None:
    told: list[tuple[ClusterImage, frozenset[bytes]]] = []
    stop = member.metadata.subscribe(lambda image, ids: told.append((image, ids)))
    topic = await create_mirror_topic(member.operations, "t", {0: [900]}, {})
    assert (member.image, frozenset({topic})) in told
    stop()
    told.clear()
    quorum.append_values([feature(1)])
    await eventually(lambda: level(member) == 1)
    assert not told
