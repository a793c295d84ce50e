"""Which rows of the reports are good ones."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lab.workload.checker import Finding, Verdict
from lab.workload.history import Outcome, Unacked
from tests.clients import hand_over
from tests.clients.catalog import Library
from tests.clients.hand_over import Move, acceptable
from tests.clients.producers import clean
from wire.frames.types import TopicPartition

GOOD: dict[str, Any] = {"missed": 0, "misread": 0, "too_early": 0, "repeated": 0, "repeated_back_ms": 0.0}
STREAMS = GOOD | {"output_missed": 0, "output_repeated": 0}


def test_nothing_wrong() -> None:
    assert acceptable(GOOD, crash=False, exactly_once=False)
    assert acceptable(STREAMS, crash=True, exactly_once=True)


@pytest.mark.parametrize("what", ["missed", "misread", "too_early"])
@pytest.mark.parametrize("crash", [False, True])
def test_never(what: str, crash: bool) -> None:
    assert not acceptable(GOOD | {what: 1}, crash=crash, exactly_once=False)
    assert not acceptable(STREAMS | {what: 1}, crash=crash, exactly_once=True)


def test_repeated_only_after_a_crash_and_only_of_one_sync_interval() -> None:
    assert not acceptable(GOOD | {"repeated": 1, "repeated_back_ms": 10.0}, crash=False, exactly_once=False)
    assert acceptable(GOOD | {"repeated": 9, "repeated_back_ms": 1000.0}, crash=True, exactly_once=False)
    assert not acceptable(GOOD | {"repeated": 9, "repeated_back_ms": 1000.1}, crash=True, exactly_once=False)


def test_a_library_that_rereads_by_itself_does_so_on_the_target_only() -> None:
    at_target = GOOD | {"repeated": 3, "repeated_at_target": 3}
    assert acceptable(at_target, crash=False, exactly_once=False, rereads=True)
    assert not acceptable(at_target, crash=False, exactly_once=False)
    across = at_target | {"repeated": 4}
    assert not acceptable(across, crash=False, exactly_once=False, rereads=True)
    assert not acceptable(at_target | {"missed": 1}, crash=False, exactly_once=False, rereads=True)


def test_an_error_is_a_librarys_own_only_if_it_is_named() -> None:
    library = Library(name="it", kind="node", program="it", own_error="Out of bounds.")
    assert library.owns("produce failed 4 times. [Out of bounds.]")
    assert not library.owns("produce failed 4 times. [Request timed out]")
    assert not replace(library, own_error="").owns("Out of bounds.")


OWN = Library(name="it", kind="node", program="it", own_error="Out of bounds.")


@pytest.mark.parametrize(
    ("library", "text", "unknown", "is_clean"),
    [
        (OWN, "it record 7: failed [Out of bounds.]", 1, True),
        (replace(OWN, own_error=""), "it record 7: failed [Out of bounds.]", 1, False),
        (OWN, "it record 7: Request timed out", 1, False),
        (OWN, "it record 7: failed [Out of bounds.]", 2, False),  # one more that nobody was told of
    ],
)
def test_a_producer_is_not_blamed_for_what_it_gets_from_any_brokers(
    library: Library, text: str, unknown: int, is_clean: bool
) -> None:
    unacked = [Unacked("it", 7, TopicPartition("t", 0), Outcome.UNKNOWN, text, 1.0)]
    verdict = Verdict(acked=9, failed=0, unknown=unknown, read=0, reread=0, client_errors=[text])
    assert clean(library, verdict, unacked) is is_clean
    assert not clean(library, replace(verdict, lost=[Finding(TopicPartition("t", 0), 3, "gone")]), unacked)


def test_exactly_once_is_judged_by_the_output() -> None:
    assert acceptable(STREAMS | {"repeated": 5}, crash=False, exactly_once=True)
    assert not acceptable(STREAMS | {"output_repeated": 1}, crash=True, exactly_once=True)
    assert not acceptable(STREAMS | {"output_missed": 1}, crash=False, exactly_once=False)


async def test_members_are_at_the_source_again_only_after_the_demote(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that starts there earlier would read beside those on the target."""
    told: list[str] = []

    class Member:
        async def stop(self) -> None:
            told.append("stop")

        async def start(self, _bootstrap: str, cluster: str) -> None:
            told.append(f"start at {cluster}")

        async def move(self, _bootstrap: str, cluster: str) -> None:
            told.append(f"move to {cluster}")

    class Stage:
        def bootstrap(self, cluster: str) -> str:
            return cluster

        async def linker(self, *arguments: str) -> None:
            while told.count("stop") < 2:  # a demote waits for the members to leave
                await asyncio.sleep(0)
            told.append(" ".join(arguments[:3]))

    async def read_everywhere(since: float) -> None:
        told.append("read")

    async def promoted(_stage: Any, move: Move, name: str) -> None:
        told.append(name)
        move.opened = time.time()
        move.row |= {"drain_ms": 7}

    monkeypatch.setattr(hand_over, "_promote_group", promoted)
    monkeypatch.setattr(hand_over, "SETTLE_SECONDS", 0.0)
    group: Any = SimpleNamespace(
        name="g", members=[Member(), Member()], until_read_everywhere=read_everywhere
    )
    move = Move(group, {"drain_ms": 5}, opened=1.0)
    await hand_over._demote_group(Stage(), move)  # type: ignore[arg-type]
    assert told == [
        *("stop", "stop", "group demote g"),
        *("start at source", "start at source", "read"),
        *("move to target", "move to target", "promote again"),
    ]
    assert (move.opened, move.row["drain_ms"]) == (1.0, 5)  # the first opening's stay
    assert move.back is not None
    assert 1.0 < move.back.begin <= move.back.end


def test_the_time_in_each_state_of_a_promote() -> None:
    looks = [
        (10.2, "GATED"),
        (10.4, "GATED"),
        (13.0, "DRAINING"),
        (13.1, "DRAINING"),
        (13.2, "OPENING"),
        (13.3, "PROMOTED"),
    ]
    assert hand_over.time_in(looks, 10.0) == {"GATED": 3000, "DRAINING": 200, "OPENING": 100}
    assert hand_over.time_in([], 10.0) == {}
