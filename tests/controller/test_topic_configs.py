"""The configs of a mirror: what it gets, while it is mirrored and afterwards, and what is put back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.plan import topic_configs
from controller.plan.config_drifts import drifts
from controller.plan.source_configs import widest
from controller.plan.topic_configs import (
    compare_effective,
    keep_differing,
    keep_own,
    keep_segments,
    plan_configs,
    strictest,
    with_timestamp_bounds,
    without_defaults,
)
from controller.state import MirrorTopic
from linker.links.configs import defaults_of

WEEK, MONTH = "604800000", "2592000000"
OFF = {"retention.bytes": "-1", "retention.ms": "-1", "unclean.leader.election.enable": "false"}


def test_configs_of_a_mirror() -> None:
    made = plan_configs(
        {
            "retention.ms": "1",
            "segment.bytes": "16384",
            "unclean.leader.election.enable": "true",
            "remote.storage.enable": "true",
            "leader.replication.throttled.replicas": "*",
            "future.config": "x",
        }
    )
    assert made.create == {**OFF, "segment.bytes": "1048576"}
    assert made.restore == {
        "unclean.leader.election.enable": "true",
        "retention.ms": "1",
        "retention.bytes": None,
    }
    assert set(made.skipped) == {
        "remote.storage.enable",
        "leader.replication.throttled.replicas",
        "future.config",
    }
    assert all(made.skipped.values())
    assert set(made.adjusted) == {"segment.bytes"}
    assert plan_configs({}).restore == dict.fromkeys(OFF)


@pytest.mark.parametrize(
    ("source", "target", "restored"),
    [
        ("-1", WEEK, "-1"),  # a source that keeps for ever
        (MONTH, WEEK, MONTH),
        (WEEK, MONTH, WEEK),
        (WEEK, WEEK, None),
        (WEEK, f"{WEEK} | {MONTH}", WEEK),  # not all of the target's brokers have the same file
    ],
)
def test_retention_is_off_while_mirrored_and_the_sources_afterwards(
    source: str, target: str, restored: str | None
) -> None:
    made = plan_configs({}, {"retention.ms": source}, {"retention.ms": target})
    assert made.create["retention.ms"] == "-1"
    assert made.restore["retention.ms"] == restored
    assert [one.config for one in made.differences] == ([] if restored is None else ["retention.ms"])


def test_an_operator_may_want_the_targets_value_but_not_before_the_promote() -> None:
    effective = {"retention.ms": MONTH, "max.message.bytes": "5"}
    defaults = {"retention.ms": WEEK, "max.message.bytes": "6"}
    made = plan_configs({"retention.ms": MONTH}, effective, defaults, ["retention.ms", "max.message.bytes"])
    assert made.create == OFF
    assert made.restore == dict.fromkeys(OFF)
    assert all(one.from_target and "--config-from-target" in one.said for one in made.differences)


@pytest.mark.parametrize("name", sorted(set(topic_configs.FOLLOWED) - {"retention.ms", "retention.bytes"}))
def test_whatever_decides_what_clients_may_write_and_read_is_the_sources(name: str) -> None:
    one, other = ("2097152", "4194304") if name == "segment.bytes" else ("1", "2")
    made = plan_configs({}, {name: one}, {name: other})
    assert made.create == {**OFF, name: one}
    assert plan_configs({}, {name: one}, {name: one}).create == OFF
    assert plan_configs({}, {name: one}, {}).create == OFF, "the target did not tell its default"


def test_a_policy_is_a_set() -> None:
    made = plan_configs({}, {"cleanup.policy": "compact,delete"}, {"cleanup.policy": "delete, compact"})
    assert not made.differences


def test_compaction_that_is_both_clusters_default_is_said_on_the_topic() -> None:
    made = plan_configs({}, {"cleanup.policy": "compact"}, {"cleanup.policy": "compact"})
    assert made.create["cleanup.policy"] == "compact"
    assert not made.differences


def test_a_source_before_3_6_has_one_bound_for_timestamps() -> None:
    effective = {"message.timestamp.difference.max.ms": topic_configs.NO_BOUND}
    defaults = {
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": topic_configs.NO_BOUND,
    }
    made = plan_configs({}, effective, defaults)
    assert made.create == {**OFF, "message.timestamp.after.max.ms": topic_configs.NO_BOUND}
    narrow = with_timestamp_bounds({"message.timestamp.difference.max.ms": "7"})
    assert narrow["message.timestamp.before.max.ms"] == narrow["message.timestamp.after.max.ms"] == "7"
    both = with_timestamp_bounds(
        {"message.timestamp.difference.max.ms": "7", "message.timestamp.after.max.ms": "3"}
    )
    assert both["message.timestamp.after.max.ms"] == "3"


@pytest.mark.parametrize(
    ("broker", "retention"),
    [
        ({"log.retention.hours": "168"}, WEEK),
        ({"log.retention.hours": "168", "log.retention.minutes": "60"}, "3600000"),
        ({"log.retention.hours": "168", "log.retention.minutes": "60", "log.retention.ms": "5"}, "5"),
        ({"log.retention.hours": "168", "log.retention.minutes": None, "log.retention.ms": None}, WEEK),
        ({"log.retention.hours": "-1"}, "-1"),
        ({"log.retention.hours": "168", "log.retention.minutes": "-1"}, "-1"),
    ],
)
def test_what_a_broker_does_with_a_topic_without_overrides(
    broker: dict[str, str | None], retention: str
) -> None:
    assert defaults_of(broker)["retention.ms"] == retention


def test_what_somebody_changed_is_put_back() -> None:
    wanted = {**OFF, "max.message.bytes": "5"}
    have = {
        **wanted,
        "unclean.leader.election.enable": "true",  # Strimzi, Terraform, a person
        "min.insync.replicas": "1",  # an override that the source does not have
        "leader.replication.throttled.replicas": "*",  # nobody's business here
        "flush.ms": "9",
    }
    del have["max.message.bytes"]
    assert [(one.config, one.wanted, one.found) for one in drifts(wanted, have)] == [
        ("max.message.bytes", "5", None),
        ("min.insync.replicas", None, "1"),
        ("unclean.leader.election.enable", "false", "true"),
    ]
    assert drifts(wanted, wanted) == []
    own = ["min.insync.replicas", "max.message.bytes", "retention.ms"]
    left = drifts(wanted, {**have, "retention.ms": "1"}, own)
    assert [one.config for one in left] == ["retention.ms", "unclean.leader.election.enable"], (
        "what the operator wants of the target is left alone, but nothing is deleted before the promote"
    )


def test_retention_that_was_turned_off_by_hand_for_a_mirror_of_an_earlier_version_stays_off() -> None:
    """Until the source is read, which may be away: the target would delete what nobody has any more."""
    before = {"unclean.leader.election.enable": "false", "max.message.bytes": "5"}
    have = {**before, "retention.ms": "-1", "unclean.leader.election.enable": "true"}
    assert [one.config for one in drifts(before, have)] == [
        "retention.bytes",
        "unclean.leader.election.enable",
    ]
    assert [one.config for one in drifts({**before, **OFF}, {**before, **OFF, "segment.ms": "1"})] == [
        "segment.ms"
    ]


def test_a_mirror_of_an_older_version_loses_nothing_before_its_plan_is_made_anew() -> None:
    """Its plan copies the source's retention, and knows nothing of what a promote has to put back."""
    create = {"retention.ms": "1000", "unclean.leader.election.enable": "false"}
    restore: dict[str, str | None] = {"unclean.leader.election.enable": None}
    assert [(one.config, one.wanted) for one in drifts(create, create)] == [
        ("retention.bytes", "-1"),
        ("retention.ms", "-1"),
    ]
    assert topic_configs.at_promote(create, restore) == {
        **restore,
        "retention.ms": "1000",
    }
    made = plan_configs({}, {"retention.ms": MONTH}, {"retention.ms": WEEK})
    assert topic_configs.at_promote(made.create, made.restore) == made.restore


def test_a_switch_back_sets_min_insync_replicas_which_the_take_over_changed() -> None:
    """A plan that follows the owner's may have been written down, and not carried out."""
    restore: dict[str, str | None] = {"retention.ms": None}
    name = "min.insync.replicas"
    assert topic_configs.at_promote({}, restore, taken=True) == {name: None, **restore}
    assert topic_configs.at_promote({name: "2"}, restore, taken=True) == {name: "2", **restore}
    assert topic_configs.at_promote({}, {name: "3"}, taken=True) == {name: "3"}
    assert topic_configs.at_promote({}, restore) == restore


def test_segments_do_not_shrink_while_a_topic_is_mirrored() -> None:
    defaults = {"segment.bytes": "4000000"}
    before = {**OFF, "segment.bytes": "5000000"}
    smaller = plan_configs({"segment.bytes": "2000000"})
    create, restore = keep_segments(smaller, before, defaults)
    assert create["segment.bytes"] == "5000000"
    assert restore["segment.bytes"] == "2000000"
    create, restore = keep_segments(plan_configs({}), before, defaults)
    assert (create["segment.bytes"], restore["segment.bytes"]) == ("5000000", None)
    create, restore = keep_segments(plan_configs({"segment.bytes": "6000000"}), before, defaults)
    assert create["segment.bytes"] == "6000000"
    assert "segment.bytes" not in restore
    # Without an override the target's default was what followers went by.
    create, restore = keep_segments(smaller, OFF, defaults)
    assert (create["segment.bytes"], restore["segment.bytes"]) == ("4000000", "2000000")
    create, restore = keep_segments(plan_configs({}), OFF, defaults)
    assert "segment.bytes" not in create
    assert "segment.bytes" not in restore


def test_every_config_is_copied_or_skipped_for_a_reason_never_both() -> None:
    assert not topic_configs.COPIED & set(topic_configs.SKIPPED)
    assert set(topic_configs.FOLLOWED) <= topic_configs.COPIED


def test_preflight_of_effective_configs() -> None:
    source = {"max.message.bytes": "2000000", "retention.ms": "5"}
    target = {"segment.bytes": "1048576", "min.insync.replicas": "3", "retention.ms": "6"}
    guess = topic_configs.compare_effective("t", source, target, replication_factor=2)
    assert {(f.config, f.fatal) for f in guess} == {
        ("segment.bytes", False),
        ("min.insync.replicas", False),
    }
    [insync] = [f.message for f in guess if f.config == "min.insync.replicas"]
    assert "brokers go by 2" in insync and "-r 3" in insync  # min(min.insync.replicas, replicas)
    fits = topic_configs.compare_effective("t", {}, target, replication_factor=3)
    assert fits == []
    odd = topic_configs.compare_effective("t", {}, {"segment.bytes": "x"}, replication_factor=1)
    assert odd == []


def test_a_value_that_one_broker_needs_stays_while_that_broker_is_away() -> None:
    effective = {"segment.ms": "7", "max.message.bytes": "5"}
    with_both = plan_configs({}, effective, {"segment.ms": "7 | 9", "max.message.bytes": "5"})
    assert with_both.create == {**OFF, "segment.ms": "7"}
    assert "7 | 9 by the defaults of the target's brokers, which differ" in with_both.differences[0].said
    with_one = plan_configs({}, effective, {"segment.ms": "7", "max.message.bytes": "5"})
    assert with_one.create == OFF
    assert keep_differing(with_one, with_both.create, with_both.restore, effective).create == with_both.create
    # Not against the source, nor against the operator.
    changed = {**effective, "segment.ms": "8"}
    followed = plan_configs({}, changed, {"segment.ms": "8"})
    assert keep_differing(followed, with_both.create, with_both.restore, changed).create == OFF
    assert (
        keep_differing(with_one, with_both.create, with_both.restore, effective, ["segment.ms"]).create == OFF
    )


def test_retention_that_one_broker_needs_is_set_by_a_promote_while_that_broker_is_away() -> None:
    """Without it that broker deletes records as soon as it is back."""
    effective = {"retention.ms": "7", "retention.bytes": "-1"}
    with_both = plan_configs({}, effective, {"retention.ms": "7 | 1", "retention.bytes": "-1"})
    with_one = plan_configs({}, effective, {"retention.ms": "7", "retention.bytes": "-1"})
    assert (with_both.restore["retention.ms"], with_one.restore["retention.ms"]) == ("7", None)
    kept = keep_differing(with_one, with_both.create, with_both.restore, effective)
    assert (kept.restore, kept.create) == (with_both.restore, with_both.create)
    # Not against the source, nor against the operator.
    changed = {**effective, "retention.ms": "8"}
    followed = plan_configs({}, changed, {"retention.ms": "8"})
    assert keep_differing(followed, with_both.create, with_both.restore, changed).restore == followed.restore
    own = plan_configs({}, effective, {"retention.ms": "7 | 1"}, ["retention.ms"])
    assert (
        keep_differing(own, with_both.create, with_both.restore, effective, ["retention.ms"]).restore
        == own.restore
    )


def test_of_source_brokers_that_differ_the_most_generous_counts() -> None:
    """The one that was asked may be the odd one, and have no partition of the topic."""
    told = {"retention.ms": "1", "retention.bytes": "5", "max.message.bytes": "5", "segment.ms": "1"}
    defaults = {
        "retention.ms": "1 | 7",
        "retention.bytes": "5 | -1",
        "max.message.bytes": "5",
        "segment.ms": "1 | 9",
    }
    assert widest(told, {}, defaults) == {**told, "retention.ms": "7", "retention.bytes": "-1"}
    # A value of the topic itself is every broker's.
    assert widest(told, {"retention.ms": "1", "retention.bytes": "5"}, defaults) == told
    assert widest(told, {}, {}) == told


def test_a_value_that_a_take_over_has_set_is_none_of_the_sources() -> None:
    effective = {"min.insync.replicas": "1"}
    plan = plan_configs({}, effective, {"min.insync.replicas": "1"})
    taken = {**OFF, "min.insync.replicas": "1"}
    kept = keep_differing(plan, taken, {**plan.restore, "min.insync.replicas": None}, effective)
    assert kept.create == OFF
    assert keep_differing(plan, taken, plan.restore, effective).create == taken


def test_on_the_way_back_nothing_is_set_that_is_so_by_default() -> None:
    """The target has these because its own defaults differ; the source may be too old to know one of them."""
    overrides = {"message.timestamp.after.max.ms": "9", "retention.ms": "7", "min.insync.replicas": "1"}
    defaults = {**overrides, "max.message.bytes": "5"}
    plan = plan_configs({**overrides, "max.message.bytes": "6"}, {}, defaults)
    fresh = {**OFF, "min.insync.replicas": "1"}
    noted = {**dict.fromkeys(OFF), "min.insync.replicas": None}
    back = without_defaults(plan, fresh, noted, defaults)
    assert back.create == {**OFF, "max.message.bytes": "6"}
    assert set(back.restore.values()) == {None}
    # Those that were set on the topic itself stay so, as do those that are no default.
    were_set = {**fresh, "message.timestamp.after.max.ms": "4"}
    again = without_defaults(
        plan, were_set, {**noted, "retention.ms": "3", "min.insync.replicas": "2"}, defaults
    )
    assert again.create == {**OFF, **overrides, "max.message.bytes": "6", "retention.ms": "-1"}
    assert again.restore["retention.ms"] == "7"
    others = without_defaults(plan, fresh, noted, {"retention.ms": "8"})
    assert (others.create, others.restore) == (plan.create, plan.restore)


def test_configs_of_its_own_come_back_as_a_take_over_found_them() -> None:
    found: dict[str, str | None] = {**dict.fromkeys(OFF), "retention.ms": "30", "min.insync.replicas": "2"}
    plan = plan_configs({"retention.ms": "7", "min.insync.replicas": "1"}, {}, {}, ["retention.ms"])
    assert plan.restore["retention.ms"] is None
    kept = keep_own(plan, found, ["retention.ms", "segment.ms"])
    assert kept.restore == {**plan.restore, "retention.ms": "30"}
    both = keep_own(plan, found, ["min.insync.replicas"])
    assert both.restore == {**plan.restore, "min.insync.replicas": "2"}


def test_of_several_defaults_the_strictest_counts() -> None:
    several = {
        "segment.bytes": "30 | 4",
        "max.message.bytes": "5 | 60",
        "min.insync.replicas": "1 | 2",
        "cleanup.policy": "delete | compact",
    }
    assert strictest(several) == {
        "segment.bytes": "4",
        "max.message.bytes": "5",
        "min.insync.replicas": "2",
        "cleanup.policy": "delete | compact",
    }
    # Followers of both may have a batch that fits the larger one only.
    create, _ = keep_segments(
        plan_configs({"segment.bytes": "2000000"}), OFF, {"segment.bytes": "3000000 | 4000000"}
    )
    assert create["segment.bytes"] == "4000000"


def test_a_mirror_whose_replicas_nobody_has_noted_has_no_factor() -> None:
    mirror = MirrorTopic(link="l", topic="t", topic_id=b"i" * 16, source_topic_id=None, partitions=1)
    assert (mirror.replication_factor, mirror.replicas_of(0)) == (None, ())
    noted = replace(mirror, target_replicas=((1, 2),))
    assert (noted.replication_factor, noted.replicas_of(0), noted.replicas_of(1)) == (2, (1, 2), ())
    told = compare_effective("t", {}, {"min.insync.replicas": "9"}, replication_factor=None)
    assert told == []
