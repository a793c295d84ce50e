"""Plans: the same seed, the same plan; and over many seeds everything that was asked for does come up."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.chaos.plan import (
    DEATH_EVERY,
    LONG_EVERY,
    NET_KINDS,
    PHASES,
    SAME_STORE,
    SESSION,
    SOURCE_PATHS,
    Kind,
    Path,
    Role,
    Store,
    plan_run,
)
from tests.chaos.switch_plan import PROMOTES, SWITCH_PHASES, SWITCHES, plan_any, plan_switches

SEEDS = 2000
MANY = [plan_run(seed) for seed in range(SEEDS)]
SWITCHED = [plan_switches(seed) for seed in range(SEEDS)]


def test_a_seed_is_a_plan() -> None:
    assert [plan_run(seed) for seed in range(SEEDS)] == MANY
    assert len({str(plan) for plan in MANY}) == SEEDS


def test_every_fault_at_every_phase_comes_up() -> None:
    seen = Counter((fault.kind, fault.phase) for plan in MANY for fault in plan.faults)
    switched = Counter((fault.kind, fault.phase) for plan in SWITCHED for fault in plan.faults)
    kinds = {kind for kind, _ in seen}
    assert kinds < set(Kind)
    assert not [(kind, phase) for kind in kinds for phase in (*PHASES, None) if not seen[kind, phase]]
    missing = [(k, phase) for k in Kind for phase in (*SWITCH_PHASES, None) if not switched[k, phase]]
    assert not missing


def test_every_network_path_of_every_sidecar_comes_up() -> None:
    seen = {(fault.path, fault.role) for plan in MANY for fault in plan.faults if fault.kind in NET_KINDS}
    paths = set(Path) - SOURCE_PATHS
    assert seen >= {(path, role) for path in paths for role in (Role.HEAD, Role.LEADER, Role.OTHER)}
    switched = {(one.path, one.role) for plan in SWITCHED for one in plan.faults if one.kind in NET_KINDS}
    assert switched == {(path, role) for path in Path for role in (Role.HEAD, Role.LEADER, Role.OTHER)}


def test_hundred_runs_have_every_store_and_kept_fleets() -> None:
    plans = MANY[:100]
    stores = Counter(plan.store for plan in plans)
    assert all(stores[store] >= 4 for store in Store)
    kept = [a.store is b.store and b.keep for a, b in pairwise(plans)]
    assert 20 <= sum(kept) <= 80


def test_one_run_in_ten_sleeps_longer_than_lease_and_session() -> None:
    for plan in MANY:
        longest = max(
            (one.seconds for one in plan.faults if one.kind in (Kind.PAUSE_SIDECAR, Kind.NET_BLACKHOLE)),
            default=0.0,
        )
        if plan.seed % LONG_EVERY == 3:
            assert len(plan.faults) <= 3
            assert plan.lease + SESSION < longest <= 60.0
    ordinary = [f.seconds for p in MANY if p.seed % LONG_EVERY not in (3, 7) for f in p.faults]
    assert max(ordinary) <= 15.0
    assert sum(ordinary) / len(ordinary) < 5.0


def test_one_fleet_in_ten_has_a_leader_that_is_cut_off_for_longer_than_its_lease() -> None:
    for plan in MANY:
        if plan.seed % LONG_EVERY == 7 and plan.store is not Store.SQLITE:
            head, source = plan.faults[:2]
            assert (head.kind, head.role, head.path) == (Kind.NET_BLACKHOLE, Role.LEADER, Path.HEAD)
            assert (source.role, source.path) == (Role.LEADER, Path.SOURCE)
            assert plan.lease < min(head.seconds, source.seconds) < 20.0


def test_what_a_store_does_not_have_cannot_break() -> None:
    for plan in (*MANY, *SWITCHED):
        kinds = {fault.kind for fault in plan.faults}
        paths = {fault.path for fault in plan.faults}
        if plan.store is not Store.ZOOKEEPER:
            assert not kinds & {Kind.KILL_ZOOKEEPER, Kind.PAUSE_ZOOKEEPER}
            assert Path.STORE not in paths
        if plan.store is Store.SQLITE:
            assert Kind.DRAIN_SIDECAR not in kinds
            assert Path.HEAD not in paths


def test_plans_are_whole() -> None:
    for plan in MANY:
        assert sorted(index for one in plan.promotes for index in one.topics) == list(range(len(plan.topics)))
        assert 1 <= len(plan.promotes) <= 2
        assert all(0 <= fault.promote < len(plan.promotes) for fault in plan.faults)
        assert all(topic.producers for topic in plan.topics)
        for fault in plan.faults:
            assert (fault.path is not None) == (fault.kind in NET_KINDS)
            assert fault.seconds >= 0


def test_the_stores_to_choose_from_can_be_limited() -> None:
    for plan in (plan_run, plan_switches):
        assert {plan(seed, [Store.SQLITE]).store for seed in range(50)} == {Store.SQLITE}


def test_neighbours_share_a_store() -> None:
    for plan in MANY:
        assert plan.store is MANY[plan.seed // SAME_STORE * SAME_STORE].store


def test_in_one_run_in_four_the_source_dies_for_good() -> None:
    for plan in MANY:
        deaths = [promote.death for promote in plan.promotes]
        assert deaths[:-1] == [None] * (len(deaths) - 1), "nothing can be promoted after it"
        assert (deaths[-1] is not None) == (plan.seed % DEATH_EVERY == 1)
        if deaths[-1] is not None:
            kinds = {fault.kind for fault in plan.faults}
            assert not kinds & {Kind.KILL_SOURCE_BROKER, Kind.RESTART_SOURCE_BROKER}, "it would come back"
    stay = {death.transactions_stay for plan in MANY for p in plan.promotes if (death := p.death)}
    assert stay == {True, False}


def test_most_topics_have_an_application_with_transactions() -> None:
    topics = [topic for plan in MANY for topic in plan.topics]
    assert 0.6 < sum(bool(topic.transactional) for topic in topics) / len(topics) < 0.9


# --- switches


def test_about_every_second_seed_switches_unless_one_kind_is_asked_for() -> None:
    plans = [plan_any(seed, tuple(Store)) for seed in range(200)]
    assert 70 < sum(bool(plan.switches) for plan in plans) < 130
    assert all(bool(plan.switches) != bool(plan.promotes) for plan in plans)
    assert all(plan_any(seed, tuple(Store), SWITCHES).switches for seed in range(20))
    assert all(plan_any(seed, tuple(Store), PROMOTES).promotes for seed in range(20))


def test_topics_go_there_and_back_under_clients_of_both_clusters() -> None:
    assert [plan_switches(seed) for seed in range(SEEDS)] == SWITCHED
    for plan in SWITCHED:
        assert all(topic.producers and topic.source_producers for topic in plan.topics)
        times = Counter(index for step in plan.switches for index in step.topics)
        assert set(times) == set(range(len(plan.topics)))
        assert set(times.values()) <= {2, 3}
        assert all(0 <= fault.promote < len(plan.switches) for fault in plan.faults)
        # A producer of aiokafka waits for a minute.
        assert sum(fault.seconds for fault in plan.faults) < 50.0
