"""Identity, registration, heartbeats, leaving."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

import pytest

from linker.membership import (
    BrokerIdTaken,
    ClusterIdChanged,
    ControllerUnreachable,
    Identity,
    MissingRight,
    RegistrationRefused,
    StillHosting,
    TargetCluster,
    TargetUnsupported,
)
from linker.membership.identity import NEWEST_LEVELS, largest_rack, offered_features
from tests.fakes.controller import FakeController, FakeQuorum
from tests.fakes.mirror_topic import create_mirror_topic
from tests.membership.conftest import Member, eventually
from wire.errors import ClusterUnreachable, RequestTimedOut
from wire.frames.types import TopicPartition
from wire.metadata.image import ClusterImage


def requests(node: FakeController, api: str) -> list[tuple[int, object]]:
    return [(version, request) for name, version, request in node.requests if name == api]


def fencings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Each change of the controller's view of the broker."""
    texts = [record.getMessage().rpartition(" is ") for record in caplog.records]
    return [state for _, _, state in texts if state in ("fenced", "unfenced")]


async def test_joins_registers_and_is_unfenced(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    member = make_member()
    target = await member.up()
    broker = target.image.brokers[900]
    assert not quorum.brokers[900].fenced
    assert broker.endpoints["PLAINTEXT"].host == "sidecar.example"
    assert broker.incarnation_id == target.identity.incarnation_id
    assert broker.log_dirs == (target.identity.log_dir_id,)
    assert target.identity.broker_epoch == quorum.brokers[900].epoch
    assert target.identity.cluster_id == quorum.cluster_id


async def test_identity_is_saved_before_it_is_used(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    member = make_member()
    seen: list[list[Identity]] = []
    quorum.nodes[0].hooks["broker_registration"] = lambda request: seen.append(list(member.saved))
    await member.up()
    first = seen[0][-1]
    assert (first.incarnation_id, first.cluster_id) == (member.saved[-1].incarnation_id, quorum.cluster_id)
    assert member.saved[-1].broker_epoch >= 0


async def test_not_unfenced_before_it_serves(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    member = make_member()
    await member.target.join(5)
    await eventually(lambda: quorum.nodes[0].seen["broker_heartbeat"] >= 3)
    assert quorum.brokers[900].fenced
    with pytest.raises(RequestTimedOut, match="not unfenced"):
        await member.target.registration.wait_unfenced(0.05)
    await member.target.serve(5)
    assert not quorum.brokers[900].fenced


async def test_restart_amends_under_the_same_epoch(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    first = make_member()
    await first.up()
    await first.stop()
    second = make_member(first.saved[-1])
    target = await second.up()
    assert target.identity == first.saved[-1]
    assert target.image.brokers[900].epoch == first.saved[-1].broker_epoch


async def test_a_quick_restart_is_never_fenced(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    """Its partitions would be without a leader until it serves."""
    first = make_member()
    await first.up()
    await first.stop()
    before = quorum.nodes[0].seen["broker_heartbeat"]
    second = make_member(first.saved[-1])
    await second.target.join(5)
    await asyncio.sleep(0.3)
    assert quorum.nodes[0].seen["broker_heartbeat"] == before
    assert not quorum.brokers[900].fenced
    await second.target.serve(5)
    assert not quorum.brokers[900].fenced
    # Its session has ended meanwhile, and only then: it shows that it is there, and asks to stay fenced.
    third = make_member(second.target.identity)
    await second.stop()
    quorum.brokers[900].fenced = True
    await third.target.join(5)
    await eventually(lambda: quorum.nodes[0].seen["broker_heartbeat"] >= before + 3)
    assert quorum.brokers[900].fenced


async def test_cordons_its_log_dir_where_the_controller_knows_how(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    target = await make_member().up()
    assert {version for version, _ in requests(quorum.nodes[0], "broker_heartbeat")} == {2}
    cordoned = quorum.brokers[900].cordoned
    assert cordoned is not None
    assert [d.bytes for d in cordoned] == [target.identity.log_dir_id]


async def test_older_controller_gets_older_versions(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    node = quorum.nodes[0]
    node.supported |= {
        "broker_heartbeat": (0, 1),
        "api_versions": (0, 3),
        "fetch": (4, 17),
        "broker_registration": (0, 4),
        "alter_partition": (2, 2),
    }
    await make_member().up()
    assert {version for version, _ in requests(node, "broker_heartbeat")} == {1}
    assert {version for version, _ in requests(node, "fetch")} == {17}
    # v3 hides features whose minimum is 0; the registration must still cover what is finalized.
    _, request = requests(node, "broker_registration")[-1]
    assert "kraft.version" in {f.name for f in request.features}  # type: ignore[attr-defined]


async def test_registers_with_the_largest_rack(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    assert (await make_member().up()).image.brokers[900].rack == "b"


async def test_configured_rack_wins(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    assert (await make_member(rack="mine").up()).image.brokers[900].rack == "mine"


def test_no_rack_where_nobody_has_one() -> None:
    assert largest_rack(ClusterImage(), 900) is None


def test_features_cover_every_finalized_level() -> None:
    offered = offered_features(
        {"metadata.version": (7, 25), "old": (1, 2)},
        {"kraft.version": (1, 1), "old": (3, 3)},
        {"group.version": 1},
    )
    assert offered == {
        "metadata.version": (7, 25),
        "old": (1, 3),
        "kraft.version": (0, 1),
        "group.version": (0, 1),
    }


def test_no_level_is_claimed_whose_records_are_not_known() -> None:
    offered = offered_features(
        {"metadata.version": (7, 99), "eligible.leader.replicas.version": (0, 9), "share.version": (0, 9)},
        {"metadata.version": (25, 25)},
        {},
    )
    assert offered["metadata.version"] == (7, NEWEST_LEVELS["metadata.version"])
    assert offered["eligible.leader.replicas.version"] == (0, 1)
    assert offered["share.version"] == (0, 9)


async def test_a_target_that_is_too_new_is_left_alone(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    quorum.nodes[0].features["metadata.version"] = (7, 99, 99)
    with pytest.raises(
        TargetUnsupported, match=r"finalized metadata\.version 99.*levels up to 30 \(Kafka 4\.3"
    ):
        await make_member().target.join(5)
    assert quorum.nodes[0].seen["broker_registration"] == 0


async def test_ranges_follow_the_controllers(
    quorum: FakeQuorum,
    member: TargetCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its binaries were upgraded: with the old ranges of broker 900 no feature could be."""
    monkeypatch.setattr("linker.membership.registration._FEATURES_INTERVAL", 0.05)
    node = quorum.nodes[0]
    caplog.set_level(logging.INFO)
    epoch = member.identity.broker_epoch
    node.features["share.version"] = (0, 2, 0)
    await eventually(lambda: node.seen["broker_registration"] == 2)
    _, request = requests(node, "broker_registration")[-1]
    assert ("share.version", 0, 2) in {
        (f.name, f.min_supported_version, f.max_supported_version)
        for f in request.features  # type: ignore[attr-defined]
    }
    await asyncio.sleep(0.3)
    assert node.seen["broker_registration"] == 2, "once is enough"
    assert (fencings(caplog), member.identity.broker_epoch) == ([], epoch)


# --- bad input: one clear line, nothing changed -------------------------------------------------------------


@pytest.mark.parametrize("broker_id", [1, 3])
async def test_id_of_a_real_broker_is_refused_alive_or_not(
    quorum: FakeQuorum, make_member: Callable[..., Member], broker_id: int
) -> None:
    with pytest.raises(BrokerIdTaken, match=rf"broker id {broker_id} is taken in target.*PLAINTEXT://127"):
        await make_member(Identity.create(broker_id)).target.join(5)
    assert quorum.nodes[0].seen["broker_registration"] == 0


async def test_second_sidecar_with_the_same_id_is_refused(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    first = await make_member().up()
    with pytest.raises(BrokerIdTaken, match="broker id 900 is taken"):
        await make_member().target.join(5)
    assert quorum.brokers[900].epoch == first.identity.broker_epoch


async def test_race_for_the_id_is_settled_by_the_controller(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    quorum.nodes[0].hooks["broker_registration"] = lambda request: {"error_code": 101}
    with pytest.raises(BrokerIdTaken):
        await make_member().target.join(5)


async def test_copied_state_under_another_id_is_refused(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    first = await make_member().up()
    copy = dataclasses.replace(first.identity, broker_id=901)
    with pytest.raises(BrokerIdTaken, match="one copied state"):
        await make_member(copy).target.join(5)


async def test_cluster_id_changed_under_a_stored_identity(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    stored = dataclasses.replace(Identity.create(900), cluster_id="another")
    with pytest.raises(ClusterIdChanged, match=r"cluster id fake-.*belongs to cluster another"):
        await make_member(stored).target.join(5)
    assert quorum.nodes[0].seen["fetch"] == 0


async def test_controllers_of_another_cluster(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    other = FakeQuorum("another-cluster-id")
    async with FakeController(other, 0) as node:
        with pytest.raises(ClusterIdChanged, match="belongs to another cluster"):
            await make_member(controller_bootstrap=[node.address]).target.join(5)


async def test_zookeeper_mode(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    del quorum.nodes[0].supported["describe_quorum"]
    with pytest.raises(TargetUnsupported, match="ZooKeeper mode"):
        await make_member().target.join(5)


async def test_too_old(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    quorum.nodes[0].supported["broker_registration"] = (0, 1)
    with pytest.raises(TargetUnsupported, match=r"too old.*broker_registration v2.*up to v1"):
        await make_member().target.join(5)


async def test_too_old_to_tell_its_controllers(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    quorum.nodes[0].supported["describe_quorum"] = (0, 1)
    with pytest.raises(TargetUnsupported, match=r"controller\.quorum\.bootstrap\.servers"):
        await make_member().target.join(5)


@pytest.mark.parametrize(
    ("api", "answer", "right"),
    [
        ("describe_quorum", {"error_code": 31, "topics": [], "nodes": []}, "DESCRIBE on Cluster"),
        ("fetch", {"error_code": 31, "responses": []}, "CLUSTER_ACTION on Cluster"),
        ("broker_registration", {"error_code": 31}, "CLUSTER_ACTION on Cluster"),
    ],
)
async def test_missing_right_is_named(
    quorum: FakeQuorum, make_member: Callable[..., Member], api: str, answer: dict[str, object], right: str
) -> None:
    quorum.nodes[0].hooks[api] = lambda request: answer
    with pytest.raises(MissingRight, match=rf"lacks the right {right}.*kafka-acls"):
        await make_member().target.join(5)


async def test_refused_features(quorum: FakeQuorum, make_member: Callable[..., Member]) -> None:
    quorum.nodes[0].hooks["broker_registration"] = lambda request: {"error_code": 35}
    with pytest.raises(RegistrationRefused, match="finalized feature"):
        await make_member().target.join(5)


async def test_unreachable_brokers(make_member: Callable[..., Member]) -> None:
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1"):
        await make_member(brokers=[("127.0.0.1", 1)]).target.join(2)


async def test_configured_controllers_that_were_replaced(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    await make_member(controller_bootstrap=[("127.0.0.1", 1)]).target.join(5)
    assert quorum.nodes[0].seen["broker_registration"] == 1


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (None, "does not tell its controllers"),
        ({"error_code": 31, "topics": [], "nodes": []}, "DESCRIBE on Cluster"),
    ],
)
async def test_unreachable_controller(
    quorum: FakeQuorum, make_member: Callable[..., Member], hook: dict[str, object] | None, why: str
) -> None:
    if hook is None:
        quorum.nodes[0].supported["describe_quorum"] = (0, 1)
    else:
        quorum.nodes[0].hooks["describe_quorum"] = lambda request: hook
    with pytest.raises(ControllerUnreachable, match=rf"no active controller.*127\.0\.0\.1:1.*{why}"):
        await make_member(controller_bootstrap=[("127.0.0.1", 1)]).target.join(0.5)


# --- life ---------------------------------------------------------------------------------------------------


async def test_heartbeats_follow_the_metadata_offset(quorum: FakeQuorum, member: TargetCluster) -> None:
    node = quorum.nodes[0]
    offset = quorum.append("FeatureLevelRecord", {"name": "metadata.version", "feature_level": 30})
    await eventually(lambda: requests(node, "broker_heartbeat")[-1][1].current_metadata_offset >= offset)  # type: ignore[attr-defined]


async def test_survives_lost_heartbeats(quorum: FakeQuorum, member: TargetCluster) -> None:
    left = 2

    def drop(request: object) -> object:
        nonlocal left
        left -= 1
        return None if left < 0 else {"error_code": 7}

    quorum.nodes[0].hooks["broker_heartbeat"] = drop
    before = member.registration.last_heartbeat
    await eventually(lambda: left < 0 and member.registration.last_heartbeat > before)
    assert member.registration.session_valid


async def test_unregistered_by_somebody_registers_again(
    quorum: FakeQuorum, member: TargetCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    old = quorum.brokers.pop(900)
    quorum.append("UnregisterBrokerRecord", {"broker_id": 900, "broker_epoch": old.epoch})
    await eventually(lambda: 900 in quorum.brokers and not quorum.brokers[900].fenced)
    await eventually(lambda: fencings(caplog) == ["fenced", "unfenced"])
    assert member.identity.broker_epoch == quorum.brokers[900].epoch != old.epoch


async def test_id_taken_over_ends_the_membership(
    quorum: FakeQuorum, make_member: Callable[..., Member]
) -> None:
    member = make_member()
    await member.up()
    quorum.add_broker(900, port=77)
    with pytest.raises(BrokerIdTaken, match=r"127\.0\.0\.1:77"):
        async with asyncio.timeout(30):
            await member.task


async def test_leaves(quorum: FakeQuorum, member: TargetCluster) -> None:
    await member.leave(5)
    assert 900 not in quorum.brokers
    assert 900 not in member.image.brokers
    before = quorum.nodes[0].seen["broker_registration"]
    await asyncio.sleep(0.3)
    assert quorum.nodes[0].seen["broker_registration"] == before, "it came back"


async def test_leaving_is_refused_while_it_leads_or_hosts(quorum: FakeQuorum, member: TargetCluster) -> None:
    await create_mirror_topic(member.operations, "led", {0: [900], 1: [900]}, {})
    await create_mirror_topic(member.operations, "hosted", {0: [1, 900]}, {})
    with pytest.raises(StillHosting, match=r"leads led-0, led-1 and is a replica of hosted-0") as refused:
        await member.leave(5)
    assert refused.value.hosts == [TopicPartition("hosted", 0)]
    assert quorum.nodes[0].seen["unregister_broker"] == 0
    assert not quorum.brokers[900].fenced
    await member.operations.delete_topic("led")
    await member.operations.delete_topic("hosted")
    await member.leave(5)
    assert 900 not in quorum.brokers


async def test_leaving_that_fails_goes_on_heartbeating(quorum: FakeQuorum, member: TargetCluster) -> None:
    node = quorum.nodes[0]
    node.hooks["unregister_broker"] = lambda request: {"error_code": 31}
    with pytest.raises(MissingRight, match="ALTER on Cluster"):
        await member.leave(5)
    await eventually(lambda: not quorum.brokers[900].fenced)


async def test_unregistration_with_a_lost_answer_is_settled_from_the_log(
    quorum: FakeQuorum, member: TargetCluster
) -> None:
    node = quorum.nodes[0]

    def done_but_dropped(request: object) -> object:
        old = quorum.brokers.pop(900, None)
        if old is None:
            return None
        quorum.append("UnregisterBrokerRecord", {"broker_id": 900, "broker_epoch": old.epoch})
        return {"error_code": 41}

    node.hooks["unregister_broker"] = done_but_dropped
    await member.leave(5)
    assert 900 not in member.image.brokers
