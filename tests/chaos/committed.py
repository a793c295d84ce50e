"""What became of transactions: the applications' word against the owner's log and what a reader of committed records got.

A log is walked as a broker would serve it to a reader of committed records: a record of a transaction counts when a
commit marker of its producer follows. Judging is a pure function, each rule with what it may be excused by:
- `txn_lost`: a committed record is not committed in the owner's log. A failover may cost it: the source has it, beyond
  the take-over, or it was copied without its marker, and the report names its transaction as aborted.
- `txn_aborted_seen`: a record of an aborted transaction is committed, or was read.
- `txn_torn`: of a transaction with unknown outcome some records are committed and others are not. A failover may
  tear one, by the same two ways.
- `txn_twice`, `txn_order`: committed more than once; in another order than it was written in.
- `txn_open`: the owner's log ends with a transaction that nobody will ever end.
- `txn_reader`: the reader got something else than is committed at that offset, twice, not at all, or out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lab.workload.replica_log import ReplicaLog
from tests.chaos.failed_over import FailedOver
from tests.chaos.transactions import CommittedRead, End, Transaction, parse
from wire.frames.types import TopicPartition

CONTROL_COMMIT = 1

RULES = (
    "txn_lost",
    "txn_aborted_seen",
    "txn_torn",
    "txn_twice",
    "txn_order",
    "txn_open",
    "txn_reader",
)


class Written(NamedTuple):
    """A record of a transaction in a log."""

    offset: int
    producer_id: int
    producer: str
    sequence: int


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """The transactions of one final log."""

    end: int = 0
    committed: Sequence[Written] = ()
    aborted: Sequence[Written] = ()
    open: Sequence[Written] = ()


def read_transactions(log: ReplicaLog) -> TransactionLog:
    committed: list[Written] = []
    aborted: list[Written] = []
    open_: dict[int, list[Written]] = {}
    end = log.start
    for batch in log.batches():
        header = batch.header
        end = header.next_offset
        if header.is_control:
            for marker in batch.records():
                commit = marker.key is not None and int.from_bytes(marker.key[2:4], "big") == CONTROL_COMMIT
                (committed if commit else aborted).extend(open_.pop(header.producer_id, []))
        elif header.is_transactional:
            mine = open_.setdefault(header.producer_id, [])
            for record in batch.records():
                whose = parse(record.value)
                if whose is not None:
                    mine.append(Written(record.offset, header.producer_id, *whose))
    committed.sort()
    return TransactionLog(end, committed, aborted, [one for mine in open_.values() for one in mine])


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionHistory:
    transactions: Sequence[Transaction] = ()
    reads: Sequence[CommittedRead] = ()
    drained: bool = False


@dataclass(frozen=True, slots=True)
class TransactionVerdict:
    committed: int = 0  # transactions, as their applications know it
    aborted: int = 0
    unknown: int = 0
    read: int = 0  # records
    lost_by_failover: int = 0  # committed records
    torn_by_failover: int = 0  # transactions
    findings: Mapping[str, Sequence[str]] = field(default_factory=dict)


Logs = Mapping[TopicPartition, TransactionLog]
Places = Mapping[tuple[str, int], Sequence[tuple[TopicPartition, Written]]]


def judge_transactions(
    history: TransactionHistory,
    owner: Logs,
    source: Logs | None = None,
    taken: Mapping[TopicPartition, FailedOver] | None = None,
) -> TransactionVerdict:
    taken, source = taken or {}, source or {}
    committed = _index({tp: log.committed for tp, log in owner.items()})
    aborted = _index({tp: log.aborted for tp, log in owner.items()})
    at_source = _index({tp: log.committed for tp, log in source.items()})
    excuse = _Excuses(taken, aborted, at_source)
    found: dict[str, list[str]] = {rule: [] for rule in RULES}
    lost = torn = 0
    read = {(one.producer, one.sequence) for one in history.reads}
    for one in history.transactions:
        there = [(one.producer, sent.sequence) in committed for sent in one.records]
        if one.end is End.ABORTED:
            for sent, is_there in zip(one.records, there, strict=True):
                if is_there or (one.producer, sent.sequence) in read:
                    how = "committed in the log" if is_there else "read by a reader of committed records"
                    found["txn_aborted_seen"].append(
                        f"{sent.partition}: {one.producer} record {sent.sequence} of an aborted one is {how}"
                    )
            continue
        missing = [sent for sent, is_there in zip(one.records, there, strict=True) if not is_there]
        unexcused = [sent for sent in missing if not excuse.lost(one.producer, sent.sequence, sent.partition)]
        if one.end is End.COMMITTED:
            lost += len(missing) - len(unexcused)
            found["txn_lost"] += [
                f"{sent.partition}: {one.producer} record {sent.sequence}, committed"
                f" at offset {one.offsets.get(sent.sequence)}, is not"
                for sent in unexcused
            ]
        elif missing and any(there):
            if unexcused:
                found["txn_torn"].append(
                    f"{one.producer}: {len(missing)} of {len(there)} records from {one.records[0]} on are missing"
                )
            else:
                torn += 1
        if one.end is End.COMMITTED and missing and not unexcused and any(there):
            torn += 1
    found["txn_twice"] += _twice(committed)
    found["txn_order"] += _order(owner)
    found["txn_open"] += [
        f"{tp}: {log.open[0].producer} (producer {log.open[0].producer_id}) has one open from offset"
        f" {log.open[0].offset}"
        for tp, log in owner.items()
        if log.open
    ]
    found["txn_reader"] += _reader(history, owner, source, taken)
    ends = [one.end for one in history.transactions]
    return TransactionVerdict(
        committed=ends.count(End.COMMITTED),
        aborted=ends.count(End.ABORTED),
        unknown=ends.count(End.UNKNOWN),
        read=len(history.reads),
        lost_by_failover=lost,
        torn_by_failover=torn,
        findings={rule: lines for rule, lines in found.items() if lines},
    )


class _Excuses(NamedTuple):
    taken: Mapping[TopicPartition, FailedOver]
    aborted: Places  # in the owner's log
    at_source: Places  # committed there

    def lost(self, producer: str, sequence: int, tp: TopicPartition) -> bool:
        """Whether a failover has said that it takes this record."""
        if tp not in self.taken:
            return False
        for _, written in self.aborted.get((producer, sequence), ()):
            # It was copied, its marker was not.
            return self.taken[tp].has_aborted(written.producer_id, written.offset)
        at_source = [w.offset for place, w in self.at_source.get((producer, sequence), ()) if place == tp]
        # Transactions are never forwarded: what was committed at the source was written to it directly, and of the last
        # of that nobody at the target can know.
        return any(self.taken[tp].end <= where for where in at_source)


def _index(
    logs: Mapping[TopicPartition, Sequence[Written]],
) -> dict[tuple[str, int], list[tuple[TopicPartition, Written]]]:
    found: dict[tuple[str, int], list[tuple[TopicPartition, Written]]] = {}
    for tp, written in logs.items():
        for one in written:
            found.setdefault((one.producer, one.sequence), []).append((tp, one))
    return found


def _twice(committed: Places) -> Iterable[str]:
    for (producer, sequence), where in committed.items():
        if len(where) > 1:
            everywhere = ", ".join(f"{tp} offset {one.offset}" for tp, one in where)
            yield f"{producer} record {sequence} is committed {len(where)} times: {everywhere}"


def _order(owner: Logs) -> Iterable[str]:
    for tp, log in owner.items():
        newest: dict[str, int] = {}
        for one in log.committed:
            before = newest.get(one.producer, -1)
            if one.sequence < before:
                yield f"{tp} offset {one.offset}: {one.producer} record {one.sequence} comes after {before}"
            newest[one.producer] = max(before, one.sequence)


def _reader(
    history: TransactionHistory, owner: Logs, source: Logs, taken: Mapping[TopicPartition, FailedOver]
) -> Iterable[str]:
    at_owner = _by_offset(owner)
    at_source = _by_offset(source)
    got: set[tuple[TopicPartition, int]] = set()
    last: dict[TopicPartition, int] = {}
    beyond: dict[TopicPartition, int] = {}  # read of a dead source, and gone with it
    for read in history.reads:
        place, whose = (read.partition, read.offset), (read.producer, read.sequence)
        if read.partition in taken and at_owner.get(place) != whose:
            over = taken[read.partition]
            if over.end <= read.offset and at_source.get(place) == whose:
                beyond[read.partition] = max(beyond.get(read.partition, 0), read.offset + 1)
                last.pop(read.partition, None)  # set back to the end, or to the start
                continue
            if at_source.get(place) == whose and any(
                one.offset == read.offset and over.has_aborted(one.producer_id, one.offset)
                for one in owner[read.partition].aborted
            ):
                continue  # its marker was seen by the reader, and was not copied
        if at_owner.get(place) != whose:
            yield f"{read.partition} offset {read.offset}: it got {whose}, committed there is {at_owner.get(place)}"
        if read.offset <= last.get(read.partition, -1) and read.partition not in beyond:
            yield f"{read.partition} offset {read.offset}: it came after offset {last[read.partition]}"
        last[read.partition] = read.offset
        got.add(place)
    if history.drained:
        for (tp, offset), whose in at_owner.items():
            if (tp, offset) not in got and offset >= beyond.get(tp, 0):
                yield f"{tp} offset {offset}: it never got {whose}"


def _by_offset(logs: Logs) -> dict[tuple[TopicPartition, int], tuple[str, int]]:
    return {
        (tp, one.offset): (one.producer, one.sequence) for tp, log in logs.items() for one in log.committed
    }
