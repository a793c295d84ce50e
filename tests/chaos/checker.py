"""What a run has to be judged by beyond a single log: who owned a partition when, and whether two ever did.

A pure function over the history, the final logs of both clusters and what link brokers were seen to answer. The
rules about one log (lost, misplaced, duplicated, reordered, phantom, and all about consumers) are the demo's
checker's, applied to the owner's log.

The source's log may lawfully go on past the hand-over: a sidecar that slept, or whose network held a request back,
may still have it written there as long as nobody acknowledges it. The client then tries again at the owner.

A link broker may lawfully acknowledge what the owner has: for a moment after the hand-over it carries produces to the
owner, and its answers are the owner's. So what it says is compared with the owner's log, and how late it says it is judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.workload.checker import Finding, Verdict, check
from lab.workload.history import History, PartitionLog
from lab.workload.log_compare import ReplicaComparison
from tests.chaos import committed, failed_over
from tests.chaos.committed import TransactionHistory, TransactionLog, TransactionVerdict, judge_transactions
from tests.chaos.failed_over import FailedOver
from wire.frames.types import TopicPartition

#: Report key -> rule of the demo's checker. What a consumer saw is one figure.
LOG_RULES = ("lost", "duplicated", "reordered", "misplaced", "phantom")
CONSUMER_RULES = ("misread", "skipped", "read_back", "unread")
RULES = (*LOG_RULES, "forks", "stale_owner", "consumer", *committed.RULES)


#: Seconds after a hand-over in which a link broker may still carry: its own limit, from when it hears of it; a sidecar that
#: sleeps hears later.
CARRIES = 15.0


class Answer(NamedTuple):
    """A produce that a link broker has answered without an error, as seen on the wire between it and the client."""

    broker: str
    partition: TopicPartition
    base_offset: int  # -1: the broker only said that it has these records already
    asked: float  # when the request was seen, before it reached the link broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """Everything but the history. Times are the history's clock."""

    owner: Mapping[TopicPartition, PartitionLog]  # of the target's leaders
    source: Mapping[TopicPartition, PartitionLog] = field(default_factory=dict)
    #: The first offset that is the target's own; None while nothing was written after the hand-over.
    owned_from: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: When the hand-over was seen to be done, so not before it was.
    handed_over: Mapping[TopicPartition, float] = field(default_factory=dict)
    #: Target replicas against the source (up to owned_from) and against their leader.
    replicas: Sequence[ReplicaComparison] = ()
    answers: Sequence[Answer] = ()
    drained: bool = False
    #: Partitions that were failed over, as the failover's own report has them.
    taken: Mapping[TopicPartition, FailedOver] = field(default_factory=dict)
    #: Producers that were moved: until when they wrote to the source itself.
    direct: Mapping[str, float] = field(default_factory=dict)
    owner_transactions: Mapping[TopicPartition, TransactionLog] = field(default_factory=dict)
    source_transactions: Mapping[TopicPartition, TransactionLog] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Findings by rule; empty lists are left out."""

    acked: int
    unknown: int
    read: int
    client_errors: Sequence[str]
    findings: Mapping[str, Sequence[str]]
    lost_by_failover: int = 0  # acknowledged records beyond a take-over, each of them named by its report
    read_beyond: int = 0  # reads of records that went with the source
    transactions: TransactionVerdict = field(default_factory=TransactionVerdict)

    @property
    def ok(self) -> bool:
        return not self.findings

    def count(self, rule: str) -> int:
        return len(self.findings.get(rule, ()))


def judge(history: History, after: Aftermath, transactions: TransactionHistory | None = None) -> Judgement:
    """Errors that clients saw are told, not judged: a fault may last longer than a client's patience. What a failover
    lawfully costs is cut out before, and is a figure of its own."""
    acked = len({(ack.producer, ack.sequence) for ack in history.acks})
    cut = failed_over.cut(history, after.taken, after.owner, after.source, after.handed_over, after.direct)
    history = cut.history
    verdict = check(history, after.owner, drained=after.drained)
    txn = judge_transactions(
        transactions or TransactionHistory(), after.owner_transactions, after.source_transactions, after.taken
    )
    found: dict[str, list[str]] = {rule: [str(one) for one in getattr(verdict, rule)] for rule in LOG_RULES}
    found["consumer"] = [
        f"{rule}: {one}"
        for rule in CONSUMER_RULES
        for one in getattr(verdict, rule)
        if not _was_beyond(rule, one, after, cut)
    ]
    found |= {rule: list(lines) for rule, lines in txn.findings.items()}
    found["forks"] = [str(one) for one in _forks(history, after)]
    found["stale_owner"] = [str(one) for one in _stale(history, verdict, after)]
    return Judgement(
        acked=acked,
        unknown=verdict.unknown,
        read=verdict.read,
        client_errors=verdict.client_errors,
        findings={rule: lines for rule, lines in found.items() if lines},
        lost_by_failover=cut.lost,
        read_beyond=cut.read,
        transactions=txn,
    )


def _was_beyond(rule: str, finding: Finding, after: Aftermath, cut: failed_over.Cut) -> bool:
    """A consumer whose position lay beyond the take-over may miss what the target wrote in between."""
    over = after.taken.get(finding.partition)
    if rule not in ("skipped", "unread") or over is None or finding.offset is None:
        return False
    return over.end <= finding.offset < cut.read_to.get(finding.partition, 0)


# --- forks


def _forks(history: History, after: Aftermath) -> Iterable[Finding]:
    for partition, owned in after.owned_from.items():
        if partition in after.source and partition in after.owner:
            yield from _unequal(partition, after.source[partition], after.owner[partition], owned)
    for compared in after.replicas:
        if not (compared.identical and compared.offsets_identical):
            what = f"broker {compared.broker}: {compared.difference}"
            yield Finding(compared.partition, None, what)
    yield from _two_at_one_place(history)


def _unequal(
    partition: TopicPartition, source: PartitionLog, owner: PartitionLog, owned: int
) -> Iterable[Finding]:
    """Below the hand-over there was one log, so both hold it; what lies below either's log start is gone."""
    first = max(source.start, owner.start)
    at_source = {r.offset: (r.producer, r.sequence) for r in source.records if first <= r.offset < owned}
    at_owner = {r.offset: (r.producer, r.sequence) for r in owner.records if first <= r.offset < owned}
    for offset in sorted(at_source.keys() | at_owner.keys()):
        ours, theirs = at_source.get(offset), at_owner.get(offset)
        if ours != theirs:
            yield Finding(partition, offset, f"the source holds {_named(ours)}, the owner {_named(theirs)}")
    if source.end < owned:
        yield Finding(partition, source.end, f"the source ends here, the owner has its log up to {owned}")


def _two_at_one_place(history: History) -> Iterable[Finding]:
    """One offset that was promised to two records: two owners, whoever has which of them now."""
    promised: dict[tuple[TopicPartition, int], tuple[str, int]] = {}
    for ack in history.acks:
        if ack.offset is None:
            continue
        record = (ack.producer, ack.sequence)
        before = promised.setdefault((ack.partition, ack.offset), record)
        if before != record:
            what = f"acknowledged to {_named(before)} and to {_named(record)}"
            yield Finding(ack.partition, ack.offset, what)


def _named(record: tuple[str, int] | None) -> str:
    return "nothing" if record is None else f"{record[0]} record {record[1]}"


# --- stale owners


def _stale(history: History, verdict: Verdict, after: Aftermath) -> Iterable[Finding]:
    yield from _acked_by_the_source_only(history, verdict, after)
    promised: dict[tuple[TopicPartition, int | None], set[tuple[str, int]]] = {}
    for ack in history.acks:
        promised.setdefault((ack.partition, ack.offset), set()).add((ack.producer, ack.sequence))
    at_owner, at_source = _by_offset(after.owner), _by_offset(after.source)
    for answer in after.answers:
        moment = after.handed_over.get(answer.partition)
        over = after.taken.get(answer.partition)
        if over is not None and over.names(answer.base_offset) and (moment is None or answer.asked <= moment):
            continue  # of the source before it died
        owned = after.owned_from.get(answer.partition)
        place = answer.partition, answer.base_offset
        if moment is not None and answer.asked > moment + CARRIES:
            late = answer.asked - moment
            what = f"{answer.broker} acknowledged a produce that came {late:.3f} s after the hand-over"
            yield Finding(answer.partition, answer.base_offset, what)
        elif owned is not None and answer.base_offset >= owned:
            told = promised.get(place)
            if place not in at_owner or (at_owner[place] not in told if told else place in at_source):
                what = f"{answer.broker} acknowledged this offset, the owner's (from {owned} on), for another record"
                yield Finding(answer.partition, answer.base_offset, what)


def _by_offset(
    logs: Mapping[TopicPartition, PartitionLog],
) -> dict[tuple[TopicPartition, int | None], tuple[str, int]]:
    return {
        (partition, record.offset): (record.producer, record.sequence)
        for partition, log in logs.items()
        for record in log.records
    }


def _acked_by_the_source_only(history: History, verdict: Verdict, after: Aftermath) -> Iterable[Finding]:
    """Acknowledged, not where it was said in the owner's log, but there in the source's."""
    wrong = {(one.partition, one.offset) for one in (*verdict.lost, *verdict.misplaced)}
    if not wrong:
        return
    at_source = _by_offset(after.source)
    for ack in history.acks:
        if ack.offset is None or (ack.partition, ack.offset) not in wrong:
            continue
        if at_source.get((ack.partition, ack.offset)) == (ack.producer, ack.sequence):
            what = f"{ack.producer} record {ack.sequence} was acknowledged for the source's log alone"
            yield Finding(ack.partition, ack.offset, what)
