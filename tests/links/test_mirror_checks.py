"""Doctor's verdict on mirrors: states, configs at the target, missing starts, replication factors."""

from __future__ import annotations

import pytest

from admin.models import CheckResult, Direction, MirrorState, MirrorSummary
from controller.judge.late_starts import LateStart
from controller.phases import Phase
from controller.plan.config_drifts import drifts
from controller.proof import MissingRecords
from controller.state import MirrorPartition, MirrorTopic
from linker.checks.beginning_again import instead, why_not
from linker.checks.mirror_configs import changed, config_checks, kept_checks
from linker.checks.mirror_states import Stuck, mirror_checks
from linker.checks.missing_records import begun_later, begun_later_lines, late_checks
from linker.checks.replica_logs import Extent
from linker.checks.replication_factor import few_replicas
from wire.frames.types import TopicPartition
from wire.metadata.image import PartitionImage, TopicImage

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ID, OTHER = b"m" * 16, b"o" * 16
LINK_BROKERS = frozenset({900})


def summary(topic: str, state: MirrorState, reason: str | None = None) -> MirrorSummary:
    return MirrorSummary(
        link="east", topic=topic, state=state, reason=reason, partitions=1, lag=0, max_lag=0, lag_ms=0
    )


def never(_: str) -> Stuck | None:
    return None


def test_every_mirror_that_is_not_active_fails_with_its_reason_and_a_next_step() -> None:
    mirrors = [summary(state.lower(), state, f"why {state}") for state in MirrorState]
    found = {check.name: check for check in mirror_checks("east", mirrors, never, {})}
    for state in (
        MirrorState.FAILED,
        MirrorState.PAUSED,
        MirrorState.LINKING,
        MirrorState.SOURCE_UNAVAILABLE,
    ):
        check = found.pop(f"mirror {state.lower()}")
        assert check.result is CheckResult.FAIL
        assert f"{state}: why {state}" == check.detail
        assert check.remedy
    for asked_for in ("promoting", "switching"):
        assert found.pop(f"mirror {asked_for}").result is CheckResult.OK
    assert not found


def test_of_a_switched_topic_the_target_is_the_owner_and_brokers_of_the_source_copy() -> None:
    def remedy(state: MirrorState) -> str:
        one = summary("a", state).model_copy(update={"direction": Direction.REVERSED})
        [check] = mirror_checks("east", [one], never, {})
        return check.remedy or ""

    assert "linker mirror finish a --link east" in remedy(MirrorState.FAILED)
    assert "a broker of the source does not copy it" in remedy(MirrorState.LINKING)
    assert "the target's brokers run" in remedy(MirrorState.SOURCE_UNAVAILABLE)


def test_active_mirrors_are_one_line_unless_something_is_wrong_with_them() -> None:
    mirrors = [summary("a", MirrorState.ACTIVE), summary("b", MirrorState.PROMOTED)]
    [line] = mirror_checks("east", mirrors, never, {})
    assert (line.result, line.detail) == (CheckResult.OK, "1 ACTIVE, 1 PROMOTED")
    [trouble] = mirror_checks("east", mirrors, never, {"a": "somebody added partitions"})
    assert (trouble.result, trouble.name) == (CheckResult.FAIL, "mirror a")
    assert "somebody added partitions" in trouble.detail
    assert mirror_checks("east", [], never, {}) == []


def test_of_many_the_first_are_named_and_the_rest_counted() -> None:
    mirrors = [summary(f"t{at}", MirrorState.FAILED) for at in range(60)]
    checks = mirror_checks("east", mirrors, never, {})
    assert len(checks) == 51
    assert "10 more mirrors are not ACTIVE: 10 FAILED" in checks[-1].detail


def test_a_failed_mirror_that_cannot_be_begun_again_is_not_advised_to() -> None:
    [advised] = mirror_checks("east", [summary("a", MirrorState.FAILED)], never, {})
    assert "--restart" in (advised.remedy or "")
    [stuck] = mirror_checks(
        "east", [summary("a", MirrorState.FAILED)], lambda _: Stuck("gone", "create it"), {}
    )
    assert stuck.remedy == "create it"
    assert stuck.detail == "FAILED (gone)"


def mirror(topic_id: bytes = ID) -> MirrorTopic:
    return MirrorTopic(link="east", topic="orders", topic_id=topic_id, source_topic_id=None, partitions=2)


def topic(*leaders: int, topic_id: bytes = ID) -> TopicImage:
    return TopicImage(
        topic_id,
        "orders",
        {
            at: PartitionImage(at, (1, 2, 900), (leader,), (), (), leader, 7, 9)
            for at, leader in enumerate(leaders)
        },
    )


def states(phase: Phase = Phase.FAILED) -> list[MirrorPartition]:
    return [
        MirrorPartition(
            link="east", topic="orders", partition=at, phase=phase, session_epoch=3, start_offset=0
        )
        for at in range(2)
    ]


def test_what_a_real_broker_leads_or_is_gone_is_not_begun_again() -> None:
    ask = lambda found: why_not(mirror(), states(), found, LINK_BROKERS)  # noqa: E731
    assert ask(topic(900, 900)) is None
    assert ask(topic(900, -1)) is None, "nobody leads it: the sidecar will"
    assert "orders-1 by broker 3" in (ask(topic(900, 3)) or "")
    assert "deleted at the target" in (ask(None) or "")
    assert "deleted and created again" in (ask(topic(900, 900, topic_id=OTHER)) or "")
    assert "added partitions" in (ask(topic(900, 900, 1)) or "")
    assert "then the other topic" in instead(mirror(), topic(1, 1, topic_id=OTHER))
    assert "linker mirror create --link east orders" in instead(mirror(), None)


def test_a_promote_under_way_is_led_by_others_rightly() -> None:
    assert why_not(mirror(), states(Phase.HANDED_OVER), topic(1, 2), LINK_BROKERS) is None


def test_promoted_partitions_do_not_keep_a_failed_one_from_beginning_again() -> None:
    """Nobody is to be told to delete a topic whose other partitions are the target's own."""
    promoted, failed = states(Phase.PROMOTED)[0], states()[1]
    assert why_not(mirror(), [promoted, failed], topic(1, 900), LINK_BROKERS) is None
    why = why_not(mirror(), [promoted, failed], topic(1, 2), LINK_BROKERS) or ""
    assert "orders-1 by broker 2" in why
    assert "orders-0" not in why


WANTED = {
    "unclean.leader.election.enable": "false",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "compact,delete",
    "segment.ms": "5",
}


def test_configs_that_differ_at_the_target_fail_with_the_command_that_mends_them() -> None:
    found = {**WANTED, "retention.ms": "1000", "leader.replication.throttled.replicas": "0:1"}
    del found["segment.ms"]
    found["unclean.leader.election.enable"] = "true"
    differences = changed(WANTED, found)
    assert [one.config for one in differences] == [
        "retention.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    ]
    [check] = config_checks([("orders", differences), ("payments", [])])
    assert check.result is CheckResult.FAIL
    for said in (
        "retention.ms is 1000, to be -1",
        "segment.ms is not set, to be 5",
        "is true, to be false",
    ):
        assert said in check.detail
    assert "--add-config retention.ms=-1" in (check.remedy or "")
    assert "--add-config 'cleanup.policy=[compact,delete]'" in changed(
        WANTED, {**WANTED, "cleanup.policy": ""}
    )[0].repair("orders")
    [well] = config_checks([("orders", changed(WANTED, WANTED))])
    assert well.result is CheckResult.OK
    [harmless] = config_checks([("orders", changed(WANTED, {**WANTED, "flush.ms": "9"}))])
    assert harmless.result is CheckResult.WARN
    assert "--delete-config flush.ms" in (harmless.remedy or "")
    assert config_checks([]) == []


def test_what_is_put_back_is_told_and_warned_of_if_it_never_ends() -> None:
    once, often, failed = {"retention.ms": 1}, {"retention.ms": 1, "segment.ms": 3}, "it cannot be put back"
    checks = kept_checks({"a": once, "b": often, "c": {}}, {"d": failed})
    assert [check.result for check in checks] == [CheckResult.FAIL, CheckResult.OK, CheckResult.WARN]
    assert failed in checks[0].detail
    assert "segment.ms 3 times" in checks[2].detail


def test_a_config_whose_value_is_the_targets_own_is_not_compared_unless_mirroring_forces_it() -> None:
    found = {"unclean.leader.election.enable": "true", "retention.ms": "7"}
    asked = ("retention.ms", "unclean.leader.election.enable")
    one = changed({"unclean.leader.election.enable": "false"}, found, asked)
    assert "unclean.leader.election.enable" in [each.config for each in one]


def test_nobody_is_told_to_take_back_retention_that_was_turned_off_by_hand_for_an_older_mirror() -> None:
    of_before = {"unclean.leader.election.enable": "false"}
    off = {**of_before, "retention.ms": "-1", "retention.bytes": "-1"}
    assert changed(of_before, off) == []
    assert [one.config for one in changed(of_before, {**off, "retention.ms": "1000"})] == ["retention.ms"]
    assert [one.config for one in changed(off, of_before)] == ["retention.bytes", "retention.ms"]


@pytest.mark.parametrize("wanted", [{"unclean.leader.election.enable": "false"}, WANTED])
@pytest.mark.parametrize("from_target", [(), ("segment.ms", "retention.ms")])
def test_doctor_tells_everything_that_is_put_back(
    wanted: dict[str, str], from_target: tuple[str, ...]
) -> None:
    """By one rule: else doctor calls well what the sidecar changes all the time."""
    for found in (
        {},
        {**WANTED, "segment.ms": "1", "flush.ms": "9"},
        {"retention.ms": "1", "cleanup.policy": "x"},
    ):
        put_back = [(one.config, one.wanted, one.found) for one in drifts(wanted, found, from_target)]
        told = [(one.config, one.wanted, one.found) for one in changed(wanted, found, from_target)]
        assert [one for one in told if one in put_back] == put_back
        left_alone = {config for config, _, _ in told} - {config for config, _, _ in put_back}
        assert all(config not in wanted for config in left_alone)


def test_a_replica_that_begins_later_than_the_source_fails() -> None:
    taken = MissingRecords(start=5, end=9, batches=0, records=0)
    late = {T0: [LateStart(2, 0, 7)], T1: [LateStart(1, 5, 6), LateStart(2, 5, 9)]}
    [check] = late_checks(late)
    assert check.result is CheckResult.FAIL
    assert "up to 11 records" in check.detail
    assert "orders-0: broker 2's log starts at offset 7, the source goes back to offset 0" in check.detail
    assert late_checks({T0: [], T1: [LateStart(2, 5, 9, taken)]}) == [], (
        "no record is there: no promote is refused"
    )


def test_a_mirror_that_was_begun_later_on_purpose_is_told() -> None:
    begun = [MirrorPartition(link="east", topic="orders", partition=0, phase=Phase.ACTIVE, start_offset=7)]
    later = begun_later(begun, {T0: Extent(2, 10)})
    assert "5 older offsets of the source are not mirrored" in begun_later_lines(later)[0]
    assert begun_later(begun, {}) == [], "a source that does not tell"
    assert begun_later(begun, {T0: Extent(7, 10)}) == []


def test_fewer_replicas_than_the_targets_default_are_one_line_for_all_topics() -> None:
    factors = {"b": 1, "a": 1, "c": 2, "d": 3}
    one, two = few_replicas(factors, 3, asked=False)
    assert (
        one.detail
        == "replication factor 1 (as at the source; the target's default is 3: -r 3) for topics a, b"
    )
    assert "replication factor 2" in two.detail
    assert not one.fatal
    assert few_replicas(factors, 3, asked=True) == []
    assert few_replicas(factors, None, asked=False) == []
    assert few_replicas(factors, 1, asked=False) == []
