"""The meaning of an error for the next try, and the loop that tries again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from wire.backoff import Backoff
from wire.client.retry import RIGHTS, Meaning, NodeKind, meaning, passing, until_answered
from wire.errors import BrokerError, ClusterUnreachable, ConnectionLost, LinkerError, WireError
from wire.frames.error_codes import (
    CONCURRENT_TRANSACTIONS,
    GROUP_AUTHORIZATION_FAILED,
    NOT_CONTROLLER,
    NOT_COORDINATOR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_NOT_AVAILABLE,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)


@pytest.mark.parametrize(
    ("code", "leader", "coordinator", "controller"),
    [
        (0, Meaning.FINAL, Meaning.FINAL, Meaning.FINAL),
        (UNKNOWN_SERVER_ERROR, Meaning.FINAL, Meaning.FINAL, Meaning.FINAL),
        (UNKNOWN_TOPIC_OR_PARTITION, Meaning.MOVED, Meaning.FINAL, Meaning.FINAL),
        (NOT_LEADER_OR_FOLLOWER, Meaning.MOVED, Meaning.FINAL, Meaning.FINAL),
        (OFFSET_NOT_AVAILABLE, Meaning.BUSY, Meaning.FINAL, Meaning.FINAL),
        (NOT_COORDINATOR, Meaning.FINAL, Meaning.MOVED, Meaning.FINAL),
        (CONCURRENT_TRANSACTIONS, Meaning.FINAL, Meaning.BUSY, Meaning.FINAL),
        (NOT_CONTROLLER, Meaning.FINAL, Meaning.FINAL, Meaning.MOVED),
        (GROUP_AUTHORIZATION_FAILED, Meaning.RIGHT, Meaning.RIGHT, Meaning.RIGHT),
        (12_345, Meaning.FINAL, Meaning.FINAL, Meaning.FINAL),
    ],
)
def test_a_code_counts_for_its_kind_of_node(
    code: int, leader: Meaning, coordinator: Meaning, controller: Meaning
) -> None:
    assert [meaning(kind, code) for kind in NodeKind] == [leader, coordinator, controller]
    assert [passing(kind, code) for kind in NodeKind] == [
        one in (Meaning.MOVED, Meaning.BUSY) for one in (leader, coordinator, controller)
    ]


def test_a_missing_right_never_passes() -> None:
    assert not any(passing(kind, code) for kind in NodeKind for code in RIGHTS)


class Node:
    """Gives one answer after the other."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers: Iterator[int | Exception] = iter(answers)
        self.asked = 0
        self.forgotten = 0

    async def ask(self) -> int:
        self.asked += 1
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget(self) -> None:
        self.forgotten += 1

    async def settled(
        self, again: Callable[[LinkerError], bool] = lambda error: True, timeout: float = 5.0
    ) -> int:
        return await until_answered(
            NodeKind.COORDINATOR,
            self.ask,
            deadline=time.monotonic() + timeout,
            backoff=Backoff(0.001, 0.001),
            codes_of=lambda code: (code,),
            refused=BrokerError,
            forget=self.forget,
            again=again,
        )


async def test_it_asks_until_the_right_node_has_an_answer() -> None:
    lost = ConnectionLost("gone", sent=True)
    node = Node(NOT_COORDINATOR, CONCURRENT_TRANSACTIONS, lost, ClusterUnreachable("nobody"), 0)
    assert await node.settled() == 0
    assert (node.asked, node.forgotten) == (5, 3), "a busy node is the right one"


async def test_a_final_answer_is_the_callers_business() -> None:
    node = Node(UNKNOWN_TOPIC_OR_PARTITION)
    assert await node.settled() == UNKNOWN_TOPIC_OR_PARTITION
    assert (node.asked, node.forgotten) == (1, 0)


async def test_other_errors_are_not_tried_again() -> None:
    node = Node(WireError("bytes that are no answer"))
    with pytest.raises(WireError, match="no answer"):
        await node.settled()
    assert node.asked == 1


async def test_what_may_have_been_carried_out_is_repeated_only_if_the_caller_says_so() -> None:
    node = Node(ConnectionLost("not sent", sent=False), ConnectionLost("perhaps", sent=True), 0)
    with pytest.raises(ConnectionLost, match="perhaps"):
        await node.settled(again=lambda error: not (isinstance(error, ConnectionLost) and error.sent))
    assert (node.asked, node.forgotten) == (2, 2)


async def test_at_the_deadline_it_raises_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(ConnectionLost("gone", sent=False), NOT_COORDINATOR, 0)
    clock = SimpleNamespace(monotonic=lambda: node.asked * 0.001)  # each question takes as long
    monkeypatch.setattr("wire.client.retry.time", clock)
    monkeypatch.setattr(f"{__name__}.time", clock)
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        await node.settled(timeout=0.0025)
    assert node.asked == 2
