"""What can be said about a run without starting one: who has which role, which phase is waited for, how runs sum up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from lab.workload.replica_log import open_replica
from tests.chaos.checker import RULES
from tests.chaos.evidence import first_owned
from tests.chaos.faults import Strike
from tests.chaos.fleet import ApiRefused, ApiSilent, Fleet, Member, assign_roles
from tests.chaos.plan import Role, plan_run
from tests.chaos.promotes import PhaseBoard, PromoteLog, furthest
from tests.chaos.report import line, report, summary
from tests.chaos.result import RunResult
from tests.fakes.batches import build_batch
from wire.frames.types import TopicPartition

# --- roles


class Sidecar:
    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id


def roles(*statuses: tuple[int, bool, int], members: Sequence[int] = (900, 901, 902)) -> dict[Role, int]:
    told = [{"id": i, "controller": c, "leading_partitions": n} for i, c, n in statuses]
    found = assign_roles(told, [Sidecar(i) for i in members])
    return {role: member.broker_id for role, member in found.items()}


def test_roles_are_what_the_fleet_says() -> None:
    assert roles((900, False, 1), (901, True, 2), (902, False, 5)) == {
        Role.HEAD: 901,
        Role.LEADER: 902,
        Role.OTHER: 900,
    }


def test_one_sidecar_may_have_two_roles() -> None:
    assert roles((900, True, 9), (901, False, 0), (902, False, 0))[Role.LEADER] == 900
    assert roles((900, True, 9), members=[900]) == {Role.HEAD: 900, Role.LEADER: 900, Role.OTHER: 900}


def test_a_fleet_that_says_nothing_has_roles_too() -> None:
    assert set(roles()) == {Role.HEAD, Role.LEADER, Role.OTHER}


def test_sidecars_of_an_earlier_fleet_have_none() -> None:
    assert roles((900, False, 1), (897, True, 7)) == {Role.HEAD: 900, Role.LEADER: 900, Role.OTHER: 901}


# --- asking a fleet


def fleet_that_answers(*answers: int | type[httpx.HTTPError]) -> Fleet:
    """A fleet of one sidecar without a process; `answers` are HTTP statuses and errors, one for each request."""
    left = list(answers)

    def answer(_request: httpx.Request) -> httpx.Response:
        one = left.pop(0)
        if not isinstance(one, int):
            raise one("no answer")
        return httpx.Response(one, json={"message": f"status {one}"})

    fleet = Fleet.__new__(Fleet)
    member = cast(Member, Sidecar(900))
    fleet.members, fleet._last = [member], member
    fleet._http = {member: httpx.AsyncClient(base_url="http://here", transport=httpx.MockTransport(answer))}
    return fleet


async def test_a_change_of_unknown_outcome_that_is_refused_then_was_made() -> None:
    fleet = fleet_that_answers(httpx.ReadTimeout, 409)
    assert await fleet.call("POST", "/v1/links", once_is_enough=True) is None


@pytest.mark.parametrize("answers", [(409,), (httpx.ConnectError, 409), (503, 409), (httpx.ReadTimeout, 400)])
async def test_one_that_certainly_was_not_made_is_refused(answers: tuple[Any, ...]) -> None:
    with pytest.raises(ApiRefused):
        await fleet_that_answers(*answers).call("POST", "/v1/links", once_is_enough=True)


async def test_a_sidecar_that_cannot_answer_is_asked_again() -> None:
    fleet = fleet_that_answers(503, httpx.ConnectError, 200)
    assert await fleet.call("GET", "/v1/links") == {"message": "status 200"}
    with pytest.raises(ApiSilent, match="status 503"):
        await fleet_that_answers(503).call("GET", "/v1/links", timeout=0.0)


# --- phases


async def reached(board: PhaseBoard, promote: int, phase: str) -> str | None:
    try:
        async with asyncio.timeout(0.02):
            return await board.reached(promote, phase)
    except TimeoutError:
        return None


async def test_a_phase_is_reached_when_it_or_a_later_one_is_seen() -> None:
    board = PhaseBoard(2)
    assert await reached(board, 0, "FENCED") is None
    board.show(0, "CATCHING_UP")
    assert await reached(board, 0, "FENCED") is None
    board.show(0, "ALIGNED")
    assert await reached(board, 0, "FENCED") == "ALIGNED"
    assert await reached(board, 1, "FENCED") is None


async def test_who_waits_is_woken() -> None:
    board = PhaseBoard(1)
    waiting = asyncio.create_task(board.reached(0, "VALIDATED"))
    for phase in ("CATCHING_UP", None, "FENCED", "VALIDATED"):
        assert not waiting.done()
        board.show(0, phase)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert await waiting == "VALIDATED"


async def test_a_phase_that_was_skipped_is_over_when_the_promote_is() -> None:
    board = PhaseBoard(1)
    board.show(0, "PROMOTED")
    assert await reached(board, 0, "FENCED") == "PROMOTED"
    assert board.now() is None


@pytest.mark.parametrize(
    ("job", "topics", "expected"),
    [
        ("FENCED", ["FENCED", "ALIGNED"], "ALIGNED"),
        ("HANDED_OVER", ["HANDED_OVER", "PROMOTED"], "HANDED_OVER"),
        ("CATCHING_UP", ["CATCHING_UP", "ABANDONED"], "CATCHING_UP"),
        ("PROMOTED", ["PROMOTED"], None),
    ],
)
def test_the_furthest_phase_is_shown(job: str, topics: list[str], expected: str | None) -> None:
    assert furthest({"phase": job, "topics": [{"phase": phase} for phase in topics]}) == expected


# --- where the target's own log begins


@pytest.mark.parametrize(("epochs", "owned"), [([4, 4, 4], 6), ([4, 4, 5], 4), ([4, 5, 6], 2), ([], 0)])
def test_a_later_leader_epoch_is_the_owners(tmp_path: Path, epochs: list[int], owned: int) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    batches = [build_batch(2, base_offset=2 * n, leader_epoch=epoch) for n, epoch in enumerate(epochs)]
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    log = open_replica(tmp_path, TopicPartition("orders", 0))
    assert first_owned(log, log.end()) == owned


# --- the report


def result(seed: int, **more: Any) -> RunResult:
    return RunResult(seed, asdict(plan_run(seed)), kept_fleet=False, **more)


def test_figures_add_up() -> None:
    strikes = [
        Strike("f", "kill -9 a sidecar", "FENCED", "ALIGNED", "sidecar 900", 1.0, 2.0),
        Strike("f", "kill -9 a sidecar", None, None, "sidecar 900", 1.0, 2.0, trouble="it would not start"),
    ]
    promote = PromoteLog(["a"], tries=2, abandoned=["too slow"], seconds=3.0)
    found = summary(
        [
            result(1, acked=10, strikes=strikes, promotes=[promote], seconds=4.0),
            result(2, acked=5, broken={"lost": 2, "forks": 1}, unknown=3, client_errors=3, seconds=5.0),
            result(3, stuck="not promoted", promotes=[PromoteLog(["a"])], sidecar_exits=["it ended"]),
        ]
    )
    assert {rule: found[rule] for rule in RULES if found[rule]} == {"lost": 2, "forks": 1}
    assert (found["runs"], found["ok"], found["acked"], found["stuck"]) == (3, False, 15, 1)
    assert (found["promotes"], found["promotes_done"], found["promotes_abandoned"]) == (2, 1, 1)
    assert found["faults"] == {"kill -9 a sidecar": 2}
    assert found["faults_by_phase"] == {"ALIGNED": 1, "none under way": 1}
    assert (found["faults_with_trouble"], found["sidecar_exits"], found["unknown"]) == (1, 1, 3)


def test_only_runs_that_are_all_clean_are_ok() -> None:
    assert summary([result(1), result(2)])["ok"]
    assert not summary([result(1), result(2, broken={"forks": 1})])["ok"]
    assert not summary([result(1, stuck="x")])["ok"]
    assert not summary([])["ok"], "nothing was tried"
    assert summary([result(1, client_errors=3, unknown=3)])["ok"], "what clients were told is not judged"


def test_a_report_has_every_run_with_its_plan() -> None:
    found = report([result(7), result(8)], 7, 12.34)
    assert [run["seed"] for run in found["per_run"]] == [7, 8]
    assert found["per_run"][0]["plan"]["faults"]
    assert (found["seed"], found["wall_seconds"]) == (7, 12.3)


def test_a_line_says_what_is_wrong() -> None:
    assert "ok; 3 acked" in line(result(7, acked=3), 1, 2)
    assert "BROKEN {'lost': 1}" in line(result(7, broken={"lost": 1}), 1, 2)
