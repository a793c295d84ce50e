"""A state that is shown is true: what the store does not know yet counts as well."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from admin.models import MirrorState, PromotePhase, worst_state
from controller.phases import Phase
from controller.state import MirrorPartition, PromoteJob
from fetcher.follower_sessions import FollowerFetchSession
from fetcher.partition_copy import PartitionCopy
from fetcher.spec import MirrorSpec
from linker.links.job_status import _promote_phase
from linker.links.status import mirror_summary, partition_reason, partition_state, shown_state
from wire.frames.fetch import FetchPartition, FetchRequest
from wire.metadata.image import ClusterImage

TOPIC_ID = b"i" * 16
STATE = MirrorPartition(link="l", topic="t", partition=0, phase=Phase.ACTIVE, since=0, controller_epoch=1)


def copy_with_followers(now: float) -> PartitionCopy:
    spec = MirrorSpec(
        link="l",
        topic="t",
        partition=0,
        topic_id=TOPIC_ID,
        source_topic_id=None,
        session_epoch=3,
        start_offset=0,
        target_replicas=(1, 2),
    )
    nobody: Any = SimpleNamespace(failed=lambda tp, reason: None)
    copy = PartitionCopy(spec, nobody, nobody)
    for replica in (1, 2):
        copy.follower_fetched(replica, 10, 0, now)
    return copy


def runtime_of(copy: PartitionCopy) -> Any:
    return SimpleNamespace(
        source_available=True,
        target=SimpleNamespace(image=ClusterImage()),
        trouble=None,
        events=SimpleNamespace(unavailable={}),
        copies=SimpleNamespace(get=lambda tp: copy),
        targets=lambda tp: (1, 2),
        bring_up=SimpleNamespace(trouble={}),
        watch=SimpleNamespace(grown={}),
        configs=SimpleNamespace(trouble={}),
        starts=SimpleNamespace(of=lambda tp: []),
    )


def test_a_follower_that_does_not_take_what_it_is_sent_is_named() -> None:
    now = time.monotonic()
    copy = copy_with_followers(now)
    assert partition_reason(runtime_of(copy), STATE) is None
    for _ in range(5):
        copy.followers[2].told_to = 20
        copy.follower_fetched(2, 10, 0, now)
    assert "broker 2 has asked 6 times in a row for offset 10" in (
        partition_reason(runtime_of(copy), STATE) or ""
    )
    copy.follower_fetched(2, 20, 0, now)
    assert partition_reason(runtime_of(copy), STATE) is None


def test_a_follower_that_has_never_asked_is_named() -> None:
    now = time.monotonic()
    copy = copy_with_followers(now)
    del copy.followers[2]
    copy.loaded, copy._loaded_at = True, now - 10
    assert partition_reason(runtime_of(copy), STATE) is None
    copy._loaded_at = now - 40
    assert "broker 2 has not asked for it for 40 s" in (partition_reason(runtime_of(copy), STATE) or "")


def test_a_failure_is_shown_before_it_is_in_the_store() -> None:
    copy = copy_with_followers(time.monotonic())
    runtime = runtime_of(copy)
    assert partition_state(runtime, STATE) is MirrorState.ACTIVE
    assert partition_reason(runtime, STATE) is None
    copy.fail("retention outran it")
    assert partition_state(runtime, STATE) is MirrorState.FAILED
    assert partition_reason(runtime, STATE) == "retention outran it"


def seen(end: int, *fetched: int, behind_for: float) -> Any:
    now = time.monotonic()
    followers = {
        replica: SimpleNamespace(
            fetch_offset=offset, last_fetch_monotonic=now, caught_up_monotonic=now - behind_for, refused=0
        )
        for replica, offset in enumerate(fetched, 1)
    }
    return SimpleNamespace(
        loaded=True,
        end_known=True,
        high_watermark=end,
        log_start_offset=0,
        followers=followers,
        failed=None,
        trouble=None,
    )


def test_a_summary_adds_up_the_slowest_replica_of_each_partition() -> None:
    copies = {
        0: seen(30, 10, 25, behind_for=5),
        1: seen(7, 7, 7, behind_for=0),
        2: seen(9, 9, 8, behind_for=1),
    }
    states = [replace(STATE, partition=index) for index in copies]
    # One that has been promoted lags behind nothing any more.
    states.append(replace(STATE, partition=3, phase=Phase.PROMOTED))
    image = SimpleNamespace(topic_partitions=lambda link, topic: states, at=lambda link: "")
    runtime = runtime_of(copy_with_followers(time.monotonic()))
    runtime.copies = SimpleNamespace(get=lambda tp: copies.get(tp.partition))
    runtime.controller = SimpleNamespace(image=image)
    runtime.bring_up.cancelled = {}
    runtime.rates = SimpleNamespace(rate=lambda tps: None)
    mirror: Any = SimpleNamespace(
        link="l", topic="t", topic_id=bytes(16), source_name=None, partitions=4, sync=False
    )
    shown = mirror_summary(runtime, mirror)
    assert (shown.lag, shown.max_lag) == (21, 20)
    assert shown.lag_ms is not None
    assert 5000 <= shown.lag_ms < 7000
    copies[1].end_known = False
    unknown = mirror_summary(runtime, mirror)
    assert (unknown.lag, unknown.max_lag) == (None, 20), "a sum of what is known in part is no lag"


def test_a_broker_that_stopped_asking_for_the_partition_is_named() -> None:
    """Its session goes on: the partition has failed there, and is asked for no more."""
    now = time.monotonic()
    copy = copy_with_followers(now - 60)
    runtime = runtime_of(copy)
    copy.followers[1].last_fetch = now
    session = FollowerFetchSession(7, 2, True, now - 60)
    asked = FetchPartition(0, 3, 10, 3, 0, 1 << 20)
    request = FetchRequest(version=17, topics=[(TOPIC_ID, [asked])])
    (partition,) = session.update(request)
    partition.bind(copy)
    partition.progress = copy.followers[2]
    partition.progress.session = session
    session.last_used = now
    assert partition_reason(runtime, STATE) is None
    session.update(FetchRequest(version=17, forgotten=[(TOPIC_ID, [0])]))
    assert "broker 2 has not asked for it for 60 s" in str(partition_reason(runtime, STATE))


@pytest.mark.parametrize(
    ("phases", "shown"),
    [
        ("ACTIVE ACTIVE", "CATCHING_UP"),
        ("CATCHING_UP FENCED", "CATCHING_UP"),
        ("HANDED_OVER PROMOTED", "HANDED_OVER"),
        ("PROMOTED PROMOTED", "PROMOTED"),
        # The one that went back is still led by the sidecar while the job puts its last things in order.
        ("PROMOTED ACTIVE", "ABANDONED"),
        ("PROMOTED FAILED", "ABANDONED"),
        ("FAILED_OVER ACTIVE", "ABANDONED"),
        ("FAILED_OVER PROMOTED", "FAILED_OVER"),
    ],
)
def test_a_topic_is_promoted_when_all_of_it_is(phases: str, shown: str) -> None:
    states = [replace(STATE, partition=n, phase=Phase(name)) for n, name in enumerate(phases.split())]
    job = PromoteJob(id=1, link="l", partitions=tuple(state.tp for state in states))
    assert _promote_phase(job, states) is PromotePhase(shown)


def test_the_state_that_is_shown_of_each_phase() -> None:
    assert shown_state(Phase.ACTIVE, source_available=False) is MirrorState.SOURCE_UNAVAILABLE
    assert shown_state(Phase.FENCED, source_available=False) is MirrorState.PROMOTING
    assert {shown_state(phase) for phase in Phase} == set(MirrorState) - {MirrorState.SOURCE_UNAVAILABLE}
    assert worst_state([MirrorState.ACTIVE, MirrorState.FAILED, MirrorState.PROMOTED]) is MirrorState.FAILED
    assert worst_state([MirrorState.PROMOTED, MirrorState.PROMOTING]) is MirrorState.PROMOTING
