"""What a failover may lawfully cost, cut out of a history before the ordinary rules judge it. Pure.

A dead source takes with it what was not copied: everything from the offset on at which the target took over, and nothing
below. The failover has to say so: a record that was acknowledged and is gone counts as lawful only if the report names
its offset (or says that the source's end is not known; or the producer wrote to the source itself, of which nobody at
the target can know), and the source, when it is back, has that very record there.
What consumers had read of it is gone in the same way. Anything else stays in the history, and is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lab.workload.history import History, PartitionLog, Read
from wire.frames.types import TopicPartition

_ANOTHER_RUN = 1 << 20  # a consumer that was set back begins a new run: positions advance within one


class FailedOver(NamedTuple):
    """One partition as the failover's own report has it."""

    end: int
    missing: int | None  # None: where the source ended is not known
    aborted: tuple[tuple[int, int], ...] = ()  # (producer id, start offset)

    def names(self, offset: int) -> bool:
        """Whether the report says that this offset may be gone."""
        return self.end <= offset and (self.missing is None or offset < self.end + self.missing)

    def has_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether the report names the record's transaction. One that began behind the failover's end was the target's own,
        and not the failover's to abort."""
        return any(
            producer_id == mine and start <= offset and start < self.end for mine, start in self.aborted
        )


def read_failed_over(report: list[dict[str, Any]]) -> dict[TopicPartition, FailedOver]:
    """From `failover` of GET /v1/promotes/{id}."""
    return {
        TopicPartition(one["topic"], one["partition"]): FailedOver(
            one["end"],
            one["missing"],
            tuple((txn["producer_id"], txn["start_offset"]) for txn in one["aborted"]),
        )
        for one in report
        if one["end"] is not None
    }


Places = Mapping[tuple[TopicPartition, int], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Cut:
    """The history without what lawfully went with the source."""

    history: History
    lost: int  # acknowledged records
    read: int  # reads of such records
    #: Per partition how far consumers had read beyond the end: what was written there later, one of them may miss.
    read_to: Mapping[TopicPartition, int]


def places(logs: Mapping[TopicPartition, PartitionLog]) -> dict[tuple[TopicPartition, int], tuple[str, int]]:
    return {(tp, r.offset): (r.producer, r.sequence) for tp, log in logs.items() for r in log.records}


def cut(
    history: History,
    taken: Mapping[TopicPartition, FailedOver],
    owner: Mapping[TopicPartition, PartitionLog],
    source: Mapping[TopicPartition, PartitionLog],
    handed_over: Mapping[TopicPartition, float],
    direct: Mapping[str, float],
) -> Cut:
    """`direct`: until when a producer wrote to the source itself. Nobody at the target can know of the last of that."""
    if not taken:
        return Cut(history, 0, 0, {})
    at_owner, at_source = places(owner), places(source)
    kept_somewhere = set(at_owner.values())
    # A client that was told "I have that already" was told no offset: the source says which it was.
    where = {(tp, *whose): offset for (tp, offset), whose in at_source.items()}
    acks, lost = [], 0
    for ack in history.acks:
        over = taken.get(ack.partition)
        offset = where.get((ack.partition, ack.producer, ack.sequence))
        gone = (
            over is not None
            and offset is not None
            and ack.offset in (offset, None)
            and (ack.producer, ack.sequence) not in kept_somewhere
            and (over.names(offset) or (over.end <= offset and ack.time <= direct.get(ack.producer, -1.0)))
            and ack.time <= handed_over.get(ack.partition, float("inf"))
        )
        if gone:
            lost += 1
        else:
            acks.append(ack)
    reads, dropped, read_to = _reads(history, taken, at_owner, at_source, handed_over, direct)
    return Cut(replace(history, acks=acks, reads=reads), lost, dropped, read_to)


def _reads(
    history: History,
    taken: Mapping[TopicPartition, FailedOver],
    at_owner: Places,
    at_source: Places,
    handed_over: Mapping[TopicPartition, float],
    direct: Mapping[str, float],
) -> tuple[list[Read], int, dict[TopicPartition, int]]:
    kept: list[Read] = []
    read_to: dict[TopicPartition, int] = {}
    set_back: set[tuple[str, int, TopicPartition]] = set()
    dropped = 0
    for read in history.reads:
        key = (read.consumer, read.run, read.partition)
        place = (read.partition, read.offset)
        got = None if read.producer is None else (read.producer, read.sequence)
        early = read.time <= handed_over.get(read.partition, float("inf"))
        over = taken.get(read.partition)
        # What no link broker passed on the report cannot name: of an application's transactions (no producer here), or of
        # a producer that wrote to the source itself.
        at_source_alone = got is None or got[0] in direct
        if (
            over is not None
            and (over.names(read.offset) or (over.end <= read.offset and at_source_alone))
            and at_source.get(place) == got
            and (early or at_owner.get(place) != got)
        ):
            dropped += 1
            set_back.add(key)
            read_to[read.partition] = max(read_to.get(read.partition, 0), read.offset + 1)
        else:
            kept.append(read._replace(run=read.run + _ANOTHER_RUN) if key in set_back else read)
    return kept, dropped, read_to
