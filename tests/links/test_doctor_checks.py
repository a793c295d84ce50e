"""What doctor says of clocks, groups, rights and producers, with a sidecar or without one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from admin.models import CheckResult
from controller.mirror_group import GroupProtocol
from groups.gates.base import GroupMember
from groups.views import GroupView
from linker.checks import doctor
from linker.checks.doctor import (
    FOLLOWER_BACKOFF,
    check_followers,
    check_source_rights,
    clock_checks,
    groups_by_topic,
    producers_by_topic,
)
from linker.checks.doctor_alone import examine
from linker.config.file import parse_config
from linker.process.clocks import ClockRange, ClockReading, bound
from linker.promote.producer_states import ProducerState
from tests.fakes import FakeCluster
from tests.links.conftest import client
from wire.client.secrets import SecretError
from wire.frames.types import TopicPartition

TP, OTHER = TopicPartition("__consumer_offsets", 0), TopicPartition("__consumer_offsets", 1)


# --- clocks


def reading(asked: int, answered: int, *stamps: tuple[int, TopicPartition, int]) -> ClockReading:
    return ClockReading(asked, answered, {(broker, tp): stamp for broker, tp, stamp in stamps})


def test_a_stamp_that_appears_between_two_readings_bounds_the_clock_from_both_sides() -> None:
    before, after = reading(1000, 1010, (1, TP, 500)), reading(1200, 1210, (1, TP, 6100))
    assert bound(before, after, {}) == {1: ClockRange(1, 6100 - 1210, 6100 - 1000)}


def test_an_old_stamp_says_nothing() -> None:
    same = reading(1200, 1210, (1, TP, 500), (1, OTHER, 900))
    assert bound(reading(1000, 1010, (1, TP, 500)), same, {}) == {}, "it may have been made any time before"


def test_more_stamps_narrow_it_and_a_clock_that_was_set_begins_anew() -> None:
    known = {1: ClockRange(1, -100, 300)}
    before, after = reading(1000, 1010, (1, TP, 0)), reading(1100, 1110, (1, TP, 1300))
    assert bound(before, after, known) == {1: ClockRange(1, 190, 300)}
    assert bound(before, after, {1: ClockRange(1, -900, -500)}) == {1: ClockRange(1, 190, 300)}
    other = reading(1100, 1110, (2, TP, 1300))
    assert bound(before, other, known) == known, "led by another broker, with another clock"


def test_what_is_said_of_clocks() -> None:
    near, ahead, behind = ClockRange(1, -20, 190), ClockRange(2, 1500, 1900), ClockRange(3, -9000, -8000)
    checks = clock_checks("source", {1: near, 2: ahead, 3: behind}, [1, 2, 3, 4])
    assert [check.result for check in checks] == [
        CheckResult.WARN,
        CheckResult.WARN,
        CheckResult.OK,
        CheckResult.OK,
    ], "an idle broker is no fault"
    assert "broker 2 of the source is at least 1500 ms ahead of" in checks[0].detail
    assert "broker 3 of the source is at least 8000 ms behind" in checks[1].detail
    assert "broker 1 -20 to +190 ms" in checks[2].detail
    assert "not told by broker 4 of the source" in checks[3].detail
    assert all(check.remedy for check in checks if check.result is not CheckResult.OK)
    wide = ClockRange(1, -500, 4000)
    assert [c.result for c in clock_checks("source", {1: wide}, [1])] == [CheckResult.OK], "it may be right"


# --- groups


def test_groups_are_shown_by_topic() -> None:
    member = GroupMember("m", "app", "/127.0.0.1")
    views = {
        "billing": GroupView(
            "billing", "Stable", GroupProtocol.CLASSIC, (member, member), frozenset({"orders"})
        ),
        "reports": GroupView("reports", "Empty"),
    }
    checks = groups_by_topic(views, {"reports": {"orders", "old"}}, ["orders", "payments", "old"])
    assert [check.detail for check in checks] == [
        "topic old: reports",
        "topic orders: billing (2 members), reports",
        "no consumer group that we may see reads payments",
    ]


# --- producers


def test_producers_are_those_that_write_and_those_that_hold_something_open() -> None:
    tp = TopicPartition("orders", 0)
    writing, old = ProducerState(7, 0, 1, 9_999_000, -1, -1), ProducerState(8, 0, 1, 0, -1, -1)
    open_ = ProducerState(9, 0, 1, 0, -1, 40)
    wrote, held = producers_by_topic({tp: [writing, old, open_]}, 10_000_000)
    assert "topic orders: 2 producers" in wrote.detail
    assert "(7, 9)" in wrote.detail
    assert "producer 9 has one open from offset 40" in held.detail
    assert held.remedy
    [quiet] = producers_by_topic({tp: [old]}, 10_000_000)
    assert quiet.result is CheckResult.OK


# --- rights


@pytest.mark.parametrize("allowed", [True, False])
async def test_rights_beyond_topics(source: FakeCluster, allowed: bool) -> None:
    source.add_topic("__transaction_state", partitions=1)

    async def coordinator(_broker: Any, request: Any) -> dict[str, object]:
        assert request.entity.key_type == 1
        key = request.entity.coordinator_keys[0]
        code = 0 if allowed else 53
        one = {"key": key, "node_id": 1, "host": "h", "port": 1, "error_code": code, "error_message": None}
        return {"coordinators": [one]}

    source.handlers["find_coordinator"] = coordinator
    if not allowed:
        answer = source.handlers["describe_cluster"]

        async def without(broker: Any, request: Any) -> dict[str, object]:
            return {**await answer(broker, request), "cluster_authorized_operations": 0}

        source.handlers["describe_cluster"] = without
    cluster = client(source, "source")
    try:
        await cluster.connect()
        checks = await check_source_rights(cluster)
    finally:
        await cluster.close()
    if allowed:
        [check] = checks
        assert check.result is CheckResult.OK
        return
    describe, transactional = checks
    assert "lacks DESCRIBE on Cluster" in describe.detail
    assert "--operation Describe --cluster" in (describe.remedy or "")
    assert "lacks DESCRIBE on TransactionalId" in transactional.detail
    assert "--transactional-id" in (transactional.remedy or "")


async def test_where_there_are_no_transactions_nobody_is_made_to_create_their_topic(
    source: FakeCluster,
) -> None:
    cluster = client(source, "source")
    try:
        await cluster.connect()
        await check_source_rights(cluster)
    finally:
        await cluster.close()
    assert not source.received("find_coordinator")


# --- followers


async def test_how_long_a_follower_waits_that_was_too_early_is_told(source: FakeCluster) -> None:
    cluster = client(source, "target")
    brokers = list(source.brokers)
    try:
        await cluster.connect()
        (plain,) = await check_followers(cluster, brokers)
        assert plain.result is CheckResult.OK
        assert "1000 on broker" in plain.detail
        assert "50 makes it short" in plain.detail
        for broker in brokers:
            source.broker_configs[broker] = {FOLLOWER_BACKOFF: "50"}
        (short,) = await check_followers(cluster, brokers)
        assert "50 on broker" in short.detail
        assert "makes it short" not in short.detail
        (away,) = await check_followers(cluster, [77])
        assert "not told" in away.detail
    finally:
        await cluster.close()


async def test_brokers_that_hang_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_BROKER_TIMEOUT", 4.0)
    async with FakeCluster(4) as target:
        cluster = client(target, "target")
        try:
            await cluster.connect()
            target.inject("describe_configs", drop=True, times=None, node=2)
            target.inject("describe_configs", drop=True, times=None, node=3)
            began = time.monotonic()
            (check,) = await check_followers(cluster, list(target.brokers))
            assert time.monotonic() - began < 7.9, "one after the other it would be twice that time"
            assert "1000 on brokers" in check.detail
            assert "not told" in check.detail
        finally:
            await cluster.close()


# --- all of it


async def test_clusters_that_do_not_answer_are_findings(tmp_path: Path) -> None:
    text = """
sidecar: {broker.id: 900, listeners: "PLAINTEXT://127.0.0.1:1"}
target: {bootstrap.servers: "127.0.0.1:9"}
"""
    config = parse_config(text, base=tmp_path)
    report = await examine(config, {"bootstrap.servers": "127.0.0.1:9"}, [])
    assert report.failed
    assert {(check.name, check.result) for check in report.checks} == {
        ("validator", CheckResult.OK),
        ("source", CheckResult.FAIL),
        ("target", CheckResult.FAIL),
    }
    assert all(check.remedy for check in report.checks if check.result is CheckResult.FAIL)


@pytest.mark.parametrize("of", ["source", "target"])
async def test_what_a_reference_stands_for_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setenv("X", "hunter2")
    wrong = {"security.protocol": "SASL_SSL", "sasl.mechanism": "${env:X}"}
    target = {"bootstrap.servers": "127.0.0.1:9", **(wrong if of == "target" else {})}
    sidecar = {"broker.id": 900, "listeners": "PLAINTEXT://127.0.0.1:1"}
    config = parse_config(json.dumps({"sidecar": sidecar, "target": target}), base=tmp_path)
    told = {
        "target": r"^sasl\.mechanism: the value that its reference stands for",
        "source": r"^sasl\.mechanism is no secret, so no reference is resolved in it",
    }
    with pytest.raises(SecretError, match=told[of]):
        await examine(config, {"bootstrap.servers": "127.0.0.1:9", **(wrong if of == "source" else {})}, [])


async def test_a_machine_without_java_is_a_finding_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    text = """
sidecar: {broker.id: 900, listeners: "PLAINTEXT://127.0.0.1:1"}
target: {bootstrap.servers: "127.0.0.1:9"}
"""
    report = await examine(parse_config(text, base=tmp_path), {"bootstrap.servers": "127.0.0.1:9"}, [])
    (check,) = (check for check in report.checks if check.name == "validator")
    assert check.result is CheckResult.FAIL
    assert "bin/java" in check.detail
