"""The metrics page: every name of the catalogue, nothing for what is not known, and what is gone is gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from admin.metrics import CATALOGUE, Metrics
from admin.models import MirrorState
from admin.samples import (
    FleetSample,
    GroupsSample,
    LinkBrokerSample,
    LinkSample,
    PartitionSample,
    Snapshot,
    ValidationSample,
)
from wire.histogram import LATENCY_BUCKETS, LatencyHistogram


def full() -> Snapshot:
    latency = LatencyHistogram()
    latency.observe(0.003)
    latency.observe(100)
    return Snapshot(
        version="1",
        brokers=[
            LinkBrokerSample(
                heartbeat_age_seconds=0.5,
                client_connections=4,
                protocol_errors=2,
                refused_connections=3,
                unread_bytes=100,
                unread_cut=1,
                leading_partitions=6,
                unknown_answers=1,
                produce_latency=latency,
            )
        ],
        controller_epoch=3,
        window_limit_bytes=10,
        partial_cut=5,
        certificate_ends={"CLIENTS": 1795850845.0},
        is_controller=True,
        store_commits=latency,
        store_failures=2,
        fleet=FleetSample(
            lease_seconds=9.5,
            lease_lapses=1,
            sidecars=3,
            sidecars_alive=2,
            moves=4,
            fenced_dead=1,
            moving_partitions=2,
        ),
        promotes_running=1,
        promote_phase_seconds={("a", "FENCED"): 0.2},
        links=[
            LinkSample(
                link="a",
                source_available=True,
                forwarding_enabled=False,
                producer_id_distance=250_000,
                fetched_bytes=100,
                served_bytes=300,
                waited_for_limit=0.5,
                waited_for_writes=2.5,
                forwarded_produces=7,
                forwarded_bytes=70,
                forward_errors={"REQUEST_TIMED_OUT": 1},
                window_bytes=9,
                replication_latency=latency,
                clamped_latencies=1,
                validation=ValidationSample(
                    continuous=True,
                    runs=4,
                    failed_runs=1,
                    batches=50,
                    bytes=5000,
                    mismatches=1,
                    differing_partitions=1,
                ),
            )
        ],
        groups=[
            GroupsSample(
                link="a",
                states={"GATED": 2, "PROMOTED": 0},
                gated=2,
                sync_age_seconds=0.7,
                sync_seconds=0.1,
                sync_commits=5,
                sync_offsets=50,
                sync_errors=1,
                gates_lost=1,
            )
        ],
        partitions=[
            PartitionSample(
                link="a",
                topic='we"ird',
                partition=0,
                state=MirrorState.ACTIVE,
                source_end_offset=100,
                target_end_offset=95,
                lag=5,
                lag_seconds=1.5,
                record_age_seconds=2.5,
                copied_bytes=700,
                copied_offsets=95,
                validated={2: (90, 4.5)},
            )
        ],
    )


def test_the_page_holds_the_whole_catalogue() -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(Metrics(full).render().decode())
    }
    assert set(families) == set(CATALOGUE)
    for name, entry in CATALOGUE.items():
        assert families[name].type == entry.kind
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == set(entry.labels)
    samples = {sample.name: sample for family in families.values() for sample in family.samples}
    assert samples["linker_forwarded_produces_total"].value == 7
    assert samples["linker_partition_lag"].labels == {"link": "a", "topic": 'we"ird', "partition": "0"}
    assert samples["linker_partition_state"].labels["state"] == "ACTIVE"
    assert samples["linker_replica_validated_offset"].value == 90
    assert samples["linker_replica_validated_offset"].labels["replica"] == "2"
    buckets = families["linker_store_commit_seconds"].samples
    counts = {sample.labels["le"]: sample.value for sample in buckets if "le" in sample.labels}
    assert (counts["0.0025"], counts["0.005"], counts["30.0"], counts["+Inf"]) == (0, 1, 1, 2)
    assert samples["linker_store_commit_seconds_sum"].value == 100.003


def test_unknown_is_no_line_and_gone_is_gone() -> None:
    now = full()
    metrics = Metrics(lambda: now)
    assert b'topic="we\\"ird"' in metrics.render()
    now = Snapshot(
        version="1", partitions=[PartitionSample(link="a", topic="b", partition=0, state=MirrorState.FAILED)]
    )
    page = metrics.render()
    assert b"linker_partition_lag{" not in page
    assert b"linker_heartbeat_age_seconds" not in page
    assert b"ird" not in page
    assert b'state="FAILED",topic="b"} 1.0' in page


def test_registering_takes_no_snapshot() -> None:
    def not_up_yet() -> Snapshot:
        raise AssertionError("asked too early")

    Metrics(not_up_yet)


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_histogram(observed: list[float]) -> None:
    histogram = LatencyHistogram()
    for seconds in observed:
        histogram.observe(seconds)
    expected = [sum(seconds <= bound for seconds in observed) for bound in LATENCY_BUCKETS] + [len(observed)]
    assert [count for _, count in histogram.cumulative()] == expected
