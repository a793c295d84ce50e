"""The result of one run, as it goes into the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.checker import RULES, Judgement
from tests.chaos.faults import Strike
from tests.chaos.promotes import PromoteLog
from tests.chaos.switches import SwitchLog

MOST_ERRORS = 10
MOST_EVIDENCE = 5


class Stuck(Exception):
    """Something that had to happen did not within its deadline."""


@dataclass(slots=True)
class RunResult:
    seed: int
    plan: dict[str, Any]
    kept_fleet: bool
    acked: int = 0
    unknown: int = 0
    read: int = 0
    link_broker_answers: int = 0
    lost_by_failover: int = 0
    read_beyond: int = 0
    committed: int = 0  # transactions
    aborted: int = 0
    unknown_ends: int = 0
    truncated_committed: int = 0  # of a switch: truncations below a real broker's high watermark
    committed_after: int = 0  # of those that are committed, after the topic's promote or failover
    txn_lost_by_failover: int = 0
    txn_torn_by_failover: int = 0
    broken: dict[str, int] = field(default_factory=dict)  # rule -> findings
    evidence: list[str] = field(default_factory=list)
    client_errors: int = 0
    first_client_errors: list[str] = field(default_factory=list)
    stuck: str | None = None
    sidecar_exits: list[str] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    promotes: list[PromoteLog] = field(default_factory=list)
    switches: list[SwitchLog] = field(default_factory=list)
    seconds: float = 0.0
    timeline: dict[str, float] = field(default_factory=dict)  # step -> seconds it took

    @property
    def ok(self) -> bool:
        return not self.broken and self.stuck is None

    def as_json(self) -> dict[str, Any]:
        found = {"ok": self.ok, **asdict(self)}
        for note in found["promotes"]:
            note["taken"] = {str(tp): over._asdict() for tp, over in note["taken"].items()}
        return found

    def note(self, judgement: Judgement, answers: int) -> None:
        """Take over what the checker found. `answers`: those of link brokers that were looked at."""
        self.acked, self.unknown, self.read = judgement.acked, judgement.unknown, judgement.read
        self.link_broker_answers = answers
        self.lost_by_failover, self.read_beyond = judgement.lost_by_failover, judgement.read_beyond
        txn = judgement.transactions
        self.committed, self.aborted, self.unknown_ends = txn.committed, txn.aborted, txn.unknown
        self.txn_lost_by_failover = txn.lost_by_failover
        self.txn_torn_by_failover = txn.torn_by_failover
        self.client_errors = len(judgement.client_errors)
        self.first_client_errors = list(judgement.client_errors)[:MOST_ERRORS]
        self.broken = {rule: judgement.count(rule) for rule in RULES if judgement.count(rule)}
        for rule, lines in judgement.findings.items():
            self.evidence += [f"{rule}: {line}" for line in lines[:MOST_EVIDENCE]]
