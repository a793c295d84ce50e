"""The time of each phase of a promote, as status shows it."""

from __future__ import annotations

from admin.models import PromotePhase
from linker.links.job_status import phases_ms_of


def test_a_take_over_counts_as_fenced() -> None:
    timed = {"catch_up": 100.0, "prepare_source": 20.4, "fence": 30.0, "fence_source": 200.0, "finish": 5.0}
    assert phases_ms_of(timed, failover=False) == {
        PromotePhase.CATCHING_UP: 120,
        PromotePhase.FENCED: 230,
        PromotePhase.PROMOTED: 5,
    }


def test_a_failover_ends_as_one() -> None:
    assert phases_ms_of({"finish": 5.0}, failover=True) == {PromotePhase.FAILED_OVER: 5}
